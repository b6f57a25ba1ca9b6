"""Turns packed rows into unpacked examples, the inverse of `packed_rows`."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from albert_tf.records.features import EXAMPLE_NUMBERS, SENTENCE_LABEL

_TOKEN_FEATURES = ("input_ids", "segment_ids", "token_boundary")


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
            faults of packing: see `packed_checks`.
        max_predictions: P, largest number of masked tokens in an example.
    """
    mask = rows["input_mask"].astype(np.int64)
    num_rows, length = mask.shape
    in_use = rows["next_sentence_weights"] > 0
    row_of = np.nonzero(in_use)[0]
    begins = rows["next_sentence_positions"][in_use].astype(np.int64)
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
            "input_mask": np.ones(len(token_rows), np.uint8),
        },
    )
    features[SENTENCE_LABEL] = rows[SENTENCE_LABEL][in_use][:, np.newaxis]
    if "masked_lm_weights" in rows:
        is_masked = rows["masked_lm_weights"] > 0
        mask_rows = np.nonzero(is_masked)[0]
        positions = rows["masked_lm_positions"][is_masked].astype(np.int64)
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
    return UnpackedRows(
        row_of, rows[EXAMPLE_NUMBERS][in_use].astype(np.int64), features
    )
