"""The record of a run: JSON lines, TensorBoard scalars, a progress line."""

import json
import posixpath
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf import metrics
from albert_tf.files import open_existing, write_text

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_DIR = "tensorboard"


class RunLog:
    """Writes what happens; a continued run takes up where it stood.

    Args:
        run_dir: `--output_dir` of the run.
        step: Step that the run starts from; lines after it are of steps
            that are trained anew, and are dropped.
    """

    def __init__(self, run_dir: str, step: int) -> None:
        self._path = posixpath.join(run_dir, METRICS_FILE)
        kept = [
            json.dumps(line) + "\n"
            for line in read_metrics(run_dir)
            if line["step"] <= step
        ]
        write_text(self._path, "".join(kept))
        self._writer = tf.summary.create_file_writer(
            posixpath.join(run_dir, TENSORBOARD_DIR)
        )

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
        with tf.io.gfile.GFile(self._path, "a") as file:
            file.write(json.dumps(line) + "\n")
        with self._writer.as_default():
            for name, value in figures.items():
                tf.summary.scalar(f"{split}/{name}", value, step=step)
        self._writer.flush()


def read_metrics(run_dir: str) -> list[dict[str, Any]]:
    """The lines of a run's `metrics.jsonl`; none if there is no file.

    A last line that a crash cut short is left out.
    """
    path = posixpath.join(run_dir, METRICS_FILE)
    try:
        with open_existing(path) as file:
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


class Progress:
    """Rate and time to go, told in one line.

    Args:
        num_steps: Steps of the run.
        tokens_per_step: Positions of a batch, padding included.
    """

    def __init__(self, num_steps: int, tokens_per_step: int) -> None:
        self._num_steps = num_steps
        self._tokens_per_step = tokens_per_step
        self._seconds_per_step: float | None = None
        self._since = time.monotonic()

    def pause(self) -> None:
        """Leaves the time since the last call out: it was no training."""
        self._since = time.monotonic()

    def advance(self, num_steps: int, steady: bool) -> dict[str, float]:
        """Takes note of finished steps.

        Args:
            num_steps: Steps since the last call.
            steady: False if compiling took part of the time, which then
                does not count for the time to go.

        Returns:
            steps_per_second and tokens_per_second since the last call.
        """
        now = time.monotonic()
        seconds = max(now - self._since, 1e-9) / num_steps
        self._since = now
        if self._seconds_per_step is None or not steady:
            smoothed = seconds
        else:
            smoothed = 0.8 * self._seconds_per_step + 0.2 * seconds
        if steady:
            self._seconds_per_step = smoothed
        return {
            "steps_per_second": 1 / seconds,
            "tokens_per_second": self._tokens_per_step / seconds,
        }

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Logs the progress line of training."""
        remaining = self._num_steps - step
        rate = self._seconds_per_step or 1 / figures["steps_per_second"]
        logging.info(
            "step %d/%d (%.1f%%) | loss %.3f (%s) | lr %.2e | dropout %g | "
            "%.2f steps/s | %s tokens/s | ETA %s",
            step,
            self._num_steps,
            100 * step / self._num_steps,
            figures["loss"],
            metrics.describe(figures),
            figures["learning_rate"],
            figures["dropout"],
            figures["steps_per_second"],
            _short(figures["tokens_per_second"]),
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
