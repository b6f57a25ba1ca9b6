"""Records with faults; the inspector names record and field."""

import re

import pytest

from albert_tf.records.features import (
    MASK_FEATURES,
)
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
    set_value,
    swap_positions,
    write_contents,
)


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


def _move_weight(features):
    features["masked_lm_weights"][0] = 0.0
    features["masked_lm_weights"][len(features["masked_lm_weights"]) - 1] = 1.0


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


EDITS = {
    "id beyond": (
        set_value("input_ids", _visible, 30000),
        r"input_ids\[\d+\] must be a token id from 0 to 29999. Received: 30000",
    ),
    "id negative": (
        set_value("input_ids", _visible, -1),
        "must be a token id from 0",
    ),
    "mask with a hole": (
        set_value("input_mask", 3, 0),
        r"input_mask\[3\] must be 1",
    ),
    "mask of 2": (
        set_value("input_mask", 3, 2),
        r"input_mask\[3\] must be 1 .*: 2",
    ),
    "empty": (
        lambda f: f.update({"input_mask": [0] * LENGTH}),
        "1 for at least 5 tokens. Received: 0",
    ),
    "padding": (
        set_value("input_ids", LENGTH - 1, 7),
        rf"input_ids\[{LENGTH - 1}\] must be 0 after the last token",
    ),
    "no [CLS]": (
        set_value("input_ids", 0, 10),
        r"input_ids\[0\] must be \[CLS\]",
    ),
    "[CLS] twice": (
        set_value("input_ids", _visible, 2),
        r"must be a token other than \[CLS\]",
    ),
    "[MASK] elsewhere": (
        set_value("input_ids", _visible, 4),
        r"other than \[MASK\], since its position is not masked",
    ),
    "<pad> within": (
        set_value("input_ids", _visible, 0),
        "a token other than <pad>",
    ),
    "[SEP] missing": (
        set_value("input_ids", _middle, 10),
        r"input_ids must hold 2 \[SEP\], 3. Received: 1",
    ),
    "[SEP] too many": (
        set_value("input_ids", _visible, 3),
        r"input_ids must hold 2 \[SEP\], 3. Received: 3",
    ),
    "[SEP] moved": (
        lambda f: (
            set_value("input_ids", _last, 10)(f),
            set_value("input_ids", _visible, 3)(f),
        ),
        r"must be \[SEP\], 3, as the last token. Received: 10",
    ),
    "empty segment": (_empty_first_segment, "must hold no empty segment"),
    "segment": (
        set_value("segment_ids", _middle, 1),
        r"segment_ids\[\d+\] must be 0, since the first \[SEP\] is at",
    ),
    "segment behind": (
        set_value("segment_ids", LENGTH - 1, 1),
        rf"segment_ids\[{LENGTH - 1}\] must be 0",
    ),
    "boundary": (
        set_value(
            "token_boundary", _visible, lambda f, i: 1 - f["token_boundary"][i]
        ),
        r"token_boundary\[\d+\] must be [01] for token \d+",
    ),
    "boundary of [SEP]": (
        set_value("token_boundary", _middle, 0),
        r"token_boundary\[\d+\] must be 1 for token 3",
    ),
    "boundary of 2": (set_value("token_boundary", 2, 2), "must be 0 or 1"),
    "positions swapped": (
        swap_positions,
        r"masked_lm_positions\[1\] must be greater than the previous",
    ),
    "position twice": (
        set_value(
            "masked_lm_positions", 1, lambda f, i: f["masked_lm_positions"][0]
        ),
        r"masked_lm_positions\[1\] must be greater than the previous",
    ),
    "position 0": (
        set_value("masked_lm_positions", 0, 0),
        r"between \[CLS\] and the last \[SEP\], from 1 to \d+. Received: 0",
    ),
    "position beyond": (
        set_value("masked_lm_positions", 1, lambda f, i: _last(f)),
        r"between \[CLS\] and the last \[SEP\]",
    ),
    "position far beyond": (
        set_value("masked_lm_positions", 1, 10**12),
        r"the last \[SEP\], from 1 to \d+. Received: 10{12}",
    ),
    "position of padding": (
        set_value("masked_lm_positions", PREDICTIONS - 1, 9),
        rf"masked_lm_positions\[{PREDICTIONS - 1}\] must be 0 where",
    ),
    "original of padding": (
        set_value("masked_lm_ids", PREDICTIONS - 1, 9),
        rf"masked_lm_ids\[{PREDICTIONS - 1}\] must be 0 where the weight is 0",
    ),
    "original special": (
        set_value("masked_lm_ids", 0, 1),
        r"masked_lm_ids\[0\] must be the id of a maskable token, from 5",
    ),
    "original beyond": (
        set_value("masked_lm_ids", 0, 30000),
        "the id of a maskable token, from 5 to 29999. Received: 30000",
    ),
    "weight of a half": (
        set_value("masked_lm_weights", 0, 0.5),
        r"masked_lm_weights\[0\] must be 1 for each of \d+ .*Received: 0.5",
    ),
    "weight moved": (_move_weight, r"masked_lm_weights\[0\] must be 1"),
    "[SEP] shown": (
        set_value("input_ids", lambda f: f["masked_lm_positions"][0], 3),
        r"must be \[MASK\], 4, or at least 5 at a masked position. Received: 3",
    ),
    "label": (
        set_value("next_sentence_labels", 0, 2),
        r"next_sentence_labels\[0\] must be 0 or 1. Received: 2",
    ),
    "feature missing": (
        lambda f: f.pop("segment_ids"),
        "Received: segment_ids missing",
    ),
    "feature too many": (
        lambda f: f.update(more=[1]),
        "Received: more in addition",
    ),
    "length": (
        lambda f: f["input_ids"].append(0),
        "input_ids must hold 64 values of type int64. Received: 65 values",
    ),
    "type": (
        lambda f: f.update(next_sentence_labels=[0.0]),
        "next_sentence_labels must hold 1 values of type int64. Received: 1 "
        "values of type float32",
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


@pytest.mark.parametrize("name", EDITS)
def test_a_faulty_record_is_named(records, fit_record, inspect, name):
    edit, fault = EDITS[name]
    path = records / SHARD
    contents = read_contents(path)
    features = read_features(contents[fit_record])
    edit(features)
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
    assert "and 1 more faults" in output


def test_a_record_that_is_not_a_message_is_named(records, inspect):
    path = records / SHARD
    contents = read_contents(path)
    contents[2] = b"no message at all"
    write_contents(path, contents)
    status, output = inspect(records)
    assert status == 1
    assert "record 2 at byte" in output
    assert "must be a tf.train.Example" in output


def test_faults_beyond_the_limit_are_counted(records, inspect):
    edit_all(records, set_value("input_ids", 0, 10))
    num_records = read_json(records)["num_examples"]
    status, output = inspect(records, max_faults=3)
    assert status == 1
    assert len(re.findall("^fault: ", output, re.M)) == 3
    assert f"and {num_records - 3:,} more faults" in output
