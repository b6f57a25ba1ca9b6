"""Batches of packed records, and faults of their rows."""

import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.input import record_sets
from albert_tf.input.batch_stream import BatchStream
from albert_tf.input.record_format import (
    READING_ERRORS,
    parse_intact,
    parse_records,
    pretraining_format,
    serialize,
)
from albert_tf.records.features import (
    SENTENCE_LABEL,
    Feature,
    features_to_read,
)
from tests.helpers import tiny_run
from tests.helpers.edited_records import change

K = tiny_run.PACKING["max_examples_per_row"]


def with_value(place, value):
    return lambda values: [
        value if i == place % len(values) else v for i, v in enumerate(values)
    ]


FAULTS = {
    "too many examples": (
        "input_mask",
        lambda values: [v + K for v in values],
        "input_mask must be at most max_examples_per_row",
    ),
    "a gap": (
        "input_mask",
        lambda values: [v + (v > 1) for v in values],
        "input_mask must number the examples 1, 2, ... without a gap",
    ),
    "padding within": ("input_mask", with_value(5, 0), "without a gap"),
    "no [CLS]": (
        "next_sentence_positions",
        with_value(1, 3),
        "next_sentence_positions must be those of the [CLS] tokens",
    ),
    "another token": (
        "input_ids",
        with_value(0, 9),
        "must begin each example with [CLS]",
    ),
    "label": (SENTENCE_LABEL, with_value(0, 2), "must be 0 or 1"),
    "weight": ("next_sentence_weights", with_value(0, 0.0), "must be 1 for"),
    "prediction": (
        "masked_lm_positions",
        lambda values: [31] * len(values),
        "masked_lm_positions must not be those of padding",
    ),
}


def test_packed_records_with_faults_count_as_damaged(
    tiny_packed_records, tmp_path
):
    """Parsing stops at each, and the search names file, record and field."""
    records = shutil.copytree(tiny_packed_records, tmp_path / "records")
    config = tiny_run.make_config(records, tmp_path, **tiny_run.PACKING)
    shard = min((records / "train").glob("*.tfrecord"))
    intact = shard.read_bytes()
    serialized = next(iter(tf.data.TFRecordDataset(shard).batch(10**6)))
    features = features_to_read("static", "best_fit")
    used = parse_records(serialized, features, config.data)["input_mask"]
    # Rows of two or three examples, with padding: one for each fault.
    examples = np.max(used, axis=1)
    rows = np.flatnonzero((examples > 1) & (examples < K) & (used[:, -1] == 0))
    data = record_sets.find_training_data(config)
    stream = BatchStream(data, config.data, 7)
    record_format = pretraining_format(data.phases[0].records, config.data)
    parse = tf.function(
        lambda batch: parse_intact(batch, record_format, config.data),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    parse(serialized)
    for number, (fault, (feature, edit, message)) in zip(
        rows.tolist(), FAULTS.items(), strict=False
    ):
        change(shard, number, feature, edit)
        with pytest.raises(READING_ERRORS):
            parse([*tf.data.TFRecordDataset(shard)])
        with pytest.raises(UserError) as raised:
            stream.check_intact(0, 200)
        named = str(raised.value)
        assert f"record {number} of {shard}" in named, fault
        assert message in named, fault
        shard.write_bytes(intact)


def test_records_of_equal_values_have_equal_bytes_in_all_processes():
    """The features are in the order of their names. Without it, each process
    has an order of its own."""
    names = ["b", "h", "a", "g", "c", "f", "d", "e"]
    features = [Feature(f"name_{name}", "int64") for name in names]
    serialized = serialize(features, {f.name: [1] for f in features})
    found = re.findall(rb"name_(.)", serialized)
    assert found == [name.encode() for name in sorted(names)]
