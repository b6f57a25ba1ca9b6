"""Reads metrics, events and settings from run directories."""

import array
import math
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.config import flatten
from albert_tf.errors import UserError
from albert_tf.io.files import load_json_if_any
from albert_tf.runs.checkpoints import (
    BEST_DIR,
    CHECKPOINTS_DIR,
    list_checkpoints,
)
from albert_tf.runs.directory import CONFIG_FILE, RECORDS_METADATA_FILE
from albert_tf.runs.log import EVENTS_FILE, METRICS_FILE, read_lines

# Number of groups of points in a panel, about its width in pixels: more points
# would overlap.
NUM_BUCKETS = 600
# Width of the window of moving averages, as a fraction of all points.
_WINDOW = 0.02

SECONDS_PER_HOUR = 3600.0

# Facts of events that are times in seconds, by cause.
EVENT_FACTS = {
    "start-up": "start_up_s",
    "restoring": "restore_s",
    "checkpoints": "stalled_s",
    "lost steps": "lost_s",
}
CAUSES = ("steps", "input", "compiling", "evaluation", *EVENT_FACTS)


class Curve:
    """The values of a metric by rising step, without NaN and infinity.

    Attributes:
        num_not_finite: Number of omitted values.
    """

    def __init__(self) -> None:
        self._steps = array.array("d")
        self._values = array.array("d")
        self.num_not_finite = 0

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: float, value: float) -> None:
        """Adds a point; steps must rise."""
        if math.isfinite(value):
            self._steps.append(step)
            self._values.append(value)
        else:
            self.num_not_finite += 1

    @property
    def last(self) -> tuple[float, float]:
        """Step and value of the last point; 0 and NaN without points."""
        return (self._steps[-1], self._values[-1]) if self else (0.0, math.nan)

    @property
    def mean(self) -> float:
        """Mean of all values; NaN without points."""
        return float(np.mean(self._values)) if self else math.nan

    def _points(self) -> np.ndarray:
        return np.column_stack([self._steps, self._values])

    def extremes(self) -> np.ndarray:
        """Returns points with steps and values, float64, `(points, 2)`.

        All points or, of many, lowest and highest of each bucket and the last.
        """
        points = self._points()
        if len(points) <= 2 * NUM_BUCKETS:
            return points
        kept = {len(points) - 1}
        for indices in np.array_split(np.arange(len(points)), NUM_BUCKETS):
            values = points[indices, 1]
            kept |= {indices[values.argmin()], indices[values.argmax()]}
        return points[sorted(kept)]

    def smoothed(self) -> np.ndarray:
        """Returns moving averages: one for each group of neighboring points.

        Near the first point the window shrinks on both sides, so that a steep
        start stays steep. Near the last point it shrinks only on the right.
        """
        points = self._points()
        if not len(points):
            return points
        buckets = np.array_split(points, min(NUM_BUCKETS, len(points)))
        counts = np.array([len(bucket) for bucket in buckets])
        sums = np.array([bucket.sum(axis=0) for bucket in buckets])
        index = np.arange(len(buckets))
        reach = np.minimum(index, int(_WINDOW * len(buckets) / 2))
        first, end = index - reach, np.minimum(index + reach + 1, len(buckets))
        sums_before = np.concatenate([[0.0], sums[:, 1].cumsum()])
        counts_before = np.concatenate([[0], counts.cumsum()])
        return np.column_stack(
            [
                sums[:, 0] / counts,
                (sums_before[end] - sums_before[first])
                / (counts_before[end] - counts_before[first]),
            ]
        )


class RunHistory:
    """Metrics, events and settings of a run.

    Args:
        run_dir: `--output_dir` of the run.
        name: Name of the run in the report.

    Attributes:
        curves: By split, "train" or "eval", and name of the metric.
        tokens: Number of tokens of the kept steps, with padding; 0 if unknown.
        events: Lines of events.jsonl, except for checkpoints.
        seconds: Time by cause. "steps" is the time of the kept steps, without
            waiting for input.
        times: Unix seconds of the start of the first process and of the last
            event; None without events.
        settings: By dotted name, from config.json; empty without that file.
        records: Metadata of the records; empty if unknown.
        checkpoints, best_checkpoints: By step, with damaged ones.

    Raises:
        UserError: If the directory holds no metrics.
    """

    def __init__(self, run_dir: str, name: str) -> None:
        self.run_dir = run_dir
        self.name = name
        self.curves: dict[tuple[str, str], Curve] = {}
        self.tokens = 0.0
        self._counted_step = 0
        self.seconds = dict.fromkeys(CAUSES, 0.0)
        # Read as plain JSON, since other versions have other settings.
        self.settings = flatten(self._load(CONFIG_FILE))
        self.records = self._load(RECORDS_METADATA_FILE)
        self.checkpoints, self.best_checkpoints = (
            list_checkpoints(posixpath.join(run_dir, directory))
            for directory in (CHECKPOINTS_DIR, BEST_DIR)
        )
        for line in read_lines(posixpath.join(run_dir, METRICS_FILE)):
            self._add_metrics(line.pop("split"), line.pop("step"), line)
        if not self.curves:
            raise UserError(
                f"run_dirs must hold {METRICS_FILE} with metrics",
                received=run_dir,
                remedy="Give the --output_dir of runs that have trained.",
            )
        self.events: list[dict[str, Any]] = []
        self.times: tuple[float, float] | None = None
        for event in read_lines(posixpath.join(run_dir, EVENTS_FILE)):
            start_up = event.get("start_up_s", 0.0) + event.get(
                "restore_s", 0.0
            )
            began = self.times[0] if self.times else event["time"] - start_up
            self.times = began, event["time"]
            for cause, fact in EVENT_FACTS.items():
                self.seconds[cause] += event.get(fact, 0.0)
            if event["event"] != "checkpoint":
                self.events.append(event)

    def _load(self, name: str) -> dict[str, Any]:
        return load_json_if_any(posixpath.join(self.run_dir, name)) or {}

    def _add_metrics(
        self, split: str, step: int, line: Mapping[str, float]
    ) -> None:
        if split == "train":
            seconds = line.get("loop_seconds", 0.0)
            waited = seconds * line.get("input_bound_share", 0.0)
            self.seconds["steps"] += seconds - waited
            self.seconds["input"] += waited
            # Batch size and length may differ from those of other lines: the
            # settings are those of the last process only.
            per_step = self.tokens_per_step()
            if {"tokens_per_second", "steps_per_second"} <= line.keys():
                per_step = round(
                    line["tokens_per_second"] / line["steps_per_second"]
                )
            self.tokens += per_step * (step - self._counted_step)
            self._counted_step = step
        self.seconds["compiling"] += line.get("compile_seconds", 0.0)
        self.seconds["evaluation"] += line.get("evaluation_seconds", 0.0)
        for name, value in line.items():
            self.curves.setdefault((split, name), Curve()).add(step, value)

    def curve(self, split: str, metric: str) -> Curve:
        """Returns the curve of a metric; it is empty for an unknown metric."""
        return self.curves.get((split, metric)) or Curve()

    @property
    def last_step(self) -> int:
        """Step of the last line of metrics.jsonl."""
        return int(max(curve.last[0] for curve in self.curves.values()))

    def count_events(self, kind: str) -> int:
        """Returns how often an event happened."""
        return sum(event["event"] == kind for event in self.events)

    def tokens_per_step(self) -> int:
        """Returns the tokens of a batch, padding included; 0 if unknown."""
        batch = self.settings.get("data.global_batch_size", 0)
        length = self.settings.get("data.max_seq_length", 0)
        return batch * length * self.settings.get("head.num_choices", 1)


def read_runs(run_dirs: Sequence[str]) -> list[RunHistory]:
    """Reads runs, and names them by the shortest endings that differ.

    Args:
        run_dirs: `--output_dir` of each run.

    Raises:
        UserError: If a directory holds no metrics or is named twice.
    """
    paths = [posixpath.normpath(d).split("/") for d in run_dirs]
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len(set(names)) == len(names):
            return [
                RunHistory(run_dir, name)
                for run_dir, name in zip(run_dirs, names, strict=True)
            ]
    raise UserError(
        "run_dirs must name each run once", received=", ".join(run_dirs)
    )
