"""What a checkpoint stores of the position of a run."""

import dataclasses
import json

from albert_tf.runs.checkpoints import Checkpoint
from albert_tf.training.position import Position
from albert_tf.training.step_times import StepTimes


def test_every_field_survives_a_checkpoint():
    """Each value differs from that of a new run."""
    saved = Position(
        step=7,
        totals={"loss": 17.25, "gradient_norm": 0.1},
        num_steps=3,
        lowest_loss=2.5,
        to_evaluate=True,
        learning_rate=0.00176,
        times=StepTimes([1.5, 0.1], [20.0], 0.25, 7.0),
    )
    restored = Position.at_start(["loss", "gradient_norm"])
    for field in dataclasses.fields(Position):
        assert getattr(restored, field.name) != getattr(saved, field.name)
    notes = json.loads(json.dumps(saved.to_notes(data="wiki")))
    restored.restore(Checkpoint("step-00000007", 7, notes))
    assert restored == saved


def test_metrics_of_another_optimizer_begin_at_zero():
    notes = {"totals": {"loss": 2.0, "trust_ratio": 1.0}, "num_steps": 1}
    position = Position.at_start(["loss", "gradient_norm"])
    position.restore(Checkpoint("step-00000001", 1, notes))
    assert position.totals == {"loss": 2.0, "gradient_norm": 0.0}
