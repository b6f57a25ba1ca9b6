"""Batches of packed records, and errors for records that do not fit."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.input import record_sets
from albert_tf.input.batch_stream import BatchStream
from albert_tf.input.damaged_records import READING_ERRORS
from albert_tf.input.record_format import (
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
from albert_tf.records.keyed_random import random_bits
from albert_tf.records.masking import mask_batch
from tests.helpers import tiny_run
from tests.helpers.edited_records import change

ONE = tf.distribute.InputContext()
K = tiny_run.PACKING["max_examples_per_row"]
SEED = 7


def make_config(records, tmp_path, **changes):
    return tiny_run.make_config(
        records, tmp_path, **{**tiny_run.PACKING, **changes}
    )


def batches(config, num_batches, first=0):
    data = record_sets.find_training_data(config)
    dataset = BatchStream(data, config.data, SEED).open(first)(ONE)
    return list(dataset.take(num_batches).as_numpy_iterator())


def stored(records, config, masking):
    """The records of the first shard."""
    shard = min((records / "train").glob("*.tfrecord"))
    serialized = next(iter(tf.data.TFRecordDataset(shard).batch(10**6)))
    features = features_to_read(masking, "best_fit")
    batch = parse_records(serialized, features, config.data)
    return {name: value.numpy() for name, value in batch.items()}


def test_batches_hold_packed_rows(tiny_packed_records, tmp_path):
    config = make_config(tiny_packed_records, tmp_path)
    (batch,) = batches(config, 1)
    shapes = {name: value.shape for name, value in batch.items()}
    num_slots = config.data.max_predictions_per_seq + K - 1
    assert shapes == {
        "input_ids": (8, 32),
        "input_mask": (8, 32),
        "segment_ids": (8, 32),
        "masked_lm_positions": (8, num_slots),
        "masked_lm_ids": (8, num_slots),
        "masked_lm_weights": (8, num_slots),
        "next_sentence_positions": (8, K),
        SENTENCE_LABEL: (8, K),
        "next_sentence_weights": (8, K),
    }
    assert batch["input_mask"].max() > 1


def test_the_content_of_a_row_comes_from_the_metadata(
    tiny_packed_records, tiny_records, tmp_path
):
    config = make_config(tiny_packed_records, tmp_path)
    (phase,) = record_sets.find_training_data(config).phases
    shards = sorted((tiny_packed_records / "train").glob("*.tfrecord"))
    serialized = next(iter(tf.data.TFRecordDataset(shards).batch(10**6)))
    features = features_to_read("static", "best_fit")
    stored_rows = parse_records(serialized, features, config.data)
    numbers = stored_rows["input_mask"].numpy()
    assert phase.records.num_records == len(numbers)
    assert phase.records.examples_per_row == pytest.approx(
        numbers.max(axis=1).mean()
    )
    assert phase.records.examples_per_row > 1.2
    assert phase.records.useful_share > 0.85
    assert phase.records.useful_share == pytest.approx((numbers > 0).mean())

    unpacked = tiny_run.make_config(tiny_records, tmp_path)
    (phase,) = record_sets.find_training_data(unpacked).phases
    assert phase.records.examples_per_row == 1
    assert 0.5 < phase.records.useful_share < 1


def test_dynamic_masks_depend_on_the_number_of_the_example(
    tiny_dynamic_packed_records, tmp_path
):
    """They equal masks computed with NumPy, on rows in stored order."""
    config = make_config(
        tiny_dynamic_packed_records, tmp_path, shuffle_block_size=1
    )
    rows = stored(tiny_dynamic_packed_records, config, "dynamic")
    data = record_sets.find_training_data(config)
    (phase,) = data.phases
    file = phase.records.files[0]
    one = dataclasses.replace(
        phase.records,
        files=(file,),
        counts=phase.records.counts[:1],
        checksums=phase.records.checksums[:1],
        sets=((file,),),
    )
    data = record_sets.TrainingData((dataclasses.replace(phase, records=one),))
    step = len(rows["input_ids"]) // 8 + 2  # in the second epoch
    positions = np.arange(step * 8, step * 8 + 24)
    keys = random_bits(np.full(24, SEED, np.uint64), positions)
    chosen = positions % len(rows["input_ids"])
    expected = mask_batch(
        rows["input_ids"][chosen],
        rows["token_boundary"][chosen],
        random_bits(keys[:, np.newaxis], np.arange(K)).ravel(),
        example_numbers=rows["input_mask"][chosen],
        max_examples_per_row=K,
        vocab_size=400,
        max_predictions_per_seq=config.data.max_predictions_per_seq,
        masked_lm_prob=config.data.masked_lm_prob,
        ngram=config.data.ngram,
    )
    dataset = BatchStream(data, config.data, SEED).open(step)(ONE)
    masked = list(dataset.take(3).as_numpy_iterator())
    for name, values in zip(
        (
            "input_ids",
            "masked_lm_positions",
            "masked_lm_ids",
            "masked_lm_weights",
        ),
        expected,
        strict=True,
    ):
        np.testing.assert_array_equal(
            np.concatenate([batch[name] for batch in masked]), values
        )
    assert rows["input_mask"][chosen].max() > 1


def refuse(config, *parts):
    with pytest.raises(UserError) as error:
        record_sets.find_training_data(config)
    text = " ".join(str(error.value).split())
    for part in parts:
        assert part in text


def test_packed_records_need_a_config_with_packing(
    tiny_packed_records, tmp_path
):
    refuse(
        tiny_run.make_config(tiny_packed_records, tmp_path),
        "input_file must hold records of packing=none",
        "packing=best_fit, max_examples_per_row=4 in "
        f"{tiny_packed_records}/train/metadata.json",
        "--packing=best_fit --max_examples_per_row=4",
    )


def test_a_config_with_packing_needs_packed_records(tiny_records, tmp_path):
    refuse(
        make_config(tiny_records, tmp_path),
        "must hold records of packing=best_fit, max_examples_per_row=4",
        f"packing=none in {tiny_records}/train/metadata.json",
        "--packing=none",
    )


def test_packed_records_of_another_k_are_refused(tiny_packed_records, tmp_path):
    refuse(
        make_config(tiny_packed_records, tmp_path, max_examples_per_row=8),
        "max_examples_per_row=4 in",
        "row=8",
    )


def test_packed_and_unpacked_records_are_not_mixed(
    tiny_packed_records, tiny_records, tmp_path
):
    globs = [f"{r}/train/*d" for r in (tiny_packed_records, tiny_records)]
    both = make_config(tiny_packed_records, tmp_path, input_file=tuple(globs))
    refuse(
        both,
        "input_file must hold records of one packing",
        f"max_examples_per_row=4 in {tiny_packed_records}/train",
        f"packing=none in {tiny_records}/train",
    )


def test_packed_datasets_of_one_k_are_mixed(tiny_packed_records, tmp_path):
    """A second dataset whose metadata has another K is refused."""
    first, second = tiny_packed_records, tmp_path / "second"
    shutil.copytree(first, second)
    config = make_config(
        first,
        tmp_path,
        input_file=(),
        dataset=tuple(
            f"{name}={records}/train/*.tfrecord"
            for name, records in (("wiki", first), ("books", second))
        ),
        data_schedule="0:wiki,2:wiki+books",
    )
    wiki, both = record_sets.find_training_data(config).phases
    assert both.records.num_records == 2 * wiki.records.num_records
    assert both.records.examples_per_row == wiki.records.examples_per_row
    assert both.records.useful_share == wiki.records.useful_share
    for batch in batches(config, 4):
        assert batch["next_sentence_positions"].shape == (8, K)
        assert batch["input_mask"].max() > 1

    file = second / "train/metadata.json"
    values = json.loads(file.read_text()) | {"max_examples_per_row": K + 1}
    file.write_text(json.dumps(values))
    refuse(
        config,
        "dataset wiki, dataset books must hold records of one packing",
        f"max_examples_per_row={K} in {first}/train",
        f"max_examples_per_row={K + 1} in {second}/train",
    )


def test_packed_records_without_metadata_are_refused(
    tiny_packed_records, tmp_path
):
    for shard in (tiny_packed_records / "train").glob("*.tfrecord"):
        shutil.copy(shard, tmp_path)
    shards = {"input_file": (f"{tmp_path}/*.tfrecord",)}
    refuse(
        tiny_run.make_config(tiny_packed_records, tmp_path, **shards),
        "metadata.json must be in the directory of packed records",
        f"{tmp_path}/train-0000",
    )
    refuse(
        make_config(tiny_packed_records, tmp_path, **shards),
        "must hold records of packing=best_fit, max_examples_per_row=4",
        f"{tmp_path} without metadata.json",
        "Copy it from the directory of the build",
    )


def test_dynamic_packed_records_need_the_masking_of_their_build(
    tiny_dynamic_packed_records, tmp_path
):
    """The rows of the build have slots for masks of its own settings."""
    refuse(
        make_config(
            tiny_dynamic_packed_records,
            tmp_path,
            masked_lm_prob=0.3,
            ngram=2,
            max_predictions_per_seq=7,
        ),
        "masked_lm_prob 0.15 and 0.3",
        "ngram 3 and 2",
        "max_predictions_per_seq 6 and 7",
        "Set --masked_lm_prob=0.15 --ngram=3 --max_predictions_per_seq=6",
        "or use unpacked records",
    )


def test_held_out_records_of_one_example_fit_a_run_on_packed_records(
    tiny_packed_records, tmp_path
):
    config = make_config(tiny_packed_records, tmp_path)
    held_out = record_sets.find_held_out(config)
    assert held_out.packing == "none"
    names = [f.name for f in pretraining_format(held_out, config.data).features]
    assert "next_sentence_positions" not in names


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


@pytest.fixture
def copied(tiny_packed_records, tmp_path):
    shutil.copytree(tiny_packed_records, tmp_path / "records")
    for metadata in (tmp_path / "records").glob("*/metadata.json"):
        values = json.loads(metadata.read_text())
        metadata.write_text(json.dumps({**values, "checksums": {}}))
    return tmp_path / "records"


def test_packed_records_with_faults_count_as_damaged(copied, tmp_path):
    """Parsing stops at each, and the search names file, record and field."""
    config = make_config(copied, tmp_path / "run")
    # Rows of two or three examples, with padding: one for each fault.
    used = stored(copied, config, "static")["input_mask"]
    examples = used.max(axis=1)
    rows = np.flatnonzero((examples > 1) & (examples < K) & (used[:, -1] == 0))
    shard = min((copied / "train").glob("*.tfrecord"))
    intact = shard.read_bytes()
    data = record_sets.find_training_data(config)
    stream = BatchStream(data, config.data, SEED)
    record_format = pretraining_format(data.phases[0].records, config.data)
    parse = tf.function(
        lambda batch: parse_intact(batch, record_format, config.data),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    for number, (fault, (feature, edit, message)) in zip(
        rows.tolist(), FAULTS.items(), strict=False
    ):
        parse([*tf.data.TFRecordDataset(shard)])
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
