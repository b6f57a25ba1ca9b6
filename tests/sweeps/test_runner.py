"""The processes of a sweep, and how the sweep ends."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from albert_tf import sweep
from albert_tf.errors import UserError
from albert_tf.runs.log import read_events, read_metrics
from albert_tf.sweeps import runner
from tests.helpers import tiny_run

REPOSITORY = pathlib.Path(__file__).parents[2]
PATIENCE_S = 600


@pytest.mark.slow
@pytest.mark.long
def test_a_killed_and_a_stopped_sweep_continue(tiny_records, tmp_path):
    """Killed in the first run, stopped in the second, then continued.

    The first run outlives its sweep, and keeps its lock. The second one starts
    from its weights.
    """
    directory = tmp_path / "sweep"
    config = tiny_run.make_config(
        tiny_records,
        tmp_path / "unused",
        num_train_steps=400,
        save_checkpoints_steps=100,
        max_eval_steps=1,
    )
    base = [
        flag
        for flag in tiny_run.as_flags(config, tmp_path / "model.json")
        if not flag.startswith(("--output_dir", "--seed"))
        and not flag.endswith("=")
    ]
    (tmp_path / "base.flags").write_text("\n".join(base))
    command = [
        *(sys.executable, "-m", "albert_tf.sweep"),
        f"--base_flagfile={tmp_path}/base.flags",
        "--variant=shared:",
        "--variant=continued: --init_checkpoint={run:shared} --beta_2=0.9",
        "--evaluation=all: --max_eval_steps=0",
        "--metrics=masked_lm_loss,all/masked_lm_loss",
        f"--output_dir={directory}",
    ]

    def start():
        with open(tmp_path / "log", "a") as log:
            return subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def log():
        return (tmp_path / "log").read_text()

    def wait_for_step(run, step, process):
        deadline = time.monotonic() + PATIENCE_S
        while not any(
            line["step"] >= step
            for line in read_metrics(str(directory / "runs" / run))
        ):
            assert process.poll() is None, log()
            assert time.monotonic() < deadline, log()
            time.sleep(0.02)

    def events(run):
        found = read_events(str(directory / "runs" / run))
        return [e["event"] for e in found if e["event"] != "checkpoint"]

    killed = start()
    wait_for_step("shared", 10, killed)
    (orphan,) = [
        int(path.parent.name)
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")
        if f"--output_dir={directory}/runs/shared".encode()
        in path.read_bytes().split(b"\0")
    ]
    os.kill(orphan, signal.SIGSTOP)
    killed.kill()
    killed.wait()
    assert start().wait(PATIENCE_S) == 1
    assert "a run of a killed sweep has not ended" in log()
    os.kill(orphan, signal.SIGKILL)

    stopped = start()
    wait_for_step("continued", 10, stopped)
    stopped.terminate()
    assert stopped.wait(PATIENCE_S) == 128 + signal.SIGTERM, log()
    assert events("continued") == ["start", "stop"]

    last = start()
    output, _ = last.communicate(timeout=PATIENCE_S)
    assert last.returncode == 0, log()
    assert events("shared") == ["start", "resume", "finish"]
    assert events("continued") == ["start", "stop", "resume", "finish"]
    assert (directory / "table.md").read_text() in output
    content = json.loads((directory / "table.json").read_text())
    assert set(content["runs"]) == {"shared", "continued"}
    for run, metrics in content["runs"].items():
        lines = read_metrics(str(directory / "runs" / run))
        assert metrics["masked_lm_loss"] == lines[-1]["masked_lm_loss"]
        assert metrics["all/masked_lm_loss"] != metrics["masked_lm_loss"]
    warm_start = directory / "runs" / "continued" / "warm_start.json"
    report = json.loads(warm_start.read_text())
    assert report["init_checkpoint"] == f"{directory}/runs/shared"
    assert report["step"] == 400


VARIANTS = {
    "first": "",
    "second": "--beta_2=0.9",
    "third": "--beta_2=0.8",
    "after_first": "--init_checkpoint={run:first}",
}

# Of the log of a run.
METRICS = {
    "split": "train",
    "step": 50,
    "masked_lm_loss": 5.0,
    "loop_seconds": 2.0,
    "cpu_seconds": 3.0,
}


@pytest.fixture
def sweep_of(base, tmp_path, monkeypatch):
    """A function: the exit status of a sweep, and the runs in order of start.

    Its arguments are variants, with a shell script for each process of the run.
    "finish" is a process that finishes the run; "save STEP" one that saves a
    checkpoint and exits with status 75. An evaluation prints its number.
    """
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(runner, "_POLL_SECONDS", 0.01)
    started, scripts = [], {}

    def command(_, run, step):
        started.append(run.name)
        kind, _, saved_at = (script := scripts[run.name].pop(0)).partition(" ")
        run_dir = pathlib.Path(run.run_dir)
        run_dir.mkdir(parents=True, exist_ok=True)
        if kind == "finish":
            script = "exit 0"
            (run_dir / "metrics.jsonl").write_text(json.dumps(METRICS))
            log(run_dir, "finish", 50)
        if kind == "save":
            script = "exit 75"
            log(run_dir, "checkpoint", int(saved_at))
        assert (step == "train") == (kind != "echo")
        return ["sh", "-c", f"cd {tmp_path}; {script}"]

    def log(run_dir, event, step):
        with open(run_dir / "events.jsonl", "a") as file:
            event = {"time": 0.0, "event": event, "step": step}
            file.write(json.dumps(event) + "\n")

    def run(changes=None, **scripts_of_runs):
        scripts.update(scripts_of_runs)
        settings = {"metrics": ("training_seconds",)} | (changes or {})
        config = base(
            base_flags=("--synthetic_input",),
            variant=tuple(f"{name}: {VARIANTS[name]}" for name in scripts),
            parallel_runs=2,
            **settings,
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


def test_a_finished_sweep_only_repeats_evaluations_whose_settings_changed(
    sweep_of, tmp_path
):
    def evaluate(flags, *scripts):
        return sweep_of(
            {
                "evaluation": (f"e: {flags} --eval_input_file=none",),
                "metrics": ("e/loss",),
            },
            first=list(scripts),
        )

    # The records are never read.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "albert_tf.sweeps.directory.check_records", lambda plan: None
        )
        assert evaluate("", "finish", """echo '{"loss": 7}'""")[0] == 0
        status, started = evaluate("")
        assert (status, len(started)) == (0, 2)
        evaluate("--checkpoint_step=4", """echo '{"loss": 8}'""")
    assert "| first | 1 | 8.000 |" in (tmp_path / "sweep/table.md").read_text()
