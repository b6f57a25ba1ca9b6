"""The results of a sweep: means over seeds, spreads, differences, tables."""

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from albert_tf.runs.log import read_metrics
from albert_tf.sweeps.directory import is_trained, read_evaluation
from albert_tf.sweeps.plan import TRAINING_TOTALS, Plan, PlannedRun

Values = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Summary:
    """Mean and spread of some values.

    Attributes:
        mean: NaN without values.
        deviation: Sample standard deviation; NaN with fewer than two values.
        count: Number of values.
    """

    mean: float
    deviation: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        """Summarizes values."""
        return cls(
            statistics.fmean(values) if values else math.nan,
            statistics.stdev(values) if len(values) > 1 else math.nan,
            len(values),
        )

    @property
    def standard_error(self) -> float:
        """Standard error of the mean; NaN with fewer than two values."""
        return (
            self.deviation / math.sqrt(self.count) if self.count else math.nan
        )


@dataclasses.dataclass(frozen=True)
class Results:
    """The metrics of the finished runs of a sweep.

    Attributes:
        plan: The sweep.
        values: Metrics by variant and seed; a run that is not finished, and a
            metric that a run lacks, are missing.
    """

    plan: Plan
    values: Mapping[str, Mapping[int | None, Values]]

    def of(self, variant: str, metric: str) -> dict[int | None, float]:
        """Returns the values of a metric by seed."""
        return {
            seed: values[metric]
            for seed, values in self.values.get(variant, {}).items()
            if metric in values
        }

    def summary(self, variant: str, metric: str) -> Summary:
        """Summarizes a metric over the seeds of a variant."""
        return Summary.of(list(self.of(variant, metric).values()))

    def difference(self, first: str, second: str, metric: str) -> Summary:
        """Summarizes `first` minus `second` over the seeds that both have.

        Runs of a seed share initial weights and the order of the data as far
        as their settings agree, so that their difference varies less. Variants
        with different numbers of stages read different batches.
        """
        of_first, of_second = self.of(first, metric), self.of(second, metric)
        return Summary.of(
            [
                value - of_second[seed]
                for seed, value in of_first.items()
                if seed in of_second
            ]
        )

    def paper(self, variant: str, metric: str) -> float | None:
        """Returns the published value, if the settings give it."""
        return self.plan.paper.get(variant, {}).get(metric)


def read_results(plan: Plan) -> Results:
    """Reads the metrics of all finished runs."""
    values: dict[str, dict[int | None, Values]] = {}
    for run in plan.runs:
        if is_trained(run):
            values.setdefault(run.variant, {})[run.seed] = _read_run(plan, run)
    return Results(plan, values)


def _read_run(plan: Plan, run: PlannedRun) -> dict[str, float]:
    lines = [
        line
        for stage in run.stages
        for line in read_metrics(stage.run_dir)
        if line["split"] == "train"
    ]
    found: dict[str, float] = {
        total: sum(line[metric] for line in lines)
        for total, metric in TRAINING_TOTALS.items()
    }
    for line in read_metrics(run.run_dir):
        if line["split"] != "train":
            found |= {n: line[n] for n in line.keys() - {"split", "step"}}
    for name in plan.evaluations:
        metrics = read_evaluation(plan, run, name) or {}
        found |= {f"{name}/{metric}": v for metric, v in metrics.items()}
    return found


def markdown(results: Results) -> str:
    """Returns the tables of a sweep in Markdown."""
    plan = results.plan
    published = dict.fromkeys(
        metric for values in plan.paper.values() for metric in values
    )
    header, columns = ["variant", "runs"], []
    for metric in plan.metrics:
        header.append(metric)
        columns.append((metric, False))
        if metric in published:
            header.append("paper")
            columns.append((metric, True))
    for metric in published:
        if metric not in plan.metrics:
            header.append(f"{metric}, paper")
            columns.append((metric, True))
    rows = [
        [
            variant,
            str(len(results.values.get(variant, {}))),
            *(
                _published(results, variant, metric)
                if is_published
                else _measured(results, variant, metric)
                for metric, is_published in columns
            ),
        ]
        for variant in plan.variants
    ]
    text = _table(header, rows)
    if any(run.seed is not None for run in plan.runs):
        text += "\nMean and standard deviation over seeds.\n"
    if plan.pairs:
        text += "\n" + _table(
            ["difference", "metric", "mean", "standard error", "paper"],
            [
                _difference(results, first, second, metric)
                for first, second in plan.pairs
                for metric in plan.metrics
                if results.difference(first, second, metric).count
            ],
        )
    return text


def as_json(results: Results) -> str:
    """Returns all values, summaries and differences as JSON."""
    plan = results.plan

    def plain(summary: Summary) -> dict[str, Any]:
        return {
            "mean": _finite(summary.mean),
            "standard_deviation": _finite(summary.deviation),
            "standard_error": _finite(summary.standard_error),
            "num_runs": summary.count,
        }

    content = {
        "variants": {
            variant: {
                metric: {
                    **plain(results.summary(variant, metric)),
                    "paper": results.paper(variant, metric),
                }
                for metric in plan.metrics
            }
            for variant in plan.variants
        },
        "differences": [
            {
                "first": first,
                "second": second,
                "metric": metric,
                **plain(results.difference(first, second, metric)),
            }
            for first, second in plan.pairs
            for metric in plan.metrics
        ],
        "runs": {
            run.name: results.values[run.variant][run.seed]
            for run in plan.runs
            if run.seed in results.values.get(run.variant, {})
        },
    }
    return json.dumps(content, indent=2) + "\n"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _format(metric: str, value: float, signed: bool = False) -> str:
    """Formats a value: accuracies in percent, times in seconds."""
    sign = "+" if signed else ""
    if metric.endswith("accuracy"):
        return f"{100 * value:{sign}.1f} %"
    if metric in TRAINING_TOTALS:
        return f"{value:{sign}.0f} s"
    if metric.endswith("loss"):
        return f"{value:{sign}.3f}"
    return f"{value:{sign}g}"


def _measured(results: Results, variant: str, metric: str) -> str:
    summary = results.summary(variant, metric)
    if not summary.count:
        return "-"
    text = _format(metric, summary.mean)
    if summary.count > 1:
        number, *unit = text.split(" ")
        spread = _format(metric, summary.deviation).split(" ")[0]
        text = " ".join([number, "±", spread, *unit])
    return text


def _published(results: Results, variant: str, metric: str) -> str:
    value = results.paper(variant, metric)
    return "-" if value is None else _format(metric, value)


def _difference(
    results: Results, first: str, second: str, metric: str
) -> list[str]:
    summary = results.difference(first, second, metric)
    values = results.paper(first, metric), results.paper(second, metric)
    return [
        f"{first} - {second}",
        metric,
        _format(metric, summary.mean, signed=True),
        _format(metric, summary.standard_error) if summary.count > 1 else "-",
        "-"
        if None in values
        else _format(metric, values[0] - values[1], signed=True),  # type: ignore[operator]
    ]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
