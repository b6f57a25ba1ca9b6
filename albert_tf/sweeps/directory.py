"""The files of a sweep: may it continue here, and what is left to do?

SWEEP/runs/NAME/                          run directories
SWEEP/evaluations/NAME/EVALUATION.json    metrics of further evaluations
SWEEP/logs/NAME.log                       standard error of a run
SWEEP/logs/NAME.out                       standard output of its last process
"""

import functools
import json
import os
import sys
from typing import Any

from albert_tf.cluster.jobs import Job
from albert_tf.config import PretrainingConfig, flatten, settings_by_path
from albert_tf.errors import UserError, name_faults
from albert_tf.io.files import exists, is_remote, load_json_if_any, write_json
from albert_tf.runs.directory import CONFIG_FILE, load_config
from albert_tf.runs.log import read_events, read_metrics
from albert_tf.sweeps.plan import RUNS_DIR, Plan, PlannedRun

LOGS_DIR = "logs"

# Settings that do not affect the training, but the metrics of an evaluation.
_EVAL_SETTINGS = ("checkpoint_step", "eval_sentence_objective")


def check_directory(plan: Plan) -> None:
    """Checks that a directory is new, or holds this sweep with its settings.

    Raises:
        UserError: If the directory is on gs://, belongs to another sweep or
            holds something else, or if the settings of a run, or of the
            evaluations that it does while it trains, have changed since it
            started.
    """
    if is_remote(plan.dir):
        raise UserError(
            "output_dir of a sweep must be a local directory",
            received=plan.dir,
            remedy="Records may be on gs://. Copy the results afterwards.",
        )
    found = set(os.listdir(plan.dir)) if os.path.isdir(plan.dir) else set()
    if RUNS_DIR in found:
        runs = set(os.listdir(os.path.join(plan.dir, RUNS_DIR)))
        others = runs if runs.isdisjoint(run.name for run in plan.runs) else ()
    else:
        others = found - {LOGS_DIR, "lock"}  # earlier versions had a lock
    if others:
        raise UserError(
            "output_dir must be new or hold this sweep",
            received=f"{plan.dir}, with {name_faults(sorted(others))}",
            remedy="Choose another --output_dir.",
        )
    for run in plan.runs:
        if not exists(f"{run.run_dir}/{CONFIG_FILE}"):
            continue
        before = _settings(load_config(run.run_dir, PretrainingConfig))
        changed = [
            f"{key} was {before.get(key)!r} and is {value!r}"
            for key, value in _settings(run.config).items()
            if before.get(key) != value
        ]
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
        flags = [*run.flags, f"--output_dir={run.run_dir}"]
        make = functools.partial(
            Job,
            log=os.path.join(plan.dir, LOGS_DIR, f"{run.name}.log"),
            output=os.path.join(plan.dir, LOGS_DIR, f"{run.name}.out"),
            last_step=functools.partial(_last_step, run.run_dir),
            last_saved=functools.partial(_last_saved, run.run_dir),
        )
        last = None
        if not is_trained(run):
            start = run.starts_from
            needs = trainings.get(start.name) if start else None
            last = make(run.name, _command(flags), needs=needs)
            trainings[run.name] = last
            jobs.append(last)
        for name, further in plan.evaluations.items():
            if read_evaluation(plan, run, name) is None:
                command = _command([*flags, *further, "--mode=eval"])
                last = make(f"{run.name}/{name}", command, needs=last)
                last.on_success = functools.partial(
                    _store_evaluation, plan, run, name, last.output
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


def _last_step(run_dir: str) -> int:
    return max((line["step"] for line in read_metrics(run_dir)), default=0)


def _last_saved(run_dir: str) -> int:
    saved = (
        event["step"]
        for event in read_events(run_dir)
        if event["event"] == "checkpoint"
    )
    return max(saved, default=0)


def read_evaluation(
    plan: Plan, run: PlannedRun, name: str
) -> dict[str, float] | None:
    """Reads the metrics of a further evaluation.

    Returns:
        The metrics; None if the evaluation is missing, or had other settings.
    """
    stored = load_json_if_any(_evaluation_file(plan, run, name))
    settings = _evaluation_settings(run.evaluations[name])
    if stored is None or stored.get("settings") != settings:
        return None
    return stored["metrics"]


def _store_evaluation(
    plan: Plan, run: PlannedRun, name: str, output: str
) -> None:
    """Stores the metrics in the last line that an evaluation has printed."""
    with open(output, encoding="utf-8") as file:
        *_, metrics = file
    write_json(
        _evaluation_file(plan, run, name),
        {
            "settings": _evaluation_settings(run.evaluations[name]),
            "metrics": json.loads(metrics),
        },
    )


def _evaluation_file(plan: Plan, run: PlannedRun, name: str) -> str:
    return f"{plan.dir}/evaluations/{run.name}/{name}.json"


def _evaluation_settings(config: PretrainingConfig) -> dict[str, Any]:
    """The settings that affect a further evaluation, by dotted name."""
    return _settings(config) | {
        f"training.{name}": getattr(config.training, name)
        for name in _EVAL_SETTINGS
    }


def _settings(config: PretrainingConfig) -> dict[str, Any]:
    """The settings that affect the result, or the examples of an evaluation.

    By dotted name, with values of JSON.
    """
    settings = settings_by_path(PretrainingConfig)
    data = config.data
    limits = data.evaluation_limits() if data.eval_input_file else {}
    return {
        **{
            name: value
            for name, value in flatten(config.to_dict()).items()
            if settings[name].metadata["affects"] != "nothing"
        },
        "data.eval_input_file": list(data.eval_input_file),
        **{f"data.{name}": value for name, value in limits.items()},
    }
