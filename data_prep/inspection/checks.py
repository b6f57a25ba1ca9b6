"""Checks of every example, a batch at a time.

Each example is reported with its first fault only. Packed records are first
checked by `packed` and unpacked. The checks run in order of dependence:
token ids, padding, masked positions, layout, word boundaries, label, masking
rule. Rules that only `build_tfrecords` follows are not checked in records of
google-research/albert, which have no metadata.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from albert_tf.records.features import (
    CLS_ID,
    MASK_ID,
    PAD_ID,
    SENTENCE_LABEL,
    SEP_ID,
    Feature,
    stored_features,
)
from albert_tf.records.masking import FIRST_ORDINARY_ID
from data_prep.words import find_words

# Limit of token ids if the vocabulary is unknown; a larger id is damage.
LARGEST_VOCABULARY = 1 << 18


@dataclasses.dataclass(frozen=True)
class RecordRules:
    """Rules that every record of a set must follow.

    Attributes:
        masking: "static", or "dynamic" for records without masks.
        sentence_objective: "sop", "nsp" or "none"; "" if unknown.
        masked_lm_prob, ngram: Parameters of the masking rule; 0 if unknown.
            The masking rule is then not checked.
        starts_word: bool, `(vocab_size,)`; None if unknown.
        packing: "none", or "best_fit" for several examples per record.
        max_examples_per_row: Largest number of examples in a record.
    """

    max_seq_length: int
    max_predictions_per_seq: int
    masking: str
    vocab_size: int = LARGEST_VOCABULARY
    sentence_objective: str = ""
    masked_lm_prob: float = 0.0
    ngram: int = 0
    starts_word: np.ndarray | None = None
    packing: str = "none"
    max_examples_per_row: int = 1

    def features(self) -> tuple[Feature, ...]:
        """The features of a record."""
        return stored_features(self.masking, self.packing)

    def lengths(self) -> dict[str, int]:
        """Number of values of each feature, by name."""
        return {
            feature.name: feature.length(self) for feature in self.features()
        }


class CheckedExamples(NamedTuple):
    """A batch and its faults.

    Attributes:
        faults: Descriptions by row. The other attributes are undefined in rows
            with a fault.
        restored: int32, `(batch, length)`, token ids before masking.
        is_masked: bool, `(batch, length)`.
    """

    faults: dict[int, str]
    restored: np.ndarray
    is_masked: np.ndarray
    features: Mapping[str, np.ndarray]

    def take(self, kept: np.ndarray) -> "CheckedExamples":
        """The rows without faults that `kept`, bool `(batch,)`, selects."""
        if kept.all():
            return self
        return CheckedExamples(
            {},
            self.restored[kept],
            self.is_masked[kept],
            {name: values[kept] for name, values in self.features.items()},
        )


def check_examples(
    features: Mapping[str, np.ndarray], rules: RecordRules
) -> CheckedExamples:
    """Checks a batch of features, `(batch, length)`; see `ParsedExamples`."""
    check = _BatchCheck(features, rules)
    check.check_tokens()
    # Faulty ids would be invalid indices.
    input_ids = np.clip(features["input_ids"], 0, rules.vocab_size - 1)
    input_ids = input_ids.astype(np.int32)
    restored = input_ids
    is_masked = np.zeros(input_ids.shape, bool)
    if rules.masking == "static":
        in_use = check.check_predictions()
        rows, slots = np.nonzero(in_use & ~check.is_faulty[:, np.newaxis])
        masked = rows, features["masked_lm_positions"][rows, slots]
        is_masked[masked] = True
        restored = input_ids.copy()
        restored[masked] = features["masked_lm_ids"][rows, slots]
    check.check_layout(restored)
    check.check_boundaries(restored)
    check.check_label()
    if rules.masking == "static" and rules.ngram:
        check.check_replacements(input_ids, is_masked)
        check.check_masking_rule(restored, is_masked)
    return CheckedExamples(check.faults, restored, is_masked, features)


class BatchFaults:
    """Collects the first fault of each row of a batch.

    Attributes:
        features: The features, `(batch, length)` each, by name.
        faults: Descriptions by row.
        is_faulty: bool, `(batch,)`.

    Example:
        >>> batch = BatchFaults({"label": np.array([[0], [7]])})
        >>> label = batch.features["label"]
        >>> batch.refuse_values("label", label > 1, "0 or 1")
        >>> batch.faults
        {1: 'label[0] must be 0 or 1. Received: 7'}
    """

    def __init__(self, features: Mapping[str, np.ndarray]) -> None:
        self.features = features
        self.faults: dict[int, str] = {}
        num_rows = len(next(iter(features.values())))
        self.is_faulty = np.zeros(num_rows, bool)

    def refuse(
        self, is_faulty: np.ndarray, describe: Callable[[int], str]
    ) -> None:
        """Adds a fault to rows without one; `is_faulty` is bool, `(batch,)`."""
        for row in np.flatnonzero(is_faulty & ~self.is_faulty).tolist():
            self.faults[row] = describe(row)
        self.is_faulty |= is_faulty

    def refuse_values(
        self,
        name: str,
        is_faulty: np.ndarray,
        expected: str | Callable[[int, int], str],
        values: np.ndarray | None = None,
    ) -> None:
        """Adds a fault to rows where `is_faulty`, `(batch, length)`, is True.

        `expected` describes a correct value, at a row and column if needed.
        The fault shows `values`, by default those of the feature.
        """
        shown = self.features[name] if values is None else values

        def describe(row: int) -> str:
            column = int(is_faulty[row].argmax())
            what = expected(row, column) if callable(expected) else expected
            received = shown[row, column]
            return f"{name}[{column}] must be {what}. Received: {received}"

        self.refuse(np.asarray(is_faulty.any(axis=1)), describe)


class _BatchCheck(BatchFaults):
    """A batch, its rules, and the first fault of each row."""

    def __init__(
        self, features: Mapping[str, np.ndarray], rules: RecordRules
    ) -> None:
        super().__init__(features)
        self.rules = rules
        self.num_tokens = np.count_nonzero(features["input_mask"], axis=1)

    def check_tokens(self) -> None:
        """Checks token ids, the number of tokens, and padding."""
        ids, mask = self.features["input_ids"], self.features["input_mask"]
        self.refuse_values(
            "input_ids",
            (ids < 0) | (ids >= self.rules.vocab_size),
            f"a token id from 0 to {self.rules.vocab_size - 1}",
        )
        is_token = np.arange(mask.shape[1]) < self.num_tokens[:, np.newaxis]
        self.refuse_values(
            "input_mask",
            mask != is_token,
            lambda row, _: (
                f"1 for each of {self.num_tokens[row]} tokens, then 0"
            ),
        )
        shortest = 3 if self.rules.sentence_objective in ("none", "") else 5
        self.refuse(
            self.num_tokens < shortest,
            lambda row: (
                f"input_mask must be 1 for at least {shortest} tokens. "
                f"Received: {self.num_tokens[row]}"
            ),
        )
        self.refuse_values(
            "input_ids", (ids != PAD_ID) & ~is_token, "0 after the last token"
        )

    def check_predictions(self) -> np.ndarray:
        """Checks positions, original ids and weights of the masked tokens.

        Returns:
            bool, `(batch, max_predictions)`; the slots in use.
        """
        weights = self.features["masked_lm_weights"]
        positions = self.features["masked_lm_positions"]
        ids = self.features["masked_lm_ids"]
        counts = np.count_nonzero(weights, axis=1)
        in_use = np.arange(weights.shape[1]) < counts[:, np.newaxis]
        self.refuse_values(
            "masked_lm_weights",
            weights != in_use,
            lambda row, _: f"1 for each of {counts[row]} masked tokens, then 0",
        )
        last = self.num_tokens[:, np.newaxis] - 1
        self.refuse_values(
            "masked_lm_positions",
            in_use & ((positions < 1) | (positions >= last)),
            lambda row, _: (
                "between [CLS] and the last [SEP], "
                f"from 1 to {last[row, 0] - 1}"
            ),
        )
        falls = np.zeros(in_use.shape, bool)
        falls[:, 1:] = in_use[:, 1:] & (positions[:, 1:] <= positions[:, :-1])
        self.refuse_values(
            "masked_lm_positions",
            falls,
            lambda row, slot: (
                "greater than the previous position, "
                f"{positions[row, slot - 1]}"
            ),
        )
        lowest = FIRST_ORDINARY_ID if self.rules.ngram else PAD_ID + 1
        self.refuse_values(
            "masked_lm_ids",
            in_use & ((ids < lowest) | (ids >= self.rules.vocab_size)),
            "the id of a maskable token, "
            f"from {lowest} to {self.rules.vocab_size - 1}",
        )
        for name in ("masked_lm_positions", "masked_lm_ids"):
            self.refuse_values(
                name,
                ~in_use & (self.features[name] != 0),
                "0 where the weight is 0",
            )
        return in_use

    def check_layout(self, restored: np.ndarray) -> None:
        """Checks special tokens, `[CLS] A [SEP] B [SEP]`, and segment ids."""
        columns = np.arange(restored.shape[1])
        last = self.num_tokens - 1
        is_token = columns <= last[:, np.newaxis]
        is_cls, is_sep = restored == CLS_ID, restored == SEP_ID

        def refuse(is_faulty: np.ndarray, expected: str) -> None:
            self.refuse_values("input_ids", is_faulty, expected, restored)

        refuse(~is_cls & (columns == 0), f"[CLS], {CLS_ID}")
        refuse(is_cls & (columns > 0), "a token other than [CLS]")
        refuse(
            restored == MASK_ID,
            "a token other than [MASK], since its position is not masked",
        )
        refuse(
            (restored == PAD_ID) & is_token,
            "a token other than <pad> up to the last token",
        )
        num_sep = np.count_nonzero(is_sep, axis=1)
        allowed = {"": (1, 2), "none": (1,)}.get(
            self.rules.sentence_objective, (2,)
        )
        self.refuse(
            ~np.isin(num_sep, allowed),
            lambda row: (
                f"input_ids must hold {allowed[-1]} [SEP], {SEP_ID}. "
                f"Received: {num_sep[row]}"
            ),
        )
        refuse(
            ~is_sep & (columns == last[:, np.newaxis]),
            f"[SEP], {SEP_ID}, as the last token",
        )
        first_sep = is_sep.argmax(axis=1)
        self.refuse(
            (first_sep == 1) | (last == first_sep + 1),
            lambda _: "input_ids must hold no empty segment",
        )
        is_second = is_token & (columns > first_sep[:, np.newaxis])
        self.refuse_values(
            "segment_ids",
            self.features["segment_ids"] != is_second,
            lambda row, column: (
                f"{is_second[row, column]:d}, since the first [SEP] is at "
                f"{first_sep[row]} and the last token at {last[row]}"
            ),
        )

    def check_boundaries(self, restored: np.ndarray) -> None:
        """Checks word starts; compares them with the vocabulary if known."""
        boundary = self.features["token_boundary"]
        self.refuse_values(
            "token_boundary", (boundary < 0) | (boundary > 1), "0 or 1"
        )
        if self.rules.starts_word is None or not self.rules.ngram:
            return
        starts_word = self.rules.starts_word.copy()
        starts_word[[CLS_ID, SEP_ID]] = True
        starts_word[[PAD_ID, MASK_ID]] = False
        expected = starts_word[restored]
        self.refuse_values(
            "token_boundary",
            boundary != expected,
            lambda row, column: (
                f"{expected[row, column]:d} for token {restored[row, column]}"
            ),
        )

    def check_label(self) -> None:
        """Checks the labels of the sentence objective."""
        label = self.features[SENTENCE_LABEL]
        has_pairs = self.rules.sentence_objective != "none"
        self.refuse_values(
            SENTENCE_LABEL,
            (label < 0) | (label > has_pairs),
            "0 or 1" if has_pairs else "0, since there is no second segment",
        )

    def check_replacements(
        self, input_ids: np.ndarray, is_masked: np.ndarray
    ) -> None:
        """Checks that masked positions hold `[MASK]` or an ordinary token."""
        self.refuse_values(
            "input_ids",
            is_masked
            & (input_ids < FIRST_ORDINARY_ID)
            & (input_ids != MASK_ID),
            f"[MASK], {MASK_ID}, or at least {FIRST_ORDINARY_ID} at a masked "
            "position",
        )

    def check_masking_rule(
        self, restored: np.ndarray, is_masked: np.ndarray
    ) -> None:
        """Checks complete words and the budget; see `records.masking`."""
        num_rows, length = restored.shape
        ngram = self.rules.ngram
        words = find_words(restored, self.features["token_boundary"])
        num_in_words = words.count_tokens(is_masked)

        is_torn = (num_in_words > 0) & (num_in_words < words.sizes)

        def describe_torn(row: int) -> str:
            word = np.flatnonzero(is_torn & (words.rows == row))[0]
            return (
                "masked_lm_positions must mask complete words. Received: "
                f"{num_in_words[word]} of the {words.sizes[word]} tokens of "
                f"the word at {words.starts[word] % length}"
            )

        torn_rows = np.bincount(words.rows[is_torn], minlength=num_rows) > 0
        self.refuse(torn_rows, describe_torn)

        num_masked = np.count_nonzero(is_masked, axis=1)
        budgets = np.rint(self.rules.masked_lm_prob * self.num_tokens)
        budgets = budgets.clip(1, self.rules.max_predictions_per_seq)
        budgets = budgets.astype(np.int64)
        # If no span fits the budget, masking takes a single one that exceeds
        # it.
        is_word_masked = num_in_words > 0
        num_words = np.bincount(words.rows[is_word_masked], minlength=num_rows)
        is_one_span = (words.count_spans(is_word_masked, num_rows) == 1) & (
            num_words <= ngram
        )
        self.refuse(
            (num_masked > budgets) & ~is_one_span,
            lambda row: (
                f"masked_lm_weights must be 1 for at most "
                f"{budgets[row]} of {self.num_tokens[row]} tokens. "
                f"Received: {num_masked[row]}"
            ),
        )

        # Masking skips a span only if it is larger than the rest of the
        # budget. So the rest must be smaller than the largest possible span
        # of the row, which has at most `ngram` words.
        span_sizes = words.sizes.copy()
        segments = np.cumsum(words.opens_segment)
        for i in range(1, min(ngram, len(span_sizes))):
            same_segment = segments[i:] == segments[:-i]
            span_sizes[:-i] += np.where(same_segment, words.sizes[i:], 0)
        largest = np.zeros(num_rows, np.int64)
        np.maximum.at(largest, words.rows, span_sizes)
        num_maskable = np.count_nonzero(restored >= FIRST_ORDINARY_ID, axis=1)
        unused = budgets - num_masked
        self.refuse(
            (unused >= largest) & (num_masked < num_maskable),
            lambda row: (
                "masked_lm_weights must be 1 for more of "
                f"{self.num_tokens[row]} tokens: {unused[row]} of the budget "
                f"of {budgets[row]} are unused, and no span of {ngram} words "
                f"has more than {largest[row]} tokens. "
                f"Received: {num_masked[row]}"
            ),
        )
