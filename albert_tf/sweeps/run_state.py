"""How far a run of a sweep is, as its files say."""

import json

from albert_tf.io.files import load_json_if_any, write_text
from albert_tf.runs.log import read_events, read_metrics
from albert_tf.sweeps.directory import (
    evaluation_settings,
    has_evaluation_settings,
)
from albert_tf.sweeps.plan import PlannedRun


def is_trained(run: PlannedRun, sweep_dir: str) -> bool:
    """Whether a run has done all its steps and its last evaluation."""
    return any(
        event["event"] == "finish"
        and event["step"] == run.config.training.num_train_steps
        for event in read_events(run.run_dir(sweep_dir))
    )


def last_step(run: PlannedRun, sweep_dir: str) -> int:
    """The last step in the log of a run; 0 without one."""
    lines = read_metrics(run.run_dir(sweep_dir))
    return max((line["step"] for line in lines), default=0)


def newest_checkpoint(run: PlannedRun, sweep_dir: str) -> int:
    """The last step at which a run has saved a checkpoint; 0 without one."""
    events = read_events(run.run_dir(sweep_dir))
    saved = (e["step"] for e in events if e["event"] == "checkpoint")
    return max(saved, default=0)


def read_evaluation(
    sweep_dir: str, run: PlannedRun, name: str
) -> dict[str, float] | None:
    """Reads the metrics of a further evaluation.

    Returns:
        The metrics; None if the evaluation is missing, or had other settings.
    """
    stored = load_json_if_any(_evaluation_file(sweep_dir, run, name))
    # An evaluation of an earlier version, which stored no settings, is
    # repeated.
    if stored is None or not has_evaluation_settings(
        stored.get("settings", {}), run.evaluations[name]
    ):
        return None
    return stored["metrics"]


def store_evaluation(
    sweep_dir: str, run: PlannedRun, name: str, metrics: dict[str, float]
) -> None:
    """Stores the metrics of a further evaluation, with its settings."""
    result = {
        "settings": evaluation_settings(run.evaluations[name]),
        "metrics": metrics,
    }
    write_text(
        _evaluation_file(sweep_dir, run, name), json.dumps(result) + "\n"
    )


def _evaluation_file(sweep_dir: str, run: PlannedRun, name: str) -> str:
    return f"{sweep_dir.rstrip('/')}/evaluations/{run.name}/{name}.json"
