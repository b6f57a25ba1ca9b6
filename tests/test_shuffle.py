import numpy as np
import pytest
import tensorflow as tf

from albert_tf.files import is_full_disk
from data_prep.shuffle import Buckets, name_shard, write_shard


def make_records(count):
    rng = np.random.default_rng(0)
    records = [
        bytes([i % 251]) * int(rng.integers(1, 40)) + str(i).encode()
        for i in range(count)
    ]
    return records, rng.integers(0, 2**64, count, dtype=np.uint64)


def shuffled(tmp_path, name, records, keys, batch_size, num_shards=3):
    directory = tmp_path / name
    directory.mkdir()
    buckets = Buckets(str(directory), num_shards)
    for begin in range(0, len(records), batch_size):
        some = slice(begin, begin + batch_size)
        buckets.add(records[some], keys[some])
    return [list(buckets.read_sorted(shard)) for shard in range(num_shards)]


def test_a_shard_holds_its_records_in_the_order_of_their_keys(tmp_path):
    records, keys = make_records(100)
    shards = shuffled(tmp_path, "a", records, keys, 7)
    for shard, found in enumerate(shards):
        expected = [
            r
            for k, r in sorted(zip(keys, records, strict=True))
            if k % 3 == shard
        ]
        assert found == expected
        assert len(found) > 20


def test_the_order_of_arrival_has_no_influence(tmp_path):
    records, keys = make_records(60)
    once = shuffled(tmp_path, "a", records, keys, 60)
    order = np.random.default_rng(1).permutation(60)
    again = shuffled(
        tmp_path, "b", [records[i] for i in order], keys[order], 11
    )
    assert once == again


def test_a_shard_without_records_is_empty(tmp_path):
    records, keys = make_records(2)
    shards = shuffled(tmp_path, "a", records, keys, 2, num_shards=9)
    assert sum(map(len, shards)) == 2
    assert min(map(len, shards)) == 0
    count = write_shard(str(tmp_path), "empty.tfrecord", iter(()))
    assert count == 0
    assert (tmp_path / "empty.tfrecord").read_bytes() == b""


def test_shards_read_back_as_tfrecords(tmp_path):
    records, _ = make_records(20)
    name = name_shard("train", 3, 16)
    assert name == "train-00003-of-00016.tfrecord"
    assert write_shard(str(tmp_path), name, iter(records)) == 20
    dataset = tf.data.TFRecordDataset(str(tmp_path / name))
    assert list(dataset.as_numpy_iterator()) == records


def test_a_shard_has_its_name_only_when_it_is_whole(tmp_path):
    def records():
        yield b"one"
        assert not (tmp_path / "a.tfrecord").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shard(str(tmp_path), "a.tfrecord", records())
    assert not (tmp_path / "a.tfrecord").exists()


def test_a_full_disk_is_known_as_such_and_leaves_what_is_there(tmp_path):
    """/dev/full is a disk without room; the shard is a link to it."""
    whole = tmp_path / "a.tfrecord"
    whole.write_bytes(b"from before")
    (tmp_path / "a.tfrecord.partial").symlink_to("/dev/full")
    with pytest.raises(tf.errors.ResourceExhaustedError) as error:
        write_shard(str(tmp_path), "a.tfrecord", iter([b"x" * 99]))
    assert is_full_disk(error.value)
    assert whole.read_bytes() == b"from before"
