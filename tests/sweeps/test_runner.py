"""The processes of a sweep."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from albert_tf.runs.log import read_events, read_metrics
from tests.helpers import tiny_run
from tests.helpers.run_processes import lines_without_timing

REPOSITORY = pathlib.Path(__file__).parents[2]
PATIENCE_S = 600


class SweepProcess:
    """A sweep of two runs, with a further evaluation each."""

    def __init__(self, records, directory):
        self.dir = directory / "sweep"
        self.log_file = directory / "log"
        config = tiny_run.make_config(
            records,
            directory / "unused",
            num_train_steps=400,
            save_checkpoints_steps=100,
            max_eval_steps=1,
        )
        base = [
            flag
            for flag in tiny_run.as_flags(config, directory / "model.json")
            if not flag.startswith(("--output_dir", "--seed"))
            and not flag.endswith("=")
        ]
        (directory / "base.flags").write_text("\n".join(base))
        self.command = [
            sys.executable,
            "-m",
            "albert_tf.sweep",
            f"--base_flagfile={directory}/base.flags",
            "--variant=shared:",
            "--variant=not_shared: --model=parameter_sharing=none",
            "--evaluation=all: --max_eval_steps=0",
            "--metrics=masked_lm_loss,all/masked_lm_loss",
            "--compare=shared:not_shared",
            f"--output_dir={self.dir}",
        ]

    def start(self):
        """Starts the sweep; its log is appended to a file."""
        with open(self.log_file, "a") as log:
            return subprocess.Popen(
                self.command,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def log(self):
        return self.log_file.read_text()

    def wait_for_step(self, run, step, process):
        def is_there():
            lines = read_metrics(str(self.dir / "runs" / run))
            return bool(lines) and lines[-1]["step"] >= step

        self.wait_until(is_there, process)

    def wait_until(self, condition, process):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def trainer_of(self, run):
        """Process id of the trainer of a run."""
        directory = f"--output_dir={self.dir}/runs/{run}".encode()
        (pid,) = [
            int(path.parent.name)
            for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")
            if directory in path.read_bytes().split(b"\0")
        ]
        return pid

    def lines(self):
        return {
            run: lines_without_timing(self.dir / "runs" / run)
            for run in ("shared", "not_shared")
        }

    def started_from(self, run):
        """The model that a run started from, and its step."""
        file = self.dir / "runs" / run / "warm_start.json"
        report = json.loads(file.read_text())
        return report["init_checkpoint"], report["step"]

    def events(self, run):
        return [
            event["event"]
            for event in read_events(str(self.dir / "runs" / run))
            if event["event"] != "checkpoint"
        ]


@pytest.mark.slow
@pytest.mark.long
def test_a_killed_sweep_continues_and_finds_the_same_table(
    tiny_records, tmp_path
):
    """Killed in the first run, stopped in the second, then finished.

    The first run outlives its sweep, which the next one must wait for.

    The table has each run's own last evaluation, and another sweep of the same
    variants, without interruptions and in parallel, has the same metrics at
    every step. In that sweep, a third variant fails, and with it the one that
    starts from its weights; another starts from those of the first variant.
    """
    sweep = SweepProcess(tiny_records, tmp_path)
    killed = sweep.start()
    sweep.wait_for_step("shared", 10, killed)
    orphan = sweep.trainer_of("shared")
    os.kill(orphan, signal.SIGSTOP)
    killed.kill()
    killed.wait()
    stopped = sweep.start()
    waits = "waiting for a process of an earlier sweep"
    sweep.wait_until(lambda: waits in sweep.log(), stopped)
    os.kill(orphan, signal.SIGCONT)
    sweep.wait_for_step("not_shared", 10, stopped)
    stopped.terminate()
    assert stopped.wait(PATIENCE_S) == 128 + signal.SIGTERM, sweep.log()
    assert sweep.events("not_shared") == ["start", "stop"]

    last = sweep.start()
    output, _ = last.communicate(timeout=PATIENCE_S)
    assert last.returncode == 0, sweep.log()
    assert sweep.events("shared") == ["start", "finish"]
    assert sweep.events("not_shared") == ["start", "stop", "resume", "finish"]

    content = json.loads((sweep.dir / "table.json").read_text())
    lines = sweep.lines()
    for run, metrics in content["runs"].items():
        assert metrics["masked_lm_loss"] == lines[run][-1]["masked_lm_loss"]
        assert metrics["all/masked_lm_loss"] != metrics["masked_lm_loss"]
    assert (sweep.dir / "table.md").read_text() in output
    assert (sweep.dir / "table.png").stat().st_size

    whole = SweepProcess(tiny_records, make(tmp_path / "whole"))
    whole.command = [
        *(
            flag
            for flag in whole.command
            if not flag.startswith(("--evaluation", "--metrics"))
        ),
        "--variant=other: --init_checkpoint=nowhere",
        "--variant=after_other: --init_checkpoint={run:other}",
        "--variant=continued: --init_checkpoint={run:shared} "
        "--num_train_steps=100",
        "--metrics=masked_lm_loss",
        "--parallel_runs=2",
    ]
    again = whole.start()
    output, _ = again.communicate(timeout=PATIENCE_S)
    assert whole.lines() == lines
    expected = json.loads((whole.dir / "table.json").read_text())
    assert expected["differences"] == content["differences"][:1]
    # The third variant starts from a missing model; the others finish.
    assert again.returncode == 1
    assert "failed: other, after_other" in whole.log()
    assert "after_other: not started, because other" in whole.log()
    assert "error: " in whole.log() and "nowhere" in whole.log()
    assert "| other | 0 | - |" in output
    assert whole.started_from("continued") == (f"{whole.dir}/runs/shared", 400)


def make(directory):
    directory.mkdir()
    return directory
