"""The checkpoint of the best evaluation, after rollbacks and failed writes."""

import errno

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.runs import checkpoint_files
from albert_tf.runs.checkpoints import CheckpointStore
from albert_tf.runs.rollback import Rollback, Rollbacks


@pytest.fixture
def kernel():
    return tf.Variable([0.0, 0.0])


@pytest.fixture
def store(tmp_path, kernel):
    return CheckpointStore(str(tmp_path), {"kernel": kernel})


def steps_in(directory):
    return [c.step for c in checkpoint_files.list_checkpoints(str(directory))]


def test_a_discarded_checkpoint_is_not_the_best(tmp_path, store, kernel):
    """A rollback from step 14 to 5 has discarded the best step, 10."""
    store.save(5, {})
    store.save_best(10, {}, 2.0)
    store.wait()
    store.restore(5)
    Rollbacks.read(str(tmp_path)).add(Rollback(14, 5, 9, 1.0, "nan"))

    kernel.assign([15.0, 15.0])
    store.save_best(15, {"rollbacks": 1}, 2.1)
    store.save_best(20, {"rollbacks": 1}, 2.2)
    store.wait()
    assert steps_in(tmp_path / "best") == [15]
    assert store.best_step() == 15
    kernel.assign([0.0, 0.0])
    store.restore(15)
    np.testing.assert_array_equal(kernel, [15, 15])


def test_only_a_checkpoint_that_was_discarded_is_no_best_one(tmp_path, store):
    assert store.best_step() is None
    store.save_best(10, {}, 2.0)
    store.wait()
    assert store.best_step() == 10
    Rollbacks.read(str(tmp_path)).add(Rollback(14, 5, 9, 1.0, "nan"))
    assert store.best_step() is None


def test_a_checkpoint_that_was_not_written_is_not_the_best(
    tmp_path, store, monkeypatch
):
    store.save_best(10, {}, 3.0)
    store.wait()

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(checkpoint_files, "write_checkpoint", fail)
        store.save_best(20, {}, 2.0)
        store.wait()
    store.save(20, {})
    store.wait()
    assert list(store.save_errors) == ["best"]
    store.save_best(30, {}, 2.5)
    store.wait()
    assert not store.save_errors
    assert steps_in(tmp_path / "best") == [30]


def test_losses_of_other_held_out_examples_are_not_compared(
    tmp_path, store, caplog
):
    """Neither the higher loss at step 20 nor the lower one at 50 is."""

    def save_best(step, loss, max_eval_steps):
        evaluation = {
            "shards": [["a", 7, ""]],
            "max_eval_steps": max_eval_steps,
        }
        store.save_best(step, {}, loss, evaluation)
        store.wait()
        return steps_in(tmp_path / "best")

    assert save_best(10, 2.0, max_eval_steps=3) == [10]
    assert save_best(20, 5.0, max_eval_steps=0) == [20]
    assert "step 20 replaces" in caplog.text
    assert save_best(30, 5.5, max_eval_steps=0) == [20]
    assert save_best(40, 4.5, max_eval_steps=0) == [40]
    assert save_best(50, 1.0, max_eval_steps=3) == [50]
    assert caplog.text.count("replaces") == 2


def test_a_best_checkpoint_without_a_description_is_compared(tmp_path, store):
    """Older versions did not describe the evaluated examples."""
    store.save_best(10, {}, 2.0)
    store.save_best(20, {}, 2.5, {"max_eval_steps": 0})
    store.wait()
    assert steps_in(tmp_path / "best") == [10]


def test_a_loss_that_is_nan_is_never_the_best(tmp_path, store):
    store.save_best(10, {}, float("nan"))
    store.wait()
    assert store.best_step() is None
    store.save_best(20, {}, 3.0)
    store.save_best(30, {}, float("nan"))
    store.wait()
    assert steps_in(tmp_path / "best") == [20]
