"""What a run's directory tells of the run, read for a report.

Runs may have millions of lines of figures. Each figure is kept in a bounded
number of buckets with the lowest and the highest value in each, so that no
spike is lost.
"""

import dataclasses
import math
import posixpath
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert_tf.config import flatten
from albert_tf.errors import UserError
from albert_tf.io.files import load_json_if_any
from albert_tf.runs import checkpoints
from albert_tf.runs import directory as run_directory
from albert_tf.runs.log import EVENTS_FILE, METRICS_FILE, read_lines

# Buckets of a curve: about two a point of a panel's width.
MAX_BUCKETS = 600

SECONDS_PER_HOUR = 3600.0


@dataclasses.dataclass(slots=True)
class Bucket:
    """Neighbouring points of a curve as their mean and both extremes."""

    count: int
    step_sum: float
    value_sum: float
    lowest: tuple[float, float]
    highest: tuple[float, float]

    def add(self, other: "Bucket") -> None:
        """Takes the points of another bucket in."""
        self.count += other.count
        self.step_sum += other.step_sum
        self.value_sum += other.value_sum
        if other.lowest[1] < self.lowest[1]:
            self.lowest = other.lowest
        if other.highest[1] > self.highest[1]:
            self.highest = other.highest


class Curve:
    """A figure by step, in bounded memory.

    Points are taken one to a bucket; whenever there are twice as many buckets
    as wanted, neighbours are joined, and later buckets take as many points.

    Args:
        max_buckets: Half the most buckets kept.

    Attributes:
        num_points: Finite values added.
        num_not_finite: Values left out, infinite or no numbers.
        last: Step and value of the last point.
    """

    def __init__(self, max_buckets: int = MAX_BUCKETS) -> None:
        self._max_buckets = max_buckets
        self._buckets: list[Bucket] = []
        self._points_per_bucket = 1
        self.num_points = 0
        self.num_not_finite = 0
        self.last = (0.0, math.nan)

    def add(self, step: float, value: float) -> None:
        """Adds a point; steps come in rising order."""
        if not math.isfinite(value):
            self.num_not_finite += 1
            return
        point = (step, value)
        self.last = point
        self.num_points += 1
        bucket = Bucket(1, step, value, point, point)
        buckets = self._buckets
        if buckets and buckets[-1].count < self._points_per_bucket:
            buckets[-1].add(bucket)
            return
        if len(buckets) == 2 * self._max_buckets:
            for kept, joined in zip(buckets[::2], buckets[1::2], strict=True):
                kept.add(joined)
            del buckets[1::2]
            self._points_per_bucket *= 2
        buckets.append(bucket)

    def mean(self) -> float:
        """Of all points; no number if there is none."""
        if not self.num_points:
            return math.nan
        return sum(b.value_sum for b in self._buckets) / self.num_points

    def lowest(self) -> tuple[float, float]:
        """Step and value of the lowest point, of which there must be one."""
        return min((b.lowest for b in self._buckets), key=lambda p: p[1])

    def extremes(self) -> np.ndarray:
        """The lowest and the highest point of each bucket, and the last.

        Returns:
            float64, `(points, 2)`: step and value, by step. All points, where
            there are few.
        """
        points = {p for b in self._buckets for p in (b.lowest, b.highest)}
        if self.num_points:
            points.add(self.last)
        return np.array(sorted(points), float).reshape(-1, 2)

    def smoothed(self, window: float = 0.02) -> np.ndarray:
        """Means of each bucket and of those around it.

        A window that would go beyond the beginning is cut on both sides, so
        that a steep one is not drawn flat; at the end, on its side alone.

        Args:
            window: Share of the buckets that are averaged.

        Returns:
            float64, `(buckets, 2)`: step and value.
        """
        counts = np.array([b.count for b in self._buckets], float)
        sums = np.array([(b.step_sum, b.value_sum) for b in self._buckets])
        sums = sums.reshape(-1, 2)
        places = np.arange(len(counts))
        reach = np.minimum(places, int(window * len(counts) / 2))
        counts_before = np.concatenate([[0.0], counts.cumsum()])
        sums_before = np.concatenate([np.zeros((1, 2)), sums.cumsum(axis=0)])
        first = places - reach
        end = np.minimum(places + reach + 1, len(counts))
        num = counts_before[end] - counts_before[first]
        means = (sums_before[end] - sums_before[first]) / num[:, None]
        means[:, 0] = sums[:, 0] / counts  # the step is the bucket's own
        return means


class RunHistory:
    """A run's figures, events and settings.

    Args:
        run_dir: `--output_dir` of the run.
        name: What to call it.
        max_buckets: See `Curve`.

    Attributes:
        curves: By split, "train" or "eval", and name of the figure.
        events: Those of events.jsonl, checkpoints left out.
        checkpoint_events: Their number, and the seconds that training waited
            for them.
        times: Unix seconds of the first and the last event; None if the run
            has noted none.
        settings: By group and name, e.g. "optimizer.learning_rate", as in
            config.json; empty if there is none.
        records: The records' metadata; empty if there is none.
        checkpoints, best_checkpoints: Those that are kept, by step; some may
            be torn.

    Raises:
        UserError: If the directory holds no figures.
    """

    def __init__(
        self, run_dir: str, name: str, max_buckets: int = MAX_BUCKETS
    ) -> None:
        self.run_dir = run_dir
        self.name = name
        self.curves: dict[tuple[str, str], Curve] = {}
        self._hours = Curve(max_buckets)
        self._read_figures(max_buckets)
        if not self.curves:
            raise UserError(
                f"run_dirs must hold {METRICS_FILE} with figures",
                received=run_dir,
                remedy="Give the --output_dir of runs that have trained.",
            )
        self.events: list[dict[str, Any]] = []
        self.checkpoint_events = (0, 0.0)
        self.times: tuple[float, float] | None = None
        self._read_events()
        config = load_json_if_any(
            posixpath.join(run_dir, run_directory.CONFIG_FILE)
        )
        # As it stands there: runs of other versions have other settings.
        self.settings = flatten(config or {})
        self.records: dict[str, Any] = (
            load_json_if_any(
                posixpath.join(run_dir, run_directory.RECORDS_METADATA_FILE)
            )
            or {}
        )
        self.checkpoints, self.best_checkpoints = (
            checkpoints.list_checkpoints(posixpath.join(run_dir, directory))
            for directory in (checkpoints.CHECKPOINTS_DIR, checkpoints.BEST_DIR)
        )

    def _read_figures(self, max_buckets: int) -> None:
        seconds = 0.0
        for line in read_lines(posixpath.join(self.run_dir, METRICS_FILE)):
            split, step = line["split"], line["step"]
            if split == "train" and "loop_seconds" in line:
                if not self._hours.num_points:
                    self._hours.add(0, 0.0)
                seconds += line["loop_seconds"]
                self._hours.add(step, seconds / SECONDS_PER_HOUR)
            for name, value in line.items():
                if name in ("split", "step"):
                    continue
                curve = self.curves.get((split, name))
                if curve is None:
                    curve = self.curves[split, name] = Curve(max_buckets)
                curve.add(step, value)

    def _read_events(self) -> None:
        num_checkpoints, stalled = 0, 0.0
        for event in read_lines(posixpath.join(self.run_dir, EVENTS_FILE)):
            time = event["time"]
            self.times = (self.times[0] if self.times else time, time)
            if event["event"] == "checkpoint":
                num_checkpoints += 1
                stalled += event.get("stalled_s", 0.0)
            else:
                self.events.append(event)
        self.checkpoint_events = (num_checkpoints, stalled)

    def curve(self, split: str, figure: str) -> Curve:
        """The curve of a figure; one without points if there is none."""
        return self.curves.get((split, figure)) or Curve()

    @property
    def last_step(self) -> int:
        """Of the last line, trained or held out."""
        return int(max(curve.last[0] for curve in self.curves.values()))

    def count_events(self, kind: str) -> int:
        """How often something happened."""
        return sum(event["event"] == kind for event in self.events)

    def tokens_per_step(self) -> int | None:
        """Positions of a batch, padding included; None if it is not known."""
        batch = self.settings.get("data.global_batch_size")
        length = self.settings.get("data.max_seq_length")
        return batch * length if batch and length else None

    def hours(self) -> float | None:
        """Of the steps that were kept; None if it is not known."""
        return self._hours.last[1] if self._hours.num_points else None

    def x_values(self, steps: Any, x_axis: str) -> np.ndarray:
        """Where steps stand on an axis.

        Args:
            steps: Numbers, of any shape.
            x_axis: "step", "tokens" or "hours".

        Raises:
            UserError: If the run does not tell.
        """
        steps = np.asarray(steps, float)
        if x_axis == "tokens":
            tokens_per_step = self.tokens_per_step()
            if tokens_per_step is None:
                raise UserError(
                    "x_axis=tokens needs the batch size and length of each "
                    f"run, in its {run_directory.CONFIG_FILE}",
                    received=f"none in {self.run_dir}",
                    remedy="Give --x_axis=step.",
                )
            return steps * tokens_per_step
        if x_axis == "hours":
            if not self._hours.num_points:
                raise UserError(
                    f"x_axis=hours needs loop_seconds in {METRICS_FILE}",
                    received=f"none in {self.run_dir}",
                    remedy="Give --x_axis=step.",
                )
            return np.interp(steps, *self._hours.extremes().T)
        return steps


def read_runs(run_dirs: Sequence[str]) -> list[RunHistory]:
    """Reads runs, each under a name of its own.

    Args:
        run_dirs: `--output_dir` of each run.

    Raises:
        UserError: If a directory holds no figures, or is named twice.
    """
    names = short_names(run_dirs)
    # What all runs together may have, so that the page stays small.
    max_buckets = max(30, min(MAX_BUCKETS, 2 * MAX_BUCKETS // len(names)))
    return [
        RunHistory(run_dir, name, max_buckets)
        for run_dir, name in zip(run_dirs, names, strict=True)
    ]


def short_names(run_dirs: Sequence[str]) -> list[str]:
    """The last parts of each path, as many as tell them apart.

    Raises:
        UserError: If two are the same.
    """
    paths = [posixpath.normpath(d).split("/") for d in run_dirs]
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(parts[-length:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    raise UserError(
        "run_dirs must name each run once", received=", ".join(run_dirs)
    )
