"""Damaged shards, records and metadata; the inspector names each fault."""

import pathlib
import re
import shutil

import pytest

from albert_tf.io import tfrecord
from tests.helpers import small_builds
from tests.helpers.inspected_records import (
    LENGTH,
    PREDICTIONS,
    SHARD,
    digest_shards,
    edit_all,
    edit_metadata,
    line_of,
    make_example,
    offset_of,
    read_contents,
    read_features,
    read_json,
    write_contents,
)
from tests.helpers.inspected_records import set_value as put

SLOTS = 4
PACKED_SHARD = "train-00000-of-00001.tfrecord"
PACKED_PREDICTIONS = small_builds.PREDICTIONS


# --- records -----------------------------------------------------------------


def _last(features):
    return sum(features["input_mask"]) - 1


def _middle(features):
    return features["input_ids"].index(3)


def _visible(features):
    """The position of an ordinary token that is not masked."""
    return next(
        position
        for position in range(1, LENGTH)
        if position not in features["masked_lm_positions"]
        and features["input_ids"][position] > 4
    )


# What the inspector says -> an edit of a record of one example.
EDITS = {
    r"input_ids\[\d+\] must be from 0 to 29999. Received: 30000": put(
        "input_ids", _visible, 30000
    ),
    r"input_mask\[3\] must be 1. Received: 0": put("input_mask", 3, 0),
    r"input_mask\[0\] must be 1. Received: 0": lambda f: f.update(
        {"input_mask": [0] * LENGTH}
    ),
    r"input_ids\[63\] must be 0, as it is unused": put(
        "input_ids", LENGTH - 1, 7
    ),
    r"input_ids\[0\] must be \[CLS\]": put("input_ids", 0, 10),
    r"must be a token other than \[CLS\]": put("input_ids", _visible, 2),
    r"other than <pad> and \[MASK\], .* Received: 4": put(
        "input_ids", _visible, 4
    ),
    r"other than <pad> and \[MASK\], .* Received: 0": put(
        "input_ids", _visible, 0
    ),
    r"number of \[SEP\] up to input_ids.* must be 2. Received: 3": put(
        "input_ids", _visible, 3
    ),
    r"must be \[SEP\], 3, as the last token. Received: 10": lambda f: (
        put("input_ids", _last, 10)(f),
        put("input_ids", _visible, 3)(f),
    ),
    "a segment, which must not be empty. Received: 3": lambda f: (
        put("input_ids", _middle, 10)(f),
        put("input_ids", 1, 3)(f),
    ),
    r"segment_ids\[\d+\] must be 0. Received: 1": put(
        "segment_ids", _middle, 1
    ),
    r"token_boundary\[\d+\] must be [01]\. ": put(
        "token_boundary", _visible, lambda f, i: 1 - f["token_boundary"][i]
    ),
    "token_boundary.* must be from 0 to 1. Received: 2": put(
        "token_boundary", 2, 2
    ),
    r"masked_lm_positions\[1\] must be more than the one before": put(
        "masked_lm_positions", 1, lambda f, i: f["masked_lm_positions"][0]
    ),
    r"between \[CLS\] and the last \[SEP\].* Received: 0": put(
        "masked_lm_positions", 0, 0
    ),
    r"positions\[1\] .*between \[CLS\] and the last \[SEP\]": put(
        "masked_lm_positions", 1, lambda f, i: _last(f)
    ),
    rf"masked_lm_positions\[{PREDICTIONS - 1}\] must be 0, as": put(
        "masked_lm_positions", PREDICTIONS - 1, 9
    ),
    rf"masked_lm_ids\[{PREDICTIONS - 1}\] must be 0, as": put(
        "masked_lm_ids", PREDICTIONS - 1, 9
    ),
    r"ids\[0\] must be from 5 to 29999. Received: 1": put(
        "masked_lm_ids", 0, 1
    ),
    r"ids\[0\] must be from 5 to 29999. Received: 30000": put(
        "masked_lm_ids", 0, 30000
    ),
    r"weights\[0\] must be 1. Received: 0.5": put("masked_lm_weights", 0, 0.5),
    r"4, or at least 5 at a masked position. Received: 3": put(
        "input_ids", lambda f: f["masked_lm_positions"][0], 3
    ),
    r"labels\[0\] must be from 0 to 1": put("next_sentence_labels", 0, 2),
    "segment_ids: 64 values of type int64. Received: none": lambda f: f.pop(
        "segment_ids"
    ),
    "more: must not exist. Received: 1 values": lambda f: f.update(more=[1]),
    "input_ids: 64 values of type int64. Received: 65 values": lambda f: f[
        "input_ids"
    ].append(0),
    "of type int64. Received: 1 values of type float32": lambda f: f.update(
        next_sentence_labels=[0.0]
    ),
}


def _is_fit(features):
    """Whether there is padding, and room before the first [SEP], and the first
    word is not masked."""
    return (
        _last(features) < LENGTH - 2
        and _middle(features) >= 5
        and 1 not in features["masked_lm_positions"]
    )


def _edit_fit_record(shard, is_fit, edit):
    """Edits the first record to which an edit applies; returns its number and
    where it begins."""
    contents = read_contents(shard)
    number, features = next(
        (number, features)
        for number, content in enumerate(contents)
        if number > 2 and is_fit(features := read_features(content))
    )
    edit(features)
    contents[number] = make_example(features)
    write_contents(shard, contents)
    # As if a builder with this bug had written the shard.
    edit_metadata(shard.parent, checksums=digest_shards(shard.parent))
    return f"{shard}, record {number} at byte {offset_of(contents, number)}: "


@pytest.mark.parametrize("fault", EDITS)
def test_a_faulty_record_is_named(records, inspect, fault):
    where = _edit_fit_record(records / SHARD, _is_fit, EDITS[fault])
    status, output = inspect(records)
    assert status == 1
    (named,) = re.findall(r"^fault: (.*)$", output, re.M)
    assert named.startswith(where)
    assert re.search(fault, named), named


@pytest.fixture(scope="module")
def built_packed(documents, tmp_path_factory):
    """Packed records of short examples, in one shard."""
    directory = tmp_path_factory.mktemp("short")
    text = directory / "text.txt"
    lines = "\n".join(documents).split("\n")[:400]
    text.write_text("\n\n".join(lines), encoding="utf-8")
    settings = {
        "packing": "best_fit",
        "max_examples_per_row": SLOTS,
        "num_shards": 1,
    }
    return small_builds.build(directory / "out", text, **settings) / "train"


@pytest.fixture
def packed(built_packed, tmp_path):
    """A copy of `built_packed` that a test can damage."""
    return pathlib.Path(
        shutil.copytree(built_packed, tmp_path / "packed" / "train")
    )


def test_intact_packed_records_pass(built_packed, inspect):
    status, output = inspect(built_packed, num_examples=40)
    assert status == 0
    assert "FAIL" not in output
    metadata = read_json(built_packed)
    for name, key in (
        ("records  ", "num_rows"),
        ("examples  ", "num_examples"),
    ):
        verdict, line = line_of(name, output)
        assert verdict == "pass"
        assert f"{metadata[key]:,}" in line
    mean = metadata["num_examples"] / metadata["num_rows"]
    assert f"{mean:.2f}" in line_of("examples per record", output)[1]
    fill = f"{100 * metadata['fill']:.2f} %"
    assert fill in line_of("positions filled", output)[1]
    assert f"up to {SLOTS} examples per record" in output
    assert "example 0, example 1 of record 0: " in output
    assert ", example 2 of record " in output


def _second_begin(features):
    return features["next_sentence_positions"][1]


def _skip_a_number(features):
    features["input_mask"] = [2 * number for number in features["input_mask"]]
    features["input_mask"][: _second_begin(features)] = [1] * _second_begin(
        features
    )


def _move_begin(features):
    features["next_sentence_positions"][1] += 1


def _shift_second(features):
    """Numbers, positions and weights agree, but the token is not [CLS]."""
    features["input_mask"][_second_begin(features)] = 1
    _move_begin(features)


def _mask_cls(features):
    """A position of the second example becomes that of its [CLS]."""
    begin = _second_begin(features)
    slot = next(
        i for i, p in enumerate(features["masked_lm_positions"]) if p >= begin
    )
    features["masked_lm_positions"][slot] = begin


def _mask_too_much(features):
    """All masks of the record are in the first example."""
    count = PACKED_PREDICTIONS + 1
    spare = len(features["masked_lm_ids"]) - count
    features["masked_lm_positions"] = [*range(1, count + 1), *[0] * spare]
    features["masked_lm_ids"] = [7] * count + [0] * spare
    features["masked_lm_weights"] = [1.0] * count + [0.0] * spare


# What the inspector says -> an edit of a record of two examples.
PACKED_EDITS = {
    r"input_mask\[\d+\] must be 2. Received: 4": _skip_a_number,
    r"input_mask\[\d+\] must be 1. Received: 0": put(
        "input_mask", lambda f: _second_begin(f) - 1, 0
    ),
    r"input_mask\[0\] must be 1. Received: 2": put("input_mask", 0, 2),
    r"next_sentence_positions\[1\] must be": _move_begin,
    r"input_ids\[\d+\] must be \[CLS\], 2": _shift_second,
    r"next_sentence_weights\[2\] must be 0": put(
        "next_sentence_weights", 2, 1.0
    ),
    r"next_sentence_positions\[3\] must be 0": put(
        "next_sentence_positions", -1, 3
    ),
    r"numbers\[3\] must be 0, as": put("example_numbers", -1, 9),
    r"example_numbers\[1\] must be more than": put("example_numbers", 1, 0),
    r"labels\[1\] must be from 0 to 1": put("next_sentence_labels", 1, 2),
    r"labels\[3\] must be 0, as": put("next_sentence_labels", 3, 1),
    r"positions\[0\] must be that of a token": put(
        "masked_lm_positions", 0, small_builds.LENGTH
    ),
    r"masked_lm_positions\[\d+\] .*between \[CLS\]": _mask_cls,
    rf"of example\[0\] must be at most {PACKED_PREDICTIONS}": _mask_too_much,
    r"ids\[13\] must be 0, as": put("masked_lm_ids", -1, 9),
    r"input_ids\[63\] must be 0, as": put("input_ids", -1, 9),
    # As in a record of one example.
    "next_sentence_positions: 4 values .* Received: none": lambda f: f.pop(
        "next_sentence_positions"
    ),
}


def _is_fit_packed(features):
    """Two examples, then padding. The first is long."""
    return (
        sum(features["next_sentence_weights"]) == 2
        and features["input_mask"][-1] == 0
        and _second_begin(features) > PACKED_PREDICTIONS + 3
        and features["example_numbers"][0] > 0
    )


@pytest.mark.parametrize("fault", PACKED_EDITS)
def test_a_faulty_packed_record_is_named(packed, inspect, fault):
    edit = PACKED_EDITS[fault]
    where = _edit_fit_record(packed / PACKED_SHARD, _is_fit_packed, edit)
    status, output = inspect(packed)
    assert status == 1
    (named,) = re.findall(r"^fault: (.*)$", output, re.M)
    assert named.startswith(where)
    assert re.search(fault, named), named


def test_faults_are_sorted_by_record(records, inspect):
    """Damage is found before faults in the content of earlier records."""
    path = records / SHARD
    contents = read_contents(path)
    contents[2] = b"no message at all"
    write_contents(path, contents)
    flipped = bytearray(path.read_bytes())
    flipped[offset_of(contents, 7) + 20] ^= 1
    path.write_bytes(flipped)
    edit_metadata(records, checksums=digest_shards(records))
    _, output = inspect(records)
    assert re.findall(r"^fault: .* record (\d+)", output, re.M) == ["2", "7"]
    _, output = inspect(records, max_faults=1)
    assert re.findall(r"^fault: .* record (\d+)", output, re.M) == ["2"]
    assert "must be a tf.train.Example" in output
    assert "and 1 more faults" in output


def test_faults_beyond_the_limit_are_counted(records, inspect):
    edit_all(records, put("input_ids", 0, 10))
    num_records = read_json(records)["num_examples"]
    status, output = inspect(records, max_faults=3)
    assert status == 1
    assert len(re.findall("^fault: ", output, re.M)) == 3
    assert f"and {num_records - 3:,} more faults" in output


# --- shards and metadata -----------------------------------------------------


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


def test_missing_and_extra_files_are_found(records, inspect):
    shutil.move(records / SHARD, records / "other.tfrecord")
    (records.parent / "unfinished.json").write_text("{}")
    (records / "x.tfrecord.partial").touch()
    status, output = inspect(records)
    assert status == 1
    assert f"{records / SHARD}: must exist" in output
    assert f"{records / 'other.tfrecord'}: must not exist" in output
    assert "the build is unfinished" in output
    assert "x.tfrecord.partial: must not exist" in output
    assert line_of("shards", output)[0] == "FAIL"


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
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
