"""Reads, checks and counts the records of a shard, without TensorFlow.

A row has 1 to K examples. A record of one example is a row with K = 1, which
lacks the features of packed records. Records of google-research/albert have no
metadata: `learn_metadata` stands for it, and their rules are less strict.

Reference:
    https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/example.proto
"""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from albert_tf.errors import UserError
from albert_tf.io.files import open_existing
from albert_tf.io.tfrecord import read_records
from albert_tf.records.features import (
    CLS_ID,
    EXAMPLE_NUMBERS,
    MASK_ID,
    PAD_ID,
    SENTENCE_LABEL,
    SEP_ID,
    RecordsMetadata,
    stored_features,
)
from albert_tf.records.masking import FIRST_ORDINARY_ID
from albert_tf.records.word_boundaries import WordBoundaries

# Tokens of a batch; an array of this size fits the caches of the processor.
_TOKENS_PER_BATCH = 1 << 17

# Faults of a shard, and of a directory, that are described.
MAX_FAULTS = 20

# Limit of token ids if the vocabulary is unknown; a larger id is damage.
_LARGEST_VOCABULARY = 1 << 18

# The rules for a record: the metadata of its set, with 0 and "" for what is
# unknown; and where words begin, or None if this is not checked.
Rules: TypeAlias = tuple[RecordsMetadata, WordBoundaries | None]


def learn_metadata(shard: str, vocab_size: int) -> RecordsMetadata:
    """What the first record shows; unknown values are 0 or empty.

    Args:
        vocab_size: 0 if it is unknown.
    """
    with open_existing(shard, "rb") as file:
        record = next(read_records(file), None)
    lists = read_lists(record.content) if record else {}
    if record is None or "input_ids" not in lists:
        raise UserError(
            "input_file must hold TFRecords of tf.train.Example with input_ids",
            received=f"{shard}: "
            + (record.fault if record and record.fault else "none in record 0"),
        )
    _, positions = lists.get("masked_lm_positions", ("", ()))
    names = [field.name for field in dataclasses.fields(RecordsMetadata)]
    known: dict[str, Any] = {
        "max_seq_length": len(lists["input_ids"][1]),
        "max_predictions_per_seq": len(positions),
        "masking": "static" if positions else "dynamic",
        "packing": "none",
        "max_examples_per_row": 1,
        "sentence_objective": "",
        "vocab_size": vocab_size or _LARGEST_VOCABULARY,
    }
    return RecordsMetadata(**dict.fromkeys(names, 0) | known)


# --- a shard -----------------------------------------------------------------


@dataclasses.dataclass
class ShardReport:
    """The result of the inspection of a shard.

    Attributes:
        faults: The first faults, sorted by record.
        sha256: Digest of the file.
        statistics: Of the rows without faults; see `_count_rows`.
    """

    faults: list[str] = dataclasses.field(default_factory=list)
    num_faults: int = 0
    sha256: str = ""
    statistics: dict[str, Any] = dataclasses.field(default_factory=dict)


def add(statistics: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Adds numbers and arrays by name."""
    for name, values in more.items():
        statistics[name] = statistics.get(name, 0) + values


def inspect_shard(_state: Any, task: tuple[str, Rules]) -> ShardReport:
    """Reads and checks a shard, given by its path and its rules."""
    path, rules = task
    report = ShardReport()
    metadata, _ = rules
    batch_size = max(16, _TOKENS_PER_BATCH // metadata.max_seq_length)
    with open_existing(path, "rb") as stored:
        file = _DigestedFile(stored)
        records = read_records(file)
        is_end = False
        while not is_end:
            batch = list(itertools.islice(records, batch_size))
            is_end = not batch
            intact = [record for record in batch if not record.fault]
            rows = check_rows([record.content for record in intact], rules)
            faults = {r.number: r.fault for r in batch if r.fault}
            faults |= {intact[i].number: w for i, w in rows.faults.items()}
            report.faults += [
                f"{path}, record {r.number} at byte {r.offset}: "
                f"{faults[r.number]}"
                for r in batch
                if r.number in faults
            ]
            del report.faults[MAX_FAULTS:]
            report.num_faults += len(faults)
            add(report.statistics, _count_rows(rows))
        while file.read(1 << 20):  # beyond a damaged length
            pass
    report.sha256 = file.digest.hexdigest()
    return report


class _DigestedFile:
    """A file whose bytes are digested while they are read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        block = self._file.read(size)
        self.digest.update(block)
        return block


def _count_rows(rows: "CheckedRows") -> dict[str, int | np.ndarray]:
    """Counts rows, examples, tokens and masked tokens.

    `replacements`, int64, `(3,)`: masked tokens that show `[MASK]`, the
    original token, another token.
    """
    numbers = rows.features["input_mask"]
    shown = rows.features["input_ids"][rows.is_masked]
    is_mask = shown == MASK_ID
    is_kept = shown == rows.restored[rows.is_masked]
    kinds = is_mask, is_kept, ~is_mask & ~is_kept
    return {
        "num_rows": len(numbers),
        "num_examples": int(numbers.max(axis=1).sum()),
        "num_pieces": int(np.count_nonzero(numbers)),
        "replacements": np.array([kind.sum() for kind in kinds]),
    }


# --- messages ----------------------------------------------------------------


def read_lists(content: bytes) -> dict[str, tuple[str, Sequence[Any]]]:
    """Type and values of each feature; empty if `content` is not a message."""
    try:
        example = _example_class().FromString(content)
    except DecodeError:
        return {}
    lists = {}
    for entry in example.features.feature:
        fields = entry.value.ListFields()
        lists[entry.key] = (
            (fields[0][0].name, fields[0][1].value) if fields else ("none", ())
        )
    return lists


@functools.cache
def _example_class() -> Any:
    """The message `tf.train.Example`; TensorFlow's own is slow to import.

    Its bytes do not tell a map from repeated entries, nor the choice of a
    `oneof` from a field.
    """
    kinds = descriptor_pb2.FieldDescriptorProto
    schema = descriptor_pb2.FileDescriptorProto(
        name="example.proto", package="data_prep", syntax="proto3"
    )
    # The fields of each message, repeated if its name is a plural.
    for message, fields in {
        "strings": {"value": kinds.TYPE_BYTES},
        "floats": {"value": kinds.TYPE_FLOAT},
        "integers": {"value": kinds.TYPE_INT64},
        "value": {"bytes": "strings", "float32": "floats", "int64": "integers"},
        "entry": {"key": kinds.TYPE_STRING, "value": "value"},
        "features": {"feature": "entry"},
        "example": {"features": "features"},
    }.items():
        into = schema.message_type.add(name=message)
        for number, (name, kind) in enumerate(fields.items(), 1):
            field = into.field.add(name=name, number=number)
            if message.endswith("s"):
                field.label = kinds.LABEL_REPEATED
            if isinstance(kind, str):
                field.type_name = kind
            else:
                field.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(schema)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("data_prep.example")
    )


def _parse_rows(
    contents: Sequence[bytes], metadata: RecordsMetadata
) -> tuple[dict[str, np.ndarray], list[int], dict[int, str]]:
    """Parses serialized `tf.train.Example` messages.

    Returns:
        The features, float32 or int64, `(parsed, length)`; the indices of their
        messages; and descriptions of faults of the other messages, by index.
    """
    features = stored_features(metadata.masking, metadata.packing)
    lengths = {f.name: f.length(metadata) for f in features}
    declared = {
        f.name: f"{lengths[f.name]} values of type {f.dtype}" for f in features
    }
    parsed, faults = {}, {}
    for row, content in enumerate(contents):
        lists = read_lists(content)
        received = {
            name: f"{len(values)} values of type {dtype}"
            for name, (dtype, values) in lists.items()
        }
        if not lists:
            faults[row] = (
                "must be a tf.train.Example. "
                f"Received: {len(content)} bytes that cannot be decoded"
            )
        elif received != declared:
            faults[row] = "must hold other features. " + "; ".join(
                f"{name}: {declared.get(name, 'must not exist')}. "
                f"Received: {received.get(name, 'none')}"
                for name in sorted(declared.keys() | received.keys())
                if declared.get(name) != received.get(name)
            )
        else:
            parsed[row] = lists
    columns = {
        f.name: np.array(
            [lists[f.name][1] for lists in parsed.values()], f.dtype
        ).reshape(-1, lengths[f.name])
        for f in features
    }
    return columns, list(parsed), faults


# --- rows --------------------------------------------------------------------


class CheckedRows(NamedTuple):
    """The rows of a batch that have no fault.

    Attributes:
        faults: The first fault of each other record of the batch, by index.
        features: `(rows, length)`, by name.
        restored: int64, `(rows, length)`, token ids before masking.
        is_masked: bool, `(rows, length)`.
    """

    faults: dict[int, str]
    features: dict[str, np.ndarray]
    restored: np.ndarray
    is_masked: np.ndarray


def check_rows(contents: Sequence[bytes], rules: Rules) -> CheckedRows:
    """Parses and checks a batch of records, in the order of dependence."""
    metadata, _ = rules
    features, records, faults = _parse_rows(contents, metadata)
    check = _Check(features, rules)
    check.examples()
    restored = features["input_ids"].clip(0, metadata.vocab_size - 1)
    is_masked = np.zeros(restored.shape, bool)
    if metadata.masking == "static":
        in_use = check.masks() & ~check.is_faulty[:, np.newaxis]
        rows = np.nonzero(in_use)[0]
        masked = rows, features["masked_lm_positions"][in_use]
        is_masked[masked] = True
        restored[masked] = features["masked_lm_ids"][in_use]
    check.layout(restored, is_masked)
    faults |= {records[row]: what for row, what in check.faults.items()}
    kept = ~check.is_faulty
    intact = {name: values[kept] for name, values in features.items()}
    return CheckedRows(faults, intact, restored[kept], is_masked[kept])


class _Check:
    """Checks a batch, and collects the first fault of each row.

    Attributes:
        faults: Descriptions by row.
        is_faulty: bool, `(rows,)`.
    """

    def __init__(
        self, features: Mapping[str, np.ndarray], rules: Rules
    ) -> None:
        self.faults: dict[int, str] = {}
        self.is_faulty = np.zeros(len(features["input_ids"]), bool)
        self._features = features
        self._metadata, self._words = rules
        self._has_metadata = self._metadata.masked_lm_prob > 0
        numbers = features["input_mask"]
        num_tokens = np.count_nonzero(numbers, axis=1).clip(1)
        changes = numbers[:, 1:] != numbers[:, :-1]
        # bool, `(rows, length)`: the tokens, and the first and the last token
        # of each example. A row has at least one token.
        self._is_token = np.arange(numbers.shape[1]) < num_tokens[:, np.newaxis]
        self._is_begin = numbers > 0
        self._is_begin[:, 0] = True
        self._is_begin[:, 1:] &= changes
        self._is_end = self._is_token.copy()
        self._is_end[:, :-1] &= changes

    def examples(self) -> None:
        """Checks numbers and labels of the examples, ids, and padding."""
        metadata, numbers = self._metadata, self._features["input_mask"]
        self._equal(
            "input_mask", np.cumsum(self._is_begin, axis=1) * self._is_token
        )
        self._within("input_mask", 0, metadata.max_examples_per_row)
        self._within("input_ids", 0, metadata.vocab_size - 1)
        self._zero("input_ids", ~self._is_token)
        slots = np.arange(metadata.max_examples_per_row)
        is_example = slots < numbers.max(axis=1, keepdims=True)
        if metadata.packing != "none":
            begins = np.zeros(is_example.shape, np.int64)
            intact = self._is_begin & ~self.is_faulty[:, np.newaxis]
            rows, columns = np.nonzero(intact)
            begins[rows, numbers[rows, columns] - 1] = columns
            self._equal("next_sentence_weights", is_example)
            self._equal("next_sentence_positions", begins)
            self._rising(EXAMPLE_NUMBERS, is_example)
        largest = int(metadata.sentence_objective != "none")
        self._within(SENTENCE_LABEL, 0, largest)
        self._zero(SENTENCE_LABEL, ~is_example)

    def masks(self) -> np.ndarray:
        """Checks the masked tokens; returns the slots in use."""
        positions = self._features["masked_lm_positions"]
        counts = np.count_nonzero(self._features["masked_lm_weights"], axis=1)
        in_use = np.arange(positions.shape[1]) < counts[:, np.newaxis]
        self._equal("masked_lm_weights", in_use)
        columns = positions.clip(0, self._is_token.shape[1] - 1)
        is_inner = self._is_token & ~self._is_begin & ~self._is_end
        is_right = np.take_along_axis(is_inner, columns, axis=1)
        self._require(
            "masked_lm_positions",
            ~in_use | (columns == positions) & is_right,
            "that of a token between [CLS] and the last [SEP] of an example",
        )
        self._rising("masked_lm_positions", in_use)
        # Records of other builders may mask [SEP] or <unk>.
        lowest = FIRST_ORDINARY_ID if self._has_metadata else PAD_ID + 1
        largest = self._metadata.vocab_size - 1
        self._within("masked_lm_ids", lowest, largest, in_use)
        self._zero("masked_lm_ids", ~in_use)
        return in_use

    def layout(self, restored: np.ndarray, is_masked: np.ndarray) -> None:
        """Checks that examples are `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`.

        Args:
            restored: int64, `(rows, length)`, token ids before masking.
            is_masked: bool, `(rows, length)`.
        """
        is_begin, is_end = self._is_begin, self._is_end
        is_cls, is_sep = restored == CLS_ID, restored == SEP_ID
        is_other = (restored == PAD_ID) | (restored == MASK_ID)
        is_empty = np.zeros(is_sep.shape, bool)
        is_empty[:, 1:] = is_sep[:, 1:] & (is_sep[:, :-1] | is_cls[:, :-1])
        # The number of [SEP] before each token in its example.
        before = np.cumsum(is_sep, axis=1) - is_sep
        at_begin = np.where(is_begin, before, 0)
        segments = before - np.maximum.accumulate(at_begin, axis=1)
        objective = self._metadata.sentence_objective
        allowed = {"": (1, 2), "none": (1,)}.get(objective, (2,))
        for is_wrong, expected in (
            (is_begin & ~is_cls, f"[CLS], {CLS_ID}"),
            (is_cls & ~is_begin, "a token other than [CLS]"),
            (
                self._is_token & is_other,
                "a token other than <pad> and [MASK], since it is not masked",
            ),
            (is_end & ~is_sep, f"[SEP], {SEP_ID}, as the last token"),
            (
                is_end & ~np.isin(segments + 1, allowed),
                f"the last of {allowed[-1]} [SEP] of its example",
            ),
            (is_empty, "a token of a segment, which must not be empty"),
        ):
            self._require("input_ids", ~is_wrong, expected, restored)
        self._equal("segment_ids", segments * self._is_token)
        self._within("token_boundary", 0, 1)
        if not self._has_metadata:
            return
        if self._words is not None:
            self._equal("token_boundary", self._words.find(restored))
        ids = self._features["input_ids"]
        self._require(
            "input_ids",
            ~is_masked | (ids == MASK_ID) | (ids >= FIRST_ORDINARY_ID),
            f"[MASK], {MASK_ID}, or at least {FIRST_ORDINARY_ID} at a masked "
            "position",
        )

    def _require(
        self,
        name: str,
        is_right: np.ndarray,
        expected: str | np.ndarray,
        values: np.ndarray | None = None,
    ) -> None:
        """Adds a fault to rows where `is_right`, `(rows, length)`, is False.

        The fault shows `values`, by default those of the feature, and what was
        `expected`, for all values or for each.
        """
        shown = self._features[name] if values is None else values
        is_faulty = ~is_right.all(axis=1)
        for row in np.flatnonzero(is_faulty & ~self.is_faulty).tolist():
            column = int(is_right[row].argmin())
            what = (
                expected
                if isinstance(expected, str)
                else f"{expected[row, column]:d}"
            )
            self.faults[row] = (
                f"{name}[{column}] must be {what}. "
                f"Received: {shown[row, column]}"
            )
        self.is_faulty |= is_faulty

    def _equal(self, name: str, expected: np.ndarray) -> None:
        self._require(name, self._features[name] == expected, expected)

    def _within(
        self, name: str, lowest: int, largest: int, where: Any = True
    ) -> None:
        values = self._features[name]
        is_right = (values >= lowest) & (values <= largest)
        expected = f"from {lowest} to {largest}"
        self._require(name, is_right | ~np.asarray(where), expected)

    def _zero(self, name: str, is_unused: np.ndarray) -> None:
        is_right = ~is_unused | (self._features[name] == 0)
        self._require(name, is_right, "0, as it is unused")

    def _rising(self, name: str, in_use: np.ndarray) -> None:
        """Requires that used slots increase, and that the others hold 0."""
        rises = np.diff(self._features[name], axis=1) > 0
        is_right = np.pad(rises, ((0, 0), (1, 0)), constant_values=True)
        self._require(name, ~in_use | is_right, "more than the one before")
        self._zero(name, ~in_use)
