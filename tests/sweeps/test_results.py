import json

import pytest

from albert_tf.config import PretrainingConfig
from albert_tf.sweeps.plan import Plan, PlannedRun
from albert_tf.sweeps.results import markdown, summarize
from tests.helpers.logged_run import write_lines

ACCURACY = "sentence_order_accuracy"
CONFIG = PretrainingConfig()


def make_run(variant, seed, directory, **settings):
    run_dir = f"{directory}/runs/{variant}-seed{seed}"
    return PlannedRun(variant, seed, run_dir, (), CONFIG, **settings)


def make_plan(directory, **changes):
    runs = tuple(
        make_run(variant, seed, directory)
        for seed in (1, 2, 3)
        for variant in ("sop", "nsp")
    )
    settings = {
        "metrics": ("masked_lm_loss", ACCURACY),
        "pairs": (("nsp", "sop"),),
    }
    return Plan(str(directory), runs, **(settings | changes))


def finish(
    directory,
    variant,
    seed,
    step=CONFIG.training.num_train_steps,
    num_lines=1,
    **metrics,
):
    """The log of a run whose training lines are of 2 s, and 3 s of CPU time."""
    run_dir = directory / "runs" / f"{variant}-seed{seed}"
    run_dir.mkdir(parents=True)
    times = {"loop_seconds": 2.0, "cpu_seconds": 3.0}
    write_lines(
        run_dir / "metrics.jsonl",
        [
            *[{"split": "train", "step": step, **times}] * num_lines,
            {"split": "eval", "step": step, "masked_lm_loss": 9.9},
            {"split": "eval", "step": step, **metrics},
        ],
    )
    event = {"time": 0.0, "event": "finish", "step": step}
    write_lines(run_dir / "events.jsonl", [event])


VALUES = {
    ("sop", 1): {"masked_lm_loss": 4.0, ACCURACY: 0.70},
    ("sop", 2): {"masked_lm_loss": 5.0, ACCURACY: 0.74},
    ("nsp", 1): {"masked_lm_loss": 4.1, ACCURACY: 0.50},
    ("nsp", 2): {"masked_lm_loss": 5.3, ACCURACY: 0.50},
    ("nsp", 3): {"masked_lm_loss": 9.0},
}


def results_of(directory, *runs):
    plan = make_plan(directory)
    for run in runs:
        finish(directory, *run, **VALUES[run])
    content = summarize(plan)
    text = json.dumps(content)
    assert json.loads(text, parse_constant=pytest.fail) == content
    return content, markdown(plan, content).splitlines()


def test_the_table_has_spreads_and_differences(tmp_path):
    """By hand. Differences are taken between runs of a seed: 0.1 and 0.3,
    so 0.2, with their deviation / sqrt(2)."""
    content, lines = results_of(tmp_path, *VALUES)
    assert lines == [
        f"| variant | runs | masked_lm_loss | {ACCURACY} |",
        "| --- | --- | --- | --- |",
        "| sop | 2 | 4.500 ± 0.707 | 72.0 ± 2.8 % |",
        "| nsp | 3 | 6.133 ± 2.554 | 50.0 ± 0.0 % |",
        "",
        "Mean and standard deviation over seeds.",
        "",
        "| difference | metric | mean | standard error |",
        "| --- | --- | --- | --- |",
        "| nsp - sop | masked_lm_loss | +0.200 | 0.100 |",
        f"| nsp - sop | {ACCURACY} | -22.0 % | 2.0 % |",
    ]
    assert content["runs"]["nsp-seed3"]["masked_lm_loss"] == 9.0
    assert "sop-seed3" not in content["runs"]
    assert content["variants"]["sop"][ACCURACY]["mean"] == pytest.approx(0.72)
    assert content["differences"][1]["num_runs"] == 2


def test_a_single_run_has_no_spread_and_an_unfinished_one_no_values(tmp_path):
    """One run has only 1,000 of 125,000 steps."""
    finish(tmp_path, "sop", 2, step=1000, masked_lm_loss=4.0)
    _, lines = results_of(tmp_path, ("sop", 1))
    assert "| sop | 1 | 4.000 | 70.0 % |" in lines
    assert "| nsp | 0 | - | - |" in lines
    assert not any("nsp - sop" in line for line in lines)


def test_training_seconds_include_the_runs_that_a_run_starts_from(tmp_path):
    first = make_run("first", 1, tmp_path)
    second = make_run("second", 1, tmp_path, starts_from=first)
    finish(tmp_path, "first", 1)
    finish(tmp_path, "second", 1, num_lines=2)
    metrics = ("training_seconds", "training_cpu_seconds")
    plan = Plan(str(tmp_path), (first, second), metrics, ())
    lines = markdown(plan, summarize(plan)).splitlines()
    assert lines[2:4] == [
        "| first | 1 | 2 s | 3 s |",
        "| second | 1 | 6 s | 9 s |",
    ]
