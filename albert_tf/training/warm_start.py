"""Starting a run from the weights of another model: `--init_checkpoint`.

    RUN/warm_start.json     report: weights taken over and newly initialised

The widths of the model must equal those of the run. These may differ:

- **Vocabulary.** Pieces are matched by spelling. The embedding of a piece that
  the model lacks starts at the mean of the matched embeddings plus random
  initial values, and its output bias at the mean of the matched biases. With
  zeros, new pieces would take all the probability, since the scores of a
  trained model may all be far below zero. With the mean, their probability is
  about their fraction of the vocabulary.
- **Positions.** New positions repeat the old ones from the first on; surplus
  positions are dropped.
- **Depth.** A sublayer belongs to a group if layers share it, and to a layer
  otherwise; the group or layer is its owner. Owner n of the run's N owners
  takes the weights of owner `n * M // N` of the model's M owners, which has the
  same relative depth. So 12 layers use each of 6 layers twice, and a single
  group for all layers keeps its weights. With `--init_from_group0`, owner n
  takes the weights of owner n, or of owner 0 if the model has no owner n.
- **Heads.** A sentence head is newly initialised if the model has none, or one
  for another objective.

The seed of the run decides the new values. So a warm start is a function of
settings and model, and is equal in every process.

Reference:
    Vocabulary: J. Hewitt, "Initializing New Word Embeddings for Pretrained
    Language Models", 2021,
    https://nlp.stanford.edu/~johnhew/vocab-expansion.html. Positions:
    [Beltagy et al., 2020](https://arxiv.org/abs/2004.05150), section 5. Depth:
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), footnote 5 and
    appendix A.1.
"""

import dataclasses
import itertools
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.cluster.replicas import Replicas
from albert_tf.config import ModelConfig, PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.input.record_sets import RecordSet, TrainingData
from albert_tf.interop import formats
from albert_tf.interop.weight_names import (
    MODEL_NAME,
    MOMENTS,
    ModelWeights,
    list_weights,
)
from albert_tf.io.files import open_existing, remove, write_json
from albert_tf.io.tfrecord import read_records
from albert_tf.records import features
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs import directory as run_directory

REPORT_FILE = "warm_start.json"

# Settings of a model that must agree for its weights to fit.
SAME_SETTINGS = (
    "embedding_size",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "type_vocab_size",
)

_PIECES = f"{MODEL_NAME}/embeddings/word_embeddings"
_PIECE_BIAS = f"{MODEL_NAME}/masked_lm/output_bias"
_POSITIONS = f"{MODEL_NAME}/embeddings/position_embeddings"
_SENTENCE_HEAD = f"{MODEL_NAME}/sentence/"

_OWNER = re.compile(r"/(group|layer)_(\d+)(_inner_group_\d+_(attention|ffn))/")

# Number of records in which tokens are counted, for the report.
COUNTED_RECORDS = 1000


class KeptPieces(NamedTuple):
    """The ids that pieces of both vocabularies have there, int64, `(kept,)`."""

    run_ids: np.ndarray
    model_ids: np.ndarray


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """The weights of a model that a new run starts from.

    Attributes:
        weights: The model.
        sources: For each variable of the run that is not newly initialised,
            its path in the model, by its path in the run.
        kept_pieces: The pieces in both vocabularies; None if the vocabularies
            are equal.
        takes_moments: Whether the run also takes over the optimizer's moments.
        report: The content of `warm_start.json`.
    """

    weights: ModelWeights
    sources: Mapping[str, str]
    kept_pieces: KeptPieces | None
    takes_moments: bool
    report: Mapping[str, Any]

    def apply(self, variables: Mapping[str, tf.Variable]) -> None:
        """Assigns the values of the model to the variables of a new run.

        Args:
            variables: The initialised variables of the run by path, and their
                moments, all zero, by `"<path>/m"` and, if the optimizer has a
                second one, `"<path>/v"`.
        """
        assigned: dict[str, np.ndarray] = {}
        for path, source in self.sources.items():
            values = self.weights.values[source]
            shape = variables[path].shape.as_list()
            if path in (_PIECES, _PIECE_BIAS) and self.kept_pieces:
                of_kept = values[self.kept_pieces.model_ids]
                mean = of_kept.mean(axis=0, dtype=np.float64)
                new = (variables[path].numpy() + mean).astype(np.float32)
                values = self._place(path, values, new)
            elif path == _POSITIONS:
                values = np.resize(values, shape)
            assigned[path] = values
            for moment in MOMENTS if self.takes_moments else ():
                if f"{path}/{moment}" in variables:
                    assigned[f"{path}/{moment}"] = self._place(
                        path,
                        self.weights.slots[f"{source}/{moment}"],
                        np.zeros(shape, np.float32),
                    )
        Replicas({name: variables[name] for name in assigned}).assign(assigned)
        for line in self.describe():
            logging.info("%s", line)

    def _place(
        self, path: str, values: np.ndarray, new: np.ndarray
    ) -> np.ndarray:
        """Values of kept pieces or positions in their rows of `new`."""
        if path in (_PIECES, _PIECE_BIAS) and self.kept_pieces:
            run_ids, model_ids = self.kept_pieces
            new[run_ids] = values[model_ids]
        elif path == _POSITIONS:
            new[: len(values)] = values[: len(new)]
        else:
            return values
        return new

    def describe(self) -> list[str]:
        """Describes the report, one line for each fact."""
        report = self.report
        lines = [
            f"starting from the weights of {report['init_checkpoint']}"
            + (f", step {report['step']}" if report["step"] else "")
        ]
        pieces = report["pieces"]
        if pieces["new"] or pieces["dropped"]:
            lines.append(
                f"vocabulary replaced: {pieces['kept']:,} pieces kept, "
                f"{pieces['new']:,} new, {pieces['dropped']:,} dropped; "
                f"{pieces['kept_share_of_records']:.1%} of the tokens in the "
                "records are kept pieces"
            )
        positions = report["positions"]
        if positions["here"] != positions["there"]:
            lines.append(
                f"{positions['here']} positions from {positions['there']}: "
                + (
                    "new positions repeat the old ones"
                    if positions["here"] > positions["there"]
                    else "the last ones are dropped"
                )
            )
        layers = report["layers"]
        if layers["here"] != layers["there"] or layers["taken_from"]:
            # One entry per group or layer: its sublayers have equal sources.
            taken = ", ".join(
                dict.fromkeys(
                    f"{here.partition('_inner')[0]} from "
                    f"{there.partition('_inner')[0]}"
                    for here, there in layers["taken_from"].items()
                )
            )
            lines.append(
                f"{layers['here']} layers from {layers['there']}"
                + (f": {taken}" if taken else "")
            )
        for name, what in (
            ("initialized", "missing in the checkpoint and newly initialised"),
            ("replaced", "of another task, and newly initialised"),
            ("unused", "not used"),
        ):
            if report.get(name):
                owners = sorted({p.rpartition("/")[0] for p in report[name]})
                lines.append(f"{what}: {', '.join(owners)}")
        if self.takes_moments:
            lines.append("the moments of the optimizer are taken over, too")
        return lines


def read(config: PretrainingConfig, data: TrainingData) -> WarmStart | None:
    """Reads `init_checkpoint` and checks that it fits the run.

    Called after the strategy is made and before anything is written.

    Returns:
        None without `init_checkpoint`, or if the run has a checkpoint, from
        which it is resumed.

    Raises:
        UserError: If the model cannot be read or has other widths, if its
            vocabulary is unknown and has another size, or if its moments are
            requested but missing.
    """
    settings = config.initialization
    if not settings.init_checkpoint or run_directory.has_checkpoints(
        config.training.output_dir
    ):
        return None
    weights = formats.read_weights(settings.init_checkpoint)
    return plan(config, data.phases[0].records, weights)


def plan(
    config: PretrainingConfig, records: RecordSet, weights: ModelWeights
) -> WarmStart:
    """Plans which weights a run on `records` takes over; see `read`."""
    settings = config.initialization
    here, there = config.model, weights.config
    features.check_values_match(
        settings.init_checkpoint,
        dataclasses.asdict(there),
        {name: getattr(here, name) for name in SAME_SETTINGS},
        remedy="Choose another --albert_config_file or --init_checkpoint.",
    )
    moments, needed = len(weights.slots), 2 * len(weights.values)
    if config.optimizer.optimizer == "muon":  # takes what there is
        needed = 1
    if settings.init_optimizer_state and moments < needed:
        has = "Muon's, one for each kernel" if moments else "which has none"
        raise UserError(
            "init_optimizer_state needs a checkpoint with moments",
            received=f"{settings.init_checkpoint}, {has}",
            remedy="Omit --init_optimizer_state to start with zero moments.",
        )
    vocabulary = settings.init_vocabulary or weights.vocabulary
    kept_pieces = _match_pieces(config, weights, records, vocabulary)
    sources = _find_sources(config, weights)
    paths = [
        weight.path
        for weight in list_weights(here, config.training.sentence_objective)
    ]
    return WarmStart(
        weights,
        sources,
        kept_pieces,
        settings.init_optimizer_state,
        make_report(config, weights, sources, paths)
        | {"vocabularies_known": bool(vocabulary and records.metadata)}
        | _report_pieces(config, weights, kept_pieces, records),
    )


def make_report(
    config: PretrainingConfig,
    weights: ModelWeights,
    sources: Mapping[str, str],
    paths: Sequence[str],
) -> dict[str, Any]:
    """The report of a run that keeps the model's vocabulary.

    Args:
        sources: As in `WarmStart`.
        paths: The variables of the run.
    """
    here, there = config.model, weights.config
    others = {}  # groups and layers that start from another one, by name
    for path, source in sources.items():
        to, taken = _OWNER.search(path), _OWNER.search(source)
        if to and taken and to[0] != taken[0]:
            others[to[0].strip("/")] = taken[0].strip("/")
    return {
        "init_checkpoint": config.initialization.init_checkpoint,
        "step": weights.step,
        "optimizer_state": config.initialization.init_optimizer_state,
        "vocabularies_known": True,
        "pieces": {
            "kept": here.vocab_size,
            "new": 0,
            "dropped": 0,
            "kept_share_of_records": 1.0,
        },
        "positions": {
            "here": here.max_position_embeddings,
            "there": there.max_position_embeddings,
        },
        "layers": {
            "here": here.num_hidden_layers,
            "there": there.num_hidden_layers,
            "taken_from": others,
        },
        "initialized": [path for path in paths if path not in sources],
        "unused": sorted(set(weights.values) - set(sources.values())),
    }


def _pieces_of(vocabulary: Tokenizer) -> list[str]:
    return [vocabulary.id_to_piece(i) for i in range(vocabulary.vocab_size)]


def write_report(run_dir: str, warm_start: WarmStart | None) -> None:
    """Writes `warm_start.json`, or removes it if there is no warm start."""
    path = posixpath.join(run_dir, REPORT_FILE)
    if warm_start is not None:
        write_json(path, warm_start.report)
    else:
        remove(path)  # from an attempt that ended before its first checkpoint


def _find_sources(
    config: PretrainingConfig, weights: ModelWeights
) -> dict[str, str]:
    """Maps variables of the run to those of the model that they start from."""
    objective = config.training.sentence_objective
    same_task = objective == weights.sentence_objective
    sources = {}
    for path in (w.path for w in list_weights(config.model, objective)):
        source = path
        if match := _OWNER.search(path):
            _, number, rest, kind = match.groups()
            _, num_here = _owners_of(config.model, kind)
            owner, num_there = _owners_of(weights.config, kind)
            taken = int(number)
            if not config.initialization.init_from_group0:
                taken = taken * num_there // num_here
            elif taken >= num_there:
                taken = 0
            source = path.replace(match[0], f"/{owner}_{taken}{rest}/")
        if source in weights.values and (
            same_task or not path.startswith(_SENTENCE_HEAD)
        ):
            sources[path] = source
    return sources


def _owners_of(config: ModelConfig, kind: str) -> tuple[str, int]:
    """The kind of owner of a sublayer, "group" or "layer", and their number."""
    if config.parameter_sharing in ("all", kind):
        return "group", config.num_hidden_groups
    return "layer", config.num_hidden_layers


def _match_pieces(
    config: PretrainingConfig,
    weights: ModelWeights,
    records: RecordSet,
    model_file: str,
) -> KeptPieces | None:
    """Matches the pieces of run and model; returns None if they are equal.

    If one vocabulary is unknown (`model_file` "") and the sizes are equal, the
    vocabularies are assumed to be equal, and a warning is logged.
    """
    own = weights.vocabulary
    # A user may pass the vocabulary of the records by mistake.
    if own not in ("", model_file) and _pieces_of(Tokenizer(own)) != _pieces_of(
        Tokenizer(model_file)
    ):
        raise UserError(
            "init_vocabulary must have the pieces of the vocabulary of "
            "init_checkpoint",
            received=f"{model_file}, and {own}",
            remedy="Omit --init_vocabulary; the vocabulary of the run comes "
            "with its records.",
        )
    if not model_file or records.metadata is None:
        _check_unknown_vocabulary(config, weights, model_file)
        return None
    of_model = Tokenizer(model_file)
    if of_model.vocab_size != weights.config.vocab_size:
        raise UserError(
            f"{model_file} must be the vocabulary of "
            f"{config.initialization.init_checkpoint}",
            received=f"{of_model.vocab_size} pieces, and "
            f"{weights.config.vocab_size} in the model",
            remedy="Pass the vocabulary of the model as --init_vocabulary.",
        )
    if of_model.sha256 == records.metadata.vocabulary_sha256:
        return None
    path = posixpath.join(records.directory, features.TOKENIZER_FILE)
    of_run = Tokenizer(path)
    if of_run.sha256 != records.metadata.vocabulary_sha256:
        raise UserError(
            f"{path} must be the vocabulary of the records next to it",
            received=f"SHA-256 {of_run.sha256}, and "
            f"{records.metadata.vocabulary_sha256} in {features.METADATA_FILE}",
            remedy="Build the records again.",
        )
    run_pieces, model_pieces = _pieces_of(of_run), _pieces_of(of_model)
    if run_pieces == model_pieces:
        return None
    model_ids = {piece: i for i, piece in enumerate(model_pieces)}
    pairs = [
        (i, model_ids[piece])
        for i, piece in enumerate(run_pieces)
        if piece in model_ids
    ]
    return KeptPieces(*np.array(pairs).T)


def _check_unknown_vocabulary(
    config: PretrainingConfig, weights: ModelWeights, model_file: str
) -> None:
    source = config.initialization.init_checkpoint
    run_size, model_size = config.model.vocab_size, weights.config.vocab_size
    unknown = "the records" if model_file else source
    remedy = "Pass the vocabulary of the model as --init_vocabulary."
    if model_file:
        remedy = "Build the records with python -m data_prep.build_tfrecords."
    if run_size != model_size:
        raise UserError(
            "the vocabularies of init_checkpoint and of the records must be "
            "known if their sizes differ",
            received=f"{model_size} pieces in the model and {run_size} in the "
            f"run, and no vocabulary with {unknown}",
            remedy=remedy,
        )
    logging.warning(
        "THE VOCABULARY OF %s IS NOT KNOWN: its %d pieces are assumed to be "
        "those of %s. If they differ, the embeddings belong to wrong pieces. "
        "%s",
        unknown,
        model_size,
        source if model_file else "the records",
        remedy,
    )


def _report_pieces(
    config: PretrainingConfig,
    weights: ModelWeights,
    kept: KeptPieces | None,
    records: RecordSet,
) -> dict[str, Any]:
    """Counts kept, new and dropped pieces, and tokens in the first records."""
    if kept is None:
        return {}
    run_size, num_kept = config.model.vocab_size, len(kept.run_ids)
    counts = np.zeros(run_size, np.int64)
    with open_existing(records.files[0], "rb") as file:
        for record in itertools.islice(read_records(file), COUNTED_RECORDS):
            example = tf.train.Example.FromString(record.content)
            ids = example.features.feature["input_ids"].int64_list.value
            counts += np.bincount(np.array(ids, np.int64), minlength=run_size)
    counts[: len(features.SPECIAL_PIECES)] = 0
    of_kept = counts[kept.run_ids].sum() / max(counts.sum(), 1)
    return {
        "pieces": {
            "kept": num_kept,
            "new": run_size - num_kept,
            "dropped": weights.config.vocab_size - num_kept,
            "kept_share_of_records": float(of_kept),
        }
    }
