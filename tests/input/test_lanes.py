"""Lanes after a rollback, and how a host reads several of them."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import DataConfig, TrainingConfig
from albert_tf.input.batch_stream import BatchStream
from albert_tf.input.pipeline import Lane, shuffled_stream
from albert_tf.input.record_sets import (
    Phase,
    RecordSet,
    TrainingData,
    find_records,
)
from albert_tf.io.tfrecord import TFRecordWriter
from albert_tf.runs.rollback import Rollbacks
from tests.helpers import tiny_run

SEED = 7


@pytest.fixture(scope="module")
def config(tiny_records, tmp_path_factory):
    return tiny_run.make_config(
        tiny_records,
        tmp_path_factory.mktemp("run"),
        global_batch_size=12,
        input_lanes=3,
    )


@pytest.fixture(scope="module")
def records(config):
    return find_records({"input_file": config.data.input_file}, config)


def read_rows(records, config, step, num_steps, num_hosts, skipped=None):
    """The token ids of some steps, by two replicas on each host."""
    data = TrainingData((Phase(0, "", records),))
    make = BatchStream(data, config.data, SEED, skipped).open(step)
    of_hosts = [
        make(tf.distribute.InputContext(num_hosts, host, 2 * num_hosts))
        .take(2 * num_steps)
        .as_numpy_iterator()
        for host in range(num_hosts)
    ]
    return np.concatenate(
        [
            next(batches)["input_ids"]
            for _ in range(num_steps)
            for batches in of_hosts
            for _ in range(2)
        ]
    )


def test_each_block_epoch_and_lane_is_shuffled_differently(tmp_path):
    """One shard in each lane, which is read in blocks of eight records."""
    files = tuple(str(tmp_path / f"{lane}.tfrecord") for lane in range(2))
    for name in files:
        with open(name, "wb") as file, TFRecordWriter(file) as writer:
            for number in range(16):
                writer.write(bytes([number]))
    records = RecordSet(dict.fromkeys(files, 16), (files,))
    data = DataConfig(global_batch_size=2, input_lanes=2, shuffle_block_size=16)
    orders = []
    for number in range(2):
        stream = shuffled_stream(
            Lane.of(number, records, data, SEED), 0, tf.data.TFRecordDataset
        )
        read = [record[0] for record in stream.take(32).as_numpy_iterator()]
        blocks = [read[begin : begin + 8] for begin in range(0, 32, 8)]
        for block, first in zip(blocks, (0, 8, 0, 8), strict=True):
            assert sorted(block) == list(range(first, first + 8))
            orders.append(tuple(n - first for n in block))
    assert len(set(orders)) == 2 * 2 * 2


@pytest.mark.parametrize("num_hosts", [1, 2])
def test_after_a_rollback_all_hosts_skip_the_same_batches(
    records, config, num_hosts
):
    """On any number of hosts, step 5 trains on batch 9, as planned."""
    undisturbed = read_rows(records, config, 0, 13, num_hosts=1)
    rollbacks = Rollbacks("")
    plan = rollbacks.plan(9, 5, "", TrainingConfig())
    rollbacks.add(plan, writes=False)
    for step in 5, 7:  # the first step after the rollback, and a restart
        after = read_rows(records, config, step, 2, num_hosts, rollbacks)
        batch = step + 4
        np.testing.assert_array_equal(
            after, undisturbed[12 * batch : 12 * (batch + 2)]
        )
