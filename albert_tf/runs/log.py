"""The log of a run: metrics and events.

    RUN/metrics.jsonl   one line for each device loop and each evaluation
    RUN/events.jsonl    starts, stops and changes, with their time
    RUN/tensorboard/    the metrics, and profiles

If a step is trained a second time, its lines in `metrics.jsonl` are replaced.
Lines in `events.jsonl` are never removed.
"""

import json
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.errors import UserError, first_line
from albert_tf.io import faults
from albert_tf.io.files import (
    exists,
    is_remote,
    open_existing,
    read_again_if_damaged,
    write_text,
)

METRICS_FILE = "metrics.jsonl"
EVENTS_FILE = "events.jsonl"
TENSORBOARD_DIR = "tensorboard"

# Lines in a file of TensorBoard: on gs://, each line uploads its file again.
LINES_PER_FILE = 1000

# Metrics in seconds, whose sum is the time spent on a line.
DURATIONS = ("loop_seconds", "compile_seconds", "evaluation_seconds")


class _Lines:
    """A file of JSON lines; those that cannot be written are written later."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.unwritten: list[str] = []
        # An earlier process may have left an incomplete line.
        self._is_intact = False
        # The lines of a file on gs://, which a new line uploads again: to read
        # them for that might damage them. None: not read yet.
        self._uploaded: list[str] | None = None

    def append(self, line: Mapping[str, Any]) -> None:
        self.unwritten.append(json.dumps(line))
        self.write()

    def write(self) -> None:
        """Writes all lines that have not been written."""
        if self._uploaded is not None:
            self.replace(self._uploaded)
            return
        if not self._is_intact:
            self.replace(map(json.dumps, read_lines(self.path)))
            return
        self._is_intact = False
        with tf.io.gfile.GFile(self.path, "a") as file:
            file.write(_as_text(self.unwritten))
        self.unwritten, self._is_intact = [], True

    def replace(self, lines: Iterable[str]) -> None:
        """Replaces the file by these lines and those not written, once each."""
        lines = list(dict.fromkeys([*lines, *self.unwritten]))
        write_text(self.path, _as_text(lines))
        if is_remote(self.path):
            self._uploaded = lines
        self.unwritten, self._is_intact = [], True


class RunLog:
    """Writes the metrics and events of a run; see `rewind` for arguments.

    If a line cannot be written, e.g. because the disk is full, an error is
    logged and training continues; the line is written before the next one, or
    by `finish`. If the log cannot be opened or rewound, the error is raised.

    Attributes:
        lost_seconds: Time spent on the lines that the last `rewind` dropped.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     log = RunLog(run_dir, step=0)
        ...     log.write("train", 100, {"loss": 6.5})
        ...     log.write("train", 200, {"loss": 6.25})
        ...     log.rewind(100)  # the run returns to step 100
        ...     read_metrics(run_dir)
        [{'split': 'train', 'step': 100, 'loss': 6.5}]
    """

    def __init__(
        self,
        run_dir: str,
        step: int,
        evaluates_again: bool = False,
        num_unlogged: int = 0,
    ) -> None:
        self._run_dir = run_dir
        self._metrics = _Lines(posixpath.join(run_dir, METRICS_FILE))
        self._events = _Lines(posixpath.join(run_dir, EVENTS_FILE))
        self._writer: tf.summary.SummaryWriter | None = None
        self._num_lines = 0  # written to TensorBoard
        self.lost_seconds = 0.0
        self.rewind(step, evaluates_again, num_unlogged)

    def rewind(
        self, step: int, evaluates_again: bool = False, num_unlogged: int = 0
    ) -> None:
        """Drops the lines of steps that will be trained or logged again.

        Args:
            step: The step that the run starts from.
            evaluates_again: Whether the evaluation at that step is repeated.
            num_unlogged: Number of steps before that step that the next line
                will include.
        """
        last_kept = {
            "train": step - num_unlogged,
            "eval": step - 1 if evaluates_again else step,
        }
        kept, self.lost_seconds = [], 0.0
        unwritten = map(json.loads, self._metrics.unwritten)
        for line in (*read_metrics(self._run_dir), *unwritten):
            if line["step"] <= last_kept.get(line["split"], step):
                kept.append(json.dumps(line))
            else:
                self.lost_seconds += sum(line.get(n, 0.0) for n in DURATIONS)
        self._metrics.unwritten = []
        self._metrics.replace(kept)

    def write(
        self, split: str, step: int, metrics: Mapping[str, float]
    ) -> None:
        """Adds one line to `metrics.jsonl`, and a scalar for each metric.

        Args:
            split: "train", for means over the steps since the last line, or
                "eval".
        """
        line = {"split": split, "step": step, **metrics}

        def write_all() -> None:
            self._metrics.append(line)
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

        _try_to(write_all, self._metrics.path)

    def write_event(self, kind: str, step: int, **facts: Any) -> None:
        """Adds one line, with the current time, to `events.jsonl`.

        Args:
            kind: start, resume, stop, finish, diverged, dropout,
                data, checkpoint or profile.
            facts: Further JSON values, by key.
        """
        line = {"time": time.time(), "event": kind, "step": step, **facts}
        _try_to(lambda: self._events.append(line), self._events.path)

    def finish(self) -> None:
        """Writes the lines that could not be written before.

        Raises:
            UserError: If that fails again; a `RetryError` if the cause is
                temporary.
        """
        for file in (self._metrics, self._events):
            try:
                if file.unwritten:
                    file.write()
            except (OSError, tf.errors.OpError) as error:
                cause = faults.explain(error) or UserError(first_line(error))
                raise type(cause)(
                    f"all lines of {file.path} must be written",
                    received=f"{len(file.unwritten)} lines that could not be "
                    f"written: {cause}",
                    remedy="Checkpoints are not affected. "
                    "These lines are lost.",
                ) from None


def _try_to(write: Callable[[], None], path: str) -> None:
    try:
        write()
    except (OSError, tf.errors.OpError) as error:
        # Without the remedy, which may be to start the command again.
        found = faults.explain(error) or UserError(first_line(error))
        logging.error(
            "%s NOT WRITTEN: %s The run tries again when it writes the next "
            "line",
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
    if not exists(path):
        return

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


def _as_text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
