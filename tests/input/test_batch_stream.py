"""The batch of each step, computed by hand."""

from albert_tf.config import DataConfig, TrainingConfig
from albert_tf.input.batch_stream import BatchStream
from albert_tf.input.record_sets import Phase, RecordSet, TrainingData
from albert_tf.runs.rollback import Rollbacks


def phase(first_step, name):
    records = RecordSet((name,), (1000,), ("",), None, "", ((name,),))
    return Phase(first_step, name, records)


A, B = phase(0, "a"), phase(100, "b")


def stream_after(*rollbacks):
    """A stream with rollbacks from a step back to another."""
    notes = Rollbacks("")
    for diverged_at, resumed_from in rollbacks:
        notes.add(
            notes.plan(diverged_at, resumed_from, "", TrainingConfig()),
            writes=False,
        )
    return BatchStream(TrainingData((A, B)), DataConfig(), 7, notes)


def test_each_phase_begins_with_its_first_batch():
    stream = stream_after()
    assert stream.locate(0) == (A, 0)
    assert stream.locate(99) == (A, 99)
    assert stream.locate(100) == (B, 0)
    assert stream.locate(130) == (B, 30)


def test_batches_between_checkpoint_and_divergence_are_skipped():
    stream = stream_after((60, 50))
    assert stream.locate(49) == (A, 49)
    assert stream.locate(50) == (A, 60)
    assert stream.locate(99) == (A, 109)


def test_batches_skipped_in_one_phase_are_not_skipped_in_the_next():
    stream = stream_after((60, 50), (130, 120))
    assert stream.locate(119) == (B, 19)
    assert stream.locate(120) == (B, 30)


def test_the_stream_changes_at_phases_and_rollbacks():
    stream = stream_after((60, 50), (130, 120))
    changes = [stream.next_change(step) for step in (0, 50, 100, 120)]
    assert changes == [50, 100, 120, None]


def test_each_phase_has_an_order_of_its_own():
    stream = stream_after()
    first, second = (stream._phase_seed(phase) for phase in (A, B))
    assert first == 7  # the seed of the run
    assert second != first
