import numpy as np
import pytest
from matplotlib.figure import Figure

from albert_tf.errors import UserError
from albert_tf.report import curves
from tests.helpers.logged_run import (
    SETTINGS,
    read_run,
)


def axes_of(metric, *runs, late=False):
    (panel,) = [
        panel
        for panel in curves.PANELS
        if panel.metric == metric and panel.late == late
    ]
    axes = Figure().subplots()
    curves.draw_panel(axes, panel, runs)
    return axes


def lines_of(*args, **kwargs):
    """What is drawn in a panel: points, dashes and marker of each line."""
    return [
        (
            np.asarray(line.get_xydata()).tolist(),
            line.get_linestyle(),
            line.get_marker(),
        )
        for line in axes_of(*args, **kwargs).lines
    ]


def test_selected_metrics_are_drawn_alone(tmp_path):
    run = read_run(tmp_path / "run", [8.0, 7.0], mfu=[0.5, 0.6])
    drawn = curves.find_panels([run], ["mfu", "masked_lm_loss"])
    assert [panel.metric for panel in drawn] == ["masked_lm_loss", "mfu"]
    with pytest.raises(UserError, match=r"the runs\..*: trust_ratio\..*mfu"):
        curves.picture([run], metrics=["trust_ratio"])


def test_training_is_solid_and_the_held_out_set_dashed(tmp_path):
    """A long run has all its points and a smoothed line."""
    run = read_run(tmp_path / "run", [8.0, 7.0, 5.0])
    points = [[0, 8.0], [1, 7.0], [2, 5.0]]
    trained, held_out, *_ = lines_of("masked_lm_loss", run)
    assert trained[:2] == (points, "-")
    assert held_out == (points, "--", "o")
    losses = [7.0 + (-1) ** step for step in range(300)]
    each, smoothed, *_ = lines_of(
        "masked_lm_loss", read_run(tmp_path / "long", losses)
    )
    assert {value for _, value in each[0]} == {6.0, 8.0}
    middle = [value for _, value in smoothed[0][10:-10]]
    assert np.abs(np.array(middle) - 7).max() < 0.5


def late_panels(*runs):
    panels = curves.find_panels(runs)
    return [panel.metric for panel in panels if panel.late]


def test_a_run_whose_loss_becomes_nan_is_drawn(tmp_path):
    losses = [5.0] * 25 + [float("nan")] * 35
    run = read_run(tmp_path / "run", losses)
    curves.picture([run])
    assert late_panels(run) == []
    assert lines_of("masked_lm_loss", run)[0][0][-1] == [24, 5.0]


def test_the_second_half_has_a_panel_without_spikes(tmp_path):
    """The panel of the complete run shows them."""
    losses = [5.0 + step % 2 for step in range(401)]
    losses[300] = 60.0
    run = read_run(tmp_path / "run", losses)
    axes = axes_of("masked_lm_loss", run, late=True)
    steps = axes.lines[0].get_xdata()
    assert (steps.min(), steps.max()) == (200, 400)
    bottom, top = axes.get_ylim()
    assert 4.5 < bottom < 5.0 and 6.0 < top < 6.5
    assert axes_of("masked_lm_loss", run).get_ylim()[1] > 60


def test_events_are_marked_at_their_steps(tmp_path):
    kinds = ["resume", "rollback", "dropout", "data"]
    events = [
        {"time": 0.0, "event": kind, "step": 3 * number}
        for number, kind in enumerate([*kinds, "checkpoint", "finish"], 1)
    ]
    run = read_run(tmp_path / "run", [5.0] * 31, events, SETTINGS)
    lines = lines_of("masked_lm_loss", run)
    marks = [
        (x, marker)
        for points, _, marker in lines
        for x, y in points
        if y == 1.0
    ]
    symbols = [curves.MARKS[kind][1] for kind in kinds]
    assert marks == [
        (3 * number, symbol) for number, symbol in enumerate(symbols, 1)
    ]
    assert len(set(symbols)) == len(symbols)
    # Marks do not change the limits of the axis.
    plain = read_run(tmp_path / "plain", [5.0] * 31, settings=SETTINGS)
    axes, unmarked = axes_of("dropout", run), axes_of("dropout", plain)
    assert axes.get_ylim() == unmarked.get_ylim()


def test_curves_are_compared_with_the_paper_and_the_corpus(tmp_path):
    """Table 5 of the paper, two equally frequent labels, the metadata."""
    run = read_run(tmp_path / "run", [5.0], settings=SETTINGS)

    def values(metric):
        named = curves.references(metric, [run])
        return [value for value, _ in named]

    assert values("masked_lm_loss") == [6.5]
    assert values("masked_lm_accuracy") == [0.540]
    assert values("sentence_order_accuracy") == [0.5, 0.865]
    assert values("sentence_order_loss") == pytest.approx([0.6931], abs=1e-4)
    assert values("learning_rate") == []
    drawn = [xs for xs, style, _ in lines_of("masked_lm_loss", run)]
    assert [[0.0, 6.5], [1.0, 6.5]] in drawn


def test_the_band_of_the_trust_ratios_covers_all_of_them(tmp_path):
    ratios = [0.5, 1.0, 2.0]
    run = read_run(
        tmp_path / "run",
        [5.0, 5.0, 5.0],
        trust_ratio_min=[r / 10 for r in ratios],
        trust_ratio_mean=ratios,
        trust_ratio_max=[r * 10 for r in ratios],
    )
    axes = axes_of("trust_ratio_mean", run)
    corners = axes.collections[0].get_paths()[0].vertices
    assert corners[:, 1].min() == pytest.approx(0.05)
    assert corners[:, 1].max() == pytest.approx(20.0)
    assert axes.get_yscale() == "log"
