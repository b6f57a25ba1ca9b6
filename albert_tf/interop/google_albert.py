"""Reads checkpoints of google-research/albert, which are TensorFlow 1 files.

    MODEL/albert_config.json                      the architecture
    MODEL/30k-clean.model                         the vocabulary
    MODEL/model.ckpt-STEP.index, ....data-*       variables, by TF1 name
    MODEL/checkpoint                              the name of the newest one

A checkpoint holds the variables of the model with both heads, `global_step`,
and, if it was saved during training, the moments of its optimizer,
`NAME/adam_m` and `NAME/adam_v`, for both LAMB and AdamW. Other variables, such
as the head of a fine-tuned model, are left out.

Reference:
    https://github.com/google-research/albert: modeling.py, optimization.py,
    lamb_optimizer.py, export_checkpoints.py.
"""

import posixpath

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import ModelConfig
from albert_tf.errors import UserError, first_line
from albert_tf.interop import weight_names
from albert_tf.io.files import exists
from albert_tf.runs.checkpoints import READING_ERRORS

CONFIG_FILE = "albert_config.json"
INDEX_SUFFIX = ".index"
_VOCABULARY_FILE = "30k-clean.model"
_STEP_NAME = "global_step"
_SUFFIXES = {"": "", "/adam_m": "/m", "/adam_v": "/v"}  # theirs -> ours


def read(path: str) -> weight_names.ModelWeights:
    """Reads a checkpoint with its architecture and vocabulary.

    Without pooler and sentence head, the sentence objective is "none". Missing
    heads are filled by `weight_names.fill_heads`.

    Args:
        path: A prefix, `.../model.ckpt-best`, or a directory with one
            checkpoint or with a file `checkpoint` that names the newest.
    """
    prefix = _find_prefix(path.removesuffix(INDEX_SUFFIX).rstrip("/"))
    directory = posixpath.dirname(prefix) or "."
    config_file = posixpath.join(directory, CONFIG_FILE)
    if not exists(config_file):
        raise UserError(
            f"{CONFIG_FILE} must be in the directory of the checkpoint",
            received=f"none in {directory}",
            remedy="configs/models has the files of google-research/albert's "
            "models.",
        )
    config = ModelConfig.from_json_file(config_file)
    try:
        objective, arrays, steps = _read_variables(prefix, config)
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
    return weight_names.ModelWeights.of_arrays(
        config,
        objective,
        arrays,
        step=int(steps),
        vocabulary=_find_vocabulary(directory),
        source=prefix,
    )


def _read_variables(
    prefix: str, config: ModelConfig
) -> tuple[str, dict[str, np.ndarray], np.ndarray]:
    """The sentence objective, the arrays by their names here, and the step."""
    reader = tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    dtypes = reader.get_variable_to_dtype_map()
    wanted = {
        weight.google_albert + theirs: (weight.path + ours, weight.shape)
        for weight in weight_names.list_weights(config)
        for theirs, ours in _SUFFIXES.items()
    }
    stored = {wanted[name][0]: name for name in shapes if name in wanted}
    objective = "sop" if weight_names.has_sentence_head(stored) else "none"
    weights = weight_names.list_weights(config, objective)
    if len(stored) < len(_SUFFIXES) * len(weights):  # without all moments
        paths = [w.path for w in weights if w.path in stored]
        stored = {path: stored[path] for path in paths}
    # Heads of other tasks and other slots are left out, but not an encoder
    # that `config` does not describe.
    unknown = {
        name
        for name in shapes.keys() - wanted.keys()
        if name.startswith("bert/") and posixpath.dirname(name) not in wanted
    }
    others = sorted(shapes.keys() - {_STEP_NAME, *stored.values()} - unknown)
    if others:
        logging.info(
            "%s: left out %d variables that are not weights of a pretrained "
            "model or not its complete moments, e.g. %s",
            prefix,
            len(others),
            others[0],
        )
    # Before they are read: TensorFlow allocates whatever the index says.
    found = {}
    for path, name in (stored | {name: name for name in unknown}).items():
        dtype = "float32" if dtypes[name].is_floating else dtypes[name].name
        found[path] = tuple(shapes[name]), dtype
    weight_names.check_arrays(
        {p: wanted[n][1] for p, n in stored.items()}, found, prefix
    )
    arrays = {
        path: reader.get_tensor(name).astype(np.float32)
        for path, name in stored.items()
    }
    weight_names.fill_heads(arrays, weights, config, prefix)
    step = reader.get_tensor(_STEP_NAME) if _STEP_NAME in shapes else 0
    return objective, arrays, np.asarray(step)


def _find_prefix(path: str) -> str:
    """The prefix of the checkpoint that a path refers to; see `read`."""
    if exists(path + INDEX_SUFFIX):
        return path
    names = sorted(
        name.removesuffix(INDEX_SUFFIX)
        for name in tf.io.gfile.listdir(path)
        if name.endswith(INDEX_SUFFIX) and not name.startswith(".")
    )
    wanted = names[0] if len(names) == 1 else ""
    if not wanted:
        # Without its directory: the checkpoint may have been moved.
        state = tf.train.get_checkpoint_state(path)
        wanted = posixpath.basename(
            state.model_checkpoint_path if state else ""
        )
    if wanted not in names:
        raise UserError(
            f"{path} must hold one checkpoint, or a file checkpoint that names "
            "the newest",
            received=f"{', '.join(names) or 'none'}, without {wanted!r}",
            remedy="Give the prefix of a checkpoint, e.g. "
            f"{posixpath.join(path, [*names, 'model.ckpt-best'][0])}.",
        )
    return posixpath.join(path, wanted)


def _find_vocabulary(directory: str) -> str:
    """Path of the SentencePiece model; "" if there is none."""
    names = sorted(
        name
        for name in tf.io.gfile.listdir(directory)
        if name.endswith(".model")
    )
    if _VOCABULARY_FILE in names:
        names = [_VOCABULARY_FILE]
    if len(names) > 1:
        raise UserError(
            f"{directory} must hold one SentencePiece model",
            received=", ".join(names),
            remedy="Rename the vocabulary of the checkpoint to "
            f"{_VOCABULARY_FILE}.",
        )
    return posixpath.join(directory, names[0]) if names else ""
