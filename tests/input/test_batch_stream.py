"""The batch of each step, computed by hand."""

from albert_tf.config import DataConfig, TrainingConfig
from albert_tf.input.batch_stream import BatchStream
from albert_tf.input.record_sets import Phase, RecordSet, TrainingData
from albert_tf.runs.rollback import Rollbacks


def phase(first_step, name):
    records = RecordSet({name: 1000}, ((name,),))
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


def test_batches_between_checkpoint_and_divergence_are_skipped():
    """Only in the phase in which a run diverged."""
    plain = stream_after()
    stream = stream_after((60, 50), (130, 120))
    for step, planned, found in (
        (0, (A, 0), (A, 0)),
        (49, (A, 49), (A, 49)),
        (50, (A, 50), (A, 60)),
        (99, (A, 99), (A, 109)),
        (100, (B, 0), (B, 0)),
        (119, (B, 19), (B, 19)),
        (120, (B, 20), (B, 30)),
    ):
        assert plain.locate(step) == planned
        assert stream.locate(step) == found


def test_the_stream_changes_at_phases_and_rollbacks():
    stream = stream_after((60, 50), (130, 120))
    changes = [stream.next_change(step) for step in (0, 50, 100, 120)]
    assert changes == [50, 100, 120, None]


def test_each_phase_has_an_order_of_its_own():
    stream = stream_after()
    first, second = (stream._phase_seed(phase) for phase in (A, B))
    assert first == 7  # the seed of the run
    assert second != first
