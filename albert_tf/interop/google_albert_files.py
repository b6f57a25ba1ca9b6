"""Finds the files of a google-research/albert checkpoint.

They are in one directory, or, in a TF-Hub module, in `variables/` and
`assets/`.
"""

import posixpath

import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.io.files import exists

CONFIG_FILE = "albert_config.json"
VOCABULARY_FILE = "30k-clean.model"
INDEX_SUFFIX = ".index"
STATE_FILE = "checkpoint"


def find_prefix(path: str, step: int = 0) -> str:
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
    check_path(prefix)
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


def check_path(path: str) -> None:
    """Refuses a path that TensorFlow reads as a pattern.

    Raises:
        UserError: If the path contains `*`, `?`, `[`, `]` or a backslash.
    """
    if set(path) & set("*?[]\\"):
        raise UserError(
            "the path of a checkpoint must have none of * ? [ ] \\, which "
            "TensorFlow reads as a pattern",
            received=path,
            remedy="Use a path without them.",
        )


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


def find_config(prefix: str) -> str:
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


def find_vocabulary(prefix: str) -> str:
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
        if VOCABULARY_FILE in names:
            names = [VOCABULARY_FILE]
        if len(names) > 1:
            raise UserError(
                f"{directory} must hold one SentencePiece model",
                received=", ".join(sorted(names)),
                remedy="Rename the vocabulary of the checkpoint to "
                f"{VOCABULARY_FILE}.",
            )
        if names:
            return posixpath.join(directory, names[0])
    return ""
