"""Checkpoints: written while training goes on, whole or not at all.

    RUN/checkpoints/step-00001000/variables.*      values, by path
    RUN/checkpoints/step-00001000/checkpoint.json  step, notes, sizes
    RUN/best/step-00001000/                        the lowest held-out loss

A checkpoint is what has a `checkpoint.json`, which is written last and removed
first, so that a crash at any byte leaves the older ones as they were. One that
was damaged later is torn: it is passed over, and removed when the next is
whole.

It holds a flat dictionary {variable path: value}: the tf.train.Checkpoint of a
Keras 3 model silently drops layers held in lists. `tf.train.load_checkpoint` of
`.../variables` reads it. Data order and dropout are functions of (seed, step),
so variables and a few notes are all there is to save.
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
import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError, first_line
from albert_tf.io.files import flush_to_disk, write_text
from albert_tf.modeling.pretrainer import AlbertPretrainer
from albert_tf.runs import directory as run_directory
from albert_tf.runs.directory import CHECKPOINTS_DIR, COMMIT_FILE
from albert_tf.runs.rollback import Rollbacks

BEST_DIR = "best"
VARIABLES = "variables"
# The note that counts the rollbacks before: later ones may have undone it.
ROLLBACKS_NOTE = "rollbacks"
STEP_DIRECTORY = re.compile(r"step-(\d{8,})")

# What reading damaged files raises, besides errors of TensorFlow.
READING_ERRORS = (tf.errors.OpError, RuntimeError, IndexError, ValueError)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One that was committed.

    Attributes:
        path: Its directory.
        step: Updates made.
        notes: What was noted with it: plain JSON, floats to the last bit.
        sizes: Bytes of its files by name.
        fault: Why it is torn, as far as `checkpoint.json` tells; "" if it
            does not.
    """

    path: str
    step: int
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    fault: str = ""


class TornCheckpointError(Exception):
    """A checkpoint that was committed and is not whole any more."""


class CheckpointStore:
    """Saves and restores the variables of a run.

    Args:
        run_dir: `--output_dir` of the run.
        variables: By path.
        keep_max: Newest checkpoints kept.
        keep_every_n_steps: Those at its multiples are kept for ever; 0 keeps
            none so.
        writes: Whether this process saves: of the workers of a run the chief
            alone, since their variables are equal.

    Attributes:
        failed: Why the last save failed; "" if it did not.
        seconds_stalled: That training waited for the last save.
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
        self._whole: set[int] = set()  # steps saved or restored here
        self._torn: set[str] = set()  # paths that were found to be
        self._lowest_loss: float | None = None
        self._writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None
        self.failed = ""
        self.seconds_stalled = 0.0

    def save(self, step: int, notes: Mapping[str, Any]) -> bool:
        """Copies the variables to the host, and has them written.

        Training waits for the copy, and for a save before that has not ended.
        A save that fails, e.g. for a full disk, is told loudly and leaves the
        older checkpoints as they are; see `failed`. One that was saved or
        restored here is not saved again.

        Args:
            step: Updates made.
            notes: JSON to give back with the variables.

        Returns:
            Whether it is being written.
        """
        if step in self._whole or not self._writes:
            return False
        self._whole.add(step)
        self._save(self._directory, step, notes)
        return True

    def save_best(
        self, step: int, notes: Mapping[str, Any], loss: float
    ) -> None:
        """Saves apart, if the held-out loss is the lowest so far.

        Args:
            step: Updates made.
            notes: JSON to give back with the variables.
            loss: Held-out loss, in nats.
        """
        if not self._writes:
            return
        if self._lowest_loss is None:
            self._lowest_loss = min(
                (
                    checkpoint.notes["held_out_loss"]
                    for checkpoint in self._committed(self._best_directory)
                    if not checkpoint.fault
                ),
                default=float("inf"),
            )
        if loss < self._lowest_loss:
            self._lowest_loss = loss
            self._save(
                self._best_directory, step, {**notes, "held_out_loss": loss}
            )

    def wait(self) -> None:
        """Returns when nothing is being written."""
        if self._writing is not None:
            self._writing.result()

    def restore(
        self, step: int = 0, avoided: int | None = None
    ) -> Checkpoint | None:
        """Restores the checkpoint of a step, or the newest for 0.

        A torn one is passed over with a warning if any will do, and so is
        what a rollback has undone. Later steps may be saved again then.

        Args:
            step: Updates made.
            avoided: The step of one that is taken only if there is no other.

        Returns:
            The checkpoint, or None if there is none yet.

        Raises:
            UserError: If the checkpoint of `step` is not there or is torn, if
                all are torn, or if a checkpoint holds variables of other
                names or shapes.
        """
        found = self._read(step or None, avoided, self._variables)
        if found is None:
            return None
        checkpoint, values = found
        for name, variable in self._variables.items():
            variable.assign(values[name])
        self._whole = {s for s in self._whole if s < checkpoint.step}
        self._whole.add(checkpoint.step)
        return checkpoint

    def read_all(
        self, step: int | None = None
    ) -> tuple[Checkpoint, dict[str, np.ndarray]] | None:
        """As `restore`, but all that the checkpoint holds, given back.

        Here step 0 is a checkpoint as any other, and None is the newest.
        """
        found = self._read(step, None, None)
        if found is None:
            return None
        checkpoint, values = found
        return checkpoint, {n: value.numpy() for n, value in values.items()}

    def _read(
        self,
        step: int | None,
        avoided: int | None,
        variables: Mapping[str, tf.Variable] | None,
    ) -> tuple[Checkpoint, dict[str, tf.Tensor]] | None:
        """Reads a checkpoint as `restore` has it; all of it for None."""
        found = self._committed(self._directory)
        if step is not None:
            found = self._of_step(step, found)
        found.sort(key=lambda c: (c.step != avoided, c.step), reverse=True)
        for checkpoint in found:
            try:
                return checkpoint, _read(checkpoint, variables)
            except TornCheckpointError as error:
                logging.error(
                    "%s is not whole and is passed over: %s",
                    checkpoint.path,
                    error,
                )
                self._torn.add(checkpoint.path)
        if found:
            raise UserError(
                "a checkpoint must be whole",
                received=f"none of {', '.join(c.path for c in found)} is",
                remedy="Copy them from where they are whole, or start anew in "
                "another --output_dir.",
            )
        return None

    def _committed(self, parent: str) -> list[Checkpoint]:
        """Those of a directory, but for what rollbacks have undone."""
        rollbacks = Rollbacks.read(self._run_dir)
        return [
            checkpoint
            for checkpoint in list_checkpoints(parent)
            if not rollbacks.have_undone(
                checkpoint.step, checkpoint.notes.get(ROLLBACKS_NOTE, 0)
            )
        ]

    def _of_step(self, step: int, found: list[Checkpoint]) -> list[Checkpoint]:
        kept = [*self._committed(self._best_directory), *found]
        wanted = [checkpoint for checkpoint in kept if checkpoint.step == step]
        if not wanted:
            steps = ", ".join(str(s) for s in sorted({c.step for c in kept}))
            raise UserError(
                f"checkpoint_step must be a checkpoint in {self._directory} "
                f"or {self._best_directory}",
                received=step,
                remedy=f"There are: {steps or 'none'}.",
            )
        return wanted

    def _save(self, parent: str, step: int, notes: Mapping[str, Any]) -> None:
        started = time.monotonic()
        self.wait()
        values = {n: v.numpy() for n, v in self._variables.items()}
        self._writing = self._writer.submit(
            self._write, parent, step, dict(notes), values
        )
        self.seconds_stalled = time.monotonic() - started

    def _write(
        self,
        parent: str,
        step: int,
        notes: dict[str, Any],
        values: dict[str, np.ndarray],
    ) -> None:
        directory = posixpath.join(parent, f"step-{step:08d}")
        started = time.monotonic()
        try:
            _remove(directory)
            write_checkpoint(directory, step, notes, values)
        except (OSError, tf.errors.OpError) as error:
            if parent == self._directory:
                self._whole.discard(step)
            self.failed = f"{directory}: {first_line(error)}"
            logging.error(
                "CHECKPOINT NOT SAVED: %s. Training goes on, and the next "
                "checkpoint is tried; older ones are whole. Make room or "
                "mend the place, or stop the run",
                self.failed,
            )
            _remove_if_possible(directory)
            return
        self.failed = ""
        self._torn.discard(directory)
        try:
            self._remove_old(parent, directory)
        except (OSError, tf.errors.OpError) as error:
            logging.error("%s not tidied: %s", parent, first_line(error))
        logging.info(
            "saved %s in %.1f s, in the background",
            directory,
            time.monotonic() - started,
        )

    def _remove_old(self, parent: str, newest: str) -> None:
        """Removes what need not be kept, and what crashes left."""
        names = _names(parent)
        whole = [
            checkpoint
            for checkpoint in self._committed(parent)
            if checkpoint.path not in self._torn and not checkpoint.fault
        ]
        kept = {newest}
        if parent == self._directory:
            every = self._keep_every_n_steps
            kept |= {c.path for c in whole[-self._keep_max :]}
            kept |= {
                c.path for c in whole if every and c.step and not c.step % every
            }
        for name in names:
            path = posixpath.join(parent, name)
            if path not in kept:
                _remove_if_possible(path)


def list_checkpoints(directory: str) -> list[Checkpoint]:
    """The committed checkpoints of a directory, by step; some may be torn."""
    found = []
    for name in _names(directory):
        path = posixpath.join(directory, name)
        try:
            with tf.io.gfile.GFile(posixpath.join(path, COMMIT_FILE)) as file:
                text = file.read()
        except tf.errors.NotFoundError:
            continue  # never committed
        except UnicodeDecodeError:
            text = ""
        found.append(_parse_commit(path, int(name.removeprefix("step-")), text))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def _names(directory: str) -> list[str]:
    """The directories of checkpoints, committed or not."""
    if not tf.io.gfile.exists(directory):
        return []
    names = (name.rstrip("/") for name in tf.io.gfile.listdir(directory))
    return [name for name in names if STEP_DIRECTORY.fullmatch(name)]


def _format_commit(
    step: int, notes: Mapping[str, Any], sizes: Mapping[str, int]
) -> str:
    """The text of `checkpoint.json`, with a checksum of its own."""
    text = json.dumps({"step": step, "notes": notes, "sizes": sizes})
    checksum = google_crc32c.value(text.encode())
    return f'{{"crc32c": {checksum}, "checkpoint": {text}}}\n'


def _parse_commit(path: str, step: int, text: str) -> Checkpoint:
    """The reverse; a text that was damaged makes a torn checkpoint."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        values = json.loads(text)["checkpoint"]
        if values["step"] == step and text == _format_commit(**values):
            return Checkpoint(path, **values)
    return Checkpoint(path, step, fault=f"{COMMIT_FILE} is damaged")


def write_checkpoint(
    directory: str,
    step: int,
    notes: dict[str, Any],
    values: Mapping[str, np.ndarray],
) -> None:
    """Writes a checkpoint, its commit last.

    Args:
        directory: `.../step-00001000`.
        step: Updates made.
        notes: JSON to give back with the variables.
        values: By path.
    """
    tf.io.gfile.makedirs(directory)
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=posixpath.join(directory, VARIABLES),
            tensor_names=list(values),
            shape_and_slices=[""] * len(values),
            tensors=list(values.values()),
        )
    sizes = {
        name: tf.io.gfile.stat(posixpath.join(directory, name)).length
        for name in tf.io.gfile.listdir(directory)
    }
    flush_to_disk(directory)
    write_text(
        posixpath.join(directory, COMMIT_FILE),
        _format_commit(step, notes, sizes),
    )


def _read(
    checkpoint: Checkpoint, variables: Mapping[str, tf.Variable] | None
) -> dict[str, tf.Tensor]:
    """Reads the values of all variables before any is assigned.

    Args:
        checkpoint: Where.
        variables: By path; None is all that are there.

    Raises:
        TornCheckpointError: If the files are not what was committed.
        UserError: If a variable is not there, or of another shape.
    """
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
        # A tensor whose checksum does not fit is an error.
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
        f"{name} has shape {stored.get(name, 'none')} there and "
        f"{variable.shape.as_list()} here"
        for name, variable in variables.items()
        if stored.get(name) != variable.shape.as_list()
    ]
    if differences:
        raise UserError(
            f"checkpoint {checkpoint.path} must hold the variables of this "
            "model",
            received="; ".join(differences[:5]),
            remedy="A model that was converted is begun from, with "
            "--init_checkpoint.",
        )


def _remove(directory: str) -> None:
    """Removes a checkpoint, its commit first."""
    commit = posixpath.join(directory, COMMIT_FILE)
    if tf.io.gfile.exists(commit):
        tf.io.gfile.remove(commit)
    if tf.io.gfile.exists(directory):
        tf.io.gfile.rmtree(directory)


def _remove_if_possible(directory: str) -> None:
    """As `_remove`; what cannot be removed is told, and stays."""
    try:
        _remove(directory)
    except (OSError, tf.errors.OpError) as error:
        logging.error("%s could not be removed: %s", directory, error)


def model_variables(pretrainer: AlbertPretrainer) -> dict[str, tf.Variable]:
    """The model's variables by path."""
    by_path = {
        variable.path: variable.value for variable in pretrainer.variables
    }
    assert len(by_path) == len(pretrainer.variables), "paths must be unique"
    return by_path


def load_run(
    run_dir: str, step: int = 0
) -> tuple[PretrainingConfig, AlbertPretrainer, int]:
    """A trained model, in the current strategy's scope.

    Args:
        run_dir: `--output_dir` of the run.
        step: Checkpoint to load, of those kept or the best; 0 is the newest.

    Returns:
        The run's configuration, the model, and the checkpoint's step.

    Raises:
        UserError: If there is no such run or checkpoint.
    """
    config = run_directory.load_config(run_dir)
    pretrainer = AlbertPretrainer(
        config.model,
        config.training.sentence_objective,
        dtype=config.distribution.precision,
    )
    pretrainer.build()
    store = CheckpointStore(run_dir, model_variables(pretrainer), writes=False)
    checkpoint = store.restore(step)
    if checkpoint is None:
        raise UserError(
            f"{run_dir} must hold a checkpoint",
            received="none",
            remedy="Train with python -m albert_tf.run_pretraining first.",
        )
    logging.info("loaded %s", checkpoint.path)
    return config, pretrainer, checkpoint.step
