import math

import pytest

from albert_tf.config import TrainingConfig
from albert_tf.errors import UserError
from albert_tf.runs.rollback import Rollbacks, find_divergence

CONFIG = TrainingConfig(
    on_divergence="rollback", max_rollbacks=3, rollback_learning_rate_scale=0.5
)


def roll_back(rollbacks, diverged_at, resumed_from, config=CONFIG):
    rollbacks.check_allowed(diverged_at, "loss nan", config)
    rollback = rollbacks.plan(diverged_at, resumed_from, "loss nan", config)
    rollbacks.add(rollback)
    return rollback


def test_a_rollback_skips_what_was_read_since_its_checkpoint(tmp_path):
    """In the chief, in other workers, and in a process that reads the file."""
    worker = Rollbacks.read(str(tmp_path))
    assert worker.skipped_steps(10**6) == 0
    assert worker.learning_rate_scale(10**6) == 1.0
    assert worker.next_change(0) is None
    rollback = worker.plan(110, 100, "loss nan", CONFIG)
    worker.add(rollback, writes=False)
    assert not list(tmp_path.iterdir())
    chief = Rollbacks.read(str(tmp_path))
    assert roll_back(chief, 110, 100) == rollback
    for rollbacks in worker, chief, Rollbacks.read(str(tmp_path)):
        skipped = [rollbacks.skipped_steps(s) for s in (99, 100, 500)]
        assert skipped == [0, 10, 10]
        scales = [rollbacks.learning_rate_scale(s) for s in (99, 100)]
        assert scales == [1.0, 0.5]
        changes = [rollbacks.next_change(s) for s in (0, 99, 100)]
        assert changes == [100, 100, None]


def test_a_second_rollback_to_the_same_checkpoint_skips_both_ranges(tmp_path):
    """After batches 100 to 109 and 110 to 124 comes 125."""
    rollbacks = Rollbacks.read(str(tmp_path))
    roll_back(rollbacks, 110, 100)
    roll_back(rollbacks, 115, 100)
    assert 100 + rollbacks.skipped_steps(100) == 125
    assert rollbacks.learning_rate_scale(100) == 0.25


def test_a_rollback_further_back_does_not_repeat_the_skipped_batches(tmp_path):
    """From 100 on, batch s + 10 was read: 129 was the last before step 120."""
    rollbacks = Rollbacks.read(str(tmp_path))
    roll_back(rollbacks, 110, 100)
    roll_back(rollbacks, 120, 50)
    batches = [s + rollbacks.skipped_steps(s) for s in (49, 50, 99, 100)]
    assert batches[0] == 49
    assert batches[1] == 130
    assert batches[1:] == sorted(batches[1:])
    assert [rollbacks.next_change(s) for s in (0, 50)] == [50, 100]


def test_discarded_steps_are_known(tmp_path):
    rollbacks = Rollbacks.read(str(tmp_path))
    roll_back(rollbacks, 110, 100)
    roll_back(rollbacks, 160, 150)
    discarded = [
        (step, rollbacks.have_discarded(step, 0)) for step in (100, 101)
    ]
    assert discarded == [(100, False), (101, True)]
    assert not rollbacks.have_discarded(140, 1)  # saved between them
    assert rollbacks.have_discarded(151, 1)
    assert not rollbacks.have_discarded(10**6, 2)


def test_the_policy_stop_reports_the_divergence(tmp_path):
    rollbacks = Rollbacks.read(str(tmp_path))
    with pytest.raises(
        UserError,
        match=r"divergence_loss_increase=2 \(0: any\) .*loss nan, at step 7"
        r".*learning_rate",
    ):
        rollbacks.check_allowed(7, "loss nan", TrainingConfig())


def test_a_run_rolls_back_at_most_max_rollbacks_times(tmp_path):
    rollbacks = Rollbacks.read(str(tmp_path))
    for diverged_at in (10, 20, 30):
        roll_back(rollbacks, diverged_at, 5)
    with pytest.raises(UserError, match=r"max_rollbacks=3 times\. .*nan, at"):
        roll_back(rollbacks, 40, 5)


@pytest.mark.parametrize(
    ("loss", "norm", "lowest", "diverged"),
    [
        (3.0, 1.0, None, False),
        (99.0, 1.0, None, False),
        (5.01, 1.0, 3.0, True),
        (4.99, 1.0, 3.0, False),
        (math.nan, 1.0, None, True),
        (3.0, math.inf, 3.0, True),
    ],
)
def test_a_loss_two_nats_above_the_lowest_has_diverged(
    loss, norm, lowest, diverged
):
    means = {"loss": loss, "gradient_norm": norm}
    assert bool(find_divergence(means, lowest, CONFIG)) == diverged


def test_an_allowed_increase_of_0_detects_only_nan_and_infinity():
    config = TrainingConfig(divergence_loss_increase=0)
    means = {"loss": 99.0, "gradient_norm": 1.0}
    assert not find_divergence(means, 1.0, config)
    assert find_divergence({**means, "loss": math.nan}, 1.0, config)
