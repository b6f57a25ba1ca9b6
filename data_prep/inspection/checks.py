"""Checks of every example, a batch at a time.

Each example is reported with its first fault only. Packed records are first
checked by `packed` and unpacked. The checks run in order of dependence: token
ids, padding, masked positions, layout, word boundaries, label, replacements.
Rules that only `build_tfrecords` follows are not checked in records of
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

# Limit of token ids if the vocabulary is unknown; a larger id is damage.
LARGEST_VOCABULARY = 1 << 18


@dataclasses.dataclass(frozen=True)
class RecordRules:
    """Rules that every record of a set must follow.

    Attributes:
        masking: "static", or "dynamic" for records without masks.
        sentence_objective: "sop", "nsp" or "none"; "" if unknown.
        masked_lm_prob: 0 without metadata.
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
    starts_word: np.ndarray | None = None
    packing: str = "none"
    max_examples_per_row: int = 1

    @property
    def has_metadata(self) -> bool:
        """Whether the records follow the rules of `build_tfrecords`."""
        return self.masked_lm_prob > 0

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
    if rules.has_metadata:
        check.refuse_values(
            "input_ids",
            is_masked
            & (input_ids < FIRST_ORDINARY_ID)
            & (input_ids != MASK_ID),
            f"[MASK], {MASK_ID}, or at least {FIRST_ORDINARY_ID} at a masked "
            "position",
        )
    return CheckedExamples(check.faults, restored, is_masked, features)


class BatchFaults:
    """Collects the first fault of each row of a batch.

    Attributes:
        features: The features, `(batch, length)` each, by name.
        faults: Descriptions by row.
        is_faulty: bool, `(batch,)`.

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

    def check_weights(
        self, name: str, num_used: np.ndarray, what: str
    ) -> np.ndarray:
        """Checks that `num_used` slots have weight 1 and the others 0.

        Returns:
            bool, `(batch, slots)`; whether a slot is in use.
        """
        weights = self.features[name]
        in_use = np.arange(weights.shape[1]) < num_used[:, np.newaxis]
        self.refuse_values(
            name,
            weights != in_use,
            lambda row, _: f"1 for each of {num_used[row]} {what}, then 0",
        )
        return in_use

    def check_rising(self, name: str, in_use: np.ndarray) -> None:
        """Checks that the values of used slots increase."""
        values = self.features[name]
        falls = np.zeros(in_use.shape, bool)
        falls[:, 1:] = in_use[:, 1:] & (values[:, 1:] <= values[:, :-1])
        self.refuse_values(
            name,
            falls,
            lambda row, slot: (
                f"greater than the previous one, {values[row, slot - 1]}"
            ),
        )

    def check_unused(self, in_use: np.ndarray, *names: str) -> None:
        """Checks that the values of unused slots are 0."""
        for name in names:
            self.refuse_values(
                name,
                ~in_use & (self.features[name] != 0),
                "0 where the weight is 0",
            )


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
        positions = self.features["masked_lm_positions"]
        ids = self.features["masked_lm_ids"]
        counts = np.count_nonzero(self.features["masked_lm_weights"], axis=1)
        in_use = self.check_weights(
            "masked_lm_weights", counts, "masked tokens"
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
        self.check_rising("masked_lm_positions", in_use)
        lowest = FIRST_ORDINARY_ID if self.rules.has_metadata else PAD_ID + 1
        self.refuse_values(
            "masked_lm_ids",
            in_use & ((ids < lowest) | (ids >= self.rules.vocab_size)),
            "the id of a maskable token, "
            f"from {lowest} to {self.rules.vocab_size - 1}",
        )
        self.check_unused(in_use, "masked_lm_positions", "masked_lm_ids")
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
        if self.rules.starts_word is None or not self.rules.has_metadata:
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
