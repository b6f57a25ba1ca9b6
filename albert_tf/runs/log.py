"""The record of a run: figures, events, a progress line, goodput.

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

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.errors import first_line
from albert_tf.io.files import open_existing, write_text
from albert_tf.training import metrics

METRICS_FILE = "metrics.jsonl"
EVENTS_FILE = "events.jsonl"
TENSORBOARD_DIR = "tensorboard"

# Figures that depend on the clock. All others are, for the same settings, the
# same in each run, however often it was interrupted.
TIMING_FIGURES = (
    "loop_seconds",
    "steps_per_second",
    "tokens_per_second",
    "tflops",
    "mfu",
    "input_bound_share",
    "step_seconds_median",
    "step_seconds_p95",
    "goodput",
)


# From which share on the progress line tells that steps wait for their batch.
SLOW_INPUT_SHARE = 0.05


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


class Progress:
    """Rate and time to go, and what the time went into.

    Args:
        num_steps: Steps of the run.
        tokens_per_step: Positions of a batch, padding included.
        flops_per_step: Operations of the model in one step.
        peak_flops: Of all devices in FLOP/s; None if it is not known.
        run_dir: `--output_dir` of the run, for the time it has taken so far.

    Attributes:
        was_steady: Whether no compiling took part in the last figures.
    """

    was_steady = False

    def __init__(
        self,
        num_steps: int,
        tokens_per_step: int,
        flops_per_step: int,
        peak_flops: float | None,
        run_dir: str,
    ) -> None:
        self._num_steps = num_steps
        self._tokens_per_step = tokens_per_step
        self._flops_per_step = flops_per_step
        self._peak_flops = peak_flops
        self._seconds_per_step: float | None = None
        self._run_dir = run_dir
        starts = [event["time"] for event in read_events(run_dir)]
        self._first_start = min(starts, default=time.time())
        self.start_again()

    def start_again(self) -> None:
        """Counts the time of the lines that the log has kept."""
        self._useful_seconds = sum(
            line.get("loop_seconds", 0.0)
            for line in read_metrics(self._run_dir)
            if line["split"] == "train"
        )
        self._forget()

    def _forget(self) -> None:
        self._step_seconds: list[np.ndarray] = []
        self._input_seconds = 0.0
        self._steady = True

    def add_steps(self, times: np.ndarray, ended: float, steady: bool) -> None:
        """Takes note of steps.

        Args:
            times: Of `train_step.Steps`: float64, `(steps, 2)`.
            ended: When the last one was seen to have ended.
            steady: False if compiling took part of the time, which then
                does not count for the time to go.
        """
        asked = np.append(times[:, 0], ended)
        self._step_seconds.append(np.diff(asked))
        self._input_seconds += float((times[:, 1] - times[:, 0]).sum())
        self._steady &= steady

    def advance(self) -> dict[str, float]:
        """Figures of the steps since the last call; see `TIMING_FIGURES`.

        `input_bound_share` is the share of the time that steps waited for
        their batch; `mfu` is there if the peak is known; `goodput` is the
        share of the time since the run's first start, between processes
        too, that went into steps that were kept.
        """
        seconds = np.concatenate(self._step_seconds)
        input_seconds, steady = self._input_seconds, self._steady
        self._forget()
        self.was_steady = steady
        total = max(float(seconds.sum()), 1e-9)
        mean = total / len(seconds)
        previous = self._seconds_per_step
        if previous is None or not steady:
            smoothed = mean
        else:
            smoothed = 0.8 * previous + 0.2 * mean
        if steady:
            self._seconds_per_step = smoothed
        flops = self._flops_per_step / mean
        # Compiling, where it is part of a step's time, is not useful.
        useful = total if steady else float(np.median(seconds)) * len(seconds)
        self._useful_seconds += useful
        elapsed = max(time.time() - self._first_start, total)
        figures = {
            "loop_seconds": useful,
            "steps_per_second": 1 / mean,
            "tokens_per_second": self._tokens_per_step / mean,
            "tflops": flops / 1e12,
            "input_bound_share": input_seconds / total,
            "step_seconds_median": float(np.median(seconds)),
            "step_seconds_p95": float(np.quantile(seconds, 0.95)),
            "goodput": min(self._useful_seconds / elapsed, 1.0),
        }
        if self._peak_flops:
            figures["mfu"] = flops / self._peak_flops
        return figures

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Logs the progress line of training."""
        remaining = self._num_steps - step
        rate = self._seconds_per_step or 1 / figures["steps_per_second"]
        extra = ""
        if "mfu" in figures:
            extra += f" | MFU {100 * figures['mfu']:.1f}%"
        if figures["input_bound_share"] > SLOW_INPUT_SHARE:
            share = 100 * figures["input_bound_share"]
            extra += f" | waiting for input {share:.0f}%"
        logging.info(
            "step %d/%d (%.1f%%) | loss %.3f (%s) | lr %.2e | dropout %g | "
            "%.2f steps/s | %s tokens/s%s | ETA %s",
            step,
            self._num_steps,
            100 * step / self._num_steps,
            figures["loss"],
            metrics.describe(figures),
            figures["learning_rate"],
            figures["dropout"],
            figures["steps_per_second"],
            _short(figures["tokens_per_second"]),
            extra,
            _duration(remaining * rate),
        )


def _short(number: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{seconds:02d}s"
