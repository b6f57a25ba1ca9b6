"""Packed records: their content, and that of the examples in them."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import SequenceConfig
from albert_tf.records.features import (
    PACKED_FEATURES,
    read_metadata,
    stored_features,
)
from data_prep.builder.examples import EVAL, TRAIN
from data_prep.inspection.example_parsing import parse_examples
from data_prep.inspection.unpacking import unpack_rows
from tests.helpers.small_builds import LENGTH, PREDICTIONS, build, read_files

# So few examples per row that some rows reach this limit before LENGTH tokens.
EXAMPLES = 3
SHAPE = SequenceConfig(
    max_seq_length=LENGTH,
    max_predictions_per_seq=PREDICTIONS,
    max_examples_per_row=EXAMPLES,
)
PACKED = {"packing": "best_fit", "max_examples_per_row": EXAMPLES}


@pytest.fixture(scope="module")
def text(documents, tmp_path_factory):
    """Documents of one to four sentences, most of them shorter than a row."""
    lines = "\n".join(documents).split("\n")[:700]
    sizes = np.random.default_rng(0).integers(1, 5, len(lines))
    ends = [0, *np.cumsum(sizes)[np.cumsum(sizes) < len(lines)]]
    path = tmp_path_factory.mktemp("text") / "short.txt"
    path.write_text(
        "\n\n".join(
            "\n".join(lines[begin:end])
            for begin, end in itertools.pairwise(ends)
        ),
        encoding="utf-8",
    )
    return path


@pytest.fixture(scope="module")
def built(text, tmp_path_factory):
    return build(tmp_path_factory.mktemp("built") / "out", text)


@pytest.fixture(scope="module")
def packed(text, tmp_path_factory):
    return build(tmp_path_factory.mktemp("packed") / "out", text, **PACKED)


def read_shards(directory):
    return {
        path.name: list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
        for path in sorted(directory.glob("*.tfrecord"))
    }


def parse(contents, features=PACKED_FEATURES):
    lengths = {f.name: f.length(SHAPE) for f in features}
    parsed = parse_examples(contents, features, lengths)
    assert not parsed.faults
    return parsed.features


def test_a_row_equals_one_written_by_hand(packed, built):
    """The first row of several examples, assembled from unpacked records."""
    (rows, *_), (records, *_) = (
        list(read_shards(directory / TRAIN).values())
        for directory in (packed, built)
    )
    row = next(
        row
        for row in (read_lists(content) for content in rows)
        if sum(row["next_sentence_weights"]) > 1
    )
    wanted = {feature.name: [] for feature in PACKED_FEATURES}
    numbers = row["example_numbers"][: int(sum(row["next_sentence_weights"]))]
    for i, number in enumerate(numbers):
        example = read_lists(records[number])
        begin = len(wanted["input_ids"])
        num_tokens = sum(example["input_mask"])
        num_masked = int(sum(example["masked_lm_weights"]))
        for name in ("input_ids", "segment_ids", "token_boundary"):
            wanted[name] += example[name][:num_tokens]
        wanted["input_mask"] += [i + 1] * num_tokens
        wanted["masked_lm_positions"] += [
            begin + p for p in example["masked_lm_positions"][:num_masked]
        ]
        wanted["masked_lm_ids"] += example["masked_lm_ids"][:num_masked]
        wanted["masked_lm_weights"] += [1.0] * num_masked
        wanted["next_sentence_positions"] += [begin]
        wanted["next_sentence_labels"] += example["next_sentence_labels"]
        wanted["next_sentence_weights"] += [1.0]
        wanted["example_numbers"] += [number]
    for feature in PACKED_FEATURES:
        values = wanted[feature.name]
        values += [0] * (feature.length(SHAPE) - len(values))
    assert row == wanted


def read_lists(content):
    example = tf.train.Example.FromString(content)
    return {
        name: list(feature.float_list.value or feature.int64_list.value)
        for name, feature in example.features.feature.items()
    }


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_packed_examples_are_the_examples_of_the_unpacked_shard(
    packed, built, text, tmp_path, masking
):
    if masking == "dynamic":
        packed = build(tmp_path / "packed", text, masking=masking, **PACKED)
        built = build(tmp_path / "built", text, masking=masking)
    shards = read_shards(built / TRAIN)
    for name, rows in read_shards(packed / TRAIN).items():
        features = stored_features(masking, "best_fit")
        unpacked = unpack_rows(parse(rows, features), PREDICTIONS)
        wanted = parse(shards[name], stored_features(masking))
        order = np.argsort(unpacked.numbers)
        np.testing.assert_array_equal(
            unpacked.numbers[order], np.arange(len(shards[name]))
        )
        for feature, values in wanted.items():
            np.testing.assert_array_equal(
                unpacked.features[feature][order], values, feature
            )
    assert (
        read_shards(packed / EVAL)
        == read_shards(built / EVAL)
        != read_shards(packed / TRAIN)
    )


def test_rows_are_nearly_full(packed, built):
    """Rows that are open at the end of a shard keep their padding."""
    rows = parse(
        [row for rows in read_shards(packed / TRAIN).values() for row in rows]
    )
    sizes = rows["next_sentence_weights"].sum(axis=1)
    assert set(sizes) == {1, 2, EXAMPLES}
    assert np.mean(rows["input_mask"] > 0) > 0.94
    assert read_metadata(str(built / TRAIN)).fill < 0.8


def test_metadata_of_packed_records_counts_rows_and_examples(packed, built):
    metadata = read_metadata(str(packed / TRAIN))
    unpacked = read_metadata(str(built / TRAIN))
    rows = read_shards(packed / TRAIN)
    assert metadata.shards == {name: len(rows[name]) for name in rows}
    assert metadata.num_rows == sum(metadata.shards.values())
    assert metadata.num_rows < unpacked.num_rows == unpacked.num_examples
    assert (metadata.packing, metadata.max_examples_per_row) == ("best_fit", 3)
    assert metadata.fill == pytest.approx(
        unpacked.num_pieces / (metadata.num_rows * LENGTH)
    )
    for name in ("num_examples", "num_pieces", "num_masked", "inputs_sha256"):
        assert getattr(metadata, name) == getattr(unpacked, name)
    assert (packed / EVAL / "metadata.json").read_bytes() == (
        built / EVAL / "metadata.json"
    ).read_bytes()


def test_workers_have_no_influence_on_packed_records(packed, text, tmp_path):
    other = build(tmp_path / "out", text, num_workers=2, **PACKED)
    assert read_files(other) == read_files(packed)


def test_a_build_replaces_one_of_another_packing(packed, text, tmp_path):
    """A packed build replaces an unpacked one, and the reverse. Repeating the
    packed build writes nothing."""
    out = build(tmp_path / "out", text, max_examples_per_row=2)
    unpacked = read_files(out)
    build(out, text, overwrite=True, **PACKED)
    assert read_files(out) == read_files(packed)
    written = {p: p.stat().st_mtime_ns for p in out.rglob("*.tfrecord")}
    build(out, text, **PACKED)
    assert written == {p: p.stat().st_mtime_ns for p in written}
    build(out, text, overwrite=True)
    assert read_files(out) == unpacked


def test_the_reader_of_google_research_refuses_packed_records(packed, built):
    """`name_to_features` of its run_pretraining.py, with P slots for masked
    tokens and with the slots of a packed row."""

    def read(directory, max_predictions_per_seq):
        names = ("input_ids", "input_mask", "segment_ids", "token_boundary")
        spec = {n: tf.io.FixedLenFeature([LENGTH], tf.int64) for n in names}
        for name, dtype in (
            ("masked_lm_positions", tf.int64),
            ("masked_lm_ids", tf.int64),
            ("masked_lm_weights", tf.float32),
        ):
            spec[name] = tf.io.FixedLenFeature([max_predictions_per_seq], dtype)
        spec["next_sentence_labels"] = tf.io.FixedLenFeature([1], tf.int64)
        (first, *_) = read_shards(directory / TRAIN).values()
        return tf.io.parse_single_example(first[0], spec)

    assert read(built, PREDICTIONS)["next_sentence_labels"].shape == [1]
    for length in (PREDICTIONS, PREDICTIONS + EXAMPLES - 1):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"next_sentence_labels|masked"
        ):
            read(packed, length)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="next_sentence_labels"
    ):
        read(packed, PREDICTIONS + EXAMPLES - 1)
