"""Checkpoints of google-research/albert: TensorFlow 1, read and written.

    MODEL/albert_config.json                      the architecture
    MODEL/30k-clean.model                         the vocabulary
    MODEL/model.ckpt-STEP.index, ....data-*       variables, by TF1 name
    MODEL/checkpoint                              which of them is the newest

Variables are those of the model with both heads, `global_step`, and, while a
model is in training, the moments of its optimizer, `NAME/adam_m` and
`NAME/adam_v`: LAMB and AdamW call them the same. TF-Hub modules have `module/`
before every name and their files in `variables/` and `assets/`.

Reference:
    https://github.com/google-research/albert: modeling.py, optimization.py,
    lamb_optimizer.py, export_checkpoints.py, export_to_tfhub.py.
"""

import json
import posixpath
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import ModelConfig
from albert_tf.errors import UserError, first_line
from albert_tf.interop.model_weights import ModelWeights
from albert_tf.interop.weight_names import list_weights
from albert_tf.io.files import exists, flush_to_disk, write_text
from albert_tf.runs.checkpoints import READING_ERRORS

CONFIG_FILE = "albert_config.json"
VOCABULARY_FILE = "30k-clean.model"
INDEX_SUFFIX = ".index"
STEP_NAME = "global_step"

_STATE_FILE = "checkpoint"
_HUB_PREFIX = "module/"
_SENTENCE_HEAD = "cls/seq_relationship/"
_POOLER = "bert/pooler/"
_SLOTS = {"adam_m": "m", "adam_v": "v"}  # ours by theirs

# Settings that google-research/albert has no name for.
_OURS = ("parameter_sharing", "layers_to_keep")

_NAMED_IN_ERRORS = 5


class Stored(NamedTuple):
    """A variable in a checkpoint.

    Attributes:
        name: As it is there, with any prefix.
        shape: Its shape.
        dtype: Its type.
    """

    name: str
    shape: tuple[int, ...]
    dtype: tf.DType


def read(path: str, step: int = 0) -> ModelWeights:
    """Reads a checkpoint with the architecture and vocabulary beside it.

    One without a sentence head, as the first TF-Hub modules, gets one of zeros;
    one without a pooler, too, has the sentence objective "none".

    Args:
        path: A prefix, `.../model.ckpt-best`, or a directory with one
            checkpoint or a file `checkpoint` that names the newest.
        step: In a directory, the checkpoint to take: that of
            `model.ckpt-STEP`; 0 is the newest.

    Raises:
        UserError: If a file is missing or damaged, or if the variables are
            not those of the architecture.
    """
    prefix = _find_prefix(path.removesuffix(INDEX_SUFFIX).rstrip("/"), step)
    _check_path(prefix)
    places = _places_beside(prefix)
    config = _read_config(prefix, places)
    try:
        reader = tf.train.load_checkpoint(prefix)
    except READING_ERRORS as error:
        raise _damaged(prefix, error) from None
    stored = _list_stored(prefix, reader)
    step_stored = stored.pop(STEP_NAME, None)

    has_pooler = any(name.startswith(_POOLER) for name in stored)
    has_head = any(name.startswith(_SENTENCE_HEAD) for name in stored)
    objective = "sop" if has_pooler or has_head else "none"
    weights = list_weights(config, objective)
    shapes = {weight.published: weight.shape for weight in weights}
    slots = {
        f"{name}/{slot}": shape
        for name, shape in shapes.items()
        for slot in _SLOTS
    }
    moments = _SLOTS if slots.keys() & stored.keys() else {}
    if moments:
        shapes |= slots
    invented = {
        name
        for name in shapes
        if name.startswith(_SENTENCE_HEAD) and not has_head
    }
    if invented:
        logging.warning(
            "%s has no sentence head; it gets one of zeros, which takes both "
            "orders for equally likely",
            prefix,
        )
    _check(
        prefix, {n: s for n, s in shapes.items() if n not in invented}, stored
    )
    try:
        tensors = {
            name: np.zeros(shape, np.float32)
            if name in invented
            else reader.get_tensor(stored[name].name)
            for name, shape in shapes.items()
        }
        made = reader.get_tensor(step_stored.name) if step_stored else 0
    except READING_ERRORS as error:
        raise _damaged(prefix, error) from None
    return ModelWeights(
        config,
        objective,
        {weight.path: tensors[weight.published] for weight in weights},
        {
            f"{weight.path}/{moment}": tensors[f"{weight.published}/{slot}"]
            for weight in weights
            for slot, moment in moments.items()
        },
        _check_step(prefix, np.asarray(made)),
        _find_vocabulary(places),
        prefix,
    )


def write(weights: ModelWeights, directory: str) -> None:
    """Writes a directory like one of the published archives.

    The caller sees to it that nothing takes a half-written one for whole.

    Args:
        weights: Layers that share only a part, or nothing, become groups; see
            `ModelWeights.regrouped`.
        directory: A new one.

    Raises:
        UserError: If google-research/albert would build another model of it,
            or TensorFlow could not read it back.
    """
    _check_path(directory)
    weights = weights.regrouped()
    check_groups(weights.config)
    names = {
        weight.path: weight.published
        for weight in list_weights(weights.config, weights.sentence_objective)
    }
    tensors: dict[str, np.ndarray] = {
        name: weights.values[path] for path, name in names.items()
    }
    for path, name in names.items():
        for slot, moment in _SLOTS.items():
            if weights.slots:
                tensors[f"{name}/{slot}"] = weights.slots[f"{path}/{moment}"]
    tensors[STEP_NAME] = np.array(weights.step, np.int64)
    config = {
        name: value
        for name, value in weights.config.to_dict().items()
        if name not in _OURS
    }

    tf.io.gfile.makedirs(directory)
    prefix = f"model.ckpt-{weights.step}"
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=posixpath.join(directory, prefix),
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=list(tensors.values()),
        )
    write_text(
        posixpath.join(directory, CONFIG_FILE),
        json.dumps(config, indent=2) + "\n",
    )
    if weights.vocabulary:
        tf.io.gfile.copy(
            weights.vocabulary, posixpath.join(directory, VOCABULARY_FILE)
        )
    write_text(
        posixpath.join(directory, _STATE_FILE),
        f'model_checkpoint_path: "{prefix}"\n'
        f'all_model_checkpoint_paths: "{prefix}"\n',
    )
    flush_to_disk(directory)


def check_groups(config: ModelConfig) -> None:
    """Refuses an architecture that google-research/albert builds otherwise.

    It computes the group of layer n of L as `int(n / L * G)`, in floating
    point, which is one too low where n / L is rounded down: with 22 layers in
    22 groups, layer 15 is in group 14 there.

    Raises:
        UserError: Naming the first such layer.
    """
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    for layer in range(layers):
        here, there = config.group_of_layer(layer), int(layer / layers * groups)
        if here != there:
            raise UserError(
                "google-research/albert must use the group of each layer that "
                "this project uses",
                received=f"for layer {layer} of {layers}, of {groups} groups, "
                f"group {there} there, by a rounding error, and {here} here",
                remedy="Such a model can be a run or a Hugging Face folder.",
            )


def _find_prefix(path: str, step: int) -> str:
    """The prefix of the checkpoint that a path means."""
    if exists(path + INDEX_SUFFIX):
        return path
    if not tf.io.gfile.isdir(path):
        raise UserError(
            "a checkpoint of TensorFlow must be there",
            received=f"{path}, but no {path}{INDEX_SUFFIX}",
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
        # Only its last part: where it was written it lay elsewhere.
        state = tf.train.get_checkpoint_state(directory)
        newest = state.model_checkpoint_path if state else ""
        wanted = posixpath.basename(newest)
    if wanted not in names:
        raise UserError(
            f"{path} must hold a checkpoint"
            + (f" {wanted}" if wanted else ", or name the newest"),
            received=", ".join(names) or "none",
            remedy="Give the prefix of one, e.g. "
            f"{posixpath.join(directory, (names or ['model.ckpt-best'])[0])}.",
        )
    return posixpath.join(directory, wanted)


def _check_path(path: str) -> None:
    if set(path) & set("*?[]\\"):
        raise UserError(
            "the path of a checkpoint must hold none of * ? [ ] \\, which "
            "TensorFlow takes for a pattern when it reads it",
            received=path,
            remedy="Copy it elsewhere.",
        )


def _checkpoints_in(directory: str) -> list[str]:
    if not tf.io.gfile.exists(directory):
        return []
    return sorted(
        name.removesuffix(INDEX_SUFFIX)
        for name in tf.io.gfile.listdir(directory)
        if name.endswith(INDEX_SUFFIX) and not name.startswith(".")
    )


def _places_beside(prefix: str) -> list[str]:
    """Directories where what belongs to a checkpoint may lie."""
    directory = posixpath.dirname(prefix) or "."
    places = [directory]
    if posixpath.basename(directory) == "variables":
        places.append(posixpath.join(posixpath.dirname(directory), "assets"))
    return places


def _read_config(prefix: str, places: list[str]) -> ModelConfig:
    for place in places:
        path = posixpath.join(place, CONFIG_FILE)
        if exists(path):
            config = ModelConfig.from_json_file(path)
            check_groups(config)
            return config
    raise UserError(
        f"{CONFIG_FILE} must lie beside the checkpoint {prefix}",
        received=f"none in {', '.join(places)}",
        remedy="Those of the published models are in configs/models.",
    )


def _find_vocabulary(places: list[str]) -> str:
    """The SentencePiece model; "" if there is none."""
    for place in places:
        if not tf.io.gfile.exists(place):
            continue
        names = [n for n in tf.io.gfile.listdir(place) if n.endswith(".model")]
        if VOCABULARY_FILE in names:
            names = [VOCABULARY_FILE]
        if len(names) > 1:
            raise UserError(
                f"{place} must hold one SentencePiece model",
                received=", ".join(sorted(names)),
                remedy=f"Call that of the checkpoint {VOCABULARY_FILE}.",
            )
        if names:
            return posixpath.join(place, names[0])
    return ""


def _list_stored(prefix: str, reader: Any) -> dict[str, Stored]:
    """The variables by name without the prefix of TF-Hub."""
    dtypes = reader.get_variable_to_dtype_map()
    stored: dict[str, Stored] = {}
    for full, shape in sorted(reader.get_variable_to_shape_map().items()):
        name = full.removeprefix(_HUB_PREFIX)
        if name in stored:
            raise UserError(
                f"{prefix} must hold each variable once",
                received=f"{stored[name].name} and {full}",
            )
        stored[name] = Stored(full, tuple(shape), dtypes[full])
    return stored


def _check(
    prefix: str,
    shapes: Mapping[str, tuple[int, ...]],
    stored: Mapping[str, Stored],
) -> None:
    """Refuses variables that are not those of the architecture."""
    faults = [f"{name} is missing" for name in shapes if name not in stored]
    faults += [f"{name} is unknown" for name in stored if name not in shapes]
    for name, shape in shapes.items():
        if name not in stored:
            continue
        if stored[name].shape != shape:
            faults.append(
                f"{name} has shape {list(stored[name].shape)} there and "
                f"{list(shape)} by {CONFIG_FILE}"
            )
        elif stored[name].dtype != tf.float32:
            faults.append(f"{name} is {stored[name].dtype.name}, not float32")
    if faults:
        more = len(faults) - _NAMED_IN_ERRORS
        raise UserError(
            f"{prefix} must hold the variables of an ALBERT as the "
            f"{CONFIG_FILE} beside it describes it",
            received="; ".join(faults[:_NAMED_IN_ERRORS])
            + (f"; and {more} more" if more > 0 else ""),
        )


def _check_step(prefix: str, made: np.ndarray) -> int:
    """Updates made, which must be a number of them."""
    if made.shape or made.dtype.kind not in "iu" or made < 0:
        raise UserError(
            f"{STEP_NAME} in {prefix} must be a whole number, not negative",
            received=f"{made.dtype} {made}",
        )
    return int(made)


def _damaged(prefix: str, error: BaseException) -> UserError:
    return UserError(
        f"{prefix} must be a whole checkpoint",
        received=first_line(error),
        remedy="Copy it from where it is whole.",
    )
