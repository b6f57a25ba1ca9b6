"""Parses and checks rows of records, a batch at a time, without TensorFlow.

A row has 1 to K examples. A record of one example is a row with K = 1, which
lacks the features of packed records. The protobuf runtime parses the messages,
so that worker processes start quickly. Rules that only `build_tfrecords`
follows are not checked in records of google-research/albert, which have no
metadata.

Reference:
    https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/example.proto
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from albert_tf.records.features import (
    CLS_ID,
    EXAMPLE_NUMBERS,
    MASK_ID,
    PAD_ID,
    SENTENCE_LABEL,
    SEP_ID,
    Feature,
    stored_features,
)
from albert_tf.records.masking import FIRST_ORDINARY_ID

# Limit of token ids if the vocabulary is unknown; a larger id is damage.
LARGEST_VOCABULARY = 1 << 18

Features = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class RecordRules:
    """Rules that every record of a set must follow.

    Attributes:
        masking: "static", or "dynamic" for records without masks.
        sentence_objective: "sop", "nsp" or "none"; "" if unknown.
        masked_lm_prob: 0 without metadata.
        starts_word: bool, `(vocab_size,)`; None if unknown.
        packing: "none", or "best_fit" for several examples per record.
        max_examples_per_row: K, largest number of examples in a record.
    """

    max_seq_length: int
    max_predictions_per_seq: int
    masking: str
    vocab_size: int = LARGEST_VOCABULARY
    sentence_objective: str = ""
    masked_lm_prob: float = 0.0
    starts_word: np.ndarray | None = None
    packing: str = "none"
    max_examples_per_row: int = 1

    @property
    def has_metadata(self) -> bool:
        """Whether the records follow the rules of `build_tfrecords`."""
        return self.masked_lm_prob > 0

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features of a record."""
        return stored_features(self.masking, self.packing)


def parse_rows(
    contents: Sequence[bytes], rules: RecordRules
) -> tuple[dict[str, np.ndarray], np.ndarray, dict[int, str]]:
    """Parses serialized `tf.train.Example` messages.

    Returns:
        The features, float32 or int64, `(parsed, length)`; the indices of their
        messages; and descriptions of faults of the other messages, by index.
    """
    declared = {
        f.name: f"{f.length(rules)} values of type {f.dtype}"
        for f in rules.features
    }
    columns = {
        f.name: np.empty((len(contents), f.length(rules)), f.dtype)
        for f in rules.features
    }
    rows: list[int] = []
    faults = {}
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
            for name, column in columns.items():
                column[len(rows)] = lists[name][1]
            rows.append(row)
    features = {name: column[: len(rows)] for name, column in columns.items()}
    return features, np.array(rows, np.int64), faults


def read_lists(content: bytes) -> dict[str, tuple[str, Sequence[Any]]]:
    """Type and values of each feature; empty if `content` is not a message."""
    try:
        example = _example_class().FromString(content)
    except DecodeError:
        return {}
    lists = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        dtype = {"float_list": "float32", "int64_list": "int64"}.get(kind, kind)
        lists[name] = (str(dtype), getattr(feature, kind).value if kind else ())
    return lists


@functools.cache
def _example_class() -> Any:
    """The message `tf.train.Example`; TensorFlow's own is slow to import."""
    schema = descriptor_pb2.FileDescriptorProto(
        name="example.proto", package="data_prep", syntax="proto3"
    )
    field = descriptor_pb2.FieldDescriptorProto
    feature = schema.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, kind in enumerate(("bytes", "float", "int64"), 1):
        name = kind.capitalize() + "List"
        schema.message_type.add(name=name).field.add(
            name="value",
            number=1,
            label=field.LABEL_REPEATED,
            type=getattr(field, "TYPE_" + kind.upper()),
        )
        feature.field.add(
            name=kind + "_list", number=number, type_name=name, oneof_index=0
        )
    features = schema.message_type.add(name="Features")
    features.field.add(
        name="feature",
        number=1,
        label=field.LABEL_REPEATED,
        type_name="FeatureEntry",
    )
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING)
    entry.field.add(name="value", number=2, type_name="Feature")
    schema.message_type.add(name="Example").field.add(
        name="features", number=1, type_name="Features"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(schema)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("data_prep.Example")
    )


class CheckedRows(NamedTuple):
    """The rows of a batch that have no fault.

    Attributes:
        faults: The first fault of each other record of the batch, by index.
        records: int64, `(rows,)`, the index of the record of each row.
        features: `(rows, length)`, by name.
        restored: int64, `(rows, length)`, token ids before masking.
        is_masked: bool, `(rows, length)`.
        is_begin: bool, `(rows, length)`, the first token of each example.
    """

    faults: dict[int, str]
    records: np.ndarray
    features: dict[str, np.ndarray]
    restored: np.ndarray
    is_masked: np.ndarray
    is_begin: np.ndarray


def check_rows(contents: Sequence[bytes], rules: RecordRules) -> CheckedRows:
    """Parses and checks a batch of records, in the order of dependence."""
    features, records, faults = parse_rows(contents, rules)
    check = _Check(features)
    examples = _check_examples(check, features, rules)
    ids = features["input_ids"]
    restored = ids.clip(0, rules.vocab_size - 1)
    is_masked = np.zeros(restored.shape, bool)
    if rules.masking == "static":
        in_use = _check_masks(check, features, examples, rules)
        rows, slots = np.nonzero(in_use & ~check.is_faulty[:, np.newaxis])
        masked = rows, features["masked_lm_positions"][rows, slots]
        is_masked[masked] = True
        restored[masked] = features["masked_lm_ids"][rows, slots]
    _check_layout(check, features["input_mask"], restored, examples, rules)
    check.within("token_boundary", 0, 1)
    if rules.starts_word is not None and rules.has_metadata:
        starts_word = rules.starts_word.copy()
        starts_word[[CLS_ID, SEP_ID]] = True
        starts_word[[PAD_ID, MASK_ID]] = False
        check.equal("token_boundary", starts_word[restored])
    if rules.has_metadata:
        check.require(
            "input_ids",
            ~is_masked | (ids == MASK_ID) | (ids >= FIRST_ORDINARY_ID),
            f"[MASK], {MASK_ID}, or at least {FIRST_ORDINARY_ID} at a masked "
            "position",
        )
    faults |= {int(records[row]): what for row, what in check.faults.items()}
    kept = ~check.is_faulty
    return CheckedRows(
        faults,
        records[kept],
        {name: values[kept] for name, values in features.items()},
        restored[kept],
        is_masked[kept],
        examples.is_begin[kept],
    )


class _Examples(NamedTuple):
    """Where the examples of the rows are.

    Attributes:
        is_token, is_begin, is_end: bool, `(rows, length)`; whether a position
            holds a token, the first or the last token of an example.
        is_example: bool, `(rows, K)`; whether a slot holds an example.
        begins: int64, `(rows, K)`, the first position of each example.
    """

    is_token: np.ndarray
    is_begin: np.ndarray
    is_end: np.ndarray
    is_example: np.ndarray
    begins: np.ndarray


def _check_examples(
    check: "_Check", features: Features, rules: RecordRules
) -> _Examples:
    """Checks numbers and labels of the examples, ids, and padding."""
    numbers = features["input_mask"]
    num_slots = rules.max_examples_per_row
    num_tokens = np.count_nonzero(numbers, axis=1).clip(1)
    is_token = np.arange(numbers.shape[1]) < num_tokens[:, np.newaxis]
    is_begin = numbers > 0
    is_begin[:, 0] = True
    is_begin[:, 1:] &= numbers[:, 1:] != numbers[:, :-1]
    is_end = is_token.copy()
    is_end[:, :-1] &= numbers[:, 1:] != numbers[:, :-1]
    check.equal("input_mask", np.cumsum(is_begin, axis=1) * is_token)
    check.within("input_mask", 0, num_slots)
    check.within("input_ids", 0, rules.vocab_size - 1)
    check.zero("input_ids", ~is_token)
    begins = np.zeros((len(numbers), num_slots), np.int64)
    is_example = np.zeros(begins.shape, bool)
    rows, columns = np.nonzero(is_begin & ~check.is_faulty[:, np.newaxis])
    slots = rows, numbers[rows, columns] - 1
    begins[slots] = columns
    is_example[slots] = True
    if rules.packing != "none":
        check.equal("next_sentence_weights", is_example)
        check.equal("next_sentence_positions", begins)
        check.rising(EXAMPLE_NUMBERS, is_example)
        check.zero(EXAMPLE_NUMBERS, ~is_example)
    check.within(SENTENCE_LABEL, 0, int(rules.sentence_objective != "none"))
    check.zero(SENTENCE_LABEL, ~is_example)
    return _Examples(is_token, is_begin, is_end, is_example, begins)


def _check_masks(
    check: "_Check",
    features: Features,
    examples: _Examples,
    rules: RecordRules,
) -> np.ndarray:
    """Checks the masked tokens; returns the slots in use, `(rows, slots)`."""
    numbers, positions = features["input_mask"], features["masked_lm_positions"]
    counts = np.count_nonzero(features["masked_lm_weights"], axis=1)
    in_use = np.arange(positions.shape[1]) < counts[:, np.newaxis]
    check.equal("masked_lm_weights", in_use)
    columns = positions.clip(0, numbers.shape[1] - 1)
    is_inner = examples.is_token & ~examples.is_begin & ~examples.is_end
    check.require(
        "masked_lm_positions",
        ~in_use
        | (columns == positions)
        & np.take_along_axis(is_inner, columns, axis=1),
        "that of a token between [CLS] and the last [SEP] of an example",
    )
    check.rising("masked_lm_positions", in_use)
    # Records of other builders may mask [SEP] or <unk>.
    lowest = FIRST_ORDINARY_ID if rules.has_metadata else PAD_ID + 1
    check.within("masked_lm_ids", lowest, rules.vocab_size - 1, in_use)
    check.zero("masked_lm_positions", ~in_use)
    check.zero("masked_lm_ids", ~in_use)
    slots = np.arange(rules.max_examples_per_row)[:, np.newaxis]
    of_masks = np.take_along_axis(numbers, columns, axis=1) * in_use
    num_masked = (of_masks[:, np.newaxis] == slots + 1).sum(axis=2)
    check.require(
        "number of masked tokens of example",
        num_masked <= rules.max_predictions_per_seq,
        f"at most {rules.max_predictions_per_seq}",
        num_masked,
    )
    return in_use


def _check_layout(
    check: "_Check",
    numbers: np.ndarray,
    restored: np.ndarray,
    examples: _Examples,
    rules: RecordRules,
) -> None:
    """Checks that examples are `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]`."""
    is_token, is_begin, is_end, _, begins = examples
    is_cls, is_sep = restored == CLS_ID, restored == SEP_ID

    def require(is_right: np.ndarray, expected: str) -> None:
        check.require("input_ids", is_right, expected, restored)

    require(is_cls | ~is_begin, f"[CLS], {CLS_ID}")
    require(is_begin | ~is_cls, "a token other than [CLS]")
    require(
        ~is_token | ((restored != PAD_ID) & (restored != MASK_ID)),
        "a token other than <pad> and [MASK], since it is not masked",
    )
    require(is_sep | ~is_end, f"[SEP], {SEP_ID}, as the last token")
    # The number of [SEP] before each token in its example.
    slots = (numbers - 1).clip(0, begins.shape[1] - 1)
    first = np.take_along_axis(begins, slots, axis=1)
    before = np.cumsum(is_sep, axis=1) - is_sep
    segments = before - np.take_along_axis(before, first, axis=1)
    allowed = {"": (1, 2), "none": (1,)}.get(rules.sentence_objective, (2,))
    check.require(
        "number of [SEP] up to input_ids",
        np.isin(segments + 1, allowed) | ~is_end,
        f"{allowed[-1]}",
        segments + 1,
    )
    is_empty = np.zeros(numbers.shape, bool)
    is_empty[:, 1:] = is_sep[:, 1:] & (is_sep[:, :-1] | is_cls[:, :-1])
    require(~is_empty, "a token of a segment, which must not be empty")
    check.equal("segment_ids", segments * is_token)


class _Check:
    """Collects the first fault of each row of a batch.

    Attributes:
        faults: Descriptions by row.
        is_faulty: bool, `(rows,)`.
    """

    def __init__(self, features: Features) -> None:
        self._features = features
        self.faults: dict[int, str] = {}
        self.is_faulty = np.zeros(len(features["input_ids"]), bool)

    def require(
        self,
        name: str,
        is_right: np.ndarray,
        expected: str | Callable[[int, int], str],
        values: np.ndarray | None = None,
    ) -> None:
        """Adds a fault to rows where `is_right`, `(rows, length)`, is False.

        `expected` describes a correct value, at a row and column if needed.
        The fault shows `values`, by default those of the feature.
        """
        shown = self._features[name] if values is None else values
        is_faulty = ~is_right.all(axis=1)
        for row in np.flatnonzero(is_faulty & ~self.is_faulty).tolist():
            column = int(is_right[row].argmin())
            what = (
                expected if isinstance(expected, str) else expected(row, column)
            )
            self.faults[row] = (
                f"{name}[{column}] must be {what}. "
                f"Received: {shown[row, column]}"
            )
        self.is_faulty |= is_faulty

    def equal(self, name: str, expected: np.ndarray) -> None:
        """Requires values; flags are compared as 0 and 1."""
        self.require(
            name,
            self._features[name] == expected,
            lambda row, column: f"{expected[row, column]:d}",
        )

    def within(
        self, name: str, lowest: int, largest: int, where: Any = True
    ) -> None:
        """Requires values from `lowest` to `largest` where `where` is True."""
        values = self._features[name]
        self.require(
            name,
            (values >= lowest) & (values <= largest) | ~np.asarray(where),
            f"from {lowest} to {largest}",
        )

    def zero(self, name: str, is_unused: np.ndarray) -> None:
        """Requires 0 in unused places."""
        is_right = ~is_unused | (self._features[name] == 0)
        self.require(name, is_right, "0, as it is unused")

    def rising(self, name: str, in_use: np.ndarray) -> None:
        """Requires that the values of used slots increase."""
        values = self._features[name]
        rises = np.ones(in_use.shape, bool)
        rises[:, 1:] = ~in_use[:, 1:] | (values[:, 1:] > values[:, :-1])
        self.require(
            name,
            rises,
            lambda row, slot: (
                f"more than the one before, {values[row, slot - 1]}"
            ),
        )
