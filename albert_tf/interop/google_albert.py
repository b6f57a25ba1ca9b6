"""Reads checkpoints of google-research/albert, which are TensorFlow 1 files.

    MODEL/albert_config.json                      the architecture
    MODEL/30k-clean.model                         the vocabulary
    MODEL/model.ckpt-STEP.index, ....data-*       variables, by TF1 name
    MODEL/checkpoint                              the name of the newest one

A checkpoint holds the variables of the model with both heads, `global_step`,
and, if it was saved during training, the moments of its optimizer,
`NAME/adam_m` and `NAME/adam_v`, for both LAMB and AdamW. TF-Hub modules prefix
every name with `module/` and keep their files in `variables/` and `assets/`.

Reference:
    https://github.com/google-research/albert: modeling.py, optimization.py,
    lamb_optimizer.py, export_checkpoints.py, export_to_tfhub.py.
"""

import posixpath
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.errors import UserError, first_line, name_faults
from albert_tf.interop.model_weights import (
    ModelWeights,
    warn_of_zero_sentence_head,
)
from albert_tf.interop.weight_names import (
    Weight,
    check_layer_groups,
    list_weights,
)
from albert_tf.io.files import exists
from albert_tf.runs.checkpoint_files import READING_ERRORS
from albert_tf.runs.checkpoint_index import check_index

CONFIG_FILE = "albert_config.json"
INDEX_SUFFIX = ".index"
_VOCABULARY_FILE = "30k-clean.model"
_STEP_NAME = "global_step"
_HUB_PREFIX = "module/"
_SENTENCE_HEAD = "cls/seq_relationship/"
_POOLER = "bert/pooler/"
_SLOTS = {"adam_m": "m", "adam_v": "v"}  # name in the checkpoint: our name


class _StoredVariable(NamedTuple):
    name: str  # in the file, with any prefix
    shape: tuple[int, ...]
    dtype: tf.DType


class _Contents(NamedTuple):
    """The parts of a model that a checkpoint holds.

    Attributes:
        sentence_objective: "sop", or "none" without pooler and head.
        weights: The model's variables.
        has_sentence_head: Whether the sentence head was saved. A missing one
            is filled with zeros.
        has_moments: Whether the optimizer's moments were saved.
    """

    sentence_objective: str
    weights: list[Weight]
    has_sentence_head: bool
    has_moments: bool

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the variables that must be in the file, by name."""
        shapes: dict[str, tuple[int, ...]] = {}
        for weight in self.weights:
            if self.is_missing(weight):
                continue
            names = [weight.google_albert]
            if self.has_moments:
                names += [f"{weight.google_albert}/{slot}" for slot in _SLOTS]
            shapes |= dict.fromkeys(names, weight.shape)
        return shapes

    def is_missing(self, weight: Weight) -> bool:
        """Whether a weight belongs to a sentence head that was not saved."""
        return (
            weight.google_albert.startswith(_SENTENCE_HEAD)
            and not self.has_sentence_head
        )


def read(path: str, step: int = 0) -> ModelWeights:
    """Reads a checkpoint with its architecture and vocabulary.

    If the checkpoint has a pooler but no sentence head, as in the first
    TF-Hub modules, the head is filled with zeros and a warning is logged.
    Without both, the sentence objective is "none".

    Args:
        path: A prefix, `.../model.ckpt-best`, or a directory with one
            checkpoint or with a file `checkpoint` that names the newest.
        step: In a directory, the checkpoint `model.ckpt-STEP`; 0 is the
            newest.

    Raises:
        UserError: If a file is missing or damaged, or if the variables do not
            match the architecture.
    """
    prefix = _find_prefix(path, step)
    config_file = _find_config(prefix)
    config = ModelConfig.from_json_file(config_file)
    _check_groups(config, config_file)
    try:
        check_index(prefix)
        reader = tf.train.load_checkpoint(prefix)
        stored = _list_stored(prefix, reader)
        stored_step = stored.pop(_STEP_NAME, None)
        contents = _describe(config, stored)
        _check_variables(prefix, contents.shapes(), stored)
        values, slots = _load(reader, contents, stored)
        stored_value = reader.get_tensor(stored_step.name) if stored_step else 0
    except READING_ERRORS as error:
        raise UserError(
            f"{prefix} must be an intact checkpoint",
            received=first_line(error),
            remedy="Copy it again from its source.",
        ) from None
    if not contents.has_sentence_head and contents.sentence_objective != "none":
        warn_of_zero_sentence_head(prefix)
    return ModelWeights(
        config,
        contents.sentence_objective,
        values,
        slots,
        _check_step(prefix, np.asarray(stored_value)),
        _find_vocabulary(prefix),
        prefix,
    )


def _describe(
    config: ModelConfig, stored: Mapping[str, _StoredVariable]
) -> _Contents:
    """Infers the heads and moments from the names in a checkpoint."""
    has_pooler = any(name.startswith(_POOLER) for name in stored)
    has_head = any(name.startswith(_SENTENCE_HEAD) for name in stored)
    objective = "sop" if has_pooler or has_head else "none"
    weights = list_weights(config, objective)
    has_moments = any(
        f"{weight.google_albert}/{slot}" in stored
        for weight in weights
        for slot in _SLOTS
    )
    return _Contents(objective, weights, has_head, has_moments)


def _load(
    reader: Any, contents: _Contents, stored: Mapping[str, _StoredVariable]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The values and slots of `ModelWeights`."""

    def load(weight: Weight, suffix: str = "") -> np.ndarray:
        if contents.is_missing(weight):
            return np.zeros(weight.shape, np.float32)
        name = f"{weight.google_albert}{suffix}"
        return reader.get_tensor(stored[name].name)

    values = {weight.path: load(weight) for weight in contents.weights}
    slots = {
        f"{weight.path}/{moment}": load(weight, f"/{slot}")
        for weight in contents.weights
        for slot, moment in _SLOTS.items()
        if contents.has_moments
    }
    return values, slots


def _check_groups(config: ModelConfig, source: str) -> None:
    """Refuses layers that google-research/albert would put into other groups.

    For L layers in G groups, that project computes the group of layer n as
    `int(n / L * G)`, in floating point: with 22 layers in 22 groups, layer 15
    is in group 14 there.
    """
    check_layer_groups(
        config,
        "google-research/albert",
        lambda layer: int(
            layer / config.num_hidden_layers * config.num_hidden_groups
        ),
        source,
    )


def _list_stored(prefix: str, reader: Any) -> dict[str, _StoredVariable]:
    """The variables by name, without TF-Hub's prefix."""
    dtypes = reader.get_variable_to_dtype_map()
    stored: dict[str, _StoredVariable] = {}
    for full, shape in sorted(reader.get_variable_to_shape_map().items()):
        name = full.removeprefix(_HUB_PREFIX)
        if name in stored:
            raise UserError(
                f"{prefix} must hold each variable once",
                received=f"{stored[name].name} and {full}",
            )
        stored[name] = _StoredVariable(full, tuple(shape), dtypes[full])
    return stored


def _check_variables(
    prefix: str,
    shapes: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, _StoredVariable],
) -> None:
    """Refuses missing and unknown variables, and wrong shapes and dtypes."""
    faults = [f"{name} is missing" for name in shapes if name not in stored]
    faults += [f"{name} is unknown" for name in stored if name not in shapes]
    for name, shape in shapes.items():
        if name not in stored:
            continue
        if stored[name].shape != shape:
            faults.append(
                f"{name} has shape {list(stored[name].shape)}, not "
                f"{list(shape)} as in {CONFIG_FILE}"
            )
        elif stored[name].dtype != tf.float32:
            faults.append(f"{name} is {stored[name].dtype.name}, not float32")
    if faults:
        raise UserError(
            f"{prefix} must hold the variables of the ALBERT that its "
            f"{CONFIG_FILE} describes",
            received=name_faults(faults),
        )


def _check_step(prefix: str, step: np.ndarray) -> int:
    if step.shape or step.dtype.kind not in "iu" or step < 0:
        raise UserError(
            f"{_STEP_NAME} in {prefix} must be a non-negative integer",
            received=f"{step.dtype} {step}",
        )
    return int(step)


# --- its files, which are in one directory or, in a TF-Hub module, in two ----


def _find_prefix(path: str, step: int = 0) -> str:
    """The prefix of the checkpoint that a path refers to.

    Args:
        path: A prefix, its index file, or a directory.
        step: In a directory, the checkpoint `model.ckpt-STEP`; 0 is the only
            one, or the one that the file `checkpoint` names.

    Raises:
        UserError: If there is no such checkpoint, or TensorFlow could not
            read its path.
    """
    path = path.removesuffix(INDEX_SUFFIX).rstrip("/")
    prefix = _prefix_of(path, step)
    if set(prefix) & set("*?[]\\"):
        raise UserError(
            "the path of a checkpoint must have none of * ? [ ] \\, which "
            "TensorFlow reads as a pattern",
            received=prefix,
            remedy="Use a path without them.",
        )
    return prefix


def _prefix_of(path: str, step: int) -> str:
    if exists(path + INDEX_SUFFIX):
        return path
    if not tf.io.gfile.isdir(path):
        raise UserError(
            "a TensorFlow checkpoint must exist",
            received=f"{path}, but there is no {path}{INDEX_SUFFIX}",
            remedy="Give its prefix, e.g. albert_base/model.ckpt-best, or its "
            "directory.",
        )
    directory = path
    names = _checkpoints_in(directory)
    if not names:
        directory = posixpath.join(path, "variables")  # of a TF-Hub module
        names = _checkpoints_in(directory)
    if step:
        wanted = f"model.ckpt-{step}"
    elif len(names) == 1:
        wanted = names[0]
    else:
        # Without its directory: the checkpoint may have been moved.
        state = tf.train.get_checkpoint_state(directory)
        newest = state.model_checkpoint_path if state else ""
        wanted = posixpath.basename(newest)
    if wanted not in names:
        raise UserError(
            f"{path} must hold "
            + (
                f"a checkpoint {wanted}"
                if wanted
                else "one checkpoint, or a file checkpoint that names the "
                "newest"
            ),
            received=", ".join(names) or "none",
            remedy="Give the prefix of a checkpoint, e.g. "
            f"{posixpath.join(directory, (names or ['model.ckpt-best'])[0])}.",
        )
    return posixpath.join(directory, wanted)


def _checkpoints_in(directory: str) -> list[str]:
    if not tf.io.gfile.exists(directory):
        return []
    return sorted(
        name.removesuffix(INDEX_SUFFIX)
        for name in tf.io.gfile.listdir(directory)
        if name.endswith(INDEX_SUFFIX) and not name.startswith(".")
    )


def _directories_of(prefix: str) -> list[str]:
    """Directories that may hold a checkpoint's config and vocabulary."""
    directory = posixpath.dirname(prefix) or "."
    directories = [directory]
    if posixpath.basename(directory) == "variables":  # a TF-Hub module
        module = posixpath.dirname(directory)
        directories.append(posixpath.join(module, "assets"))
    return directories


def _find_config(prefix: str) -> str:
    """Path of the albert_config.json of a checkpoint.

    Raises:
        UserError: If there is none.
    """
    directories = _directories_of(prefix)
    for directory in directories:
        path = posixpath.join(directory, CONFIG_FILE)
        if exists(path):
            return path
    raise UserError(
        f"{CONFIG_FILE} must be in the directory of the checkpoint {prefix}",
        received=f"none in {', '.join(directories)}",
        remedy="configs/models has the files of google-research/albert's "
        "models.",
    )


def _find_vocabulary(prefix: str) -> str:
    """Path of the SentencePiece model of a checkpoint; "" if there is none.

    Raises:
        UserError: If there are several and none is named 30k-clean.model.
    """
    for directory in _directories_of(prefix):
        if not tf.io.gfile.exists(directory):
            continue
        names = [
            name
            for name in tf.io.gfile.listdir(directory)
            if name.endswith(".model")
        ]
        if _VOCABULARY_FILE in names:
            names = [_VOCABULARY_FILE]
        if len(names) > 1:
            raise UserError(
                f"{directory} must hold one SentencePiece model",
                received=", ".join(sorted(names)),
                remedy="Rename the vocabulary of the checkpoint to "
                f"{_VOCABULARY_FILE}.",
            )
        if names:
            return posixpath.join(directory, names[0])
    return ""
