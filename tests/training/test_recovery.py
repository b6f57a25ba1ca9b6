"""Rollbacks of a process that is killed, on real checkpoints and logs."""

import types

import pytest
import tensorflow as tf

from albert_tf.cluster.watchdog import Watchdog
from albert_tf.config import PretrainingConfig, TrainingConfig
from albert_tf.runs.checkpoints import CheckpointStore
from albert_tf.runs.log import RunLog, read_metrics
from albert_tf.runs.rollback import Rollback, Rollbacks
from albert_tf.training.position import Position
from albert_tf.training.recovery import Recovery


class KilledError(Exception):
    """Stands for the end of the process."""


def kill(*_, **__):
    raise KilledError


@pytest.fixture
def make_store(tmp_path):
    return lambda: CheckpointStore(str(tmp_path), {"kernel": tf.Variable(1.0)})


@pytest.fixture
def diverged(tmp_path, make_store):
    """A run that has diverged twice since its newest checkpoint, of step 8."""
    store, position = make_store(), Position(12, {"loss": 0.0})
    run_log = RunLog.open(str(tmp_path), step=0)
    for step in (4, 8):
        store.save(step, position.to_notes())
        run_log.write("train", step, {"loss": 6.0})
    rollbacks = Rollbacks.read(str(tmp_path))
    rollbacks.add(Rollback(12, 8, 4, 1.0, "loss nan"))

    def restore(avoided):
        position.restore(store.restore(avoided=avoided))
        return True

    trainer = types.SimpleNamespace(
        position=position,
        rollbacks=rollbacks,
        store=store,
        restore=restore,
        close_batches=lambda: None,
    )
    return Recovery(
        PretrainingConfig(training=TrainingConfig(on_divergence="rollback")),
        trainer,
        tf.distribute.OneDeviceStrategy("CPU:0"),
        run_log,
        (),
        lambda kind, **facts: None,
        Watchdog(),
    )


@pytest.mark.parametrize(
    ("killed_in", "resumed_from"),
    [
        ((CheckpointStore, "restore"), 8),
        ((Rollbacks, "add"), 8),
        ((RunLog, "rewind"), 4),
        (None, 4),
    ],
    ids=["restore", "rollbacks.json", "log", "not killed"],
)
def test_the_log_of_a_process_killed_in_a_rollback_has_no_gap(
    tmp_path, monkeypatch, make_store, diverged, killed_in, resumed_from
):
    """The second rollback returns to step 4. The next process logs on."""
    if killed_in:
        with monkeypatch.context() as context, pytest.raises(KilledError):
            context.setattr(*killed_in, kill)
            diverged.roll_back("loss nan", {})
    else:
        diverged.roll_back("loss nan", {})

    step = make_store().restore().step
    assert step == resumed_from
    RunLog.open(str(tmp_path), step)
    logged = [line["step"] for line in read_metrics(str(tmp_path))]
    assert logged == list(range(4, step + 1, 4))
