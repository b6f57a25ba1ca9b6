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
    vocabulary_use={"unknown": 0.01, "bytes": 0.0, "unused": 1},
)

PACKED = dataclasses.replace(
    METADATA,
    packing="best_fit",
    max_examples_per_row=4,
    num_rows=10,
    num_pieces=608,
)


def test_records_have_the_features_of_google_research_albert():
    """Names, dtypes and lengths in its create_pretraining_data.py, and ids of
    the special pieces. A packed record has K slots for examples, and P + K - 1
    for masked tokens."""
    shape = SequenceConfig(
        max_seq_length=12, max_predictions_per_seq=4, max_examples_per_row=3
    )
    rows = {
        "input_ids": ("int64", 12, 12),
        "input_mask": ("int64", 12, 12),
        "segment_ids": ("int64", 12, 12),
        "token_boundary": ("int64", 12, 12),
        "masked_lm_positions": ("int64", 4, 6),
        "masked_lm_ids": ("int64", 4, 6),
        "masked_lm_weights": ("float32", 4, 6),
        "next_sentence_positions": ("int64", 0, 3),
        "next_sentence_labels": ("int64", 1, 3),
        "next_sentence_weights": ("float32", 0, 3),
        "example_numbers": ("int64", 0, 3),
    }
    for features, column in (FEATURES, 1), (PACKED_FEATURES, 2):
        assert {f.name: (f.dtype, f.length(shape)) for f in features} == {
            name: (row[0], row[column])
            for name, row in rows.items()
            if row[column]
        }
    ids = {piece: number for number, piece in enumerate(SPECIAL_PIECES)}
    assert ids == {"<pad>": 0, "<unk>": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}


def test_a_record_holds_masks_only_if_they_are_static():
    for packing, features in ("none", FEATURES), ("best_fit", PACKED_FEATURES):
        assert stored_features("static", packing) == features
        dynamic = [f.name for f in stored_features("dynamic", packing)]
        assert dynamic == [
            f.name for f in features if not f.name.startswith("masked_lm")
        ]


@pytest.mark.parametrize("metadata", [METADATA, PACKED])
def test_metadata_equals_what_was_written(tmp_path, metadata):
    text = metadata.to_json()
    fill = metadata.num_pieces / 64 / metadata.num_rows
    assert json.loads(text)["fill"] == round(fill, 6)
    (tmp_path / METADATA_FILE).write_text(text)
    assert read_metadata(str(tmp_path)) == metadata


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"schema_version": 99}, r"schema_version .* must be 4\. .*99"),
        ({"key": 1}, "key"),
        ("{", r"metadata\.json must be JSON"),
        (None, r"metadata\.json must exist"),
    ],
)
def test_metadata_that_cannot_be_read_is_refused(tmp_path, content, message):
    if isinstance(content, dict):
        content = json.dumps(json.loads(METADATA.to_json()) | content)
    if content is not None:
        (tmp_path / METADATA_FILE).write_text(content)
    with pytest.raises(UserError, match=message):
        read_metadata(str(tmp_path))
