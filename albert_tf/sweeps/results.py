"""A sweep on disk: may it continue here, what is left to do, and its table.

SWEEP/runs/NAME/                          run directories
SWEEP/evaluations/NAME/EVALUATION.json    metrics of further evaluations
SWEEP/logs/NAME.log                       standard error of a run
SWEEP/logs/NAME.out                       standard output of its last process
"""

import functools
import json
import math
import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from albert_tf.cluster.jobs import Job
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError, name_faults
from albert_tf.io.artifact import differences
from albert_tf.io.files import exists, is_remote, load_json_if_any, write_json
from albert_tf.runs.directory import CONFIG_FILE, load_config
from albert_tf.runs.log import read_events, read_metrics
from albert_tf.sweeps.plan import (
    TRAINING_TOTALS,
    Evaluation,
    Plan,
    PlannedRun,
)

LOGS_DIR = "logs"


def check_directory(plan: Plan) -> None:
    """Refuses other settings for a run that has started.

    With those of the evaluations that it does while it trains.
    """
    if is_remote(plan.dir):
        raise UserError(
            "output_dir of a sweep must be a local directory",
            received=plan.dir,
            remedy="Records may be on gs://. Copy the results afterwards.",
        )
    for run in plan.runs:
        if not exists(f"{run.run_dir}/{CONFIG_FILE}"):
            continue
        stored = load_config(run.run_dir, PretrainingConfig)
        changed = differences(_settings(stored), _settings(run.config))
        if changed:
            raise UserError(
                f"the sweep in {plan.dir} must continue with its own settings",
                received=f"run {run.name}: {name_faults(changed)}",
                remedy="Restore them, rename the changed variants, or choose "
                "another --output_dir.",
            )


def make_jobs(plan: Plan) -> list[Job]:
    """What is left to do: trainings and evaluations, in the order of the runs.

    The jobs of a run follow each other, and a training follows that of the run
    whose weights it starts from.
    """
    jobs: list[Job] = []
    trainings: dict[str, Job] = {}
    for run in plan.runs:
        make = functools.partial(
            Job,
            log=os.path.join(plan.dir, LOGS_DIR, f"{run.name}.log"),
            output=os.path.join(plan.dir, LOGS_DIR, f"{run.name}.out"),
            last_saved=functools.partial(_last_saved, run.run_dir),
        )
        where = f"--output_dir={run.run_dir}"
        last = None
        if not is_trained(run):
            start = run.starts_from
            needs = trainings.get(start.name) if start else None
            last = make(run.name, _command([*run.flags, where]), needs=needs)
            trainings[run.name] = last
            jobs.append(last)
        for name, evaluation in run.evaluations.items():
            if read_evaluation(evaluation) is None:
                command = _command([*evaluation.flags, where])
                last = make(f"{run.name}/{name}", command, needs=last)
                last.on_success = functools.partial(
                    _store_evaluation, evaluation, last.output
                )
                jobs.append(last)
    return jobs


def _command(flags: list[str]) -> list[str]:
    return [sys.executable, "-m", "albert_tf.run_pretraining", *flags]


def is_trained(run: PlannedRun) -> bool:
    """Whether a run has done all its steps and its last evaluation."""
    return any(
        event["event"] == "finish"
        and event["step"] == run.config.training.num_train_steps
        for event in read_events(run.run_dir)
    )


def _last_saved(run_dir: str) -> int:
    events = read_events(run_dir)
    saved = [e["step"] for e in events if e["event"] == "checkpoint"]
    return max(saved, default=0)


def read_evaluation(evaluation: Evaluation) -> dict[str, float] | None:
    """The metrics of a further evaluation; None unless it had these flags."""
    stored = load_json_if_any(evaluation.path) or {}
    is_same = stored.get("flags") == [*evaluation.flags]
    return stored["metrics"] if is_same else None


def _store_evaluation(evaluation: Evaluation, output: str) -> None:
    """Stores the metrics in the last line that an evaluation has printed."""
    with open(output, encoding="utf-8") as file:
        *_, metrics = file
    content = {"flags": evaluation.flags, "metrics": json.loads(metrics)}
    write_json(evaluation.path, content)


def _settings(config: PretrainingConfig) -> dict[str, Any]:
    """The settings of the result, and of what is evaluated, by dotted name."""
    names, data = ["eval_input_file"], config.to_dict()["data"]
    if data["eval_input_file"]:
        names.append("max_eval_steps")
        if data["max_eval_steps"]:  # otherwise all, in batches of any size
            names.append("eval_batch_size")
    evaluated = {f"data.{name}": data[name] for name in names}
    return config.result_settings() | evaluated


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, sample standard deviation, standard error and number of values.

    A number that needs more values, or is not finite, is None.
    """
    mean = statistics.fmean(values) if values else math.nan
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    found = {
        "mean": mean,
        "standard_deviation": deviation,
        "standard_error": deviation / math.sqrt(len(values) or 1),
    }
    finite = {n: v if math.isfinite(v) else None for n, v in found.items()}
    return {**finite, "num_runs": len(values)}


def summarize(plan: Plan) -> dict[str, Any]:
    """Returns the values, spreads and differences of all finished runs.

    Differences are taken between runs of a seed.
    """
    runs = {run.name: _read_run(run) for run in plan.runs if is_trained(run)}

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
                metric: spread([*of(variant, metric).values()])
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


def _read_run(run: PlannedRun) -> dict[str, float]:
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
    for name, evaluation in run.evaluations.items():
        metrics = read_evaluation(evaluation) or {}
        found |= {f"{name}/{metric}": v for metric, v in metrics.items()}
    return found


def markdown(plan: Plan, content: Mapping[str, Any]) -> str:
    """Returns the tables of what `summarize` has found."""
    finished = [r.variant for r in plan.runs if r.name in content["runs"]]
    rows = [
        [
            variant,
            str(finished.count(variant)),
            *(_mean(metric, found[metric]) for metric in plan.metrics),
        ]
        for variant, found in content["variants"].items()
    ]
    text = table(["variant", "runs", *plan.metrics], rows)
    if any(run.seed is not None for run in plan.runs):
        text += "\nMean and standard deviation over seeds.\n"
    if not plan.pairs:
        return text
    rows = [
        [
            f"{one['first']} - {one['second']}",
            one["metric"],
            _format(one["metric"], one["mean"], "+"),
            _format(one["metric"], one["standard_error"]),
        ]
        for one in content["differences"]
        if one["num_runs"]
    ]
    titles = ["difference", "metric", "mean", "standard error"]
    return f"{text}\n{table(titles, rows)}"


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
