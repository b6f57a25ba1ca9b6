"""Shards and metadata that are damaged; the inspector names each."""

import re
import shutil

import pytest

from albert_tf.io import tfrecord
from tests.helpers.inspected_records import (
    SHARD,
    digest_shards,
    edit_metadata,
    line_of,
    offset_of,
    read_contents,
    write_contents,
)


@pytest.mark.parametrize(
    ("byte", "fault", "is_last"),
    [
        (0, "length", True),
        (8, "length", True),
        (12, "content", False),
        (-1, "content", False),
    ],
    ids=["length", "length's checksum", "content", "content's checksum"],
)
def test_a_flipped_bit_is_found(records, inspect, byte, fault, is_last):
    """In each of the four fields of a record. The records after a damaged
    length are unreadable."""
    path = records / SHARD
    contents = read_contents(path)
    begin = offset_of(contents, 7)
    flipped = bytearray(path.read_bytes())
    flipped[begin + byte if byte >= 0 else offset_of(contents, 8) - 1] ^= 4
    path.write_bytes(flipped)
    status, output = inspect(records)
    assert status == 1
    where = f"{path}, record 7 at byte {begin}: "
    assert re.search(f"{re.escape(where)}.*checksum of the {fault}", output)
    counted = f"must hold {len(contents)} records, as in the metadata"
    assert (counted in output) == is_last
    assert line_of("damaged or faulty records", output)[1].split()[5] == "1"


def test_a_shard_cut_short_is_found(records, inspect):
    path = records / SHARD
    contents = read_contents(path)
    last = len(contents) - 1
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    status, output = inspect(records)
    assert status == 1
    where = f"{path}, record {last} at byte {offset_of(contents, last)}: must"
    assert where in output
    # Cut between two records, the file has no damaged record.
    path.write_bytes(content[: offset_of(contents, last)])
    status, output = inspect(records)
    assert status == 1
    assert (
        f"{path}: must hold {last + 1} records, as in the metadata. "
        f"Received: {last}"
    ) in output


def test_records_in_another_order_are_found_by_the_checksum(records, inspect):
    edit_metadata(records, checksums=digest_shards(records))
    assert inspect(records)[0] == 0
    path = records / SHARD
    contents = read_contents(path)
    contents[3], contents[5] = contents[5], contents[3]
    write_contents(path, contents)
    status, output = inspect(records)
    assert status == 1
    assert f"{path}: must have the SHA-256 of the metadata" in output
    assert line_of("checksums", output)[0] == "FAIL"
    assert line_of("damaged or faulty", output)[0] == "pass"


def test_the_checksum_covers_the_complete_file(records, inspect, monkeypatch):
    """Even if the first length is damaged and no record is readable."""
    monkeypatch.setattr(tfrecord, "_BUFFER_BYTES", 1000)
    path = records / SHARD
    flipped = bytearray(path.read_bytes())
    flipped[0] ^= 1
    path.write_bytes(flipped)
    edit_metadata(records, checksums=digest_shards(records))
    status, output = inspect(records)
    assert status == 1
    assert line_of("checksums", output)[0] == "pass"


def test_missing_and_extra_shards_are_found(records, inspect):
    shutil.move(records / SHARD, records / "other.tfrecord")
    status, output = inspect(records)
    assert status == 1
    assert f"{records / SHARD}: must exist" in output
    assert f"{records / 'other.tfrecord'}: must not exist" in output
    assert line_of("shards", output)[0] == "FAIL"


def test_a_part_of_the_shards_can_be_inspected(records, inspect):
    """Totals are not judged then; statistics of the shard are."""
    status, output = inspect(records / SHARD)
    assert status == 0
    assert "3, 1 of them inspected" in line_of("shards", output)[1]
    assert line_of("tokens  ", output)[0] == "note"
    assert line_of("label 1", output)[0] == "pass"


def test_an_unfinished_build_is_found(records, inspect):
    (records.parent / "unfinished.json").write_text("{}")
    (records / "x.tfrecord.partial").touch()
    status, output = inspect(records)
    assert status == 1
    assert "the build is unfinished" in output
    assert "x.tfrecord.partial: must not exist" in output


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"num_examples": 5}, "records  "),
        ({"num_pieces": 5}, "tokens  "),
        ({"num_masked": 5}, "masked tokens  "),
        ({"vocabulary_sha256": "abcd"}, "vocabulary"),
    ],
)
def test_metadata_that_disagrees_is_found(records, inspect, changes, failed):
    edit_metadata(records, **changes)
    status, output = inspect(records)
    assert status == 1
    assert [line[:4] for line in output.splitlines()].count("FAIL") == 1
    assert line_of(failed, output)[0] == "FAIL"


def test_a_damaged_vocabulary_is_found(records, inspect):
    (records / "spiece.model").write_bytes(b"damaged")
    status, output = inspect(records)
    assert status == 1
    assert line_of("vocabulary", output)[0] == "FAIL"
