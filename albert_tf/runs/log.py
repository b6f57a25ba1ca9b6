"""The log of a run: metrics and events.

    RUN/metrics.jsonl   one line for each device loop and each evaluation
    RUN/events.jsonl    starts, stops, rollbacks and changes, with their time
    RUN/tensorboard/    the metrics, and profiles

If a step is trained a second time, its lines in `metrics.jsonl` are replaced.
Lines in `events.jsonl` are never removed.

A line can be appended to an object on gs:// only by uploading the object again.
On gs://, a log is therefore split into parts of about LINES_PER_FILE lines:
`metrics.jsonl`, `metrics.jsonl.1`, `metrics.jsonl.2`, ... The process that
writes a log remembers the lines of the last part. So each upload contains all
lines of this part, even if another process, which no longer owns the run, has
just written to the same file.
"""

import itertools
import json
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.errors import UserError, first_line
from albert_tf.io import faults
from albert_tf.io.artifact import Owner
from albert_tf.io.files import (
    exists,
    is_remote,
    open_existing,
    read_again_if_damaged,
    remove,
    write_object,
    write_text,
)

METRICS_FILE = "metrics.jsonl"
EVENTS_FILE = "events.jsonl"
TENSORBOARD_DIR = "tensorboard"

# Lines in a file of TensorBoard, or in a file on gs://.
LINES_PER_FILE = 1000

# Metrics in seconds, whose sum is the time spent on a line.
DURATIONS = ("loop_seconds", "compile_seconds", "evaluation_seconds")


class RunLog:
    """Writes the metrics and events of a run.

    If a line cannot be written, e.g. because the disk is full, an error is
    logged and training continues; the line is written before the next one, or
    by `finish`. If the log cannot be opened or rewound, the error is raised.

    Attributes:
        lost_seconds: Time spent on the lines that the last `rewind` dropped.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     log = RunLog.open(run_dir, step=0)
        ...     log.write("train", 100, {"loss": 6.5})
        ...     log.write("train", 200, {"loss": 6.25})
        ...     log.rewind(100)  # the run returns to step 100
        ...     read_metrics(run_dir)
        [{'split': 'train', 'step': 100, 'loss': 6.5}]
    """

    def __init__(self, run_dir: str, owner: Owner) -> None:
        self._run_dir = run_dir
        self._path = posixpath.join(run_dir, METRICS_FILE)
        self._replacement = self._path + ".new"
        self._events_path = posixpath.join(run_dir, EVENTS_FILE)
        # The number and the lines of the last part of each file on gs://.
        self._parts: dict[str, tuple[int, list[str]]] = {}
        # Lines that could not be written, by file.
        self._unwritten: dict[str, list[str]] = {}
        self._owner = owner
        self._writer: tf.summary.SummaryWriter | None = None
        self._num_lines = 0  # written to TensorBoard
        self.lost_seconds = 0.0

    @classmethod
    def open(
        cls,
        run_dir: str,
        step: int,
        evaluates_again: bool = False,
        num_unlogged: int = 0,
        owner: Owner | None = None,
    ) -> Self:
        """Opens the log of a new or resumed run, and rewinds it.

        Args:
            run_dir: `--output_dir` of the run.
            step: The step that the run starts from.
            evaluates_again: Whether the evaluation at that step is repeated.
            num_unlogged: Number of steps before that step that the next line
                will include.
            owner: `Owner.check` is called before the log is rewound and before
                each line is written.
        """
        log = cls(run_dir, owner or Owner())
        log.rewind(step, evaluates_again, num_unlogged)
        return log

    def rewind(
        self, step: int, evaluates_again: bool = False, num_unlogged: int = 0
    ) -> None:
        """Drops the lines of steps that will be trained or logged again.

        The arguments are those of `open`.
        """
        last_kept = {
            "train": step - num_unlogged,
            "eval": step - 1 if evaluates_again else step,
        }
        if exists(self._replacement):  # an earlier process was interrupted
            self._replace()
        kept, self.lost_seconds = [], 0.0
        unwritten = self._unwritten.pop(self._path, [])
        for line in (*read_metrics(self._run_dir), *map(json.loads, unwritten)):
            if line["step"] <= last_kept.get(line["split"], step):
                kept.append(json.dumps(line))
            else:
                self.lost_seconds += sum(line.get(n, 0.0) for n in DURATIONS)
        self._owner.check()
        if exists(_part(self._path, 1)):
            write_text(self._replacement, _as_text(kept))
            self._replace()
        else:
            write_text(self._path, _as_text(kept))
        self._parts[self._path] = 0, kept

    def _replace(self) -> None:
        """Replaces all parts of `metrics.jsonl` by one file."""
        for part in reversed(list(_parts(self._path))[1:]):
            remove(part)
        tf.io.gfile.rename(self._replacement, self._path, overwrite=True)

    def write(
        self, split: str, step: int, metrics: Mapping[str, float]
    ) -> None:
        """Adds one line to `metrics.jsonl`, and a scalar for each metric.

        Args:
            split: "train", for means over the steps since the last line, or
                "eval".
            step: Training steps done.
            metrics: Values by name.
        """
        line = {"split": split, "step": step, **metrics}

        def write_all() -> None:
            self._append_line(self._path, line)
            # TensorBoard reads nothing after an incomplete record, so after a
            # failure the next line begins a new file.
            writer, self._writer = self._writer, None
            writer = writer or tf.summary.create_file_writer(
                posixpath.join(self._run_dir, TENSORBOARD_DIR)
            )
            with writer.as_default():
                for name, value in metrics.items():
                    # TensorFlow keeps a tensor of each Python number for ever.
                    tf.summary.scalar(
                        f"{split}/{name}",
                        np.float32(value),
                        step=np.int64(step),
                    )
            writer.flush()
            self._num_lines += 1
            if self._num_lines % LINES_PER_FILE:
                self._writer = writer
            else:
                writer.close()  # the next line begins a new file

        self._try_to(write_all, self._path)

    def write_event(self, kind: str, step: int, **facts: Any) -> None:
        """Adds one line, with the current time, to `events.jsonl`.

        Args:
            kind: start, resume, stop, finish, diverged, rollback,
                dropout, data, checkpoint, profile or loss_at_chance.
            step: Training steps done.
            facts: Further JSON values, by key.
        """
        line = {"time": time.time(), "event": kind, "step": step, **facts}
        self._try_to(
            lambda: self._append_line(self._events_path, line),
            self._events_path,
        )

    def finish(self) -> None:
        """Writes the lines that could not be written before.

        Raises:
            UserError: If that fails again; a `RetryError` if the cause is
                temporary.
        """
        for path, lines in self._unwritten.items():
            try:
                if lines:
                    self._append_unwritten(path)
            except (OSError, tf.errors.OpError) as error:
                cause = faults.explain(error) or UserError(first_line(error))
                raise type(cause)(
                    f"all lines of {path} must be written",
                    received=f"{len(lines)} lines that could not be written: "
                    f"{cause}",
                    remedy="Checkpoints are not affected. "
                    "These lines are lost.",
                ) from None

    def _append_line(self, path: str, line: Mapping[str, Any]) -> None:
        self._unwritten.setdefault(path, []).append(json.dumps(line))
        self._append_unwritten(path)

    def _append_unwritten(self, path: str) -> None:
        self._owner.check()
        if is_remote(path):
            self._upload_unwritten(path)
            return
        lines = self._unwritten[path]
        if len(lines) > 1:
            # A write that raised an error may still have succeeded.
            written = {json.dumps(line) for line in read_lines(path)}
            lines = [line for line in lines if line not in written]
        # Readers skip incomplete lines.
        begin = "\n" if _is_cut_short(path) else ""
        with tf.io.gfile.GFile(path, "a") as file:
            file.write(begin + _as_text(lines))
        self._unwritten[path] = []

    def _upload_unwritten(self, path: str) -> None:
        """Uploads the last part of a file with the lines that it lacks."""
        if path not in self._parts:  # written by an earlier process
            parts = list(_parts(path))
            last = map(json.dumps, _read_part(parts[-1])) if parts else ()
            self._parts[path] = max(0, len(parts) - 1), list(last)
        number, lines = self._parts[path]
        if len(lines) >= LINES_PER_FILE:
            number, lines = number + 1, []
        lines = lines + self._unwritten[path]
        write_object(_part(path, number), _as_text(lines).encode())
        self._parts[path] = number, lines
        self._unwritten[path] = []

    def _try_to(self, write: Callable[[], None], path: str) -> None:
        try:
            write()
        except (OSError, tf.errors.OpError) as error:
            # Without the remedy, which may be to start the command again.
            found = faults.explain(error) or UserError(first_line(error))
            logging.error(
                "%s NOT WRITTEN: %s The run tries again when it writes the "
                "next line",
                path,
                found.fault,
            )


def read_metrics(run_dir: str) -> list[dict[str, Any]]:
    """Reads `metrics.jsonl`; see `read_lines`."""
    return list(read_lines(posixpath.join(run_dir, METRICS_FILE)))


def read_events(run_dir: str) -> list[dict[str, Any]]:
    """Reads `events.jsonl`; see `read_lines`."""
    return list(read_lines(posixpath.join(run_dir, EVENTS_FILE)))


def read_lines(path: str) -> Iterator[dict[str, Any]]:
    """Reads the lines of a log one at a time; none if there is no file.

    Lines that a crash or a full disk left incomplete are skipped.
    """
    for part in _parts(path):
        yield from _read_part(part)


def _is_cut_short(path: str) -> bool:
    """Whether the last line of a local file is incomplete."""
    if not exists(path) or not (size := tf.io.gfile.stat(path).length):
        return False
    with tf.io.gfile.GFile(path, "rb") as file:
        file.seek(size - 1)
        return bool(file.read(1) != b"\n")


def _as_text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _part(path: str, number: int) -> str:
    return f"{path}.{number}" if number else path


def _parts(path: str) -> Iterator[str]:
    """The parts of a file that exist."""
    for number in itertools.count():
        part = _part(path, number)
        if not exists(part):
            return
        yield part
        if not is_remote(path):
            return


def _read_part(path: str) -> Iterator[dict[str, Any]]:
    def read() -> bytes:
        # All at once: line by line, TensorFlow takes an error of gs:// for the
        # end of the file.
        with open_existing(path, "rb") as file:
            return file.read()

    for line in read_again_if_damaged(read, path).splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue
