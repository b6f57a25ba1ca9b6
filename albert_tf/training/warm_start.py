"""Starting a run from the weights of another model: `--init_checkpoint`.

    RUN/warm_start.json     report: weights taken over and newly initialised

The widths of the model must equal those of the run. These may differ:

- **Vocabulary.** Pieces that both vocabularies have keep their rows. Other rows
  start at the mean of these plus random values: near zero, they would take all
  the probability, since all scores of a trained model may be far below zero.
- **Positions.** New positions repeat the old ones from the first on; surplus
  positions are dropped.
- **Depth.** A sublayer belongs to a group if layers share it, and to a layer
  otherwise; the group or layer is its owner. Owner n of the run's N owners
  takes the weights of owner `n * M // N` of the model's M owners, which has the
  same relative depth. So 12 layers use each of 6 layers twice, and a single
  group for all layers keeps its weights.
- **Heads.** A sentence head is newly initialised if the model has none, or one
  for another objective.

The seed of the run decides the new values. So a warm start is a function of
settings and model, and is equal in every process.

Reference:
    Positions: [Beltagy et al., 2020](https://arxiv.org/abs/2004.05150),
    section 5. Depth: [Lan et al., 2020](https://arxiv.org/abs/1909.11942),
    footnote 5 and appendix A.1.
"""

import dataclasses
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import ModelConfig, PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.input.record_sets import RecordSet
from albert_tf.interop.weight_names import (
    MODEL_NAME,
    MOMENTS,
    ModelWeights,
    list_weights,
)
from albert_tf.records import features
from albert_tf.records.tokenization import Tokenizer

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


@dataclasses.dataclass(frozen=True)
class WarmStart:
    """The weights of a model that a new run starts from."""

    weights: ModelWeights
    # For each variable of the run that is not newly initialised, its path in
    # the model, by its path in the run.
    sources: Mapping[str, str]
    # The ids in the run and in the model of the pieces that both have, two
    # int64 arrays; None if the vocabularies are equal.
    kept_pieces: tuple[np.ndarray, np.ndarray] | None
    takes_moments: bool  # of the optimizer
    report: Mapping[str, Any]  # the content of `warm_start.json`

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
                of_kept = values[self.kept_pieces[1]]
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
        for name, value in assigned.items():
            variables[name].assign(value)
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
                f"{pieces['new']:,} new, {pieces['dropped']:,} dropped"
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


def plan(
    config: PretrainingConfig, records: RecordSet, weights: ModelWeights
) -> WarmStart:
    """Plans which weights a run on `records` takes over from another model.

    Raises:
        UserError: If the model has other widths, if its vocabulary is unknown
            and has another size, or if its moments are requested but missing.
    """
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
    kept_pieces = _match_pieces(config, weights, records)
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
        make_report(config, weights, sources, paths, kept_pieces),
    )


def make_report(
    config: PretrainingConfig,
    weights: ModelWeights,
    sources: Mapping[str, str],
    paths: Sequence[str],
    kept_pieces: tuple[np.ndarray, np.ndarray] | None = None,
) -> dict[str, Any]:
    """The content of `warm_start.json`; `paths` are the run's variables."""
    here, there = config.model, weights.config
    kept = len(kept_pieces[0]) if kept_pieces else here.vocab_size
    others = {}  # groups and layers that start from another one, by name
    for path, source in sources.items():
        to, taken = _OWNER.search(path), _OWNER.search(source)
        if to and taken and to[0] != taken[0]:
            others[to[0].strip("/")] = taken[0].strip("/")
    return {
        "init_checkpoint": config.initialization.init_checkpoint,
        "step": weights.step,
        "optimizer_state": config.initialization.init_optimizer_state,
        "pieces": {
            "kept": kept,
            "new": here.vocab_size - kept,
            "dropped": there.vocab_size - kept,
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
            taken = int(number) * num_there // num_here
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
    config: PretrainingConfig, weights: ModelWeights, records: RecordSet
) -> tuple[np.ndarray, np.ndarray] | None:
    """`WarmStart.kept_pieces`, by the spelling of the pieces.

    If a vocabulary is unknown and the sizes are equal, a warning is logged, and
    the vocabularies are assumed to be equal.
    """
    settings = config.initialization
    model_file = settings.init_vocabulary or weights.vocabulary
    sizes = (
        f"{weights.config.vocab_size} pieces in the model, "
        f"{config.model.vocab_size} in the run"
    )
    if not model_file or records.metadata is None:
        unknown = "init_checkpoint"
        remedy = "Pass its vocabulary as --init_vocabulary."
        if model_file:
            unknown = "the records"
            remedy = "Build them with python -m data_prep.build_tfrecords."
        if config.model.vocab_size != weights.config.vocab_size:
            raise UserError(
                f"the vocabulary of {unknown} must be known",
                received=sizes,
                remedy=remedy,
            )
        logging.warning(
            "THE VOCABULARY OF %s IS NOT KNOWN: if it differs, the embeddings "
            "belong to wrong pieces. %s",
            unknown,
            remedy,
        )
        return None
    run_file = posixpath.join(records.directory, features.TOKENIZER_FILE)
    of_run, of_model = (
        [tokenizer.id_to_piece(i) for i in range(tokenizer.vocab_size)]
        for tokenizer in (Tokenizer(run_file), Tokenizer(model_file))
    )
    if len(of_model) != weights.config.vocab_size:
        raise UserError(
            f"{model_file} must be the vocabulary of init_checkpoint",
            received=f"{len(of_model)} pieces; {sizes}",
            remedy="Pass the vocabulary of the model as --init_vocabulary.",
        )
    if of_run == of_model:
        return None
    ids = {piece: i for i, piece in enumerate(of_model)}
    kept = [(i, ids[piece]) for i, piece in enumerate(of_run) if piece in ids]
    run_ids, model_ids = np.array(kept).T
    return run_ids, model_ids
