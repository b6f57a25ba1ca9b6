"""Turns batches of examples into batches of packed rows.

`packing.BestFit` decides which examples a row has. The examples of rows that
are not complete wait here, without their padding.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Self

import numpy as np

from albert_tf.config import MaskingConfig
from albert_tf.records.features import (
    EXAMPLE_NUMBERS,
    SENTENCE_LABEL,
    RecordShape,
)
from data_prep.builder.mask_limits import largest_mask_counts
from data_prep.builder.packing import BestFit

Features = Mapping[str, np.ndarray]

_TOKEN_FEATURES = ("input_ids", "segment_ids", "token_boundary")
_MASK_FEATURES = ("masked_lm_positions", "masked_lm_ids")


def pack_rows(
    batches: Iterable[Features], config: MaskingConfig
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the packed rows of a shard, in batches.

    Args:
        batches: The examples of the shard in order: the features of unpacked
            records, with or without masks.
        config: Lengths of a row, and the masking rule.

    Yields:
        The features of packed records: integer and float32 arrays `(rows,
        length)` by name, see `features.PACKED_FEATURES`. Batches have
        different sizes.

    Example:
        >>> config = MaskingConfig(max_seq_length=8, max_predictions_per_seq=1)
        >>> two = {
        ...     "input_ids": np.array([[2, 7, 8, 3, 0, 0, 0, 0]] * 2),
        ...     "input_mask": np.array([[1, 1, 1, 1, 0, 0, 0, 0]] * 2),
        ...     "segment_ids": np.zeros((2, 8), np.int64),
        ...     "token_boundary": np.array([[1, 1, 0, 1, 0, 0, 0, 0]] * 2),
        ...     "next_sentence_labels": np.array([[0], [0]]),
        ... }
        >>> (row,) = pack_rows([two], config)
        >>> row["input_ids"].tolist(), row["input_mask"].tolist()
        ([[2, 7, 8, 3, 2, 7, 8, 3]], [[1, 1, 1, 1, 2, 2, 2, 2]])
        >>> row["next_sentence_positions"].tolist()
        [[0, 4, 0, 0, 0, 0, 0, 0]]
    """
    best_fit = BestFit(config)
    waiting: _Examples | None = None
    num_examples = 0
    for features in batches:
        batch = _Examples.without_padding(features, num_examples)
        num_examples += len(batch.numbers)
        waiting = batch if waiting is None else waiting.plus(batch)
        num_masked = batch.masked
        if not batch.masks:
            num_masked = largest_mask_counts(
                features["input_ids"], features["token_boundary"], config
            )
        rows = best_fit.add(batch.lengths.tolist(), num_masked.tolist())
        if rows:
            order = waiting.find(rows)
            yield _lay_out(waiting, order, rows, config)
            waits = np.ones(len(waiting.numbers), bool)
            waits[order] = False
            waiting = waiting.take(np.flatnonzero(waits))
    rows = best_fit.close()
    if waiting is not None and rows:
        yield _lay_out(waiting, waiting.find(rows), rows, config)


class _Examples(NamedTuple):
    """Examples without their padding.

    Attributes:
        numbers: int64, `(examples,)`, increasing; their numbers in the shard.
        lengths: int64, `(examples,)`, their numbers of tokens.
        masked: int64, `(examples,)`, their numbers of masked tokens.
        labels: `(examples,)`, labels of the sentence objective.
        tokens: The features of tokens, `(tokens,)`, by name.
        masks: The features of masked tokens, `(masked tokens,)`, by name;
            empty if the examples have no masks.
    """

    numbers: np.ndarray
    lengths: np.ndarray
    masked: np.ndarray
    labels: np.ndarray
    tokens: dict[str, np.ndarray]
    masks: dict[str, np.ndarray]

    @classmethod
    def without_padding(cls, features: Features, first: int) -> Self:
        """Returns a batch of examples, which are numbered from `first`."""
        is_token = features["input_mask"].astype(bool)
        num_examples = len(is_token)
        masked = np.zeros(num_examples, np.int64)
        masks = {}
        if "masked_lm_weights" in features:
            is_masked = features["masked_lm_weights"] > 0
            masked = np.count_nonzero(is_masked, axis=1)
            masks = {name: features[name][is_masked] for name in _MASK_FEATURES}
        return cls(
            first + np.arange(num_examples),
            np.count_nonzero(is_token, axis=1),
            masked,
            features[SENTENCE_LABEL][:, 0],
            {name: features[name][is_token] for name in _TOKEN_FEATURES},
            masks,
        )

    def plus(self, other: Self) -> Self:
        """Returns the examples of both."""
        return type(self)(
            np.append(self.numbers, other.numbers),
            np.append(self.lengths, other.lengths),
            np.append(self.masked, other.masked),
            np.append(self.labels, other.labels),
            {n: np.append(v, other.tokens[n]) for n, v in self.tokens.items()},
            {n: np.append(v, other.masks[n]) for n, v in self.masks.items()},
        )

    def take(self, indices: np.ndarray) -> Self:
        """Returns some examples, in the order of `indices`."""
        tokens = _indices_of_parts(self.lengths, indices)
        masks = _indices_of_parts(self.masked, indices)
        return type(self)(
            self.numbers[indices],
            self.lengths[indices],
            self.masked[indices],
            self.labels[indices],
            {name: values[tokens] for name, values in self.tokens.items()},
            {name: values[masks] for name, values in self.masks.items()},
        )

    def find(self, rows: list[list[int]]) -> np.ndarray:
        """Returns the indices of the examples of some rows, row by row."""
        numbers = np.array([number for row in rows for number in row])
        return np.searchsorted(self.numbers, numbers)


def _indices_of_parts(lengths: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Returns the indices of the elements of some parts of an array.

    Args:
        lengths: `(all parts,)`, lengths of consecutive parts of the array.
        parts: Indices of parts.
    """
    begins = (np.cumsum(lengths) - lengths)[parts]
    lengths = lengths[parts]
    shifts = begins - (np.cumsum(lengths) - lengths)
    return np.repeat(shifts, lengths) + np.arange(lengths.sum())


def _lay_out(
    waiting: _Examples,
    order: np.ndarray,
    rows: list[list[int]],
    shape: RecordShape,
) -> dict[str, np.ndarray]:
    """Returns the features of packed rows.

    Args:
        order: Indices of the examples of the rows, row by row.
        rows: The examples of each row.
    """
    examples = waiting.take(order)
    sizes = np.array([len(row) for row in rows])
    row_of = np.repeat(np.arange(len(rows)), sizes)
    slot_of = np.arange(len(row_of)) - (np.cumsum(sizes) - sizes)[row_of]
    tokens_before = np.cumsum(examples.lengths) - examples.lengths
    begins = tokens_before - tokens_before[slot_of == 0][row_of]

    def fill(
        counts: np.ndarray, length: int, values: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Puts `counts` values of each example into the rows."""
        of_row = np.bincount(row_of, counts, len(rows))
        is_used = np.arange(length) < of_row[:, np.newaxis]
        filled = {}
        for name, content in values.items():
            filled[name] = np.zeros(is_used.shape, content.dtype)
            filled[name][is_used] = content
        return filled

    features = fill(
        examples.lengths,
        shape.max_seq_length,
        {
            **examples.tokens,
            "input_mask": np.repeat(
                slot_of.astype(np.int32) + 1, examples.lengths
            ),
        },
    )
    if examples.masks:
        positions, ids = (examples.masks[name] for name in _MASK_FEATURES)
        features |= fill(
            examples.masked,
            shape.max_predictions_per_seq + shape.max_examples_per_row - 1,
            {
                "masked_lm_positions": positions
                + np.repeat(begins, examples.masked),
                "masked_lm_ids": ids,
                "masked_lm_weights": np.ones(len(ids), np.float32),
            },
        )
    features |= fill(
        np.ones(len(order), np.int64),
        shape.max_examples_per_row,
        {
            "next_sentence_positions": begins,
            SENTENCE_LABEL: examples.labels,
            "next_sentence_weights": np.ones(len(order), np.float32),
            EXAMPLE_NUMBERS: examples.numbers,
        },
    )
    return features
