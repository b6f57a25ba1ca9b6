import shutil

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from albert_tf.config import ReportConfig
from albert_tf.errors import UserError
from albert_tf.report import curves
from albert_tf.report.__main__ import main
from albert_tf.report.runs import read_runs
from tests.helpers.logged_run import SETTINGS, read_run, write_run


def axes_of(metric, *runs, late=False):
    (panel,) = [
        panel
        for panel in curves.PANELS
        if metric in panel.metrics and panel.late == late
    ]
    axes = Figure().subplots()
    curves.draw_panel(axes, panel, runs)
    return axes


def lines_of(axes):
    """The points and the style of each line of a panel."""
    return [
        (np.asarray(line.get_xydata()).tolist(), line.get_linestyle())
        for line in axes.lines
    ]


def test_selected_metrics_are_drawn_alone(tmp_path):
    run = read_run(
        tmp_path / "run", [8.0, 7.0], mfu=[0.5, 0.6], dropout=[0.1, 0.2]
    )
    drawn = curves.find_panels([run], ["mfu", "masked_lm_accuracy", "dropout"])
    metrics = [panel.metrics[0] for panel in drawn]
    assert metrics == ["masked_lm_accuracy", "dropout", "mfu"]
    with pytest.raises(UserError, match=r"the runs\..*: trust_ratio\..*mfu"):
        curves.picture([run], metrics=["trust_ratio"])


def test_training_is_solid_and_the_held_out_set_dashed(tmp_path):
    """A long run has all its points and a smoothed line."""
    run = read_run(tmp_path / "run", [8.0, float("nan"), 5.0])
    points = [[0, 8.0], [2, 5.0]]
    trained, held_out, *_ = lines_of(axes_of("masked_lm_loss", run))
    assert trained == (points, "-")
    assert held_out == (points, "--")
    # A straight line with noise, which a window of two points removes.
    losses = [7.0 + step + (-1) ** step for step in range(100)]
    long = read_run(tmp_path / "long", losses)
    (each, _), (smoothed, _), *_ = lines_of(axes_of("masked_lm_loss", long))
    assert each == [[step, loss] for step, loss in enumerate(losses)]
    middles = [[step + 0.5, 7.5 + step] for step in range(99)]
    np.testing.assert_allclose(smoothed, middles)


def test_a_panel_has_the_second_half_of_a_run(tmp_path):
    run = read_run(tmp_path / "run", [9.0, 8.0, 3.0, 2.0, 1.0])
    (points, _), *_ = lines_of(axes_of("masked_lm_loss", run, late=True))
    assert points == [[2, 3.0], [3, 2.0], [4, 1.0]]


def test_events_are_marked_at_their_steps(tmp_path):
    kinds = ["resume", "dropout"]
    events = [
        {"time": 0.0, "event": kind, "step": 3 * number}
        for number, kind in enumerate([*kinds, "checkpoint", "finish"], 1)
    ]
    run = read_run(tmp_path / "run", [5.0] * 31, events, SETTINGS)
    axes = axes_of("dropout", run)
    marked = [
        segment[0, 0]
        for lines in axes.collections
        for segment in lines.get_segments()
    ]
    assert marked == [3, 6]
    # Marks do not change the limits of the axis.
    plain = read_run(tmp_path / "plain", [5.0] * 31, settings=SETTINGS)
    assert axes.get_ylim() == axes_of("dropout", plain).get_ylim()


def test_curves_are_compared_with_the_paper_and_the_corpus(tmp_path):
    """Table 5 of the paper, two equally frequent labels, the metadata."""
    run = read_run(tmp_path / "run", [5.0], settings=SETTINGS)

    def values(metric):
        return [value for value, _ in curves.references(metric, [run])]

    assert values("masked_lm_loss") == [6.5]
    assert values("masked_lm_accuracy") == [0.540]
    assert values("sentence_order_accuracy") == [0.5, 0.865]
    assert values("sentence_order_loss") == pytest.approx([0.6931], abs=1e-4)
    assert values("learning_rate") == []
    drawn = lines_of(axes_of("masked_lm_loss", run))
    assert ([[0.0, 6.5], [1.0, 6.5]], ":") in drawn


def test_runs_of_one_name_are_named_by_their_paths(tmp_path):
    for run_dir in ("x/run", "y/run", "y/other"):
        write_run(tmp_path / run_dir, [5.0])

    def names(*run_dirs):
        return [
            r.name for r in read_runs([f"{tmp_path}/{d}" for d in run_dirs])
        ]

    assert names("x/run/", "y/other") == ["run", "other"]
    assert names("x/run", "y/run") == [f"{tmp_path}/{d}/run" for d in "xy"]
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
        read_runs([str(tmp_path)])


@pytest.mark.slow
def test_a_real_run_is_drawn(source, tmp_path, capsys):
    """A name with markup is text."""
    run_dir, file = tmp_path / "a <b> $x$", tmp_path / "out.png"
    shutil.copytree(source, run_dir)
    main(ReportConfig(run_dirs=(str(run_dir),), output_file=str(file)))
    said = capsys.readouterr().out
    assert f"curves: {file}\n" in said
    assert f"{run_dir}, step 12, held-out set: loss " in said
    assert matplotlib.image.imread(file).size > 1e6
