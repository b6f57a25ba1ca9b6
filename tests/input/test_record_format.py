"""Records damaged on purpose: reading fails, and the error names the shard."""

import dataclasses
import io
import re
import shutil

import pytest
import tensorflow as tf

from albert_tf.cluster.host import Host
from albert_tf.errors import UserError
from albert_tf.input.pipeline import training_dataset
from albert_tf.input.record_format import (
    READING_ERRORS,
    explained_reads,
    serialize,
)
from albert_tf.input.record_sets import find_training_data
from albert_tf.io.tfrecord import read_records, write_records
from albert_tf.records.features import (
    Feature,
)
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train import train
from tests.helpers import tiny_run

ONE = tf.distribute.InputContext()
SEED = 12345


@pytest.fixture
def copied(tiny_records, tmp_path):
    return shutil.copytree(tiny_records, tmp_path / "records")


@pytest.fixture
def shards(copied):
    return sorted((copied / "train").glob("*.tfrecord"))


@pytest.fixture
def make_batches(copied, tmp_path):
    """Returns records, and the batches of each shard in its stored order."""

    def make(**changes):
        config = tiny_run.make_config(
            copied,
            tmp_path / "run",
            **{"shuffle_block_size": 1, "seed": SEED, **changes},
        )
        records = find_training_data(config)
        record_format = Pretraining(config).record_format(records)
        dataset = training_dataset(records, config, record_format)
        return records, dataset(ONE)

    return make


def offsets_of(shard):
    """The offset of each record, and the size of the file."""
    with open(shard, "rb") as file:
        offsets = [record.offset for record in read_records(file)]
    return [*offsets, shard.stat().st_size]


def change(shard, number, feature, edit):
    """Edits the values of a feature of a record."""
    with shard.open("rb") as file:
        records = [record.content for record in read_records(file)]
    example = tf.train.Example.FromString(records[number])
    stored_values = example.features.feature[feature]
    values = (
        stored_values.float_list.value
        if feature.endswith("weights")
        else stored_values.int64_list.value
    )
    changed = edit(list(values))
    assert changed != list(values)
    del values[:]
    values.extend(changed)
    records[number] = example.SerializeToString()
    with tf.io.TFRecordWriter(str(shard)) as writer:
        for record in records:
            writer.write(record)


def flip(content, at):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


NO_EXAMPLE = b"\x0a"  # a field without its length

# How record 30 is damaged: new bytes of the shard, at the offsets of its
# records, or new values of a feature.
DAMAGE = {
    "content": lambda b, o: flip(b, o[30] + 12 + 40),
    "length": lambda b, o: flip(b, o[30] + 1),
    "cut off": lambda b, o: b[: o[30] + 30],
    # The shard ends after a complete record.
    "cut between": lambda b, o: b[: o[30]],
    "appended": lambda b, o: b + b[: o[1]],
    "no message": lambda b, o: b[: o[30]] + framed(NO_EXAMPLE) + b[o[31] :],
    "short": ("input_ids", lambda ids: ids[:-1]),
}


def framed(content):
    file = io.BytesIO()
    write_records(file, [content])
    return file.getvalue()


@pytest.mark.parametrize("name", DAMAGE)
def test_a_failed_read_names_the_shard_and_the_command(
    make_batches, shards, name
):
    """The command `inspect_records` names the record."""
    damage, shard = DAMAGE[name], shards[1]
    if callable(damage):
        offsets = offsets_of(shard)
        shard.write_bytes(damage(shard.read_bytes(), offsets))
    else:
        change(shard, 30, *damage)
    records, batches = make_batches(global_batch_size=12, input_lanes=3)
    with pytest.raises(READING_ERRORS) as failed:
        list(batches.take(records.num_records // 12 + 1))
    host = Host(tf.distribute.get_strategy())
    with pytest.raises(UserError) as raised, explained_reads(host, records):
        raise failed.value
    assert f"{shard} has another SHA-256" in str(raised.value)
    command = f"inspect_records --input_file={shard.parent}`"
    assert command in str(raised.value)
    assert "Copy the shard again, or delete it" in str(raised.value)
    assert not any(str(other) in str(raised.value) for other in shards[::2])

    # Without checksums, as google-research/albert's records.
    unknown = dataclasses.replace(records, checksums={})
    with pytest.raises(UserError) as raised, explained_reads(host, unknown):
        raise failed.value
    assert command in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_run_stops_and_names_the_shard(copied, tmp_path, split):
    """A token id that no vocabulary has."""
    for shard in (copied / split).glob("*.tfrecord"):
        change(shard, 2, "input_ids", lambda ids: [10**6, *ids[1:]])
    config = tiny_run.make_config(
        copied, tmp_path / "run", shuffle_block_size=1, num_train_steps=2
    )
    with pytest.raises(UserError, match=f"{split}.* has another.* = 1000000"):
        train(config)


def test_records_of_equal_values_have_equal_bytes_in_all_processes():
    """The features are in the order of their names. Without it, each process
    has an order of its own."""
    names = ["b", "h", "a", "g", "c", "f", "d", "e"]
    features = [Feature(f"name_{name}", "int64") for name in names]
    serialized = serialize(features, {f.name: [1] for f in features})
    found = re.findall(rb"name_(.)", serialized)
    assert found == [name.encode() for name in sorted(names)]
