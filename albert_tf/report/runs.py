"""Reads metrics, events and settings from run directories."""

import math
import posixpath
from collections.abc import Sequence
from typing import Any

import numpy as np

from albert_tf.config import flatten
from albert_tf.errors import UserError
from albert_tf.io.files import load_json_if_any
from albert_tf.runs.directory import CONFIG_FILE, RECORDS_METADATA_FILE
from albert_tf.runs.log import METRICS_FILE, read_events, read_metrics


class RunHistory:
    """Metrics, events and settings of a run.

    Attributes:
        curves: By split, "train" or "eval", and name of the metric: steps and
            values, `(points, 2)`, without NaN and infinity.
        last_step: Step of the last line of metrics.jsonl.
        events: Lines of events.jsonl.
        settings: By dotted name, from config.json; empty without that file.
        records: Metadata of the records; empty if unknown.

    Raises:
        UserError: If the directory holds no metrics.
    """

    def __init__(self, run_dir: str, name: str) -> None:
        self.run_dir, self.name = run_dir, name
        # Read as plain JSON, since other versions have other settings.
        self.settings = flatten(self._load(CONFIG_FILE))
        self.records = self._load(RECORDS_METADATA_FILE)
        self.events = read_events(run_dir)
        self.last_step = 0
        points: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for line in read_metrics(run_dir):
            split, step = line.pop("split"), line.pop("step")
            self.last_step = max(self.last_step, step)
            for metric, value in line.items():
                if math.isfinite(value):
                    points.setdefault((split, metric), []).append((step, value))
        if not points:
            raise UserError(
                f"run_dirs must hold {METRICS_FILE} with metrics",
                received=run_dir,
                remedy="Give the --output_dir of runs that have trained.",
            )
        self.curves = {key: np.array(found) for key, found in points.items()}

    def _load(self, name: str) -> dict[str, Any]:
        return load_json_if_any(posixpath.join(self.run_dir, name)) or {}

    def curve(self, split: str, metric: str) -> np.ndarray:
        """Returns the curve of a metric; it is empty for an unknown metric."""
        return self.curves.get((split, metric), np.empty((0, 2)))


def read_runs(run_dirs: Sequence[str]) -> list[RunHistory]:
    """Reads runs; names are those of the directories if these differ."""
    names: Sequence[str] = [posixpath.basename(d.rstrip("/")) for d in run_dirs]
    if len({*names}) < len(names):
        names = run_dirs
    return [RunHistory(*named) for named in zip(run_dirs, names, strict=True)]
