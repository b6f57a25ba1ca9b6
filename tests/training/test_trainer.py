"""The trainer's calls of its program, and its position in checkpoints."""

import dataclasses
import json
import time

import tensorflow as tf

from albert_tf.cluster.host import Host
from albert_tf.runs.checkpoints import Checkpoint
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train import Position, Program, Trainer
from tests.helpers import tiny_run
from tests.helpers.limits import Limits

STEP_S, COMPILE_S = 0.01, 0.5


def make_trainer(config, **others):
    objective = Pretraining(config)
    return Trainer(
        config,
        objective,
        objective.find_training_data(),
        Host(tf.distribute.OneDeviceStrategy("CPU:0"), **others),
    )


def test_the_first_calls_of_a_program_are_short(tmp_path, monkeypatch):
    """One step compiles; some tell the usual time. The program only sleeps.

    After 40 steps, there is a new one.
    """
    config = tiny_run.make_synthetic_config(
        tmp_path, dropout_schedule="0:0.1,40:0.0"
    )
    limits = Limits()
    trainer = make_trainer(config, watchdog=limits)
    calls = []

    def sleep(batches, sums, num_steps):
        calls.append(int(num_steps))
        time.sleep(STEP_S * calls[-1] + COMPILE_S * (len(calls) == 1))
        return sums, num_steps, 0.0

    monkeypatch.setattr(trainer, "_make_program", lambda _: Program(sleep))
    trainer.advance(40)
    trainer.advance(50)
    times = trainer.times
    # All of the call, tracing included.
    assert times.compiling_seconds >= COMPILE_S
    assert (times.num_compiling, times.num_steps) == (2, 48)
    assert times.seconds >= 48 * STEP_S
    assert calls == [1, 10, 29, 1, 9]
    # All of it has a limit.
    assert limits.seen == [
        "opening the records",
        "the device loop of 1 steps from step 0 on",
        "the device loop of 10 steps from step 1 on",
        "the device loop of 29 steps from step 11 on",
        "the device loop of 1 steps from step 40 on",
        "the device loop of 9 steps from step 41 on",
    ]


def test_every_field_survives_a_checkpoint():
    """Each value differs from that of a new run."""
    saved = Position(
        step=7,
        totals={"loss": 17.25, "gradient_norm": 0.1},
        num_steps=3,
        lowest_loss=2.5,
        to_evaluate=True,
    )
    restored = Position(0, {"loss": 0.0, "gradient_norm": 0.0})
    for field in dataclasses.fields(Position):
        assert getattr(restored, field.name) != getattr(saved, field.name)
    notes = json.loads(json.dumps({**saved.to_notes(), "extra": "ignored"}))
    restored.restore(Checkpoint("step-00000007", 7, notes))
    assert restored == saved
    # The checkpoint of another optimizer has other metrics.
    other = Position(0, {"loss": 0.0, "trust_ratio": 0.0})
    other.restore(Checkpoint("step-00000007", 7, notes))
    assert other.totals == {"loss": 17.25, "trust_ratio": 0.0}
