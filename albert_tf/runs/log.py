"""The record of a run: metrics and events.

RUN/metrics.jsonl   figures, a line for each loop and each evaluation; lines
                    of steps that are trained anew are replaced
RUN/events.jsonl    what happened when: starts, stops, rollbacks, switches;
                    never replaced
RUN/tensorboard/    the figures, and profiles
"""

import json
import posixpath
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf.errors import first_line
from albert_tf.io.files import open_existing, write_text

METRICS_FILE = "metrics.jsonl"
EVENTS_FILE = "events.jsonl"
TENSORBOARD_DIR = "tensorboard"


class RunLog:
    """Writes what happens; a continued run takes up where it stood.

    A line that cannot be written, e.g. for a full disk, is told and does not
    stop the training; to start, and to go back, the log must be writable.

    Args:
        run_dir: `--output_dir` of the run.
        step: Step that the run starts from.
        evaluates_again: Whether the evaluation at that step is made again.
    """

    def __init__(
        self, run_dir: str, step: int, evaluates_again: bool = False
    ) -> None:
        self._run_dir = run_dir
        self._path = posixpath.join(run_dir, METRICS_FILE)
        self._events_path = posixpath.join(run_dir, EVENTS_FILE)
        # Files that may end within a line.
        self._cut_short = {self._events_path}
        self.rewind(step, evaluates_again)
        self._writer: tf.summary.SummaryWriter | None = self._make_writer()

    def _make_writer(self) -> tf.summary.SummaryWriter:
        return tf.summary.create_file_writer(
            posixpath.join(self._run_dir, TENSORBOARD_DIR)
        )

    def rewind(self, step: int, evaluates_again: bool = False) -> None:
        """Drops the lines of steps that are trained, or evaluated, anew."""
        kept = [
            json.dumps(line) + "\n"
            for line in read_metrics(self._run_dir)
            if line["step"] < step
            or (
                line["step"] == step
                and not (evaluates_again and line["split"] == "eval")
            )
        ]
        write_text(self._path, "".join(kept))
        self._cut_short.discard(self._path)

    def write(
        self, split: str, step: int, figures: Mapping[str, float]
    ) -> None:
        """Adds one line, and a scalar for each figure.

        Args:
            split: "train", the means over the steps since the last line,
                or "eval".
            step: Updates made.
            figures: Numbers by name.
        """
        line = {"split": split, "step": step, **figures}

        def write_all() -> None:
            self._append_line(self._path, line)
            # What follows a record that was cut short is not read: after a
            # failure the next line begins a new file.
            writer, self._writer = self._writer or self._make_writer(), None
            with writer.as_default():
                for name, value in figures.items():
                    tf.summary.scalar(f"{split}/{name}", value, step=step)
            writer.flush()
            self._writer = writer

        self._try_to(write_all, self._path)

    def write_event(self, kind: str, step: int, **facts: Any) -> None:
        """Notes when something happened.

        Args:
            kind: start, resume, stop, finish, diverged, rollback,
                corrupt_records, dropout, data, checkpoint or profile.
            step: Updates made.
            facts: More of it, ready for JSON.
        """
        line = {"time": time.time(), "event": kind, "step": step, **facts}
        self._try_to(
            lambda: self._append_line(self._events_path, line),
            self._events_path,
        )

    def _append_line(self, path: str, line: Mapping[str, Any]) -> None:
        # Reading passes over an empty line, and over one cut short.
        begin = "\n" if path in self._cut_short else ""
        self._cut_short.add(path)
        with tf.io.gfile.GFile(path, "a") as file:
            file.write(f"{begin}{json.dumps(line)}\n")
        self._cut_short.discard(path)

    def _try_to(self, write: Callable[[], None], path: str) -> None:
        try:
            write()
        except (OSError, tf.errors.OpError) as error:
            logging.error("%s NOT WRITTEN: %s", path, first_line(error))


def read_metrics(run_dir: str) -> list[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl`; none if there is no file.

    A line that a crash, or a full disk, cut short is left out.
    """
    return list(read_lines(posixpath.join(run_dir, METRICS_FILE)))


def read_events(run_dir: str) -> list[dict[str, Any]]:
    """The lines of a run's `events.jsonl`, as `read_metrics`."""
    return list(read_lines(posixpath.join(run_dir, EVENTS_FILE)))


def read_lines(path: str) -> Iterator[dict[str, Any]]:
    """The lines of a log, one at a time; as `read_metrics`."""
    try:
        file = open_existing(path)
    except FileNotFoundError:
        return
    with file:
        for line in file:
            try:
                yield json.loads(line)
            except ValueError:
                continue
