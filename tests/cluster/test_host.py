import pytest
import tensorflow as tf

from albert_tf.cluster.host import connect
from albert_tf.config import DistributionConfig
from albert_tf.errors import RetryError
from tests.helpers import tpu_bridge


@pytest.fixture
def two_hosts(monkeypatch):
    """A slice of two hosts, the last of which does not answer."""
    strategy = tpu_bridge.make_tpu_strategy(monkeypatch)
    cluster = tf.train.ClusterSpec({"worker": ["localhost:1", "localhost:2"]})
    monkeypatch.setattr(type(strategy.extended), "num_hosts", 2)
    monkeypatch.setattr(
        strategy.cluster_resolver, "cluster_spec", lambda: cluster
    )
    return strategy


def test_a_block_on_a_slice_has_limits_and_names_a_lost_host(two_hosts):
    """So training, evaluation and prediction have and do."""
    config = DistributionConfig(hang_timeout_s=7)
    with (
        pytest.raises(
            RetryError, match="no answer from worker 1 at localhost:2"
        ),
        connect(config, two_hosts) as host,
    ):
        assert host.watchdog.limit_s() == 7
        raise tf.errors.UnavailableError(
            None, None, "/job:worker/replica:0/task:1: connection refused"
        )
