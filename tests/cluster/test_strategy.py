import json
import pathlib
import platform
import subprocess
import sys

import pytest
import tensorflow as tf

from albert_tf.cluster import strategy as strategy_module
from albert_tf.cluster.strategy import (
    make_strategy,
    per_replica_batch_size,
)
from albert_tf.config import DataConfig, DistributionConfig
from albert_tf.errors import RetryError, UserError
from tests.helpers.limits import Limits

REPOSITORY = pathlib.Path(__file__).parents[2]


def test_gpus_give_memory_as_it_is_needed(monkeypatch):
    find, grown = tf.config.list_physical_devices, []
    monkeypatch.setattr(
        tf.config,
        "list_physical_devices",
        lambda kind=None: ["one", "two"] if kind == "GPU" else find(kind),
    )
    monkeypatch.setattr(
        tf.config.experimental,
        "set_memory_growth",
        lambda gpu, grows: grown.append((gpu, grows)),
    )
    make_strategy(DistributionConfig(strategy="one_device"))
    assert grown == [("one", True), ("two", True)]


@pytest.mark.parametrize(
    ("error", "raised", "remedy"),
    [
        (tf.errors.InternalError, RetryError, "Start this command again"),
        (tf.errors.NotFoundError, UserError, "Install tensorflow-tpu"),
    ],
)
def test_the_start_of_a_local_tpu_has_a_limit_and_may_call_for_a_retry(
    monkeypatch, error, raised, remedy
):
    """E.g. while a process that was killed still holds the chips."""
    limits = Limits()

    def start(_):
        assert limits.active == ["the start of the TPU"]
        raise error(None, None, "core halted unexpectedly")

    resolvers, tpu = tf.distribute.cluster_resolver, tf.tpu.experimental
    monkeypatch.setattr(strategy_module.devices, "check_tpu", lambda _: None)
    monkeypatch.setattr(strategy_module, "Watchdog", {30: limits}.get)
    monkeypatch.setattr(resolvers, "TPUClusterResolver", lambda _: None)
    monkeypatch.setattr(tpu, "initialize_tpu_system", start)
    config = DistributionConfig(strategy="tpu", hang_timeout_s=30)
    with pytest.raises(UserError, match=f"core halted .*{remedy}") as refused:
        make_strategy(config)
    assert type(refused.value) is raised


WORKER_0 = {"type": "worker", "index": 0}


@pytest.mark.parametrize(
    "value",
    [
        "",
        "{",
        [],
        {"cluster": {}, "task": {}},
        {"cluster": {"worker": ["a"]}, "task": WORKER_0},
        {"cluster": {"worker": ["a:1"]}, "task": {**WORKER_0, "index": 1}},
        {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": WORKER_0},
    ],
)
def test_an_invalid_tf_config_is_refused_with_the_right_form(
    value, monkeypatch
):
    text = value if value in ("", "{") else json.dumps(value)
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(UserError, match="TF_CONFIG must be a JSON object"):
        make_strategy(DistributionConfig(strategy="multi_worker"))


def test_a_batch_is_divided_evenly_or_refused():
    def share(size, num_replicas, micro_batches=1, name="global_batch_size"):
        sizes = {"global_batch_size": 4, name: size}
        data = DataConfig(gradient_accumulation_steps=micro_batches, **sizes)
        return per_replica_batch_size(data, num_replicas, name)

    assert share(4096, 32, 4) == 128
    assert share(64, 32, 4, "eval_batch_size") == 2
    with pytest.raises(
        UserError, match=r"\(32\)\. Received: 4100\. Nearest: 4096 and 4128\."
    ):
        share(4100, 32)
    with pytest.raises(
        UserError,
        match=r"\(32\) times gradient_accumulation_steps \(4\)\. .* and 4224\.",
    ):
        share(4100, 32, 4)
    with pytest.raises(
        UserError, match=r"eval_.*\(8\)\. Received: 3\. Nearest: 8\."
    ):
        share(3, 8, name="eval_batch_size")


# Prints how many pages 50 arrays take from the kernel that are freed together.
PROGRAM = """
import resource
import numpy as np
from albert_tf.cluster.strategy import make_strategy
from albert_tf.config import DataConfig, DistributionConfig

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones((3, 2**18), np.float32) for _ in range(50)]
    del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

page_faults()
by_default = page_faults()
make_strategy(DistributionConfig(num_logical_cpus=2))
page_faults()
print(by_default, page_faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="needs the GNU C library"
)
def test_runs_on_cpus_use_freed_memory_again():
    # A process of its own: the setting is that of a whole process.
    printed = subprocess.check_output([sys.executable, "-c", PROGRAM])
    by_default, kept = map(int, printed.split()[-2:])
    assert kept < by_default / 50
