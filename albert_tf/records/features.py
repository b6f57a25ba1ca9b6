"""The pretraining record: its features, and the metadata beside the shards.

One definition for who writes records (`data_prep`) and who reads them
(`albert_tf/input/pipeline.py`). On disk a record is the `tf.train.Example`
of google-research/albert's `create_pretraining_data.py`, so that records
made by either load in either. No TensorFlow is imported here.
"""

import dataclasses
import hashlib
import json
import posixpath
from collections.abc import Mapping
from typing import Any

from albert_tf.config import SequenceConfig
from albert_tf.errors import UserError
from albert_tf.io.files import load_json

# Special pieces have the ids of the published vocabulary.
SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID = range(len(SPECIAL_PIECES))

METADATA_FILE = "metadata.json"
TOKENIZER_FILE = "spiece.model"
# Stands in the directory above from the first to the last write of a build.
UNFINISHED_FILE = "unfinished.json"
SCHEMA_VERSION = 2


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature of the record.

    Attributes:
        name: Key in the record and in a batch.
        dtype: "int64" or "float32", as stored. Batches hold int64 features
            as int32, since TPUs have no int64.
        per_token: Its length is `max_seq_length`.
        per_prediction: Its length is `max_predictions_per_seq`. A feature
            that is neither has length 1.
    """

    name: str
    dtype: str
    per_token: bool = False
    per_prediction: bool = False

    def length(self, shape: SequenceConfig) -> int:
        """Values that a record holds under this name."""
        if self.per_token:
            return shape.max_seq_length
        if self.per_prediction:
            return shape.max_predictions_per_seq
        return 1


# 0 in order, 1 swapped; the stored name is from BERT's next-sentence task.
SENTENCE_LABEL = "next_sentence_labels"

FEATURES = (
    # Pieces, `[CLS] A [SEP] B [SEP]`; padded with <pad>.
    Feature("input_ids", "int64", per_token=True),
    # 1 for a piece, 0 for padding.
    Feature("input_mask", "int64", per_token=True),
    # 0 up to the first [SEP], 1 up to the second; padded with 0.
    Feature("segment_ids", "int64", per_token=True),
    # 1 where a word, [CLS] or [SEP] begins; for masking while training.
    Feature("token_boundary", "int64", per_token=True),
    # Rising positions of the masked pieces; padded with 0.
    Feature("masked_lm_positions", "int64", per_prediction=True),
    # The original pieces there; padded with 0.
    Feature("masked_lm_ids", "int64", per_prediction=True),
    # 1.0 for a masked piece, 0.0 for padding.
    Feature("masked_lm_weights", "float32", per_prediction=True),
    Feature(SENTENCE_LABEL, "int64"),
)


# What training makes itself where masking is dynamic.
MASK_FEATURES = (
    "masked_lm_positions",
    "masked_lm_ids",
    "masked_lm_weights",
)


def stored_features(masking: str) -> tuple[Feature, ...]:
    """The features of a record.

    Args:
        masking: "static", or "dynamic" for records without masks.
    """
    if masking == "static":
        return FEATURES
    return tuple(f for f in FEATURES if f.name not in MASK_FEATURES)


@dataclasses.dataclass(frozen=True)
class RecordsMetadata:
    """What `metadata.json` says of the shards beside it.

    Attributes:
        schema_version: Of this file.
        max_seq_length, max_predictions_per_seq: Lengths of the features.
        vocab_size: Pieces of the vocabulary.
        vocabulary_sha256: Of the SentencePiece model file.
        vocabulary_kind: "published" or "self_contained", see
            `tokenization.Tokenizer`.
        do_lower_case: Whether text was lower-cased before it.
        sentence_objective: "sop", "nsp" or "none".
        masking: "static", or "dynamic" for records without masks.
        masked_lm_prob, ngram, short_seq_prob, dupe_factor, seed: As built.
        num_documents: Documents that gave examples.
        num_duplicate_documents: Those of them equal to another after
            normalisation, beyond the first; left out where deduplicated.
        num_examples: Records in all shards.
        num_pieces: Real pieces in all records, special ones included.
        num_masked: Masked pieces in all records; 0 where masking is dynamic.
        unigram_entropy_nats: Entropy of the corpus' piece distribution: the
            masked-LM loss of a model that knows nothing but frequencies.
        shards: Records in each shard, by file name, in order.
        checksums: SHA-256 of each shard file, by file name.
        skipped: Counts of what was left out, by reason.
        inputs_sha256: Of the settings and input text; equal for equal
            records.
    """

    max_seq_length: int
    max_predictions_per_seq: int
    vocab_size: int
    vocabulary_sha256: str
    vocabulary_kind: str
    do_lower_case: bool
    sentence_objective: str
    masking: str
    masked_lm_prob: float
    ngram: int
    short_seq_prob: float
    dupe_factor: int
    seed: int
    num_documents: int
    num_duplicate_documents: int
    num_examples: int
    num_pieces: int
    num_masked: int
    unigram_entropy_nats: float
    shards: dict[str, int]
    checksums: dict[str, str]
    skipped: dict[str, int]
    inputs_sha256: str
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """JSON text, keys in the order above."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


def read_metadata(records_dir: str) -> RecordsMetadata:
    """Reads `metadata.json` of a directory of records.

    Args:
        records_dir: The directory of the shards, local or gs://.

    Raises:
        UserError: If it is missing, of another schema, or incomplete.
    """
    path = posixpath.join(records_dir, METADATA_FILE)
    values = load_json(path)
    version = values.get("schema_version")
    if version != SCHEMA_VERSION:
        raise UserError(
            f"schema_version of {path} must be {SCHEMA_VERSION}",
            received=version,
            remedy="Build the records again with this version.",
        )
    try:
        return RecordsMetadata(**values)
    except TypeError as error:
        raise UserError(
            f"{path} must have the keys of schema {SCHEMA_VERSION}",
            received=str(error),
        ) from None


def check_agreement(
    where: str,
    stored: Mapping[str, Any],
    wanted: Mapping[str, Any],
    remedy: str = "Set the flags to the stored values or build the records "
    "again.",
) -> None:
    """Refuses records that differ from what the trainer is set to.

    Args:
        where: What was stored, e.g. the path of the metadata.
        stored: Values by setting.
        wanted: Values that must be equal, by setting.
        remedy: What to do about a difference.

    Raises:
        UserError: Naming each setting that differs, with both values.
    """
    differences = [
        f"{name} is {stored[name]!r} there and {value!r} here"
        for name, value in wanted.items()
        if stored[name] != value
    ]
    if differences:
        raise UserError(
            f"{where} must agree with the settings of this run",
            received="; ".join(differences),
            remedy=remedy,
        )


def sha256_of(content: bytes) -> str:
    """Hexadecimal SHA-256 digest."""
    return hashlib.sha256(content).hexdigest()
