"""The log of a run: metrics and events.

    RUN/metrics.jsonl   one line for each device loop and each evaluation
    RUN/events.jsonl    starts, stops and changes, with their time
    RUN/tensorboard/    the metrics, and profiles

If a step is trained a second time, its lines in `metrics.jsonl` are replaced.
Lines in `events.jsonl` are never removed.
"""

import contextlib
import json
import posixpath
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

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
    """A file of JSON lines that grows."""

    def __init__(self, path: str) -> None:
        self.path = path
        # An earlier process, or a full disk, may have left an incomplete line.
        self._is_intact = False
        # The lines of a file on gs://, which a new line uploads again: to read
        # them for that might damage them. None: not read yet.
        self._uploaded: list[str] | None = None

    def append(self, line: Mapping[str, Any]) -> None:
        """Adds a line, and removes an incomplete one before it."""
        text = json.dumps(line)
        if self._uploaded is not None:
            self._uploaded.append(text)
            write_text(self.path, _as_text(self._uploaded))
            return
        if not self._is_intact:
            self.replace([*map(json.dumps, read_lines(self.path)), text])
            return
        self._is_intact = False
        with tf.io.gfile.GFile(self.path, "a") as file:
            file.write(_as_text([text]))
        self._is_intact = True

    def replace(self, lines: list[str]) -> None:
        """Replaces the file by these lines."""
        write_text(self.path, _as_text(lines))
        if is_remote(self.path):
            self._uploaded = lines
        self._is_intact = True


class RunLog:
    """Writes the metrics and events of a run.

    A line that cannot be written, e.g. because the disk is full, logs an error,
    and training continues. If the log cannot be opened, the error is raised.

    Args:
        step: The step that the run starts from. The lines of later steps, which
            will be trained again, are dropped.
        evaluates_again: Whether the evaluation at that step is repeated.
        num_unlogged: Number of steps before that step that the next line will
            include.

    Attributes:
        lost_seconds: Time spent on the lines that have been dropped.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as run_dir:
        ...     log = RunLog(run_dir, step=0)
        ...     log.write("train", 100, {"loss": 6.5})
        ...     log.write("train", 200, {"loss": 6.25})
        ...     log = RunLog(run_dir, step=100)  # the run resumes there
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
        last_kept = {
            "train": step - num_unlogged,
            "eval": step - 1 if evaluates_again else step,
        }
        kept = []
        for line in read_metrics(run_dir):
            if line["step"] <= last_kept.get(line["split"], step):
                kept.append(json.dumps(line))
            else:
                self.lost_seconds += sum(line.get(n, 0.0) for n in DURATIONS)
        self._metrics.replace(kept)

    def write(
        self, split: str, step: int, metrics: Mapping[str, float]
    ) -> None:
        """Adds one line to `metrics.jsonl`, and a scalar for each metric.

        Args:
            split: "train", for means over the steps since the last line, or
                "eval".
        """
        with _logged_errors(self._metrics.path):
            self._metrics.append({"split": split, "step": step, **metrics})
            self._write_scalars(split, step, metrics)

    def _write_scalars(
        self, split: str, step: int, metrics: Mapping[str, float]
    ) -> None:
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
                    f"{split}/{name}", np.float32(value), step=np.int64(step)
                )
        writer.flush()
        self._num_lines += 1
        if self._num_lines % LINES_PER_FILE:
            self._writer = writer
        else:
            writer.close()  # the next line begins a new file

    def write_event(self, kind: str, step: int, **facts: Any) -> None:
        """Adds one line, with the current time, to `events.jsonl`.

        Args:
            kind: start, resume, stop, finish, failed, diverged,
                dropout, checkpoint or profile.
            facts: Further JSON values, by key.
        """
        line = {"time": time.time(), "event": kind, "step": step, **facts}
        with _logged_errors(self._events.path):
            self._events.append(line)


@contextlib.contextmanager
def _logged_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        # Without the remedy, which may be to start the command again.
        found = faults.explain_any(error)
        logging.error("%s: A LINE WAS NOT WRITTEN: %s", path, found.fault)


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
