"""The results of a sweep: means over seeds, spreads, differences, tables."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from albert_tf.runs.log import read_metrics
from albert_tf.sweeps.directory import is_trained, read_evaluation
from albert_tf.sweeps.plan import TRAINING_TOTALS, Plan, PlannedRun


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, sample standard deviation, standard error and number of values.

    A number that needs more values, or is not finite, is None.
    """
    mean = statistics.fmean(values) if values else math.nan
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    error = deviation / math.sqrt(len(values)) if values else math.nan
    return {
        "mean": mean if math.isfinite(mean) else None,
        "standard_deviation": deviation if math.isfinite(deviation) else None,
        "standard_error": error if math.isfinite(error) else None,
        "num_runs": len(values),
    }


def summarize(plan: Plan) -> dict[str, Any]:
    """Returns the values, spreads and differences of all finished runs.

    Differences are taken between runs of a seed. These share initial weights
    and the order of the data as far as their settings agree, so that their
    difference varies less. Variants with different numbers of stages read
    different batches.
    """
    runs = {
        run.name: _read_run(plan, run) for run in plan.runs if is_trained(run)
    }

    def of(variant: str, metric: str) -> dict[int | None, float]:
        return {
            run.seed: runs[run.name][metric]
            for run in plan.runs
            if run.variant == variant and metric in runs.get(run.name, {})
        }

    def difference(first: str, second: str, metric: str) -> list[float]:
        others = of(second, metric)
        return [
            value - others[seed]
            for seed, value in of(first, metric).items()
            if seed in others
        ]

    return {
        "variants": {
            variant: {
                metric: {
                    **spread([*of(variant, metric).values()]),
                    "paper": plan.paper.get(variant, {}).get(metric),
                }
                for metric in plan.metrics
            }
            for variant in plan.variants
        },
        "differences": [
            {"first": first, "second": second, "metric": metric}
            | spread(difference(first, second, metric))
            for first, second in plan.pairs
            for metric in plan.metrics
        ],
        "runs": runs,
    }


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


def markdown(plan: Plan, content: Mapping[str, Any]) -> str:
    """Returns the tables of what `summarize` has found."""
    published = dict.fromkeys(
        metric for values in plan.paper.values() for metric in values
    )
    header = ["variant", "runs"]
    rows = {
        variant: [
            variant,
            str(
                sum(
                    run.variant == variant and run.name in content["runs"]
                    for run in plan.runs
                )
            ),
        ]
        for variant in plan.variants
    }
    for metric in dict.fromkeys([*plan.metrics, *published]):
        if metric in plan.metrics:
            header.append(metric)
            for variant, row in rows.items():
                row.append(_mean(metric, content["variants"][variant][metric]))
        if metric in published:
            header.append("paper")
            if metric not in plan.metrics:
                header[-1] = f"{metric}, paper"
            for variant, row in rows.items():
                value = plan.paper.get(variant, {}).get(metric)
                row.append(_format(metric, value))
    text = table(header, rows.values())
    if any(run.seed is not None for run in plan.runs):
        text += "\nMean and standard deviation over seeds.\n"
    if plan.pairs:
        text += "\n" + table(
            ["difference", "metric", "mean", "standard error", "paper"],
            [
                _difference_row(plan, difference)
                for difference in content["differences"]
                if difference["num_runs"]
            ],
        )
    return text


def _difference_row(plan: Plan, difference: Mapping[str, Any]) -> list[str]:
    first, second = difference["first"], difference["second"]
    metric = difference["metric"]
    of_first, of_second = (
        plan.paper.get(variant, {}).get(metric) for variant in (first, second)
    )
    published = None
    if of_first is not None and of_second is not None:
        published = of_first - of_second
    return [
        f"{first} - {second}",
        metric,
        _format(metric, difference["mean"], "+"),
        _format(metric, difference["standard_error"]),
        _format(metric, published, "+"),
    ]


def _mean(metric: str, found: Mapping[str, Any]) -> str:
    """Formats a mean, and the standard deviation if there is one."""
    text = _format(metric, found["mean"])
    if found["standard_deviation"] is not None:
        number, *unit = text.split(" ")
        deviation = _format(metric, found["standard_deviation"]).split(" ")[0]
        text = " ".join([number, "±", deviation, *unit])
    return text


def _format(metric: str, value: float | None, sign: str = "") -> str:
    """Formats a value: accuracies in percent, times in seconds."""
    if value is None:
        return "-"
    if metric.endswith("accuracy"):
        return f"{100 * value:{sign}.1f} %"
    if metric in TRAINING_TOTALS:
        return f"{value:{sign}.0f} s"
    return f"{value:{sign}{'.3f' if metric.endswith('loss') else 'g'}}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
