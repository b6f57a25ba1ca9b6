"""Limits, and errors that name a lost worker, host or TPU."""

import atexit
import json
import time

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from albert_tf.cluster import tensorflow_private
from albert_tf.cluster import watchdog as watchdog_module
from albert_tf.cluster.host import connect
from albert_tf.cluster.strategy import make_strategy
from albert_tf.cluster.watchdog import Watchdog
from albert_tf.config import DistributionConfig
from albert_tf.errors import RetryError
from tests.helpers import tpu_bridge

CONFIG = DistributionConfig(hang_timeout_s=7)


def test_a_block_on_a_tpu_has_limits_and_names_what_is_lost(monkeypatch):
    """So training, evaluation and prediction have and do.

    At its end the process does not wait for the TPU, which may be lost.
    """
    strategy = tpu_bridge.make_tpu_strategy(monkeypatch)
    message = "the TPU of this machine must answer"
    removed = []
    monkeypatch.setattr(atexit, "unregister", removed.append)
    with (
        pytest.raises(RetryError, match=message),
        connect(CONFIG, strategy) as host,
    ):
        assert host.watchdog.limit_s() == 7
        raise tf.errors.UnavailableError(None, None, "connection refused")
    assert removed == [context.async_wait]


def test_a_single_process_waits_for_no_other(monkeypatch):
    """It has no limits, and its errors are its own."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with (
        pytest.raises(tf.errors.InternalError),
        connect(CONFIG) as host,
    ):
        assert host.is_chief and host.strategy.num_replicas_in_sync == 1
        assert host.watchdog.limit_s() == 0
        raise tf.errors.InternalError(None, None, "of its own")


def test_an_error_while_workers_connect_is_a_lost_worker(monkeypatch):
    """TensorFlow is quoted: the cause may be an error of this process."""
    expected = "all workers .* must answer.*TensorFlow says: Socket closed"
    task = {"type": "worker", "index": 1}
    cluster = {"worker": ["localhost:1", "localhost:2"]}
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": cluster, "task": task})
    )

    def connect_workers(**_):
        raise tf.errors.UnavailableError(None, None, "Socket closed")

    monkeypatch.setattr(
        tf.distribute, "MultiWorkerMirroredStrategy", connect_workers
    )
    monkeypatch.setattr(
        tensorflow_private, "detect_unresponsive_workers", lambda *_: None
    )
    with pytest.raises(RetryError, match=expected):
        make_strategy(DistributionConfig(strategy="multi_worker"))


@pytest.fixture
def ended(monkeypatch):
    """The activities that would have ended the process."""
    activities = []
    monkeypatch.setattr(
        watchdog_module,
        "_end_process",
        lambda activity, _: activities.append(activity),
    )
    return activities


def test_an_activity_may_take_ten_times_its_usual_time():
    """At least 5 minutes, and the timeout if the usual time is unknown."""
    watchdog = Watchdog(1800)
    assert watchdog.limit_s() == 1800
    assert watchdog.limit_s(44.0) == 440.0
    assert watchdog.limit_s(847.0) == 8470.0
    assert watchdog.limit_s(1.0) == 300.0
    assert Watchdog(60).limit_s(1.0) == 60.0


def wait_until(ended, number):
    deadline = time.monotonic() + 60
    while len(ended) < number and time.monotonic() < deadline:
        time.sleep(0.01)


def test_only_an_activity_that_takes_too_long_ends_the_process(ended):
    watchdog = Watchdog(0.05)
    with watchdog.limit("a short one"):
        pass
    with Watchdog(0).limit("an unlimited one"):
        time.sleep(0.1)
    with watchdog.limit("a long one"):
        wait_until(ended, 1)
    assert ended == ["a long one"]
