"""Intact and damaged packed records."""

import pathlib
import re
import shutil

import pytest

from albert_tf.records.features import read_metadata
from data_prep import inspect_records
from data_prep.config import InspectConfig
from tests.helpers.inspected_records import (
    line_of,
    make_example,
    read_contents,
    read_features,
    write_contents,
)
from tests.helpers.inspected_records import set_value as put
from tests.helpers.small_builds import LENGTH, PREDICTIONS, build

EXAMPLES = 4
SHARD = "train-00000-of-00001.tfrecord"


@pytest.fixture(scope="module")
def built(documents, tmp_path_factory):
    """Directories of one shard of the same short examples, by packing."""
    directory = tmp_path_factory.mktemp("short")
    text = directory / "text.txt"
    lines = "\n".join(documents).split("\n")[:400]
    text.write_text("\n\n".join(lines), encoding="utf-8")
    return {
        packing: build(
            directory / packing,
            text,
            packing=packing,
            max_examples_per_row=EXAMPLES,
            num_shards=1,
        )
        / "train"
        for packing in ("none", "best_fit")
    }


@pytest.fixture
def records(built, tmp_path):
    """A copy of the packed records that a test can damage."""
    return pathlib.Path(
        shutil.copytree(built["best_fit"], tmp_path / "packed" / "train")
    )


def inspect(*paths, **settings):
    config = InspectConfig(
        input_file=tuple(map(str, paths)),
        **{"num_workers": 1, "num_examples": 0, **settings},
    )
    return inspect_records.main(config)


def test_intact_packed_records_pass(built, capsys):
    assert inspect(built["best_fit"], num_examples=40) == 0
    output = capsys.readouterr().out
    assert "FAIL" not in output
    metadata = read_metadata(str(built["best_fit"]))
    assert line_of("records  ", output)[0] == "pass"
    assert f"{metadata.num_rows:,}" in line_of("records  ", output)[1]
    assert line_of("examples  ", output)[0] == "pass"
    assert f"{metadata.num_examples:,}" in line_of("examples  ", output)[1]
    mean = metadata.num_examples / metadata.num_rows
    assert f"{mean:.2f}" in line_of("examples per record", output)[1]
    fill = f"{100 * metadata.fill:.2f} %"
    assert fill in line_of("positions filled", output)[1]
    assert metadata.fill > 0.9
    assert f"up to {EXAMPLES} examples per record" in output
    assert "example 0, 1 of " in output
    assert ", 2 of 2 in record " in output


def _second_begin(features):
    return features["next_sentence_positions"][1]


def _skip_a_number(features):
    features["input_mask"] = [2 * number for number in features["input_mask"]]
    features["input_mask"][: _second_begin(features)] = [1] * _second_begin(
        features
    )


def _gap(features):
    features["input_mask"][_second_begin(features) - 1] = 0


def _move_begin(features):
    features["next_sentence_positions"][1] += 1


def _shift_second(features):
    """Numbers, positions and weights agree, but the token is not [CLS]."""
    begin = _second_begin(features)
    features["input_mask"][begin] = 1
    features["next_sentence_positions"][1] += 1


def _mask_cls(features):
    """A position of the second example becomes that of its [CLS]."""
    begin = _second_begin(features)
    slot = next(
        i for i, p in enumerate(features["masked_lm_positions"]) if p >= begin
    )
    features["masked_lm_positions"][slot] = begin


def _mask_too_much(features):
    """All masks of the record are in the first example."""
    count = PREDICTIONS + 1
    features["masked_lm_positions"][:count] = list(range(1, count + 1))
    features["masked_lm_ids"][:count] = [7] * count
    features["masked_lm_weights"][:count] = [1.0] * count
    for name in ("positions", "ids"):
        values = features[f"masked_lm_{name}"]
        values[count:] = [0] * (len(values) - count)
    values = features["masked_lm_weights"]
    values[count:] = [0.0] * (len(values) - count)


# What the inspector says -> an edit of a record.
EDITS = {
    r"input_mask\[.*1 or 2, the number": _skip_a_number,
    r"input_mask\[.*0 after padding": _gap,
    r"input_mask\[0\].*1, the number": put("input_mask", 0, 2),
    r"next_sentence_positions\[1\].*the first index where": _move_begin,
    r"example 2: input_ids\[0\].*\[CLS\], 2": _shift_second,
    r"next_sentence_weights\[2\].*1 for": put("next_sentence_weights", 2, 1.0),
    r"positions\[3\].*0 where": put("next_sentence_positions", -1, 3),
    r"numbers\[3\].*0 where": put("example_numbers", -1, 9),
    r"example_numbers\[1\].*greater than": put("example_numbers", 1, 0),
    r"example 2: .*labels\[0\].*0 or": put("next_sentence_labels", 1, 2),
    r"positions\[0\].*of a token": put("masked_lm_positions", 0, LENGTH),
    r"example 2: masked_lm_positions\[0\].*between \[CLS\]": _mask_cls,
    rf"weights.*at most {PREDICTIONS} tokens of an example": _mask_too_much,
    r"ids\[13\].*0 where": put("masked_lm_ids", -1, 9),
    r"input_ids\[63\].*input_mask is 0": put("input_ids", -1, 9),
}


def _is_fit(features):
    """Two examples, then padding. The first is long."""
    return (
        sum(features["next_sentence_weights"]) == 2
        and features["input_mask"][-1] == 0
        and _second_begin(features) > PREDICTIONS + 3
        and features["example_numbers"][0] > 0
    )


@pytest.mark.parametrize("fault", EDITS)
def test_a_faulty_packed_record_is_named(records, capsys, fault):
    contents = read_contents(records / SHARD)
    number, features = next(
        (i, read_features(content))
        for i, content in enumerate(contents)
        if _is_fit(read_features(content))
    )
    EDITS[fault](features)
    contents[number] = make_example(features)
    write_contents(records / SHARD, contents)
    assert inspect(records) == 1
    output = capsys.readouterr().out
    where = f"{records / SHARD}, record {number} at byte "
    (named,) = re.findall(f"^fault: {re.escape(where)}.*$", output, re.M)
    assert re.search(fault, named), named


def test_unpacked_records_among_packed_ones_are_named(records, built, capsys):
    contents = read_contents(records / SHARD)
    contents[2] = read_contents(built["none"] / SHARD)[2]
    write_contents(records / SHARD, contents)
    assert inspect(records) == 1
    fault = (
        r"record 2 at byte \d+: must hold the features .*Received: .*missing"
    )
    assert len(re.findall(fault, capsys.readouterr().out)) == 1
