"""Intervals in time become intervals in steps, which the run notes."""

import pytest

from albert_tf.config import TrainingConfig
from albert_tf.runs.intervals import Interval, Intervals, choose

CONFIG = TrainingConfig(loop_seconds=30, save_checkpoints_minutes=5)


def steps_at(step, step_seconds, config=CONFIG):
    intervals = Intervals("intervals.json", [choose(0, step_seconds, config)])
    return intervals.at(step, config)


@pytest.mark.parametrize(
    ("step_seconds", "steps"),
    [
        (0.847, (20, 200)),  # at most 35 and 354
        (0.3, (100, 1000)),  # exactly
        (40.0, (1, 5)),  # a step is longer than a loop should be
        (400.0, (1, 1)),
        (0.001, (1000, 5000)),  # the settings in steps are upper bounds
    ],
)
def test_intervals_are_the_longest_round_numbers_of_steps_in_the_time(
    step_seconds, steps
):
    assert steps_at(7, step_seconds) == steps


@pytest.mark.parametrize("step_seconds", [0.0, -360.0, float("nan")])
def test_a_step_time_that_cannot_be_right_is_refused(step_seconds):
    with pytest.raises(ValueError, match="step_seconds must be above 0"):
        choose(11, step_seconds, CONFIG)


def test_settings_of_zero_leave_the_intervals_in_steps():
    only_saves = TrainingConfig(save_checkpoints_minutes=5)
    assert steps_at(7, 0.847, only_saves) == (1000, 200)
    assert steps_at(7, 0.847, TrainingConfig()) == (1000, 5000)


def test_a_run_passes_the_same_boundaries_from_each_of_its_steps():
    """It measured at step 11, and again at 130, on a slower slice."""
    notes = [
        Interval(11, 20, 50, 1.0, 30, 5),
        Interval(130, 7, 14, 3.0, 30, 5),
    ]
    intervals = Intervals("intervals.json", notes)

    def boundaries(step):
        found = []
        while step < 160:
            step = intervals.next_boundary(step, CONFIG)
            found.append(step)
        return found

    expected = [20, 40, 50, 60, 80, 100, 120, 133, 140, 147, 154, 161]
    assert boundaries(0) == expected
    for step in range(160):
        assert boundaries(step) == [s for s in expected if s > step]


def test_intervals_are_chosen_again_only_for_another_speed_or_setting():
    intervals = Intervals("intervals.json", [choose(11, 1.0, CONFIG)])
    assert not intervals.needs(500, 1.9, CONFIG)
    assert not intervals.needs(500, 0.6, CONFIG)
    assert intervals.needs(500, 2.1, CONFIG)
    assert intervals.needs(500, 0.4, CONFIG)
    other = TrainingConfig(loop_seconds=60, save_checkpoints_minutes=5)
    assert intervals.needs(500, 1.0, other)
    # A run that has gone back to an earlier step keeps its intervals.
    assert not intervals.needs(10, 9.0, CONFIG)


def test_a_run_directory_keeps_the_intervals(tmp_path):
    Intervals.read(str(tmp_path)).extend([choose(11, 0.847, CONFIG)])
    assert Intervals.read(str(tmp_path)).at(11, CONFIG) == (20, 200)
