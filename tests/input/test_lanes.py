"""Lanes after a rollback, and how a host reads several of them."""

import dataclasses
import os
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import DataConfig, TrainingConfig
from albert_tf.input.batch_stream import BatchStream
from albert_tf.input.lanes import Lane, shuffled_files, shuffled_stream
from albert_tf.input.record_sets import (
    Phase,
    RecordSet,
    TrainingData,
    find_records,
)
from albert_tf.io.tfrecord import TFRecordWriter, read_records
from albert_tf.runs.rollback import Rollbacks
from tests.helpers import tiny_run

SEED = 7
LIMIT_S = 120


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
    return find_records("input_file", config.data.input_file, config)


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
    records = RecordSet(files, (16, 16), ("", ""), None, "", (files,))
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


@pytest.mark.parametrize("num_hosts", [1, 2, 3, 6])
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


def opens_for_writing(pipe):
    """The descriptor of a pipe that another thread opens; None if none does."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def test_a_lane_reads_its_next_part_while_another_lane_is_slow(
    records, config, tmp_path
):
    """Each lane has its own thread.

    All shards but the first of lane 0 are pipes, which stop the thread that
    opens them. So no batch is complete. Lane 0 still opens its second shard.
    """
    files = tuple(str(tmp_path / f"{n}.tfrecord") for n in range(4))
    with open(records.files[0], "rb") as shard:
        contents = [record.content for record in read_records(shard)][:6]
    four = dataclasses.replace(
        records,
        files=files,
        counts=(6,) * 4,
        checksums=("",) * 4,
        sets=(files,),
    )
    data = dataclasses.replace(config.data, input_lanes=2, shuffle_block_size=1)
    lane = Lane.of(0, four, data, SEED)
    first, second = (
        name.decode()
        for name in shuffled_files(lane.records.files, lane.seed, 0).numpy()
    )
    pipes = [file for file in files if file != first]
    for pipe in pipes:
        os.mkfifo(pipe)
    with open(first, "wb") as file, TFRecordWriter(file) as writer:
        for content in contents:
            writer.write(content)

    def read():
        make = BatchStream(
            TrainingData((Phase(0, "", four),)), data, SEED
        ).open(0)
        # TensorFlow cannot read from a pipe.
        with pytest.raises(tf.errors.OpError):
            next(iter(make(tf.distribute.InputContext())))

    thread = threading.Thread(target=read)
    thread.start()
    deadline = time.monotonic() + LIMIT_S
    opened = None
    while opened is None and time.monotonic() < deadline:
        opened = opens_for_writing(second)
        time.sleep(0.01)
    # Lets the thread end.
    descriptors = [opened]
    while thread.is_alive():
        descriptors += map(opens_for_writing, pipes)
        thread.join(0.05)
    for descriptor in descriptors:
        if descriptor is not None:
            os.close(descriptor)
    assert opened is not None
