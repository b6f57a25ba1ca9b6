"""TFRecords, compared with TensorFlow's own writer and reader."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.io import tfrecord
from albert_tf.io.tfrecord import read_records, write_records

HEAD, CHECKSUM = 12, 4


def make_records(sizes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.bytes(size) for size in sizes]


def write(path, records):
    with open(path, "wb") as file:
        return write_records(file, records)


def read(path):
    with open(path, "rb") as file:
        return list(read_records(file))


@pytest.fixture
def small_blocks(monkeypatch):
    """Some records exceed a block, and files have several batches."""
    monkeypatch.setattr(tfrecord, "_BLOCK_BYTES", 61)
    monkeypatch.setattr(tfrecord, "_BATCH_SIZE", 3)


def test_bytes_are_those_of_tensorflow(tmp_path, small_blocks):
    """Including empty records, and lengths of one to three bytes."""
    records = make_records([0, 1, 5, 255, 256, 3000, 70_000, 0])
    sha256 = write(tmp_path / "ours", records)
    with tf.io.TFRecordWriter(str(tmp_path / "theirs")) as theirs:
        for record in records:
            theirs.write(record)
    content = (tmp_path / "ours").read_bytes()
    assert content == (tmp_path / "theirs").read_bytes()
    assert sha256 == hashlib.sha256(content).hexdigest()


def test_what_is_written_is_read(tmp_path, small_blocks):
    records = make_records([0, 40, 41, 61, 62, 200, 1, 17, 45, 46, 47, 0])
    write(tmp_path / "file", records)
    found = read(tmp_path / "file")
    assert [r.content for r in found] == records
    assert [r.number for r in found] == list(range(len(records)))
    sizes = [HEAD + len(record) + CHECKSUM for record in records]
    assert [r.offset for r in found] == np.cumsum([0, *sizes[:-1]]).tolist()
    assert not any(r.fault for r in found)


@pytest.mark.parametrize("part", ["length", "its checksum", "content", "last"])
def test_a_flipped_bit_is_found_in_every_field(tmp_path, part, small_blocks):
    """In the second of three records; TensorFlow refuses the file, too."""
    records = make_records([30, 50, 40])
    begin = HEAD + 30 + CHECKSUM
    place, fault, num_read = {
        "length": (begin, "length", 2),
        "its checksum": (begin + 8, "length", 2),
        "content": (begin + HEAD + 49, "content", 3),
        "last": (begin + HEAD + 50, "content", 3),
    }[part]
    path = tmp_path / "file"
    write(path, records)
    content = bytearray(path.read_bytes())
    for bit in range(8):
        flipped = content.copy()
        flipped[place] ^= 1 << bit
        path.write_bytes(flipped)
        found = read(path)
        assert len(found) == num_read
        assert [bool(r.fault) for r in found] == [False, True, False][:num_read]
        assert (found[1].number, found[1].offset) == (1, begin)
        assert found[1].content == b""
        assert f"does not match the checksum of the {fault}" in found[1].fault
        assert all(
            record.content == records[i]
            for i, record in enumerate(found)
            if not record.fault
        )
        with pytest.raises(tf.errors.DataLossError):
            list(tf.data.TFRecordDataset(str(path)))


def test_an_end_within_a_record_is_found_at_every_byte(tmp_path, small_blocks):
    records = make_records([30, 50])
    path = tmp_path / "file"
    write(path, records)
    content = path.read_bytes()
    begin = HEAD + 30 + CHECKSUM
    for size in range(begin + 1, len(content)):
        path.write_bytes(content[:size])
        whole, cut = read(path)
        assert whole.content == records[0]
        assert (cut.number, cut.offset) == (1, begin)
        assert f"the file ends after {size - begin}" in cut.fault
    for size, faults in ((begin, [""]), (0, [])):
        path.write_bytes(content[:size])
        assert [r.fault for r in read(path)] == faults
