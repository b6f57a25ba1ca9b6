import dataclasses
import hashlib
import json

import pytest

from albert_tf.config import SequenceConfig
from albert_tf.errors import UserError
from albert_tf.records.features import (
    FEATURES,
    METADATA_FILE,
    SPECIAL_PIECES,
    RecordsMetadata,
    check_agreement,
    read_metadata,
    sha256_of,
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
    shards={"train-00000-of-00002.tfrecord": 6, "train-00001-of-00002": 5},
    checksums={
        "train-00000-of-00002.tfrecord": "0a",
        "train-00001-of-00002": "0b",
    },
    skipped={"one word": 1},
    inputs_sha256="cd34",
)


def write(directory, text):
    (directory / METADATA_FILE).write_text(text)
    return str(directory)


def test_features_are_those_of_google_research():
    """create_pretraining_data.py: names, dtypes, which length each has."""
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


def test_special_pieces_have_the_published_ids():
    ids = {piece: number for number, piece in enumerate(SPECIAL_PIECES)}
    published = {"<pad>": 0, "<unk>": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}
    assert ids == published


def test_metadata_survives_its_file(tmp_path):
    assert read_metadata(write(tmp_path, METADATA.to_json())) == METADATA


def test_metadata_of_another_schema_is_refused(tmp_path):
    other = dataclasses.replace(METADATA, schema_version=99)
    with pytest.raises(UserError, match=r"schema_version .* must be 2\. .*99"):
        read_metadata(write(tmp_path, other.to_json()))


def test_incomplete_metadata_names_what_is_missing(tmp_path):
    values = json.loads(METADATA.to_json())
    del values["ngram"]
    with pytest.raises(UserError, match="ngram"):
        read_metadata(write(tmp_path, json.dumps(values)))


def test_missing_or_broken_metadata_is_named(tmp_path):
    with pytest.raises(UserError, match=r"metadata\.json must exist"):
        read_metadata(str(tmp_path))
    with pytest.raises(UserError, match=r"metadata\.json must be JSON"):
        read_metadata(write(tmp_path, "{"))


def test_differences_are_reported_by_name_with_both_values():
    stored = {"max_seq_length": 64, "vocabulary_sha256": "ab", "seed": 1}
    wanted = {"max_seq_length": 512, "vocabulary_sha256": "cd", "seed": 1}
    with pytest.raises(UserError) as refused:
        check_agreement("records/metadata.json", stored, wanted)
    said = str(refused.value)
    assert said.startswith("records/metadata.json must agree")
    assert "max_seq_length is 64 there and 512 here" in said
    assert "vocabulary_sha256 is 'ab' there and 'cd' here" in said
    assert "seed" not in said


def test_agreement_needs_only_what_is_wanted():
    check_agreement("x", {"max_seq_length": 64, "ngram": 3}, {"ngram": 3})


def test_digest_is_that_of_sha256():
    assert sha256_of(b"albert") == hashlib.sha256(b"albert").hexdigest()
