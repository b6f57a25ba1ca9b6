import json
import math
import pathlib

import pytest

from albert_tf.config import PretrainingConfig
from albert_tf.sweeps import results as sweep_results
from albert_tf.sweeps.plan import Plan, PlannedRun
from albert_tf.sweeps.results import Results
from tests.helpers.logged_run import write_run

ACCURACY = "sentence_order_accuracy"
CONFIG = PretrainingConfig()


def make_run(variant, seed, directory="", **settings):
    run_dir = f"{directory}/runs/{variant}-seed{seed}"
    return PlannedRun(variant, seed, run_dir, (), CONFIG, **settings)


def make_plan(directory="", **changes):
    runs = tuple(
        make_run(variant, seed, directory)
        for seed in (1, 2, 3)
        for variant in ("sop", "nsp")
    )
    settings = {
        "evaluations": {},
        "metrics": ("masked_lm_loss", ACCURACY),
        "pairs": (("sop", "nsp"),),
        "paper": {
            "sop": {ACCURACY: 0.865, "average": 80.1},
            "nsp": {ACCURACY: 0.52},
        },
    }
    return Plan(str(directory), runs, **(settings | changes))


VALUES = {
    "sop": {
        1: {"masked_lm_loss": 4.0, ACCURACY: 0.70},
        2: {"masked_lm_loss": 5.0, ACCURACY: 0.74},
    },
    "nsp": {
        1: {"masked_lm_loss": 4.1, ACCURACY: 0.50},
        2: {"masked_lm_loss": 5.3, ACCURACY: 0.50},
        3: {"masked_lm_loss": 9.0},
    },
}


def test_differences_are_taken_between_runs_of_a_seed():
    """By hand: -0.1 and -0.3, so -0.2, and their deviation / sqrt(2)."""
    difference = Results(make_plan(), VALUES).difference(
        "sop", "nsp", "masked_lm_loss"
    )
    assert difference.mean == pytest.approx(-0.2)
    assert difference.count == 2
    assert difference.standard_error == pytest.approx(
        math.sqrt(0.02) / math.sqrt(2)
    )


def test_the_table_has_spreads_and_the_values_of_the_paper():
    lines = sweep_results.markdown(Results(make_plan(), VALUES)).splitlines()
    assert lines == [
        f"| variant | runs | masked_lm_loss | {ACCURACY} | paper "
        "| average, paper |",
        "| --- | --- | --- | --- | --- | --- |",
        "| sop | 2 | 4.500 ± 0.707 | 72.0 ± 2.8 % | 86.5 % | 80.1 |",
        "| nsp | 3 | 6.133 ± 2.554 | 50.0 ± 0.0 % | 52.0 % | - |",
        "",
        "Mean and standard deviation over seeds.",
        "",
        "| difference | metric | mean | standard error | paper |",
        "| --- | --- | --- | --- | --- |",
        "| sop - nsp | masked_lm_loss | -0.200 | 0.100 | - |",
        f"| sop - nsp | {ACCURACY} | +22.0 % | 2.0 % | +34.5 % |",
    ]


def test_a_single_run_has_no_spread():
    values = {name: {1: runs[1]} for name, runs in VALUES.items()}
    text = sweep_results.markdown(Results(make_plan(), values))
    assert "| sop | 1 | 4.000 | 70.0 % |" in text
    assert "| sop - nsp | masked_lm_loss | -0.100 | - | - |" in text


def test_a_variant_without_finished_runs_is_in_the_table():
    results = Results(make_plan(), {"nsp": VALUES["nsp"]})
    text = sweep_results.markdown(results)
    assert "| sop | 0 | - | - | 86.5 % | 80.1 |" in text
    assert "sop - nsp |" not in text


def test_json_has_every_run_and_no_nan():
    text = sweep_results.as_json(Results(make_plan(), VALUES))
    content = json.loads(text, parse_constant=pytest.fail)
    assert content["runs"]["nsp-seed3"] == {"masked_lm_loss": 9.0}
    assert "sop-seed3" not in content["runs"]
    summary = content["variants"]["sop"][ACCURACY]
    assert summary["mean"] == pytest.approx(0.72)
    assert summary["paper"] == 0.865
    assert content["differences"][1]["num_runs"] == 2


def finish(run, losses, step=125_000):
    write_run(
        pathlib.Path(run.run_dir),
        losses,
        [{"time": 0.0, "event": "finish", "step": step}],
        loop_seconds=[2.0] * len(losses),
        cpu_seconds=[3.0] * len(losses),
    )


def test_only_finished_runs_count(tmp_path):
    """One run has all 125,000 steps, one has 1,000, the others have none."""
    metrics = ("masked_lm_loss", "training_seconds")
    plan = make_plan(tmp_path, metrics=metrics)
    finish(make_run("sop", 1, tmp_path), [5.0, 4.5])
    finish(make_run("sop", 2, tmp_path), [5.0, 4.0], step=1000)
    results = sweep_results.read_results(plan)
    assert results.of("sop", "masked_lm_loss") == {1: 4.5}
    assert results.of("sop", "training_seconds") == {1: 4.0}
    assert results.of("nsp", "masked_lm_loss") == {}
    content = json.loads(sweep_results.as_json(results))
    assert {"split", "step"}.isdisjoint(content["runs"]["sop-seed1"])


def test_training_seconds_include_the_runs_that_a_run_starts_from(tmp_path):
    first = make_run("first", 1, tmp_path)
    second = make_run("second", 1, tmp_path, starts_from=first)
    finish(first, [5.0])
    finish(second, [4.5, 4.0])
    metrics = ("training_seconds", "training_cpu_seconds")
    plan = Plan(str(tmp_path), (first, second), {}, metrics, (), {})
    results = sweep_results.read_results(plan)
    assert results.of("first", "training_seconds") == {1: 2.0}
    assert results.of("second", "training_seconds") == {1: 6.0}
    assert results.of("second", "training_cpu_seconds") == {1: 9.0}
    assert "6 s | 9 s" in sweep_results.markdown(results)
