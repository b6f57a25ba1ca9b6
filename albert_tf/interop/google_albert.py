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

import numpy as np
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.errors import UserError, first_line
from albert_tf.interop.weight_names import (
    ModelWeights,
    check_arrays,
    check_groups,
    list_weights,
    weights_in_file,
)
from albert_tf.io.files import exists
from albert_tf.runs.checkpoint_files import READING_ERRORS

CONFIG_FILE = "albert_config.json"
INDEX_SUFFIX = ".index"
_VOCABULARY_FILE = "30k-clean.model"
_STEP_NAME = "global_step"
_HUB_PREFIX = "module/"
_SUFFIXES = {"": "", "/adam_m": "/m", "/adam_v": "/v"}  # theirs -> ours


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
    prefix = _find_prefix(path.removesuffix(INDEX_SUFFIX).rstrip("/"), step)
    directories = [posixpath.dirname(prefix) or "."]
    if posixpath.basename(directories[0]) == "variables":  # a TF-Hub module
        module = posixpath.dirname(directories[0])
        directories.append(posixpath.join(module, "assets"))
    config = _read_config(prefix, directories)
    try:
        objective, arrays, steps = _read_variables(prefix, config)
    except UserError:  # a ValueError
        raise
    except READING_ERRORS as error:
        raise UserError(
            f"{prefix} must be an intact checkpoint",
            received=first_line(error),
            remedy="Copy it again from its source.",
        ) from None
    if steps.shape or steps.dtype.kind not in "iu" or steps < 0:
        raise UserError(
            f"{_STEP_NAME} in {prefix} must be a non-negative integer",
            received=f"{steps.dtype} {steps}",
        )
    return ModelWeights.of_arrays(
        config,
        objective,
        arrays,
        step=int(steps),
        vocabulary=_find_vocabulary(directories),
        source=prefix,
    )


def _read_variables(
    prefix: str, config: ModelConfig
) -> tuple[str, dict[str, np.ndarray], np.ndarray]:
    """The sentence objective, the arrays by their names here, and the step."""
    reader = tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    dtypes = reader.get_variable_to_dtype_map()
    names = {
        weight.google_albert + theirs: weight.path + ours
        for weight in list_weights(config)
        for theirs, ours in _SUFFIXES.items()
    }
    stored: dict[str, str] = {}
    for full in sorted(shapes):
        name = full.removeprefix(_HUB_PREFIX)
        other = stored.setdefault(names.get(name, name), full)
        if other != full:
            raise UserError(
                f"{prefix} must hold each variable once",
                received=f"{other} and {full}",
            )
    step = stored.pop(_STEP_NAME, "")
    objective, weights = weights_in_file(config, stored)
    suffixes = [""]
    if any(path.endswith(("/m", "/v")) for path in stored):
        suffixes = list(_SUFFIXES.values())
    wanted = {
        weight.path + suffix: weight.shape
        for weight in weights
        for suffix in suffixes
    }
    # Before they are read: TensorFlow allocates whatever the index says.
    found = {
        path: (tuple(shapes[full]), dtypes[full].name)
        for path, full in stored.items()
    }
    check_arrays(wanted, found, prefix)
    arrays = {path: reader.get_tensor(stored[path]) for path in wanted}
    return objective, arrays, np.asarray(reader.get_tensor(step) if step else 0)


# --- its files, which are in one directory or, in a TF-Hub module, in two ----


def _find_prefix(path: str, step: int) -> str:
    """The prefix of the checkpoint that a path refers to; see `read`."""
    prefix = path
    if not exists(path + INDEX_SUFFIX):
        if not tf.io.gfile.isdir(path):
            raise UserError(
                "a TensorFlow checkpoint must exist",
                received=f"{path}, but there is no {path}{INDEX_SUFFIX}",
                remedy="Give its prefix, e.g. albert_base/model.ckpt-best, or "
                "its directory.",
            )
        directory, names = path, _checkpoints_in(path)
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
                f"{path} must hold one checkpoint, a file checkpoint that "
                "names the newest, or that of --checkpoint_step",
                received=f"{', '.join(names) or 'none'}, without {wanted!r}",
                remedy="Give the prefix of a checkpoint, e.g. "
                f"{posixpath.join(directory, [*names, 'model.ckpt-best'][0])}.",
            )
        prefix = posixpath.join(directory, wanted)
    if set(prefix) & set("*?[]\\"):
        raise UserError(
            "the path of a checkpoint must have none of * ? [ ] \\, which "
            "TensorFlow reads as a pattern",
            received=prefix,
            remedy="Use a path without them.",
        )
    return prefix


def _names_in(directory: str, suffix: str) -> list[str]:
    if not tf.io.gfile.exists(directory):
        return []
    names = sorted(tf.io.gfile.listdir(directory))
    return [name for name in names if name.endswith(suffix)]


def _checkpoints_in(directory: str) -> list[str]:
    return [
        name.removesuffix(INDEX_SUFFIX)
        for name in _names_in(directory, INDEX_SUFFIX)
        if not name.startswith(".")
    ]


def _read_config(prefix: str, directories: list[str]) -> ModelConfig:
    for directory in directories:
        path = posixpath.join(directory, CONFIG_FILE)
        if exists(path):
            config = ModelConfig.from_json_file(path)
            check_groups(config, "google-research/albert", path)
            return config
    raise UserError(
        f"{CONFIG_FILE} must be in the directory of the checkpoint {prefix}",
        received=f"none in {', '.join(directories)}",
        remedy="configs/models has the files of google-research/albert's "
        "models.",
    )


def _find_vocabulary(directories: list[str]) -> str:
    """Path of the SentencePiece model; "" if there is none."""
    for directory in directories:
        names = _names_in(directory, ".model")
        if _VOCABULARY_FILE in names:
            names = [_VOCABULARY_FILE]
        if len(names) > 1:
            raise UserError(
                f"{directory} must hold one SentencePiece model",
                received=", ".join(names),
                remedy="Rename the vocabulary of the checkpoint to "
                f"{_VOCABULARY_FILE}.",
            )
        if names:
            return posixpath.join(directory, names[0])
    return ""
