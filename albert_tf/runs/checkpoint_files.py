"""The files of one checkpoint: written, listed, read, removed.

    .../step-00001000/variables.*        values, by variable path
    .../step-00001000/checkpoint.json    step, notes, file sizes

A directory is a checkpoint once it holds `checkpoint.json`. That file is
written last and removed first, so a crash at any byte leaves the older
checkpoints complete. `TornCheckpointError` means that a checkpoint was complete
and is damaged now.

A checkpoint holds a flat dictionary {variable path: value}: the
tf.train.Checkpoint of a Keras 3 model silently drops layers held in lists.
`tf.train.load_checkpoint(".../variables")` reads it. Data order and dropout
are functions of (seed, step), so variables and a few notes are all that must
be saved.
"""

import contextlib
import dataclasses
import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

import google_crc32c
import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.errors import UserError, first_line
from albert_tf.io import faults, files
from albert_tf.io.files import (
    flush_to_disk,
    read_again_if_damaged,
    write_text,
)

CHECKPOINTS_DIR = "checkpoints"
BEST_DIR = "best"
COMMIT_FILE = "checkpoint.json"
VARIABLES = "variables"
STEP_DIRECTORY = re.compile(r"step-(\d{8,})")

# Errors that TensorFlow raises when it reads damaged files.
READING_ERRORS = (tf.errors.OpError, RuntimeError, IndexError, ValueError)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint; its files may be damaged.

    Attributes:
        path: Its directory.
        step: Training steps done.
        notes: JSON saved with the variables; floats are restored bit for bit.
        sizes: Size in bytes of each file, by name.
        fault: Damage of `checkpoint.json`; "" if that file is intact. Only
            `read_values` checks the other files.
    """

    path: str
    step: int
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    fault: str = ""

    @property
    def held_out_loss(self) -> float:
        """The loss of a checkpoint in `best/`; infinite if it is not known."""
        return self.notes.get("held_out_loss", float("inf"))

    def is_of(self, evaluation: Mapping[str, Any] | None) -> bool:
        """Whether `held_out_loss` is the loss of the described examples.

        Checkpoints of older versions have no description: they are assumed to
        have this one.
        """
        return self.notes.get("evaluation") in (None, evaluation)


class TornCheckpointError(Exception):
    """A checkpoint was complete and is damaged now."""


def list_checkpoints(directory: str) -> list[Checkpoint]:
    """Lists the checkpoints of a directory by step, damaged ones included."""
    found = []
    for name in list_step_directories(directory):
        path = posixpath.join(directory, name)
        checkpoint = _read_commit(path, int(name.removeprefix("step-")))
        if checkpoint is not None:  # None: not complete
            found.append(checkpoint)
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def _read_commit(path: str, step: int) -> Checkpoint | None:
    """Reads `checkpoint.json`; returns None if there is no such file."""

    def read() -> Checkpoint:
        try:
            with tf.io.gfile.GFile(posixpath.join(path, COMMIT_FILE)) as file:
                text = file.read()
        except UnicodeDecodeError:
            text = ""
        except tf.errors.InternalError as error:
            if not faults.is_incomplete_read(error):
                raise
            text = ""
        return _parse_commit(path, step, text)

    try:
        return read_again_if_damaged(read, path, TornCheckpointError)
    except tf.errors.NotFoundError:
        return None
    except TornCheckpointError as error:
        return Checkpoint(path, step, fault=str(error))


def list_step_directories(directory: str) -> list[str]:
    """Lists the names of step directories, complete or not."""
    if not tf.io.gfile.exists(directory):
        return []
    # No glob: the path of a run may contain glob characters.
    names = (name.rstrip("/") for name in tf.io.gfile.listdir(directory))
    return [name for name in names if STEP_DIRECTORY.fullmatch(name)]


def _format_commit(
    step: int, notes: Mapping[str, Any], sizes: Mapping[str, int]
) -> str:
    """Returns the text of `checkpoint.json`, which holds its own checksum."""
    text = json.dumps({"step": step, "notes": notes, "sizes": sizes})
    checksum = google_crc32c.value(text.encode())
    return f'{{"crc32c": {checksum}, "checkpoint": {text}}}\n'


def _parse_commit(path: str, step: int, text: str) -> Checkpoint:
    """Parses `checkpoint.json`.

    Raises:
        TornCheckpointError: If it is damaged.
    """
    with contextlib.suppress(ValueError, TypeError, KeyError):
        values = json.loads(text)["checkpoint"]
        if values["step"] == step and text == _format_commit(**values):
            return Checkpoint(path, **values)
    raise TornCheckpointError(f"{COMMIT_FILE} is damaged")


def write_checkpoint(
    directory: str,
    step: int,
    notes: dict[str, Any],
    values: Mapping[str, np.ndarray],
) -> None:
    """Writes a checkpoint; `checkpoint.json` comes last.

    Args:
        directory: `.../step-00001000`.
        step: Training steps done.
        notes: JSON to restore with the variables.
        values: By variable path.
    """
    tf.io.gfile.makedirs(directory)
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=posixpath.join(directory, VARIABLES),
            tensor_names=list(values),
            shape_and_slices=[""] * len(values),
            tensors=list(values.values()),
        )
    # Not from a listing, which may lack new files on gs://.
    sizes = {
        name: tf.io.gfile.stat(posixpath.join(directory, name)).length
        for name in (f"{VARIABLES}.index", f"{VARIABLES}.data-00000-of-00001")
    }
    flush_to_disk(directory)
    write_text(
        posixpath.join(directory, COMMIT_FILE),
        _format_commit(step, notes, sizes),
    )


def report_failed_write(directory: str, error: Exception) -> UserError:
    """Logs that a checkpoint was not written, and returns the error to raise.

    Returns:
        A `RetryError` if the cause is temporary.
    """
    cause = faults.explain(error) or UserError(first_line(error))
    # Without the remedy, which may be to start the command again.
    logging.error(
        "CHECKPOINT NOT SAVED: %s: %s Older checkpoints are not affected, and "
        "unfinished training goes on",
        directory,
        cause.fault,
    )
    return type(cause)(
        f"the checkpoint {directory} must be written",
        received=str(cause),
        remedy="Remove the cause, and run the same command again.",
    )


def read_values(
    checkpoint: Checkpoint, variables: Mapping[str, tf.Variable] | None = None
) -> dict[str, tf.Tensor]:
    """Reads the values of a checkpoint.

    On gs://, a checkpoint that looks damaged is read again.

    Args:
        variables: The variables to read, by path; None reads all values.

    Raises:
        TornCheckpointError: If files are missing or damaged.
        UserError: If a variable is missing or has another shape.
    """
    return read_again_if_damaged(
        lambda: _read_values(checkpoint, variables),
        checkpoint.path,
        TornCheckpointError,
    )


def _read_values(
    checkpoint: Checkpoint, variables: Mapping[str, tf.Variable] | None
) -> dict[str, tf.Tensor]:
    _check_files(checkpoint)
    prefix = posixpath.join(checkpoint.path, VARIABLES)
    try:
        reader = tf.train.load_checkpoint(prefix)
    except READING_ERRORS as error:
        raise TornCheckpointError(first_line(error)) from None
    dtypes = reader.get_variable_to_dtype_map()
    if variables is not None:
        _check_shapes(checkpoint, reader.get_variable_to_shape_map(), variables)
        dtypes = {n: variable.dtype for n, variable in variables.items()}
    try:
        # A tensor with a wrong checksum raises an error.
        with tf.device("CPU:0"):
            values = tf.raw_ops.RestoreV2(
                prefix=prefix,
                tensor_names=list(dtypes),
                shape_and_slices=[""] * len(dtypes),
                dtypes=list(dtypes.values()),
            )
    except READING_ERRORS as error:
        raise TornCheckpointError(first_line(error)) from None
    return dict(zip(dtypes, values, strict=True))


def _check_files(checkpoint: Checkpoint) -> None:
    if checkpoint.fault:
        raise TornCheckpointError(checkpoint.fault)
    for name, size in checkpoint.sizes.items():
        path = posixpath.join(checkpoint.path, name)
        try:
            found = tf.io.gfile.stat(path).length
        except tf.errors.NotFoundError:
            raise TornCheckpointError(f"{name} is missing") from None
        if found != size:
            raise TornCheckpointError(f"{name} has {found} of {size} bytes")


def _check_shapes(
    checkpoint: Checkpoint,
    stored: Mapping[str, list[int]],
    variables: Mapping[str, tf.Variable],
) -> None:
    differences = [
        f"{name} has shape {stored.get(name, 'none')} in the checkpoint and "
        f"{variable.shape.as_list()} in the model"
        for name, variable in variables.items()
        if stored.get(name) != variable.shape.as_list()
    ]
    if differences:
        raise UserError(
            f"checkpoint {checkpoint.path} must hold the variables of this "
            "model",
            received="; ".join(differences[:5]),
            remedy="To start from a converted model, pass it as "
            "--init_checkpoint.",
        )


def remove(directory: str) -> None:
    """Removes a checkpoint, if it exists; `checkpoint.json` goes first."""
    files.remove(posixpath.join(directory, COMMIT_FILE))
    files.remove_directory(directory)


def remove_if_possible(directory: str) -> None:
    """Removes a checkpoint; if that fails, logs an error."""
    try:
        remove(directory)
    except (OSError, tf.errors.OpError) as error:
        logging.error(
            "%s could not be removed: %s", directory, faults.describe(error)
        )
