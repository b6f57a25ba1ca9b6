"""Records damaged on purpose: reading fails, and the search names them."""

import io
import re
import shutil

import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.input import batch_stream, record_format
from albert_tf.input.batch_stream import BatchStream
from albert_tf.input.pipeline import shuffled_shards
from albert_tf.input.record_format import (
    serialize,
)
from albert_tf.input.record_sets import find_training_data
from albert_tf.io.tfrecord import TFRecordWriter, read_records
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
def make_stream(copied, tmp_path):
    """Returns a stream that reads each shard in its stored order."""

    def make(**changes):
        config = tiny_run.make_config(
            copied, tmp_path / "run", **{"shuffle_block_size": 1, **changes}
        )
        return BatchStream(
            find_training_data(config),
            config.data,
            SEED,
            format_of=Pretraining(config).record_format,
        )

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


def damage_content(shard, number):
    content = shard.read_bytes()
    shard.write_bytes(flip(content, offsets_of(shard)[number] + 52))


def flip(content, at):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


NO_EXAMPLE = b"\xff\xfe"
OF_30 = "record 30 of {shard}, at byte {at}: "

# How record 30 is damaged: new bytes of the shard, at the offsets of its
# records, or new values of a feature; and what the search says.
DAMAGE = {
    "content": (lambda b, o: flip(b, o[30] + 12 + 40), OF_30 + "its content"),
    "checksum": (lambda b, o: flip(b, o[31] - 1), OF_30 + "its content"),
    "length": (lambda b, o: flip(b, o[30] + 1), OF_30 + "its length"),
    "cut off": (lambda b, o: b[: o[30] + 30], OF_30 + "must have"),
    # All checksums fit: the shard ends after a complete record.
    "cut between": (
        lambda b, o: b[: o[30]],
        "30 records in {shard}, which must hold {count}",
    ),
    "appended": (
        lambda b, o: b + b[: o[1]],
        "{more} records in {shard}, which must hold {count}",
    ),
    "no message": (
        lambda b, o: b[: o[30]] + framed(NO_EXAMPLE) + b[o[31] :],
        OF_30 + "it must be a tf.train.Example",
    ),
    "short": (("input_ids", lambda ids: ids[:-1]), OF_30 + "Key: input_ids"),
    "label": (
        ("next_sentence_labels", lambda _: [2]),
        OF_30 + "next_sentence_labels must be from 0 to below 2, and is from "
        "2 to 2",
    ),
}


def framed(content):
    file = io.BytesIO()
    with TFRecordWriter(file) as writer:
        writer.write(content)
    return file.getvalue()


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_record_is_named(make_stream, shards, name):
    """Of the shards of all lanes."""
    damage, message = DAMAGE[name]
    shard = shards[1]
    offsets = offsets_of(shard)
    count = len(offsets) - 1
    if callable(damage):
        shard.write_bytes(damage(shard.read_bytes(), offsets))
    else:
        change(shard, 30, *damage)
    stream = make_stream(global_batch_size=12, input_lanes=3)
    steps = 3 * count // 4
    with pytest.raises(UserError) as raised:
        stream.check_intact(0, steps)
    named = message.format(
        shard=shard, at=offsets[30], count=count, more=count + 1
    )
    assert named in str(raised.value)
    assert "Copy the shard again, or delete it" in str(raised.value)
    if name not in ("label", "no message"):
        with pytest.raises(record_format.READING_ERRORS):
            list(stream.open(0)(ONE).take(steps))


def test_one_damaged_record_of_each_shard_is_named(make_stream, shards):
    for shard, numbers in zip(shards, ([3, 7], [], [5]), strict=True):
        for number in numbers:
            damage_content(shard, number)
    with pytest.raises(UserError) as raised:
        make_stream().check_intact(0, 200)
    assert str(raised.value).count("; ") == 1
    assert f"record 3 of {shards[0]}" in str(raised.value)
    assert f"record 5 of {shards[2]}" in str(raised.value)


def test_only_shards_near_the_steps_are_searched(
    make_stream, shards, monkeypatch
):
    """The smaller set of a mixture is read all along, the other in turn."""
    monkeypatch.setattr(batch_stream, "READ_AHEAD_BATCHES", 1)
    one, two, three = map(str, shards)
    stream = make_stream(
        input_file=(),
        dataset=(f"a={one},{three}", f"b={two}"),
        data_schedule="0:a+b",
        shuffle_block_size=16,
    )
    searched = []

    def note(files, *_):
        searched.append(files)

    monkeypatch.setattr(record_format, "check_intact", note)
    records = stream.locate(0)[0].records
    (first, second), (third, _) = (
        shuffled_shards(records, SEED, epoch)[0][0].numpy().astype(str).tolist()
        for epoch in range(2)
    )
    steps = records.num_records // 8
    for step, files in (
        (0, {first, two}),
        (steps - 6, {second, two}),
        (steps, {second, third, two}),
        (steps + 4, {third, two}),
    ):
        stream.check_intact(step, step)
        assert searched.pop() == sorted(files)


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_run_stops_and_names_the_record(copied, tmp_path, split):
    """A token id that no vocabulary has."""
    for shard in (copied / split).glob("*.tfrecord"):
        change(shard, 2, "input_ids", lambda ids: [10**6, *ids[1:]])
    config = tiny_run.make_config(
        copied, tmp_path / "run", shuffle_block_size=1, num_train_steps=2
    )
    with pytest.raises(UserError, match=f"record 2 of .*{split}.* to 1000000"):
        train(config)


def test_records_of_equal_values_have_equal_bytes_in_all_processes():
    """The features are in the order of their names. Without it, each process
    has an order of its own."""
    names = ["b", "h", "a", "g", "c", "f", "d", "e"]
    features = [Feature(f"name_{name}", "int64") for name in names]
    serialized = serialize(features, {f.name: [1] for f in features})
    found = re.findall(rb"name_(.)", serialized)
    assert found == [name.encode() for name in sorted(names)]
