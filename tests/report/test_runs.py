import numpy as np
import pytest

from albert_tf.errors import UserError
from albert_tf.report import runs
from albert_tf.report.runs import Curve, RunHistory, read_runs
from tests.helpers.logged_run import SETTINGS, write_lines, write_run


def curve_of(values):
    curve = Curve()
    for step, value in enumerate(values):
        curve.add(step, value)
    return curve


def test_a_spike_of_one_step_in_a_hundred_thousand_is_kept(monkeypatch):
    monkeypatch.setattr(runs, "NUM_BUCKETS", 100)
    monkeypatch.setattr(runs, "_WINDOW", 0)
    values = 3 + np.random.default_rng(0).normal(size=100_000) / 100
    values[77_777], values[123] = 50.0, -40.0
    curve = curve_of(values)
    points = curve.extremes()
    assert len(points) <= 2 * 100 + 1
    assert [77_777, 50.0] in points.tolist()
    assert [123, -40.0] in points.tolist()
    assert points[-1].tolist() == [99_999, values[-1]]
    assert np.all(np.diff(points[:, 0]) > 0)
    smoothed = curve.smoothed()
    assert len(smoothed) == 100
    mean = values[:1000].mean()
    assert smoothed[0].tolist() == pytest.approx([499.5, mean])
    assert curve.mean == pytest.approx(values.mean(), rel=1e-12)


def test_smoothing_removes_noise_and_keeps_a_steep_start(monkeypatch):
    """On a straight line, the mean of a window is the value at its middle."""
    monkeypatch.setattr(runs, "NUM_BUCKETS", 1000)
    smoothed = curve_of([20.0 - 3 * step for step in range(1000)]).smoothed()
    np.testing.assert_array_equal(smoothed[:, 0], range(1000))
    np.testing.assert_allclose(
        smoothed[:-10, 1], 20 - 3 * np.arange(990), rtol=1e-9, atol=1e-9
    )
    # The last window has eleven steps; its mean is five steps before the end.
    assert smoothed[-1, 1] == pytest.approx(20 - 3 * 994)
    # In a window of 21, all alternating values but one cancel.
    noise = curve_of([(-1.0) ** step for step in range(1000)])
    assert np.abs(noise.smoothed()[10:-10, 1]).max() <= 1 / 20


def test_runs_have_the_shortest_names_that_differ(tmp_path):
    def names(*run_dirs):
        return [
            run.name for run in read_runs([f"{tmp_path}/{d}" for d in run_dirs])
        ]

    for run_dir in ("b/x/run", "y/run", "y/other"):
        write_run(tmp_path / run_dir, [5.0])
    assert names("b/x/run", "y/run/", "y/other") == [
        "x/run",
        "y/run",
        "y/other",
    ]
    assert names("y/run/") == ["run"]
    with pytest.raises(UserError, match="each run once"):
        names("y/run", "y/run/")


def test_a_line_that_a_crash_cut_short_is_skipped(tmp_path):
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
        read_runs([str(tmp_path)])
    run_dir = write_run(tmp_path / "run", [5.0, 4.0])
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"split": "train", "step": 2, "masked_lm_l')
    assert RunHistory(run_dir, "run").last_step == 1


def test_tokens_are_those_of_the_batches_of_each_line(tmp_path):
    """The batch of 256 tokens in the settings is that of the last process.

    Before, it was half as large. The first line is of an older version.
    """
    run_dir = write_run(tmp_path / "run", [], settings=SETTINGS)
    lines = [
        {"split": "train", "step": 10, "loss": 7.0},
        {"step": 20, "steps_per_second": 0.1, "tokens_per_second": 12.8},
        {"step": 30, "steps_per_second": 0.3, "tokens_per_second": 38.4},
        {"step": 40, "steps_per_second": 0.3, "tokens_per_second": 76.8},
    ]
    write_lines(
        tmp_path / "run" / "metrics.jsonl",
        [{"split": "train", **line} for line in lines],
    )
    run = RunHistory(run_dir, "run")
    assert run.tokens == 10 * 256 + 20 * 128 + 10 * 256
