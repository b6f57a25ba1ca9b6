import json
import math

import matplotlib.image
import pytest
from matplotlib.figure import Figure

from albert_tf.config import PretrainingConfig
from albert_tf.sweeps import results as sweep_results
from albert_tf.sweeps.picture import (
    draw_curves,
    draw_metric,
    legend_handles,
    picture,
)
from albert_tf.sweeps.plan import Plan, PlannedRun
from albert_tf.sweeps.results import Results
from tests.helpers.logged_run import write_run

ACCURACY = "sentence_order_accuracy"


def make_plan(**changes):
    config = PretrainingConfig()
    runs = tuple(
        PlannedRun(variant, seed, (), config)
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
    return Plan(runs, **(settings | changes))


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


def finished(directory, losses, step):
    write_run(
        directory,
        losses,
        [{"time": 0.0, "event": "finish", "step": step}],
        loop_seconds=[2.0] * len(losses),
        cpu_seconds=[3.0] * len(losses),
    )


def test_only_finished_runs_count(tmp_path):
    """One run has all 125,000 steps, one has 1,000, the others have none."""
    plan = make_plan(metrics=("masked_lm_loss", "training_seconds"))
    finished(tmp_path / "runs" / "sop-seed1", [5.0, 4.5], 125_000)
    finished(tmp_path / "runs" / "sop-seed2", [5.0, 4.0], 1000)
    results = sweep_results.read_results(str(tmp_path), plan)
    assert results.of("sop", "masked_lm_loss") == {1: 4.5}
    assert results.of("sop", "training_seconds") == {1: 4.0}
    assert results.of("nsp", "masked_lm_loss") == {}
    content = json.loads(sweep_results.as_json(results))
    assert {"split", "step"}.isdisjoint(content["runs"]["sop-seed1"])


def test_a_panel_shows_each_run_its_mean_and_the_paper():
    axes = Figure().subplots()
    draw_metric(axes, Results(make_plan(), VALUES), ACCURACY)
    drawn = [sorted(map(float, line.get_ydata())) for line in axes.lines]
    assert drawn == [[0.70, 0.74], [0.865], [0.50, 0.50], [0.52]]
    means = [lines.get_segments()[0][0][1] for lines in axes.collections]
    assert means == pytest.approx([0.72, 0.50])
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["sop", "nsp"]


def test_24_variants_look_different(tmp_path):
    """Each has its own color and line, and color and marker, in all panels."""
    names = tuple(f"v{number}" for number in range(24))
    config = PretrainingConfig()
    runs = tuple(PlannedRun(name, 1, (), config) for name in names)
    plan = Plan(runs, {}, ("masked_lm_loss",), (), {})
    for run in runs:
        finished(tmp_path / "runs" / run.name, [5.0, 4.5], 125_000)
    results = sweep_results.read_results(str(tmp_path), plan)
    curves, dots = Figure().subplots(2)
    draw_curves(curves, plan, str(tmp_path))
    draw_metric(dots, results, "masked_lm_loss")

    def looks(lines, *properties):
        return [
            tuple(str(line.properties()[p]) for p in properties)
            for line in lines
        ]

    legend = legend_handles(plan)[:24]
    assert [line.get_label() for line in legend] == list(names)
    for lines, style in ((curves.lines, "linestyle"), (dots.lines, "marker")):
        drawn = looks(lines, "color", style)
        assert len(set(drawn)) == 24
        assert drawn == looks(legend, "color", style)


def test_the_picture_has_a_panel_for_the_curves_and_each_metric(tmp_path):
    plan = make_plan()
    finished(tmp_path / "runs" / "sop-seed1", [5.0, 4.5], 125_000)
    finished(tmp_path / "runs" / "nsp-seed1", [5.0, 4.6], 125_000)
    results = sweep_results.read_results(str(tmp_path), plan)
    text = picture(results, str(tmp_path), "svg").decode()
    assert text.count('id="axes_') == 3
    assert "Masked-LM loss in training" in text
    (tmp_path / "table.png").write_bytes(picture(results, str(tmp_path)))
    assert matplotlib.image.imread(tmp_path / "table.png").std() > 0


def test_training_seconds_include_the_runs_that_a_run_starts_from(tmp_path):
    config = PretrainingConfig()
    first = PlannedRun("first", 1, (), config)
    second = PlannedRun("second", 1, (), config, starts_from=first)
    finished(tmp_path / "runs" / "first-seed1", [5.0], 125_000)
    finished(tmp_path / "runs" / "second-seed1", [4.5, 4.0], 125_000)
    metrics = ("training_seconds", "training_cpu_seconds")
    plan = Plan((first, second), {}, metrics, (), {})
    results = sweep_results.read_results(str(tmp_path), plan)
    assert results.of("first", "training_seconds") == {1: 2.0}
    assert results.of("second", "training_seconds") == {1: 6.0}
    assert results.of("second", "training_cpu_seconds") == {1: 9.0}
    assert "6 s | 9 s" in sweep_results.markdown(results)
