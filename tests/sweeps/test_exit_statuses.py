"""What a sweep does when the process of a run ends, and how it then ends."""

import json
import os
import pathlib

import pytest

from albert_tf import sweep
from albert_tf.errors import UserError
from albert_tf.sweeps import runner

VARIANTS = {
    "first": "",
    "second": "--beta_2=0.9",
    "third": "--beta_2=0.8",
    "after_first": "--init_checkpoint={run:first}",
}

# Of the log of a run.
METRICS = {"split": "train", "step": 50, "masked_lm_loss": 5.0}


@pytest.fixture
def sweep_of(base, tmp_path, monkeypatch):
    """A function: the exit status of a sweep, and the runs in order of start.

    Its arguments are variants, with a shell script for each process of the run.
    "finish" is a process that finishes the run; "save STEP" one that saves a
    checkpoint and exits with status 75.
    """
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(runner, "_POLL_SECONDS", 0.01)
    started, scripts = [], {}

    def command(_, run, step):
        assert step == "train"
        started.append(run.name)
        kind, _, saved_at = (script := scripts[run.name].pop(0)).partition(" ")
        run_dir = pathlib.Path(run.run_dir(str(tmp_path / "sweep")))
        run_dir.mkdir(parents=True, exist_ok=True)
        if kind == "finish":
            script = "exit 0"
            (run_dir / "metrics.jsonl").write_text(json.dumps(METRICS))
            log(run_dir, "finish", 50)
        if kind == "save":
            script = "exit 75"
            log(run_dir, "checkpoint", int(saved_at))
        return ["sh", "-c", f"cd {tmp_path}; {script}"]

    def log(run_dir, event, step):
        with open(run_dir / "events.jsonl", "a") as file:
            event = {"time": 0.0, "event": event, "step": step}
            file.write(json.dumps(event) + "\n")

    def run(**scripts_of_runs):
        scripts.update(scripts_of_runs)
        config = base(
            base_flags=("--synthetic_input",),
            variant=tuple(f"{name}: {VARIANTS[name]}" for name in scripts),
            metrics=("training_seconds",),
            parallel_runs=2,
        )
        try:
            return sweep.main(config), started
        except UserError as error:
            return error.exit_status, started

    monkeypatch.setattr(runner.Sweep, "command", command)
    return run


@pytest.mark.parametrize(
    ("end", "exit_status"),
    [("exit 143", 143), ("exit 130", 130), ("kill -TERM $$", 143)],
)
def test_an_interrupted_run_interrupts_the_sweep(
    sweep_of, tmp_path, end, exit_status
):
    """The machine may be about to stop: the second run is asked to stop, too.

    It waits for this, but for no more than a minute, so that a sweep that does
    not ask fails the test. The third run is never started.
    """
    wait = "for _ in $(seq 1000); do sleep 0.05; done"
    assert sweep_of(
        first=[f"while [ ! -e ready ]; do sleep 0.05; done; {end}"],
        second=[f"trap 'touch asked; exit 143' TERM; touch ready; {wait}"],
        third=["finish"],
    ) == (exit_status, ["first", "second"])
    assert (tmp_path / "asked").exists()


def test_a_run_with_a_temporary_fault_is_started_again(sweep_of):
    """Twice without a new checkpoint, and then again twice."""
    ends = ["exit 75", "exit 75", "save 10", "exit 75", "finish"]
    assert sweep_of(first=ends) == (0, ["first"] * 5)


def test_three_temporary_faults_without_a_new_checkpoint_are_a_failure(
    sweep_of,
):
    """The sweep has their exit status, since it may succeed if it is repeated.

    The run that starts from the failed one does not change this.
    """
    ends = ["exit 75", "save 10", "exit 75", "exit 75"]
    assert sweep_of(first=ends, after_first=[]) == (75, ["first"] * 4)


def test_other_failures_count_more_than_temporary_faults(sweep_of):
    """To repeat the sweep would not help."""
    exit_status, _ = sweep_of(first=["exit 75"] * 3, second=["exit 1"])
    assert exit_status == 1
