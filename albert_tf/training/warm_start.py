"""A run that begins with the weights of another model: `--init_checkpoint`.

    RUN/warm_start.json     what was taken, and what was initialised anew

Of a model of the same widths, at step 0 of a new run:

- **Vocabulary.** Pieces are matched by their spelling. One that is new begins
  at the mean of the pieces kept, plus what a new run initialises it with, its
  output bias at the mean of theirs. Zero would be no guess: the scores of a
  trained model may all be far below it, so that new pieces would take all
  probability. At the mean they take about their share of the vocabulary.
- **Positions.** Those that are new repeat the old ones from the first on;
  those too many are cut off.
- **Depth.** Owner n of N (a group, or a layer where layers do not share) takes
  the weights of owner `n * M // N` of M, at the same relative depth. So twelve
  layers begin with those of six twice each, and a group that all share as it
  is. With `--init_from_group0` owner n takes those of owner n, or, where there
  is none, of owner 0.
- **Heads.** A sentence head that the model lacks, or has for another task, is
  initialised anew.

What is initialised anew is so by the run's seed: a warm start is a function of
the settings and the model, in every process.

Reference:
    New pieces: J. Hewitt, "Initializing New Word Embeddings for Pretrained
    Language Models", 2021, https://nlp.stanford.edu/~johnhew/vocab-expansion.html.
    Positions: [Beltagy et al., 2020](https://arxiv.org/abs/2004.05150),
    section 5. Depth: [Lan et al., 2020](https://arxiv.org/abs/1909.11942),
    footnote 5 and appendix A.1.
"""

import dataclasses
import itertools
import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import ModelConfig, PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.input.record_sets import Records, TrainingData
from albert_tf.interop import formats
from albert_tf.interop.model_weights import MOMENTS, ModelWeights
from albert_tf.interop.weight_names import MODEL_NAME, list_weights
from albert_tf.io.files import exists, open_existing, remove, write_text
from albert_tf.io.tfrecord import read_records
from albert_tf.records import features
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs import checkpoints
from albert_tf.runs import directory as run_directory

REPORT_FILE = "warm_start.json"

# Records whose pieces are counted, to tell what a new vocabulary keeps.
COUNTED_RECORDS = 1000

# What must be the same for weights to compute the same, besides their shapes.
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


class KeptPieces(NamedTuple):
    """Pieces that both vocabularies have.

    Attributes:
        here: int64, `(kept,)`, their ids in the run.
        there: int64, `(kept,)`, in the model.
    """

    here: np.ndarray
    there: np.ndarray


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """Another model, and what a run takes of it.

    Attributes:
        weights: The model.
        sources: Of each variable of the run that takes values of it, by path,
            the path there.
        kept_pieces: None where the pieces are the same.
        takes_moments: Whether the optimizer's moments are taken, too.
        report: What is taken and what is not, as JSON.
    """

    weights: ModelWeights
    sources: Mapping[str, str]
    kept_pieces: KeptPieces | None
    takes_moments: bool
    report: Mapping[str, Any]

    def apply(self, variables: Mapping[str, tf.Variable]) -> None:
        """Gives variables their values.

        Args:
            variables: Of the new run as it was initialised, by path, with
                `"<path>/m"` and `"<path>/v"`.
        """
        for path, source in self.sources.items():
            variable = variables[path]
            values = self.weights.values[source]
            if path in (_PIECES, _PIECE_BIAS) and self.kept_pieces:
                values = _place_pieces(
                    values, variable.numpy(), self.kept_pieces
                )
            elif path == _POSITIONS:
                values = np.resize(values, variable.shape.as_list())
            variable.assign(values)
            if self.takes_moments:
                for moment in MOMENTS:
                    variables[f"{path}/{moment}"].assign(
                        self._moment(
                            path, f"{source}/{moment}", variable.shape.as_list()
                        )
                    )
        for line in self.describe():
            logging.info("%s", line)

    def _moment(self, path: str, source: str, shape: list[int]) -> np.ndarray:
        """Moments by piece and position; new ones have none yet."""
        values = self.weights.slots[source]
        if path in (_PIECES, _PIECE_BIAS) and self.kept_pieces:
            placed = np.zeros(shape, np.float32)
            placed[self.kept_pieces.here] = values[self.kept_pieces.there]
            return placed
        if path == _POSITIONS:
            placed = np.zeros(shape, np.float32)
            placed[: len(values)] = values[: len(placed)]
            return placed
        return values

    def describe(self) -> list[str]:
        """The report in words, a line for each thing worth knowing."""
        report = self.report
        lines = [
            f"beginning with the weights of {report['init_checkpoint']}"
            + (f", step {report['step']}" if report["step"] else "")
        ]
        pieces = report["pieces"]
        if pieces["new"] or pieces["dropped"]:
            lines.append(
                f"vocabulary replaced: {pieces['kept']:,} pieces kept, "
                f"{pieces['new']:,} new, {pieces['dropped']:,} dropped; kept "
                f"are {pieces['kept_share_of_records']:.1%} of the pieces in "
                "the records"
            )
        positions = report["positions"]
        if positions["here"] != positions["there"]:
            lines.append(
                f"{positions['here']} positions of {positions['there']}: "
                + (
                    "the new ones repeat the old ones"
                    if positions["here"] > positions["there"]
                    else "the last ones cut off"
                )
            )
        layers = report["layers"]
        if layers["here"] != layers["there"] or layers["taken_from"]:
            # Once for all sublayers of a group.
            taken = ", ".join(
                dict.fromkeys(
                    f"{here.partition('_inner')[0]} as "
                    f"{there.partition('_inner')[0]}"
                    for here, there in layers["taken_from"].items()
                )
            )
            lines.append(
                f"{layers['here']} layers of {layers['there']}"
                + (f": {taken}" if taken else "")
            )
        for name, what in (
            ("initialized", "initialised anew, for the checkpoint has none"),
            ("unused", "not used"),
        ):
            if report[name]:
                owners = sorted({p.rpartition("/")[0] for p in report[name]})
                lines.append(f"{what}: {', '.join(owners)}")
        if self.takes_moments:
            lines.append("with the moments of its optimizer")
        return lines


def read(config: PretrainingConfig, data: TrainingData) -> WarmStart | None:
    """Reads what a new run is to begin with, and checks that it fits.

    Called when the strategy is made, and nothing is written yet.

    Args:
        config: The run.
        data: Its records, whose vocabulary is the run's.

    Returns:
        None for a run that begins with weights of its own, or goes on with
        them.

    Raises:
        UserError: If the model cannot be read, is of other widths, or of a
            vocabulary that is not known and of another size; if its moments
            are wanted and not there.
    """
    settings = config.initialization
    if not settings.init_checkpoint or checkpoints.list_checkpoints(
        posixpath.join(
            config.training.output_dir, run_directory.CHECKPOINTS_DIR
        )
    ):
        return None
    weights = formats.read_weights(settings.init_checkpoint)
    return plan(config, data.phases[0].records, weights)


def plan(
    config: PretrainingConfig, records: Records, weights: ModelWeights
) -> WarmStart:
    """What a run takes of a model, which is checked to fit it.

    Args:
        config: The run.
        records: Of its vocabulary.
        weights: The model.

    Raises:
        UserError: As `read`.
    """
    settings = config.initialization
    here, there = config.model, weights.config
    features.check_agreement(
        settings.init_checkpoint,
        dataclasses.asdict(there),
        {name: getattr(here, name) for name in SAME_SETTINGS},
        remedy="Choose another --albert_config_file or --init_checkpoint.",
    )
    if settings.init_optimizer_state and not weights.slots:
        raise UserError(
            "init_optimizer_state needs a checkpoint with moments",
            received=f"{settings.init_checkpoint}, which has none",
            remedy="Leave --init_optimizer_state out, to begin with zeros.",
        )
    kept_pieces = _match_pieces(config, weights, records)
    sources = _find_sources(config, weights)
    return WarmStart(
        weights,
        sources,
        kept_pieces,
        settings.init_optimizer_state,
        {
            "init_checkpoint": settings.init_checkpoint,
            "step": weights.step,
            "optimizer_state": settings.init_optimizer_state,
            "vocabularies_known": bool(
                _vocabulary_of(config, weights) and records.metadata
            ),
            "pieces": _report_pieces(config, weights, kept_pieces, records),
            "positions": {
                "here": here.max_position_embeddings,
                "there": there.max_position_embeddings,
            },
            "layers": {
                "here": here.num_hidden_layers,
                "there": there.num_hidden_layers,
                "taken_from": _other_owners(sources),
            },
            "initialized": [
                weight.path
                for weight in list_weights(
                    here, config.training.sentence_objective
                )
                if weight.path not in sources
            ],
            "unused": sorted(set(weights.values) - set(sources.values())),
        },
    )


def write_report(run_dir: str, warm_start: WarmStart | None) -> None:
    """Writes what a new run begins with, or that it begins with nothing."""
    path = posixpath.join(run_dir, REPORT_FILE)
    if warm_start is not None:
        write_text(path, json.dumps(warm_start.report, indent=2) + "\n")
    elif exists(path):
        remove(path)  # of an attempt that ended too early to be continued


# --- vocabulary -------------------------------------------------------------


def _match_pieces(
    config: PretrainingConfig, weights: ModelWeights, records: Records
) -> KeptPieces | None:
    """Pieces in both vocabularies, or None if these are the same.

    Raises:
        UserError: If one is not known and their sizes differ, or if a file is
            not of the vocabulary it is to be of.
    """
    source = config.initialization.init_checkpoint
    model_file = _vocabulary_of(config, weights)
    if weights.vocabulary and model_file != weights.vocabulary:
        # Who gives that of the records means well, and would have rows of
        # other pieces taken for theirs.
        own, given = Tokenizer(weights.vocabulary), Tokenizer(model_file)
        if _pieces_of(own) != _pieces_of(given):
            raise UserError(
                "init_vocabulary must have the pieces of the vocabulary of "
                "init_checkpoint",
                received=f"{model_file}, and {weights.vocabulary}",
                remedy="Leave --init_vocabulary out; that of the run is with "
                "its records.",
            )
    size_here, size_there = config.model.vocab_size, weights.config.vocab_size
    if not model_file or records.metadata is None:
        whose = "the records" if model_file else source
        if size_here != size_there:
            raise UserError(
                "the vocabularies of init_checkpoint and records must be "
                "known where their sizes differ",
                received=f"{size_there} pieces there and {size_here} here, and "
                f"no vocabulary with {whose}",
                remedy="Build the records with python -m "
                "data_prep.build_tfrecords."
                if model_file
                else "Give the model's with --init_vocabulary.",
            )
        logging.warning(
            "THE VOCABULARY OF %s IS NOT KNOWN: its %d pieces are taken for "
            "those of %s. If they are others, the weights mean nothing",
            whose,
            size_there,
            source if model_file else "the records",
        )
        return None
    there = Tokenizer(model_file)
    if there.vocab_size != size_there:
        raise UserError(
            f"{model_file} must be the vocabulary of {source}",
            received=f"{there.vocab_size} pieces, and {size_there} in the "
            "model",
            remedy="Give the model's with --init_vocabulary.",
        )
    if there.sha256 == records.metadata.vocabulary_sha256:
        return None
    path = posixpath.join(records.directory, features.TOKENIZER_FILE)
    here = Tokenizer(path)
    if here.sha256 != records.metadata.vocabulary_sha256:
        raise UserError(
            f"{path} must be the vocabulary of the records beside it",
            received=f"SHA-256 {here.sha256}, and "
            f"{records.metadata.vocabulary_sha256} in "
            f"{features.METADATA_FILE}",
            remedy="Build the records again.",
        )
    pieces_here, pieces_there = _pieces_of(here), _pieces_of(there)
    if pieces_here == pieces_there:
        return None
    ids_there = {piece: i for i, piece in enumerate(pieces_there)}
    pairs = [
        (i, ids_there[piece])
        for i, piece in enumerate(pieces_here)
        if piece in ids_there
    ]
    kept_here, kept_there = np.array(pairs).T
    return KeptPieces(kept_here, kept_there)


def _vocabulary_of(config: PretrainingConfig, weights: ModelWeights) -> str:
    """The SentencePiece model of a model, or ""."""
    return config.initialization.init_vocabulary or weights.vocabulary


def _pieces_of(vocabulary: Tokenizer) -> list[str]:
    return [vocabulary.id_to_piece(i) for i in range(vocabulary.vocab_size)]


def _place_pieces(
    values: np.ndarray, initial: np.ndarray, kept: KeptPieces
) -> np.ndarray:
    """Rows of the kept pieces, and what the new ones begin with.

    Args:
        values: float32, `(pieces there, ...)`.
        initial: float32, `(pieces here, ...)`, as initialised.
        kept: Pieces in both.

    Returns:
        float32, of the shape of `initial`.
    """
    mean = values[kept.there].mean(axis=0, dtype=np.float64)
    placed = (initial + mean).astype(np.float32)
    placed[kept.here] = values[kept.there]
    return placed


def _report_pieces(
    config: PretrainingConfig,
    weights: ModelWeights,
    kept: KeptPieces | None,
    records: Records,
) -> dict[str, Any]:
    size_here, size_there = config.model.vocab_size, weights.config.vocab_size
    num_kept, share = size_here, 1.0
    if kept is not None:
        counts = _count_pieces(records, size_here)
        num_kept = len(kept.here)
        share = float(counts[kept.here].sum() / max(counts.sum(), 1))
    return {
        "kept": num_kept,
        "new": size_here - num_kept,
        "dropped": size_there - num_kept,
        "kept_share_of_records": share,
    }


def _count_pieces(records: Records, vocab_size: int) -> np.ndarray:
    """How often each piece is in the first records, but for special ones.

    Returns:
        int64, `(vocab_size,)`.
    """
    counts = np.zeros(vocab_size, np.int64)
    with open_existing(records.files[0], "rb") as file:
        for record in itertools.islice(read_records(file), COUNTED_RECORDS):
            example = tf.train.Example.FromString(record.content)
            ids = example.features.feature["input_ids"].int64_list.value
            counts += np.bincount(np.array(ids, np.int64), minlength=vocab_size)
    counts[: len(features.SPECIAL_PIECES)] = 0
    return counts


# --- layers -----------------------------------------------------------------


def _find_sources(
    config: PretrainingConfig, weights: ModelWeights
) -> dict[str, str]:
    """Where each of the run's variables has its values, by path.

    Those are left out that the model has not.
    """
    objective = config.training.sentence_objective
    sources = {
        weight.path: _source_of(
            weight.path,
            config.model,
            weights.config,
            config.initialization.init_from_group0,
        )
        for weight in list_weights(config.model, objective)
    }
    same_task = objective == weights.sentence_objective
    return {
        path: source
        for path, source in sources.items()
        if source in weights.values
        and (same_task or not path.startswith(_SENTENCE_HEAD))
    }


def _source_of(
    path: str, here: ModelConfig, there: ModelConfig, from_group0: bool
) -> str:
    """The variable of the model that one of the run begins as."""
    match = _OWNER.search(path)
    if not match:
        return path
    _, number, rest, kind = match.groups()
    _, num_here = _owners_of(here, kind)
    owner, num_there = _owners_of(there, kind)
    taken = int(number)
    if not from_group0:
        taken = taken * num_there // num_here
    elif taken >= num_there:
        taken = 0
    return path.replace(match[0], f"/{owner}_{taken}{rest}/")


def _owners_of(config: ModelConfig, kind: str) -> tuple[str, int]:
    """What has sublayers of a kind of its own, and how many there are."""
    if config.parameter_sharing in ("all", kind):
        return "group", config.num_hidden_groups
    return "layer", config.num_hidden_layers


def _other_owners(sources: Mapping[str, str]) -> dict[str, str]:
    """Groups and layers that begin as one of another number or kind."""
    others = {}
    for path, source in sources.items():
        here, there = _OWNER.search(path), _OWNER.search(source)
        if here and there and here[0] != there[0]:
            others[here[0].strip("/")] = there[0].strip("/")
    return others
