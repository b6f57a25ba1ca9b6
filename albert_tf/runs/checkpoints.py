"""The checkpoints of a run: saved in the background, restored, cleaned up.

    RUN/checkpoints/step-00001000/    the newest checkpoints
    RUN/best/step-00001000/           the checkpoint of the best evaluation
        variables.*                   values, by variable path
        checkpoint.json               step, notes, file sizes

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
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import google_crc32c
import keras
import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.cluster import runtime
from albert_tf.errors import UserError, first_line
from albert_tf.io import faults, files

CHECKPOINTS_DIR = "checkpoints"
BEST_DIR = "best"
COMMIT_FILE = "checkpoint.json"
VARIABLES = "variables"
STEP_DIRECTORY = re.compile(r"step-(\d{8,})")

# Errors that TensorFlow raises when it reads damaged files.
READING_ERRORS = (tf.errors.OpError, RuntimeError, IndexError, ValueError)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint; its files may be damaged."""

    path: str
    step: int
    # JSON saved with the variables; floats are restored bit for bit.
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Size in bytes of each file, by name.
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    # Damage of `checkpoint.json`. Only `read_values` checks the other files.
    fault: str = ""

    @property
    def held_out_loss(self) -> float:
        """The loss of a checkpoint in `best/`; infinite if it is not known."""
        return self.notes.get("held_out_loss", float("inf"))


class TornCheckpointError(Exception):
    """A checkpoint was complete and is damaged now."""


def list_checkpoints(directory: str) -> list[Checkpoint]:
    """Lists the checkpoints of a directory by step, damaged ones included."""
    found = []
    for name in _list_step_directories(directory):
        path = posixpath.join(directory, name)
        checkpoint = _read_commit(path, int(name.removeprefix("step-")))
        if checkpoint is not None:  # None: not complete
            found.append(checkpoint)
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def _read_commit(path: str, step: int) -> Checkpoint | None:
    """Reads `checkpoint.json`; returns None if there is no such file."""
    damage = f"{COMMIT_FILE} is damaged"

    def read() -> Checkpoint:
        name = posixpath.join(path, COMMIT_FILE)
        with tf.io.gfile.GFile(name, "rb") as file:
            content = file.read()
        with contextlib.suppress(ValueError, TypeError, KeyError):
            values = json.loads(content)["checkpoint"]
            if values["step"] == step and content == _format_commit(**values):
                return Checkpoint(path, **values)
        raise TornCheckpointError(damage)

    try:
        return files.read_again_if_damaged(read, path, TornCheckpointError)
    except tf.errors.NotFoundError:
        return None
    except TornCheckpointError:
        return Checkpoint(path, step, fault=damage)


def _list_step_directories(directory: str) -> list[str]:
    """The names of step directories, complete or not."""
    if not tf.io.gfile.exists(directory):
        return []
    # No glob: the path of a run may contain glob characters.
    names = (name.rstrip("/") for name in tf.io.gfile.listdir(directory))
    return [name for name in names if STEP_DIRECTORY.fullmatch(name)]


def _format_commit(
    step: int, notes: Mapping[str, Any], sizes: Mapping[str, int]
) -> bytes:
    """The content of `checkpoint.json`, which holds its own checksum."""
    text = json.dumps({"step": step, "notes": notes, "sizes": sizes})
    checksum = google_crc32c.value(text.encode())
    return f'{{"crc32c": {checksum}, "checkpoint": {text}}}\n'.encode()


def write_checkpoint(
    directory: str,
    step: int,
    notes: dict[str, Any],
    values: Mapping[str, np.ndarray],
) -> None:
    """Writes a checkpoint to a new directory, `.../step-00001000`."""
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
    files.write_bytes(
        posixpath.join(directory, COMMIT_FILE),
        _format_commit(step, notes, sizes),
    )


def read_values(
    checkpoint: Checkpoint, variables: Mapping[str, tf.Variable] | None = None
) -> dict[str, tf.Tensor]:
    """Reads the values of variables, by path; None reads all values.

    Raises:
        TornCheckpointError: If files are missing or damaged; those of gs://
            are read again first.
        UserError: If a variable is missing or has another shape.
    """
    return files.read_again_if_damaged(
        lambda: _read_values(checkpoint, variables),
        checkpoint.path,
        TornCheckpointError,
    )


def _read_values(
    checkpoint: Checkpoint, variables: Mapping[str, tf.Variable] | None
) -> dict[str, tf.Tensor]:
    if checkpoint.fault:
        raise TornCheckpointError(checkpoint.fault)
    for name, size in checkpoint.sizes.items():
        try:
            found = tf.io.gfile.stat(posixpath.join(checkpoint.path, name))
        except tf.errors.NotFoundError:
            raise TornCheckpointError(f"{name} is missing") from None
        if found.length != size:
            raise TornCheckpointError(
                f"{name} has {found.length} of {size} bytes"
            )
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


def _remove(directory: str) -> None:
    """Removes a checkpoint, if it exists; `checkpoint.json` goes first."""
    files.remove(posixpath.join(directory, COMMIT_FILE))
    files.remove_directory(directory)


class CheckpointStore:
    """Saves and restores the variables of a run.

    Args:
        variables: The variables to save, by path.
        keep_max: Number of newest checkpoints to keep.
        keep_every_n_steps: Checkpoints at multiples of this step are never
            removed; 0 removes them like any other.
        writes: Whether this process saves. Only the chief does, since all
            workers of a run hold equal variables.

    Attributes:
        save_errors: Why the last save failed, by directory: `checkpoints` or
            `best`. A save that succeeds removes the entry of its directory.
        seconds_stalled: Time that training waited for the last save.

    Example:
        >>> import tempfile
        >>> variables = {"kernel": tf.Variable([1.0, 2.0])}
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     store = CheckpointStore(run_dir, variables)
        ...     saving = store.save(10, {"phase": "wiki"})
        ...     _ = variables["kernel"].assign([0.0, 0.0])
        ...     store.wait()
        ...     checkpoint = store.restore()
        >>> checkpoint.step, checkpoint.notes
        (10, {'phase': 'wiki'})
        >>> variables["kernel"].numpy().tolist()
        [1.0, 2.0]
    """

    def __init__(
        self,
        run_dir: str,
        variables: Mapping[str, tf.Variable],
        *,
        keep_max: int = 5,
        keep_every_n_steps: int = 0,
        writes: bool = True,
    ) -> None:
        self._run_dir = run_dir
        self._directory = posixpath.join(run_dir, CHECKPOINTS_DIR)
        self._best_directory = posixpath.join(run_dir, BEST_DIR)
        self._variables = dict(variables)
        self._keep_max = keep_max
        self._keep_every_n_steps = keep_every_n_steps
        self._writes = writes
        self._saved_steps: set[int] = set()  # saved or restored by this object
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: list[Future[None]] = []
        # The values that are being written, for the best and for the newest.
        self._copy: tuple[int, dict[str, np.ndarray]] | None = None
        self.save_errors: dict[str, UserError] = {}
        self.seconds_stalled = 0.0

    def save(self, step: int, notes: Mapping[str, Any]) -> bool:
        """Copies the variables to the host and writes them in the background.

        Training waits for the copy, and for an earlier save to finish. A save
        that fails, e.g. for a full disk, logs an error, sets `save_errors` and
        leaves the older checkpoints intact. A step that this object has saved
        or restored is not saved again. Returns whether a save was started.
        """
        if step in self._saved_steps or not self._writes:
            return False
        self._saved_steps.add(step)
        self._save(self._directory, step, notes)
        return True

    def save_best(
        self, step: int, notes: Mapping[str, Any], loss: float
    ) -> bool:
        """Saves to `best/` if `loss` is below that of the best checkpoint.

        Checkpoints that could not be written do not count. So a process that
        has seen all evaluations saves the same checkpoints as one that starts.
        Returns whether a save was started.
        """
        if not self._writes:
            return False
        started = time.monotonic()
        self.wait()  # the last best checkpoint may not be complete yet
        kept = [c.held_out_loss for c in list_checkpoints(self._best_directory)]
        # A loss that is NaN is not below infinity.
        if not loss < min(kept, default=float("inf")):
            return False
        self._save(self._best_directory, step, {**notes, "held_out_loss": loss})
        self.seconds_stalled = time.monotonic() - started
        return True

    def best_step(self) -> int | None:
        """The step of the best checkpoint; None if there is none."""
        found = list_checkpoints(self._best_directory)
        best = min(found, key=lambda c: c.held_out_loss, default=None)
        return best.step if best else None

    def wait(self) -> None:
        """Waits until the background save, if any, has finished."""
        for writing in self._writing:
            writing.result()
        self._writing.clear()

    def restore(self, step: int = 0) -> Checkpoint | None:
        """Restores the checkpoint of a step, or the newest one for step 0.

        Damaged checkpoints are skipped with an error in the log.

        Raises:
            UserError: If the checkpoint of `step` is missing or damaged, if all
                checkpoints are damaged, or if a checkpoint holds variables of
                other names or shapes.
        """
        found = self._read(step or None, self._variables)
        if found is None:
            return None
        checkpoint, values = found
        for name, variable in self._variables.items():
            runtime.assign(variable, values[name])
        self._saved_steps.add(checkpoint.step)
        return checkpoint

    def read_all(
        self, step: int | None = None
    ) -> tuple[Checkpoint, dict[str, np.ndarray]] | None:
        """Reads all values of a step, None for the newest; assigns none."""
        found = self._read(step, None)
        if found is None:
            return None
        checkpoint, values = found
        return checkpoint, {n: value.numpy() for n, value in values.items()}

    def _read(
        self,
        step: int | None,
        variables: Mapping[str, tf.Variable] | None,
    ) -> tuple[Checkpoint, dict[str, tf.Tensor]] | None:
        """Reads the newest intact checkpoint; see `restore`, `read_values`."""
        found = list_checkpoints(self._directory)
        if step is not None:
            found = self._of_step(step, found)
        found.sort(key=lambda checkpoint: checkpoint.step, reverse=True)
        for checkpoint in found:
            try:
                return checkpoint, read_values(checkpoint, variables)
            except TornCheckpointError as error:
                logging.error(
                    "%s is not intact and is skipped: %s",
                    checkpoint.path,
                    error,
                )
        if not found:
            return None
        raise UserError(
            "a checkpoint must be intact",
            received="damaged files in "
            + ", ".join(checkpoint.path for checkpoint in found),
            remedy="Restore an intact copy, or choose another "
            f"--checkpoint_step, of {self._name_steps()}, or --output_dir.",
        )

    def newest_step(self) -> int | None:
        """The step of the newest checkpoint with notes; None without any."""
        found = list_checkpoints(self._directory)
        return max((c.step for c in found if not c.fault), default=None)

    def _of_step(self, step: int, found: list[Checkpoint]) -> list[Checkpoint]:
        kept = [*list_checkpoints(self._best_directory), *found]
        wanted = [checkpoint for checkpoint in kept if checkpoint.step == step]
        if not wanted:
            raise UserError(
                "checkpoint_step must be the step of a checkpoint in "
                f"{self._directory} or {self._best_directory}",
                received=step,
                remedy=f"Available steps: {self._name_steps()}.",
            )
        return wanted

    def _name_steps(self) -> str:
        """Names the steps of all checkpoints, for an error message."""
        both = self._directory, self._best_directory
        steps = {c.step for parent in both for c in list_checkpoints(parent)}
        return ", ".join(map(str, sorted(steps))) or "none"

    def _save(self, parent: str, step: int, notes: Mapping[str, Any]) -> None:
        started = time.monotonic()
        copy = self._copy
        if copy is None or copy[0] != step:
            self.wait()
            values = {n: runtime.read(v) for n, v in self._variables.items()}
            copy = self._copy = step, values
        self._writing.append(
            self._writer.submit(self._write, parent, step, dict(notes), copy[1])
        )
        self._writing.append(self._writer.submit(self._forget, copy))
        self.seconds_stalled = time.monotonic() - started

    def _forget(self, copy: tuple[int, dict[str, np.ndarray]]) -> None:
        """Releases the memory of values that have been written."""
        if self._copy is copy:
            self._copy = None

    def _write(
        self,
        parent: str,
        step: int,
        notes: dict[str, Any],
        values: dict[str, np.ndarray],
    ) -> None:
        name = posixpath.basename(parent)
        directory = posixpath.join(parent, f"step-{step:08d}")
        started = time.monotonic()
        try:
            _remove(directory)
            write_checkpoint(directory, step, notes, values)
        except (OSError, tf.errors.OpError) as error:
            if parent == self._directory:
                self._saved_steps.discard(step)
            cause = faults.explain_any(error)
            # Without the remedy, which may be to start the command again.
            logging.error(
                "CHECKPOINT NOT SAVED: %s: %s Older checkpoints are not "
                "affected, and unfinished training goes on",
                directory,
                cause.fault,
            )
            self.save_errors[name] = type(cause)(
                f"the checkpoint {directory} must be written",
                received=str(cause),
                remedy="Remove the cause, and run the same command again.",
            )
            with contextlib.suppress(OSError, tf.errors.OpError):
                _remove(directory)
            return
        self.save_errors.pop(name, None)
        try:
            self._remove_old(parent, directory)
        except (OSError, tf.errors.OpError) as error:
            logging.error(
                "old checkpoints in %s were not removed: %s",
                parent,
                faults.explain_any(error),
            )
        logging.info(
            "saved %s in %.1f s, in the background",
            directory,
            time.monotonic() - started,
        )

    def _remove_old(self, parent: str, newest: str) -> None:
        """Removes surplus, damaged and incomplete checkpoints."""
        names = _list_step_directories(parent)
        intact = [c for c in list_checkpoints(parent) if not c.fault]
        kept = {newest}
        if parent == self._directory:
            every = self._keep_every_n_steps
            kept |= {c.path for c in intact[-self._keep_max :]}
            kept |= {
                c.path
                for c in intact
                if every and c.step and not c.step % every
            }
        for name in names:
            path = posixpath.join(parent, name)
            if path not in kept:
                _remove(path)


def model_variables(model: keras.layers.Layer) -> dict[str, tf.Variable]:
    """Maps the path of each variable of the model to the variable."""
    by_path = {variable.path: variable.value for variable in model.variables}
    assert len(by_path) == len(model.variables), "paths must be unique"
    return by_path
