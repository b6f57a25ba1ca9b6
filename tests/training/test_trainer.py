"""The trainer's start, and its measurement of its speed."""

import itertools
import time

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.cluster.replicas import Replicas
from albert_tf.input import synthetic
from albert_tf.input.record_sets import Phase, TrainingData
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train_step import Steps
from albert_tf.training.trainer import MEASURED_STEPS, Trainer
from tests.helpers import tiny_run, tpu_bridge
from tests.helpers.limits import Limits

STEP_S, COMPILE_S = 0.01, 0.5
LEARNING_RATE = 0.25


def do_nothing(batches, totals, num_steps, settings):
    """Takes the place of the training program."""
    times = tf.zeros((int(num_steps), 3), tf.float64)
    return Steps(
        totals, num_steps, tf.zeros(()), tf.constant(LEARNING_RATE), times
    )


def test_the_step_time_is_that_of_a_call_that_does_not_compile(
    tmp_path, monkeypatch
):
    """Intervals in time depend on it. The program here only sleeps.

    The clock of the host is set back an hour whenever it is read.
    """
    clock = itertools.count(2_000_000_000.0, -3600.0)
    monkeypatch.setattr(time, "time", lambda: next(clock))
    config = tiny_run.make_synthetic_config(tmp_path)
    objective = Pretraining(config)
    limits = Limits()
    trainer = Trainer(
        config,
        objective,
        objective.find_training_data(),
        tf.distribute.OneDeviceStrategy("CPU:0"),
        watchdog=limits,
    )
    calls = []

    def sleep(batches, totals, num_steps, settings):
        calls.append(int(num_steps))
        time.sleep(STEP_S * calls[-1] + COMPILE_S * (len(calls) == 1))
        times = tf.zeros((calls[-1], 3), tf.float64)
        return Steps(totals, num_steps, tf.zeros(()), tf.zeros(()), times)

    monkeypatch.setattr(trainer, "_train_steps", sleep)
    assert trainer.step_seconds is None
    trainer.advance(1)
    assert trainer.step_seconds is None  # it has only compiled
    began = time.monotonic()
    (compiling_s,) = trainer.position.times.compiling_seconds
    assert compiling_s >= COMPILE_S  # all of the call, tracing included
    trainer.advance(1 + MEASURED_STEPS)
    longest = (time.monotonic() - began) / MEASURED_STEPS
    assert 0.9 * STEP_S <= trainer.step_seconds <= longest
    assert len(trainer.position.times.seconds) == MEASURED_STEPS
    # Later calls are as long as the loop.
    trainer.advance(5 * MEASURED_STEPS)
    assert calls == [1, MEASURED_STEPS, 4 * MEASURED_STEPS - 1]
    # All of it has a limit.
    assert limits.seen == [
        "opening the records",
        "the device loop of 1 steps from step 0 on",
        "the device loop of 10 steps from step 1 on",
        "the device loop of 39 steps from step 11 on",
    ]


def test_the_lowest_loss_is_forgotten_where_other_records_begin(
    tmp_path, monkeypatch
):
    """The program here does nothing. Other records begin at step 4."""
    config = tiny_run.make_synthetic_config(tmp_path)
    trainer = Trainer(
        config,
        Pretraining(config),
        TrainingData(
            (
                Phase(0, "one", synthetic.RECORDS),
                Phase(4, "two", synthetic.RECORDS),
            )
        ),
        tf.distribute.OneDeviceStrategy("CPU:0"),
    )
    monkeypatch.setattr(trainer, "_train_steps", do_nothing)
    position = trainer.position
    lowest = {}
    # A process that resumes at step 4 or 5 has read the loss from a checkpoint.
    for first, last in [(2, 4), (2, 6), (4, 6), (5, 6)]:
        position.step, position.lowest_loss = first, 1.5
        trainer.advance(last)
        lowest[first, last] = position.lowest_loss
    assert lowest == {(2, 4): 1.5, (2, 6): None, (4, 6): None, (5, 6): 1.5}


def test_a_rollback_scales_the_learning_rate_from_its_step_on(
    tmp_path, monkeypatch
):
    """The program here does nothing."""
    config = tiny_run.make_synthetic_config(
        tmp_path, rollback_learning_rate_scale=0.5
    )
    objective = Pretraining(config)
    trainer = Trainer(
        config,
        objective,
        objective.find_training_data(),
        tf.distribute.OneDeviceStrategy("CPU:0"),
    )
    monkeypatch.setattr(trainer, "_train_steps", do_nothing)
    scale = trainer.state.learning_rate_scale
    trainer.advance(2)
    assert trainer.position.learning_rate == LEARNING_RATE
    assert float(scale) == 1.0
    rollbacks = trainer.rollbacks
    rollbacks.add(rollbacks.plan(5, 2, "nan", config.training), writes=False)
    trainer.advance(4)
    assert float(scale) == 0.5


def test_the_time_of_a_failed_call_is_measured(tmp_path, monkeypatch):
    """Recovery counts it as lost."""
    config = tiny_run.make_synthetic_config(tmp_path)
    objective = Pretraining(config)
    trainer = Trainer(
        config,
        objective,
        objective.find_training_data(),
        tf.distribute.OneDeviceStrategy("CPU:0"),
    )

    def fail(*_):
        time.sleep(STEP_S)
        raise tf.errors.DataLossError(None, None, "a bit")

    monkeypatch.setattr(trainer, "_train_steps", fail)
    with pytest.raises(tf.errors.DataLossError):
        trainer.advance(3)
    (seconds,) = trainer.position.times.seconds
    assert seconds >= STEP_S
    assert trainer.position.step == 0


def test_initial_weights_are_sent_to_the_first_replica_only(
    tmp_path, monkeypatch
):
    """A program, which does not run here, copies them to the others."""
    strategy = tpu_bridge.make_tpu_strategy(monkeypatch)
    monkeypatch.setattr(Replicas, "copy_from_first", lambda self: None)
    config = tiny_run.make_synthetic_config(tmp_path)
    objective = Pretraining(config)
    trainer = Trainer(
        config, objective, objective.find_training_data(), strategy
    )
    of_replicas = [
        strategy.experimental_local_results(variable.value)
        for variable in trainer.state.model.trainable_variables
    ]
    assert any(np.any(first.numpy()) for first, *_others in of_replicas)
    for _first, *others in of_replicas:
        assert not any(np.any(other.numpy()) for other in others)
