"""Packed rows: checks of how examples share a record, and their examples.

The checks run before those of the examples themselves (`checks`), which depend
on the begin and end of each example.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from albert_tf.records.features import (
    EXAMPLE_NUMBERS,
    PAD_ID,
    SENTENCE_LABEL,
    RecordShape,
)
from data_prep.inspection.checks import BatchFaults

_TOKEN_FEATURES = ("input_ids", "segment_ids", "token_boundary")


def find_packing_faults(
    features: Mapping[str, np.ndarray], shape: RecordShape
) -> dict[int, str]:
    """Returns the first fault of each row, if any, by row.

    Args:
        features: The features of packed records, int64 and float32:
            `(rows, length)` each.
        shape: Lengths of a row.
    """
    check = _RowCheck(features)
    check.check_numbers()
    check.check_examples()
    if "masked_lm_weights" in features:
        check.check_predictions(shape.max_predictions_per_seq)
    return check.faults


class _RowCheck(BatchFaults):
    """Packed rows, and the first fault of each.

    Attributes:
        mask: int64, `(rows, length)`, number of the example of each token.
        slots: int64, `(max_examples_per_row,)`, 0, 1, 2, ...
    """

    def __init__(self, features: Mapping[str, np.ndarray]) -> None:
        super().__init__(features)
        self.mask = features["input_mask"]
        self.slots = np.arange(features["next_sentence_weights"].shape[1])

    def check_numbers(self) -> None:
        """Checks that `input_mask` is 1, 1, ..., 2, 2, ..., then 0."""
        is_padding = self.mask == 0
        before = np.pad(self.mask, ((0, 0), (1, 0)))[:, :-1]
        step = self.mask - before
        allowed = is_padding | ((before > 0) & ((step == 0) | (step == 1)))
        allowed[:, 0] = self.mask[:, 0] == 1
        self.refuse_values(
            "input_mask",
            ~allowed,
            lambda row, column: (
                "1, the number of the first example"
                if column == 0
                else "0 after padding"
                if before[row, column] == 0
                else f"{before[row, column]} or {before[row, column] + 1}, the "
                "number of the same or the next example, or 0 for padding"
            ),
        )
        self.refuse_values(
            "input_mask",
            self.mask > len(self.slots),
            f"at most {len(self.slots)}, the number of examples of a record",
        )
        for name in _TOKEN_FEATURES:
            self.refuse_values(
                name,
                is_padding & (self.features[name] != PAD_ID),
                "0 where input_mask is 0",
            )

    def check_examples(self) -> None:
        """Checks weights, positions, labels and numbers of the examples."""
        in_use = self.check_weights(
            "next_sentence_weights",
            self.mask.max(axis=1),
            "examples of input_mask",
        )
        is_of_slot = self.mask[:, np.newaxis] == self.slots[:, np.newaxis] + 1
        begins = is_of_slot.argmax(axis=2)
        self.refuse_values(
            "next_sentence_positions",
            in_use & (self.features["next_sentence_positions"] != begins),
            lambda row, slot: (
                f"{begins[row, slot]}, the first index where input_mask is "
                f"{slot + 1}"
            ),
        )
        self.check_unused(
            in_use, "next_sentence_positions", SENTENCE_LABEL, EXAMPLE_NUMBERS
        )
        self.check_rising(EXAMPLE_NUMBERS, in_use)

    def check_predictions(self, max_predictions: int) -> None:
        """Checks the slots of masked tokens.

        Used slots come first, with increasing positions, at most
        `max_predictions` for each example.
        """
        positions = self.features["masked_lm_positions"]
        counts = np.count_nonzero(self.features["masked_lm_weights"], axis=1)
        in_use = self.check_weights(
            "masked_lm_weights", counts, "masked tokens"
        )
        num_tokens = np.count_nonzero(self.mask, axis=1)[:, np.newaxis]
        self.refuse_values(
            "masked_lm_positions",
            in_use & ((positions < 0) | (positions >= num_tokens)),
            lambda row, _: (
                f"the position of a token, from 0 to {num_tokens[row, 0] - 1}"
            ),
        )
        self.check_rising("masked_lm_positions", in_use)
        self.check_unused(in_use, "masked_lm_positions", "masked_lm_ids")
        # Positions of faulty rows may be out of range.
        columns = np.clip(positions, 0, self.mask.shape[1] - 1)
        examples = np.take_along_axis(self.mask, columns, axis=1) * in_use
        of_example = np.count_nonzero(
            examples[:, np.newaxis] == self.slots[:, np.newaxis] + 1, axis=2
        )
        self.refuse(
            (of_example > max_predictions).any(axis=1),
            lambda row: (
                f"masked_lm_weights must be 1 for at most {max_predictions} "
                f"tokens of an example. Received: {of_example[row].max()} of "
                f"example {of_example[row].argmax() + 1}"
            ),
        )


class UnpackedRows(NamedTuple):
    """The examples of packed rows, row by row.

    Attributes:
        rows: int64, `(examples,)`, the row of each example.
        numbers: int64, `(examples,)`, numbers of the examples in their shard.
        features: The features of unpacked records, `(examples, length)`, by
            name.
    """

    rows: np.ndarray
    numbers: np.ndarray
    features: dict[str, np.ndarray]


def unpack_rows(
    rows: Mapping[str, np.ndarray], max_predictions: int
) -> UnpackedRows:
    """Returns the examples of packed rows.

    Args:
        rows: The features of packed records, `(rows, length)` each, without
            faults of packing.
        max_predictions: P, largest number of masked tokens in an example.
    """
    mask = rows["input_mask"]
    num_rows, length = mask.shape
    in_use = rows["next_sentence_weights"] > 0
    row_of = np.nonzero(in_use)[0]
    begins = rows["next_sentence_positions"][in_use]
    first_of_row = np.searchsorted(row_of, np.arange(num_rows))
    is_token = mask > 0

    def of_examples(
        examples: np.ndarray, size: int, values: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Returns `(examples, size)` arrays: values, then padding.

        `examples` has the index of the example of each value.
        """
        counts = np.bincount(examples, minlength=len(row_of))
        is_used = np.arange(size) < counts[:, np.newaxis]
        filled = {}
        for name, content in values.items():
            filled[name] = np.zeros(is_used.shape, content.dtype)
            filled[name][is_used] = content
        return filled

    token_rows = np.nonzero(is_token)[0]
    features = of_examples(
        first_of_row[token_rows] + mask[is_token] - 1,
        length,
        {
            **{name: rows[name][is_token] for name in _TOKEN_FEATURES},
            "input_mask": np.ones(len(token_rows), np.int64),
        },
    )
    features[SENTENCE_LABEL] = rows[SENTENCE_LABEL][in_use][:, np.newaxis]
    if "masked_lm_weights" in rows:
        is_masked = rows["masked_lm_weights"] > 0
        mask_rows = np.nonzero(is_masked)[0]
        positions = rows["masked_lm_positions"][is_masked]
        examples = first_of_row[mask_rows] + mask[mask_rows, positions] - 1
        features |= of_examples(
            examples,
            max_predictions,
            {
                "masked_lm_positions": positions - begins[examples],
                "masked_lm_ids": rows["masked_lm_ids"][is_masked],
                "masked_lm_weights": rows["masked_lm_weights"][is_masked],
            },
        )
    return UnpackedRows(row_of, rows[EXAMPLE_NUMBERS][in_use], features)
