"""Records with faults; the inspector names record and field."""

import re

import pytest

from albert_tf.records.features import MASK_FEATURES
from tests.helpers.inspected_records import (
    LENGTH,
    PREDICTIONS,
    SHARD,
    digest_shards,
    edit_all,
    edit_metadata,
    make_example,
    offset_of,
    read_contents,
    read_features,
    read_json,
    write_contents,
)
from tests.helpers.inspected_records import set_value as put


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


def _empty_first_segment(features):
    """`[CLS] [SEP] B [SEP]`."""
    middle, last = _middle(features), _last(features)
    cut = middle - 1
    for name in ("input_ids", "input_mask", "segment_ids", "token_boundary"):
        kept = features[name][:1] + features[name][middle : last + 1]
        features[name] = kept + [0] * (LENGTH - len(kept))
    slots = [
        (position - cut, token)
        for position, token, weight in zip(
            *(features[name] for name in MASK_FEATURES), strict=True
        )
        if weight and position > middle
    ]
    spare = [0] * (PREDICTIONS - len(slots))
    features["masked_lm_positions"] = [p for p, _ in slots] + spare
    features["masked_lm_ids"] = [i for _, i in slots] + spare
    features["masked_lm_weights"] = [1.0] * len(slots) + [0.0] * len(spare)


# What the inspector says -> an edit of a record.
EDITS = {
    "a token id from 0 to 29999. Received: 30000": put(
        "input_ids", _visible, 30000
    ),
    r"input_mask\[3\] must be 1": put("input_mask", 3, 0),
    "1 for at least 5 tokens. Received: 0": lambda f: f.update(
        {"input_mask": [0] * LENGTH}
    ),
    r"\] must be 0 after the last token": put("input_ids", LENGTH - 1, 7),
    r"input_ids\[0\] must be \[CLS\]": put("input_ids", 0, 10),
    r"must be a token other than \[CLS\]": put("input_ids", _visible, 2),
    r"\[MASK\], since its position is not": put("input_ids", _visible, 4),
    "a token other than <pad>": put("input_ids", _visible, 0),
    r"must hold 2 \[SEP\], 3. Received: 3": put("input_ids", _visible, 3),
    r"must be \[SEP\], 3, as the last token. Received: 10": lambda f: (
        put("input_ids", _last, 10)(f),
        put("input_ids", _visible, 3)(f),
    ),
    "must hold no empty segment": _empty_first_segment,
    r"segment_ids\[\d+\] must be 0, since the first \[SEP\] is at": put(
        "segment_ids", _middle, 1
    ),
    r"token_boundary\[\d+\] must be [01] for token \d+": put(
        "token_boundary", _visible, lambda f, i: 1 - f["token_boundary"][i]
    ),
    "must be 0 or 1": put("token_boundary", 2, 2),
    r"masked_lm_positions\[1\] must be greater than the previous": put(
        "masked_lm_positions", 1, lambda f, i: f["masked_lm_positions"][0]
    ),
    r"between \[CLS\] and the last \[SEP\], from 1 to \d+. Received: 0": put(
        "masked_lm_positions", 0, 0
    ),
    r"between \[CLS\] and the last \[SEP\]": put(
        "masked_lm_positions", 1, lambda f, i: _last(f)
    ),
    rf"masked_lm_positions\[{PREDICTIONS - 1}\] must be 0 where": put(
        "masked_lm_positions", PREDICTIONS - 1, 9
    ),
    rf"masked_lm_ids\[{PREDICTIONS - 1}\] must be 0 where": put(
        "masked_lm_ids", PREDICTIONS - 1, 9
    ),
    r"ids\[0\] must be the id of a maskable": put("masked_lm_ids", 0, 1),
    "token, from 5 to 29999. Received: 30000": put("masked_lm_ids", 0, 30000),
    r"weights\[0\] must be 1 .*: 0.5": put("masked_lm_weights", 0, 0.5),
    r"4, or at least 5 at a masked position. Received: 3": put(
        "input_ids", lambda f: f["masked_lm_positions"][0], 3
    ),
    r"labels\[0\] must be 0 or 1": put("next_sentence_labels", 0, 2),
    "Received: segment_ids missing": lambda f: f.pop("segment_ids"),
    "Received: more in addition": lambda f: f.update(more=[1]),
    "must hold 64 values of type int64. Received: 65 values": lambda f: f[
        "input_ids"
    ].append(0),
    "of type int64. Received: 1 values of type float32": lambda f: f.update(
        next_sentence_labels=[0.0]
    ),
}


def _is_fit(features):
    """Whether there is padding, and room before the first [SEP]."""
    return _last(features) < LENGTH - 2 and _middle(features) >= 5


@pytest.fixture(scope="module")
def fit_record(demo_records):
    """The number of a record in SHARD to which all edits apply."""
    contents = read_contents(demo_records / SHARD)
    return next(
        number
        for number, content in enumerate(contents)
        if number > 2 and _is_fit(read_features(content))
    )


@pytest.mark.parametrize("fault", EDITS)
def test_a_faulty_record_is_named(records, fit_record, inspect, fault):
    path = records / SHARD
    contents = read_contents(path)
    features = read_features(contents[fit_record])
    EDITS[fault](features)
    contents[fit_record] = make_example(features)
    write_contents(path, contents)
    # As if a builder with this bug had written the shard.
    edit_metadata(records, checksums=digest_shards(records))
    status, output = inspect(records)
    assert status == 1
    (named,) = re.findall(r"^fault: (.*)$", output, re.M)
    begin = offset_of(contents, fit_record)
    assert named.startswith(f"{path}, record {fit_record} at byte {begin}: ")
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
    assert "record 2 at byte" in output
    assert "must be a tf.train.Example" in output
    assert "and 1 more faults" in output


def test_faults_beyond_the_limit_are_counted(records, inspect):
    edit_all(records, put("input_ids", 0, 10))
    num_records = read_json(records)["num_examples"]
    status, output = inspect(records, max_faults=3)
    assert status == 1
    assert len(re.findall("^fault: ", output, re.M)) == 3
    assert f"and {num_records - 3:,} more faults" in output
