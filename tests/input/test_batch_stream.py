"""The batch of each step, computed by hand."""

from albert_tf.config import DataConfig, TrainingConfig
from albert_tf.input.batch_stream import BatchStream
from albert_tf.input.record_sets import RecordSet
from albert_tf.runs.rollback import Rollbacks


def stream_after(*rollbacks):
    """A stream with rollbacks from a step back to another."""
    notes = Rollbacks("")
    for diverged_at, resumed_from in rollbacks:
        notes.add(
            notes.plan(diverged_at, resumed_from, "", TrainingConfig()),
            writes=False,
        )
    return BatchStream(RecordSet({"a": 1000}), DataConfig(), 7, notes)


def test_batches_between_checkpoint_and_divergence_are_skipped():
    plain = stream_after()
    stream = stream_after((60, 50), (130, 120))
    assert [plain.locate(step) for step in (0, 49, 50, 120)] == [0, 49, 50, 120]
    found = [stream.locate(step) for step in (0, 49, 50, 119, 120)]
    assert found == [0, 49, 60, 129, 140]


def test_the_stream_changes_at_rollbacks():
    stream = stream_after((60, 50), (130, 120))
    changes = [stream.next_change(step) for step in (0, 50, 100, 120)]
    assert changes == [50, 120, 120, None]
