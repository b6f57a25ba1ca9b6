import dataclasses
import json

import pytest

from albert_tf.config import SequenceConfig
from albert_tf.errors import UserError
from albert_tf.records.features import (
    FEATURES,
    METADATA_FILE,
    PACKED_FEATURES,
    SPECIAL_PIECES,
    RecordsMetadata,
    check_values_match,
    read_metadata,
    stored_features,
)

METADATA = RecordsMetadata(
    max_seq_length=64,
    max_predictions_per_seq=10,
    vocab_size=5000,
    vocabulary_sha256="ab12",
    vocabulary_kind="published",
    do_lower_case=True,
    sentence_objective="sop",
    masking="static",
    masked_lm_prob=0.15,
    ngram=3,
    short_seq_prob=0.1,
    dupe_factor=2,
    seed=7,
    num_documents=3,
    num_duplicate_documents=1,
    num_examples=11,
    num_pieces=600,
    num_masked=90,
    unigram_entropy_nats=6.25,
    shards={
        "train-00000-of-00002.tfrecord": 6,
        "train-00001-of-00002.tfrecord": 5,
    },
    checksums={
        "train-00000-of-00002.tfrecord": "0a",
        "train-00001-of-00002.tfrecord": "0b",
    },
    skipped={"one word": 1},
    inputs_sha256="cd34",
    packing="none",
    max_examples_per_row=1,
    num_rows=11,
)

PACKED = dataclasses.replace(
    METADATA,
    packing="best_fit",
    max_examples_per_row=4,
    num_rows=10,
    num_pieces=608,
)


def write_metadata(directory, text):
    (directory / METADATA_FILE).write_text(text)
    return str(directory)


def test_features_equal_those_of_google_research_albert():
    """Names, dtypes and lengths in its create_pretraining_data.py."""
    shape = SequenceConfig(max_seq_length=12, max_predictions_per_seq=4)
    assert {f.name: (f.dtype, f.length(shape)) for f in FEATURES} == {
        "input_ids": ("int64", 12),
        "input_mask": ("int64", 12),
        "segment_ids": ("int64", 12),
        "token_boundary": ("int64", 12),
        "masked_lm_positions": ("int64", 4),
        "masked_lm_ids": ("int64", 4),
        "masked_lm_weights": ("float32", 4),
        "next_sentence_labels": ("int64", 1),
    }


def test_a_packed_record_has_slots_for_its_largest_number_of_examples():
    """K slots for examples, and P + K - 1 for masked tokens."""
    shape = SequenceConfig(
        max_seq_length=12, max_predictions_per_seq=4, max_examples_per_row=3
    )
    assert {f.name: (f.dtype, f.length(shape)) for f in PACKED_FEATURES} == {
        "input_ids": ("int64", 12),
        "input_mask": ("int64", 12),
        "segment_ids": ("int64", 12),
        "token_boundary": ("int64", 12),
        "masked_lm_positions": ("int64", 6),
        "masked_lm_ids": ("int64", 6),
        "masked_lm_weights": ("float32", 6),
        "next_sentence_positions": ("int64", 3),
        "next_sentence_labels": ("int64", 3),
        "next_sentence_weights": ("float32", 3),
        "example_numbers": ("int64", 3),
    }


def test_a_record_holds_masks_only_if_they_are_static():
    for packing, features in ("none", FEATURES), ("best_fit", PACKED_FEATURES):
        assert stored_features("static", packing) == features
        dynamic = [f.name for f in stored_features("dynamic", packing)]
        assert dynamic == [
            f.name for f in features if not f.name.startswith("masked_lm")
        ]


def test_special_pieces_have_the_ids_of_google_research_albert():
    ids = {piece: number for number, piece in enumerate(SPECIAL_PIECES)}
    assert ids == {"<pad>": 0, "<unk>": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}


def test_metadata_equals_what_was_written(tmp_path):
    assert (
        read_metadata(write_metadata(tmp_path, METADATA.to_json())) == METADATA
    )


def test_metadata_of_packed_records_equals_what_was_written(tmp_path):
    directory = write_metadata(tmp_path, PACKED.to_json())
    assert read_metadata(directory) == PACKED
    stored = json.loads(PACKED.to_json())
    assert stored["schema_version"] == 3
    assert stored["fill"] == PACKED.fill == 608 / 640


def test_metadata_without_packing_has_no_keys_of_packing():
    stored = json.loads(METADATA.to_json())
    assert stored["schema_version"] == 2
    assert json.loads(PACKED.to_json()).keys() - stored.keys() == {
        "packing",
        "max_examples_per_row",
        "num_rows",
        "fill",
    }


def test_metadata_of_another_schema_is_refused(tmp_path):
    other = json.loads(METADATA.to_json()) | {"schema_version": 99}
    with pytest.raises(
        UserError, match=r"schema_version .* must be 2 or 3\. .*99"
    ):
        read_metadata(write_metadata(tmp_path, json.dumps(other)))


def test_an_error_names_a_missing_key_of_metadata(tmp_path):
    values = json.loads(METADATA.to_json())
    del values["ngram"]
    with pytest.raises(UserError, match="ngram"):
        read_metadata(write_metadata(tmp_path, json.dumps(values)))


def test_missing_or_invalid_metadata_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"metadata\.json must exist"):
        read_metadata(str(tmp_path))
    with pytest.raises(UserError, match=r"metadata\.json must be JSON"):
        read_metadata(write_metadata(tmp_path, "{"))


def test_an_error_names_each_difference_with_both_values():
    stored = {"max_seq_length": 64, "vocabulary_sha256": "ab", "seed": 1}
    wanted = {"max_seq_length": 512, "vocabulary_sha256": "cd", "seed": 1}
    with pytest.raises(UserError) as refused:
        check_values_match("records/metadata.json", stored, wanted)
    message = str(refused.value)
    assert message.startswith("records/metadata.json must agree")
    assert "max_seq_length 64 and 512" in message
    assert "vocabulary_sha256 'ab' and 'cd'" in message
    assert "seed" not in message
