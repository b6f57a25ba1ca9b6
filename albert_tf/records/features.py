"""The features of a pretraining record, and the metadata of its shards.

`data_prep` writes records by this definition, and `albert_tf/input` reads them.
A record is a `tf.train.Example`. There are two formats:

- `FEATURES`: a row of one example, as `create_pretraining_data.py` of
  google-research/albert writes it; either project reads records of the other.
- `PACKED_FEATURES`: a row of 1 to K examples, with the names of the packed BERT
  records of Habana and Intel for MLPerf Training. The reader of
  google-research/albert refuses them, because of the length of the labels.

L is `max_seq_length`, P is `max_predictions_per_seq`, the largest number of
masked tokens in an example, and K is `max_examples_per_row`.
"""

import dataclasses
import hashlib
import json
import posixpath
from collections.abc import Mapping
from typing import Any

from albert_tf.config import ModelConfig
from albert_tf.errors import UserError
from albert_tf.io.files import load_json

# The ids of special pieces are those of google-research/albert.
SPECIAL_PIECES = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID = range(len(SPECIAL_PIECES))

METADATA_FILE = "metadata.json"
TOKENIZER_FILE = "spiece.model"
# The words of the token labels 1, 2, ..., one a line.
LABELS_FILE = "token_labels.txt"
# A build keeps this file in the parent directory until it is complete.
UNFINISHED_FILE = "unfinished.json"
# The version of the records. Those of other versions are refused.
SCHEMA_VERSION = 4


@dataclasses.dataclass(frozen=True)
class Feature:
    """A feature of the record.

    Attributes:
        name: Key in the record and in a batch.
        dtype: "int64" or "float32", as stored. A batch holds int64 features
            as int32, since TPUs have no int64.
        per_token: Whether the length is L.
        per_prediction: Whether the length is P, or P + K - 1 with
            `per_example`.
        per_example: Whether the length is K.
    """

    name: str
    dtype: str
    per_token: bool = False
    per_prediction: bool = False
    per_example: bool = False

    def length(self, shape: Any) -> int:
        """Number of values in a record of L, P and K, e.g. `SequenceConfig`."""
        if self.per_token:
            return shape.max_seq_length
        length = shape.max_predictions_per_seq if self.per_prediction else 1
        if self.per_example:
            length += shape.max_examples_per_row - 1
        return length


# 0: segments in order, 1: swapped. google-research/albert keeps the name of
# the next-sentence task of BERT.
SENTENCE_LABEL = "next_sentence_labels"

# Of packed records: 1 for an example with a label, 0 for one of a single
# segment, or for a slot without an example.
SENTENCE_WEIGHTS = "next_sentence_weights"

# The feature of packed records that numbers the examples of a shard.
EXAMPLE_NUMBERS = "example_numbers"

# A row of up to K examples, one after another without gaps; then padding. The
# slots of examples that the row does not have are unused and hold 0.
PACKED_FEATURES = (
    # Tokens, `[CLS] A [SEP] B [SEP]` of each example; padded with <pad>.
    Feature("input_ids", "int64", per_token=True),
    # The number of the token's example in the row, 1 to K; 0 for padding.
    Feature("input_mask", "int64", per_token=True),
    # 0 up to the first [SEP] of an example, 1 up to its second; padded with 0.
    Feature("segment_ids", "int64", per_token=True),
    # 1 at [CLS], at [SEP] and where a word begins; dynamic masking reads it.
    Feature("token_boundary", "int64", per_token=True),
    # Positions of the masked tokens in the row, increasing; padded with 0.
    Feature(
        "masked_lm_positions", "int64", per_prediction=True, per_example=True
    ),
    # The original tokens at these positions; padded with 0.
    Feature("masked_lm_ids", "int64", per_prediction=True, per_example=True),
    # 1.0 for a masked token, 0.0 for padding.
    Feature(
        "masked_lm_weights", "float32", per_prediction=True, per_example=True
    ),
    # The position of the [CLS] of each example. The position of a token in its
    # own example is its distance from this [CLS].
    Feature("next_sentence_positions", "int64", per_example=True),
    Feature(SENTENCE_LABEL, "int64", per_example=True),
    Feature(SENTENCE_WEIGHTS, "float32", per_example=True),
    # The number of each example in the shard, from 0, before packing. Restores
    # the unpacked shard; the trainer does not read it.
    Feature(EXAMPLE_NUMBERS, "int64", per_example=True),
)

# The format of google-research/albert: rows of one example, K = 1, in which the
# position, weight and number of the example are not stored.
FEATURES = tuple(
    dataclasses.replace(feature, per_example=False)
    for feature in PACKED_FEATURES
    if feature.per_token
    or feature.per_prediction
    or feature.name == SENTENCE_LABEL
)

# Only with `label_vocab_size`: the label of each token, its word; 0 for none.
TOKEN_LABELS = "token_labels"
LABEL_FEATURE = Feature(TOKEN_LABELS, "int64", per_token=True)

# The features that a run computes itself under dynamic masking.
MASK_FEATURES = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


def stored_features(
    masking: str, packing: str = "none", has_labels: bool = False
) -> tuple[Feature, ...]:
    """Returns the features of a record; see `RecordsMetadata`.

    Example:
        >>> from albert_tf.config import SequenceConfig
        >>> shape = SequenceConfig(
        ...     max_seq_length=128, max_predictions_per_seq=20
        ... )
        >>> for feature in stored_features("static")[3:6]:
        ...     print(feature.name, feature.dtype, feature.length(shape))
        token_boundary int64 128
        masked_lm_positions int64 20
        masked_lm_ids int64 20
        >>> packed = stored_features("static", "best_fit")
        >>> print(packed[4].name, packed[4].length(shape))
        masked_lm_positions 27
    """
    features = FEATURES if packing == "none" else PACKED_FEATURES
    if has_labels:
        features += (LABEL_FEATURE,)
    if masking == "static":
        return features
    return tuple(f for f in features if f.name not in MASK_FEATURES)


def features_to_read(
    masking: str, packing: str = "none", has_labels: bool = False
) -> tuple[Feature, ...]:
    """Returns the features that the trainer reads from records."""
    unread = {EXAMPLE_NUMBERS}
    if masking == "static":
        unread.add("token_boundary")
    stored = stored_features(masking, packing, has_labels)
    return tuple(f for f in stored if f.name not in unread)


@dataclasses.dataclass(frozen=True)
class RecordsMetadata:
    """The contents of `metadata.json`, which describes the shards next to it.

    Attributes:
        max_seq_length, max_predictions_per_seq: Lengths of the features.
        vocab_size: Number of pieces in the vocabulary.
        vocabulary_sha256: SHA-256 of the SentencePiece model file.
        vocabulary_kind: "published" or "self_contained", see
            `tokenization.Tokenizer`.
        do_lower_case: Whether text was converted to lower case.
        sentence_objective: "sop", "nsp" or "none".
        masking: "static", or "dynamic" for records without masks.
        masked_lm_prob, ngram, short_seq_prob, dupe_factor, seed: Settings of
            the build.
        num_documents: Number of documents with examples.
        num_duplicate_documents: Number of documents that repeat another one
            after normalisation. Deduplication removes them.
        num_examples, num_masked: Numbers of examples and of masked tokens in
            all shards.
        num_pieces: Number of tokens in all records, special tokens included.
        unigram_entropy_nats: Entropy of the distribution of pieces in the
            corpus: the masked-LM loss of a model that knows only frequencies.
        shards: Number of records in each shard, by file name, in order.
        checksums: SHA-256 of each shard file, by file name.
        skipped: Numbers of skipped lines or documents, by reason.
        inputs_sha256: SHA-256 of the settings, without those of packing, and
            of the input text. Builds with equal values have equal examples.
        packing: "none", or "best_fit" for several examples per record.
        max_examples_per_row: Largest number of examples in a record; 1 if
            they are not packed.
        num_rows: Number of records in all shards.
        vocabulary_use: The fractions of the tokens of the corpus that are
            "unknown" or "bytes", and of the pieces that are "unused".
        schema_version: Version of the records, see `SCHEMA_VERSION`.
        text_form: Numbers of documents and of those with one sentence, of
            sentences and tokens, of examples and of those whose segments are
            parts of one sentence; of all splits, with duplicates.
        label_vocab_size: Number of labels of tokens; 0 without labels.
        labels_sha256: SHA-256 of the file of their words; "" without labels.
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
    packing: str
    max_examples_per_row: int
    num_rows: int
    vocabulary_use: dict[str, float]
    schema_version: int = SCHEMA_VERSION
    text_form: dict[str, int] = dataclasses.field(default_factory=dict)
    label_vocab_size: int = 0
    labels_sha256: str = ""

    @property
    def fill(self) -> float:
        """Fraction of the positions of all records that hold tokens."""
        return self.num_pieces / (self.num_rows * self.max_seq_length)

    def to_json(self) -> str:
        """Returns the text of `metadata.json`."""
        # `fill` is for people who read the file; `read_metadata` ignores it.
        values = dataclasses.asdict(self) | {"fill": round(self.fill, 6)}
        if not self.label_vocab_size:
            del values["label_vocab_size"], values["labels_sha256"]
        return json.dumps(values, indent=2) + "\n"


def read_metadata(records_dir: str) -> RecordsMetadata:
    """Reads `metadata.json` from a directory of records, local or gs://.

    Raises:
        UserError: If the file is missing, has another schema, or lacks keys.
    """
    path = posixpath.join(records_dir, METADATA_FILE)
    values = load_json(path)
    version = values.get("schema_version")
    values.pop("fill", None)
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
            f"{path} must have the keys of schema {version}",
            received=str(error),
        ) from None


def check_values_match(
    where: str,
    stored: Mapping[str, Any],
    wanted: Mapping[str, Any],
    *,
    other: str = "the settings of this run",
    remedy: str = "",
) -> None:
    """Checks that stored values equal the settings of a run, or other values.

    Args:
        where: Where the values are stored, e.g. the path of the metadata.
        stored: Stored values, by name.
        wanted: Required values, by name. Other stored values are ignored.
        other: Where the required values come from.

    Raises:
        UserError: If values differ; the error names them, with both values.
    """
    differences = [
        f"{name} {stored[name]!r} and {value!r}"
        for name, value in wanted.items()
        if stored[name] != value
    ]
    if differences:
        if not remedy:
            architecture = {
                field.name for field in dataclasses.fields(ModelConfig)
            }
            flags = [
                f"--model={name}={stored[name]}"
                if name in architecture
                else f"--{name}={stored[name]}"
                for name, value in wanted.items()
                if stored[name] != value
            ]
            remedy = f"Set {' '.join(flags)}, or build the records again."
        raise UserError(
            f"{where} must agree with {other}",
            received="; ".join(differences),
            remedy=remedy,
        )


def sha256_of(content: bytes) -> str:
    """Returns the hexadecimal SHA-256 digest."""
    return hashlib.sha256(content).hexdigest()
