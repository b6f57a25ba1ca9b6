"""Sweeps from start to end: what is left to do, the status, the table."""

import json
import os
import pathlib

import pytest

from albert_tf import sweep
from albert_tf.cluster import jobs
from albert_tf.config import SweepConfig
from albert_tf.errors import UserError
from albert_tf.runs.log import read_metrics
from albert_tf.sweeps import results
from tests.helpers import tiny_run

REPOSITORY = pathlib.Path(__file__).parents[2]
VARIANTS = {
    "first": "",
    "second": "--beta_2=0.9",
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
FINISHED = {"time": 0.0, "event": "finish", "step": 50}


@pytest.fixture
def sweep_of(base, tmp_path, monkeypatch):
    """A function: the exit status of a sweep, and its runs in order of start.

    Its arguments are variants, with a shell script for each process of the run.
    "finish" is a process that finishes the run.
    """
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(jobs, "_POLL_SECONDS", 0.01)
    started = tmp_path / "started"

    def command(flags):
        run_dir = flags[[f[:12] for f in flags].index("--output_dir")][13:]
        name = pathlib.Path(run_dir).name
        code = f"""
            finish() {{
                mkdir -p {run_dir}
                echo '{json.dumps(METRICS)}' > {run_dir}/metrics.jsonl
                echo '{json.dumps(FINISHED)}' > {run_dir}/events.jsonl
            }}
            echo {name} >> {started}
            script=$(head -n 1 {tmp_path}/{name})
            sed -i 1d {tmp_path}/{name}
            eval "$script" """
        return ["sh", "-c", code]

    monkeypatch.setattr(results, "_command", command)

    def run(changes=None, **scripts):
        started.write_text("")
        for name, lines in scripts.items():
            (tmp_path / name).write_text("\n".join(lines) + "\n")
        settings = {"metrics": ("training_seconds",)} | (changes or {})
        config = base(
            base_flags=(base().base_flags[0], "--synthetic_input"),
            variant=tuple(f"{name}: {VARIANTS[name]}" for name in scripts),
            **settings,
        )
        try:
            status = sweep.main(config)
        except UserError as error:
            status = error.exit_status
        return status, started.read_text().split()

    return run


def test_a_stopped_sweep_continues(sweep_of, capsys):
    stop = "kill -TERM $PPID; exec sleep 60"
    scripts = {"first": ["finish"], "second": [stop], "after_first": ["finish"]}
    assert sweep_of(**scripts) == (143, ["first", "second"])
    scripts["second"] = ["exit 75", "finish"]
    again = ["second", "second", "after_first"]
    assert sweep_of(**scripts) == (0, again)
    assert "| after_first | 1 | 4 s |" in capsys.readouterr().out


@pytest.mark.parametrize(("end", "status"), [("exit 75", 75), ("exit 1", 1)])
def test_a_sweep_has_the_status_of_its_failed_runs(sweep_of, end, status):
    """75 if all failed with it: the same command may succeed.

    The run that starts from the failed one does not change this.
    """
    ends = ["exit 75"] * 3
    assert sweep_of(first=ends, second=[end] * 3, after_first=[])[0] == status


def test_a_finished_sweep_only_repeats_evaluations_whose_settings_changed(
    sweep_of, tmp_path
):
    def evaluate(flags, *scripts):
        return sweep_of(
            {
                "evaluation": (f"e: {flags} --eval_input_file=none",),
                "metrics": ("e/loss",),
            },
            first=scripts,
        )

    assert evaluate("", "finish", """echo '{"loss": 7}'""")[0] == 0
    assert evaluate("") == (0, [])
    evaluate("--checkpoint_step=4", """echo '{"loss": 8}'""")
    assert "| first | 1 | 8.000 |" in (tmp_path / "sweep/table.md").read_text()


@pytest.mark.slow
def test_a_real_run_is_trained_and_evaluated(
    tiny_records, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    config = tiny_run.make_config(
        tiny_records, tmp_path / "unused", num_train_steps=4, max_eval_steps=1
    )
    base = [
        flag
        for flag in tiny_run.as_flags(config, tmp_path / "model.json")
        if not flag.startswith(("--output_dir", "--seed"))
        and not flag.endswith("=")
    ]
    (tmp_path / "base.flags").write_text("\n".join(base))
    output_dir = tmp_path / "sweep"
    settings = SweepConfig(
        base_flags=(f"--flagfile={tmp_path}/base.flags",),
        variant=("a: --beta_2=0.9",),
        evaluation=("all: --max_eval_steps=0",),
        metrics=("masked_lm_loss", "all/masked_lm_loss"),
        output_dir=str(output_dir),
    )
    assert sweep.main(settings) == 0
    assert (output_dir / "table.md").read_text() in capsys.readouterr().out
    content = json.loads((output_dir / "table.json").read_text())
    ((run, metrics),) = content["runs"].items()
    lines = read_metrics(str(output_dir / "runs" / run))
    assert metrics["masked_lm_loss"] == lines[-1]["masked_lm_loss"]
    assert metrics["all/masked_lm_loss"] != metrics["masked_lm_loss"]
