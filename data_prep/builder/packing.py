"""Packs the examples of a shard into rows of `max_seq_length` tokens.

An example goes, in the order of the shard, to the open row with the least room
that suffices: streaming best fit. No example is divided or thrown away. At most
64 rows are open, so memory is bounded, and the rows depend on nothing but the
examples of the shard and their order.

A row also has room for a limited number of masked tokens, P + K - 1, where P is
`max_predictions_per_seq` and K is `max_examples_per_row`. If P is the fraction
`masked_lm_prob` of the row, rounded up, this limit has no influence on ordinary
text: the numbers of masked tokens of K examples, each rounded and at least 1,
do not exceed it in sum. Examples of very long words may have more masked
tokens; they then go to different rows.

References:
    [Krell et al., 2021](https://arxiv.org/abs/2107.02027) pack BERT's examples;
    their algorithm sorts the lengths of all examples first.
    [Ding et al., 2024](https://arxiv.org/abs/2404.10830) use best fit.
"""

import bisect
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Self

import numpy as np

from albert_tf.config import MaskingConfig, SequenceConfig
from albert_tf.records.features import (
    EXAMPLE_NUMBERS,
    MASK_FEATURES,
    SENTENCE_LABEL,
)
from albert_tf.records.masking import FIRST_ORDINARY_ID, find_words

Features = Mapping[str, np.ndarray]

_TOKEN_FEATURES = ("input_ids", "segment_ids", "token_boundary")

# Largest number of rows that wait for more examples.
_MAX_OPEN_ROWS = 64

# A row is closed when this many examples have come since its first one. So
# restoring the order of the examples needs bounded memory.
_MAX_AGE = 2048

# The shortest example is [CLS], two words and [SEP].
_SHORTEST_EXAMPLE = 4


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
        num_examples += len(features["input_ids"])
        waiting = batch if waiting is None else waiting.plus(batch)
        num_masked = batch.masks.counts
        if not batch.masks.values:
            num_masked = largest_mask_counts(
                features["input_ids"], features["token_boundary"], config
            )
        rows = best_fit.add(batch.tokens.counts.tolist(), num_masked.tolist())
        if rows:
            order = waiting.find(rows)
            yield waiting.take(order).lay_out(rows, config)
            is_left = np.ones(len(waiting.tokens.counts), bool)
            is_left[order] = False
            waiting = waiting.take(np.flatnonzero(is_left))
    rows = best_fit.close()
    if waiting is not None and rows:
        yield waiting.take(waiting.find(rows)).lay_out(rows, config)


def largest_mask_counts(
    input_ids: np.ndarray, token_boundary: np.ndarray, config: MaskingConfig
) -> np.ndarray:
    """Returns the largest number of tokens that dynamic masking can mask.

    Masking takes spans while they fit the budget of an example. If no span
    fits, masking takes a single larger one (`albert_tf/records/masking.py`).

    Args:
        input_ids: int32, `(batch, length)`, padded with `<pad>`.
        token_boundary: `(batch, length)`, 1 where a word begins.
        config: Parameters of the masking rule.

    Returns:
        int64, `(batch,)`. It is the budget, except for examples of few and
        long words.

    Example:
        15 % of 11 tokens are 2. But if the span of three words is drawn, it
        does not fit, so that its 3 + 1 + 4 tokens are masked.

        >>> input_ids = np.array([[2, 7, 8, 8, 7, 7, 8, 8, 8, 3, 3]])
        >>> token_boundary = np.array([[1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1]])
        >>> config = MaskingConfig(ngram=3, max_predictions_per_seq=9)
        >>> largest_mask_counts(input_ids, token_boundary, config)
        array([8])
    """
    num_rows, length = input_ids.shape
    num_tokens = np.count_nonzero(input_ids, axis=1)
    budgets = np.rint(num_tokens * config.masked_lm_prob).astype(np.int64)
    budgets = budgets.clip(1, config.max_predictions_per_seq)
    is_maskable = input_ids >= FIRST_ORDINARY_ID
    opens_segment, opens_word = find_words(input_ids, token_boundary)
    starts = np.flatnonzero(opens_word)
    rows = starts // length
    segments = np.cumsum(opens_segment.ravel()[starts])
    word_of_token = np.cumsum(opens_word) - 1
    words = np.bincount(
        word_of_token[np.flatnonzero(is_maskable)], minlength=len(starts)
    )
    # A span has at most `ngram` words, which gives the least number of spans.
    # If none fits, each span has more tokens than the budget.
    num_words = np.bincount(rows[words > 0], minlength=num_rows)
    num_spans = -(-num_words // config.ngram)
    num_maskable = np.count_nonzero(is_maskable, axis=1)
    may_exceed = num_maskable >= (budgets + 1) * num_spans
    largest = budgets.copy()
    spans = words.copy()
    for num_more in range(min(config.ngram, len(words))):
        if num_more:
            same_segment = segments[num_more:] == segments[:-num_more]
            spans[:-num_more] += np.where(same_segment, words[num_more:], 0)
        fits = spans <= config.max_predictions_per_seq
        np.maximum.at(largest, rows, np.where(fits, spans, 0))
    return np.where(may_exceed, largest, budgets)


class _Values(NamedTuple):
    """Values of some examples, one example after another.

    Attributes:
        counts: int64, `(examples,)`, number of values of each example.
        values: `(sum of counts,)`, by feature.
    """

    counts: np.ndarray
    values: dict[str, np.ndarray]

    def plus(self, other: Self) -> Self:
        """Returns the values of both."""
        return type(self)(
            np.append(self.counts, other.counts),
            {n: np.append(v, other.values[n]) for n, v in self.values.items()},
        )

    def take(self, examples: np.ndarray) -> Self:
        """Returns the values of some examples, in the order of `examples`."""
        begins = (np.cumsum(self.counts) - self.counts)[examples]
        counts = self.counts[examples]
        shifts = begins - (np.cumsum(counts) - counts)
        indices = np.repeat(shifts, counts) + np.arange(counts.sum())
        taken = {name: values[indices] for name, values in self.values.items()}
        return type(self)(counts, taken)

    def in_rows(
        self, row_of: np.ndarray, shape: tuple[int, int]
    ) -> dict[str, np.ndarray]:
        """Returns arrays `shape`; `row_of` is the row of each example."""
        of_row = np.bincount(row_of, self.counts, shape[0])
        is_used = np.arange(shape[1]) < of_row[:, np.newaxis]
        filled = {}
        for name, values in self.values.items():
            filled[name] = np.zeros(shape, values.dtype)
            filled[name][is_used] = values
        return filled


class _Examples(NamedTuple):
    """Examples without their padding.

    Attributes:
        tokens: Values of tokens.
        masks: Values of masked tokens; without features if there are no masks.
        slots: One value for each example; the numbers in the shard increase.
    """

    tokens: _Values
    masks: _Values
    slots: _Values

    @classmethod
    def without_padding(cls, features: Features, first: int) -> Self:
        """Returns a batch of examples, which are numbered from `first`."""
        is_token = features["input_mask"] > 0
        ones = np.ones(len(is_token), np.int64)
        masks = _Values(0 * ones, {})
        if "masked_lm_weights" in features:
            is_masked = features["masked_lm_weights"] > 0
            masks = _Values(
                np.count_nonzero(is_masked, axis=1),
                {name: features[name][is_masked] for name in MASK_FEATURES},
            )
        numbers = first + np.arange(len(is_token))
        labels = features[SENTENCE_LABEL][:, 0]
        return cls(
            _Values(
                np.count_nonzero(is_token, axis=1),
                {name: features[name][is_token] for name in _TOKEN_FEATURES},
            ),
            masks,
            _Values(ones, {EXAMPLE_NUMBERS: numbers, SENTENCE_LABEL: labels}),
        )

    def plus(self, other: Self) -> Self:
        """Returns the examples of both."""
        return type(self)(
            *(a.plus(b) for a, b in zip(self, other, strict=True))
        )

    def take(self, examples: np.ndarray) -> Self:
        """Returns some examples, in the order of `examples`."""
        return type(self)(*(values.take(examples) for values in self))

    def find(self, rows: list[list[int]]) -> np.ndarray:
        """Returns the indices of the examples of some rows, row by row."""
        wanted = np.array([number for row in rows for number in row])
        return np.searchsorted(self.slots.values[EXAMPLE_NUMBERS], wanted)

    def lay_out(
        self, rows: list[list[int]], shape: SequenceConfig
    ) -> dict[str, np.ndarray]:
        """Returns the features of packed rows, whose examples these are."""
        tokens, masks, slots = self
        sizes = np.array([len(row) for row in rows])
        row_of = np.repeat(np.arange(len(rows)), sizes)
        slot_of = np.arange(len(row_of)) - (np.cumsum(sizes) - sizes)[row_of]
        tokens_before = np.cumsum(tokens.counts) - tokens.counts
        begins = tokens_before - tokens_before[slot_of == 0][row_of]
        numbers = np.repeat(slot_of.astype(np.int32) + 1, tokens.counts)
        tokens.values["input_mask"] = numbers
        if masks.values:
            masks.values["masked_lm_positions"] += np.repeat(
                begins, masks.counts
            ).astype(np.int32)
        slots.values["next_sentence_positions"] = begins
        slots.values["next_sentence_weights"] = np.ones(len(begins), np.float32)
        num_masks = (
            shape.max_predictions_per_seq + shape.max_examples_per_row - 1
        )
        return {
            **tokens.in_rows(row_of, (len(rows), shape.max_seq_length)),
            **masks.in_rows(row_of, (len(rows), num_masks)),
            **slots.in_rows(row_of, (len(rows), shape.max_examples_per_row)),
        }


class _Row:
    """An open row.

    Attributes:
        room: Number of further tokens that it can hold.
        mask_room: Number of further masked tokens that it can hold.
        examples: Numbers of its examples.
    """

    __slots__ = ("examples", "mask_room", "room")

    def __init__(self, room: int, mask_room: int) -> None:
        self.room = room
        self.mask_room = mask_room
        self.examples: list[int] = []


class BestFit:
    """Assigns examples to rows.

    Example:
        Example 2 goes to the row of example 0, which has room for 4 tokens,
        not to the row of example 1, which has room for 5. Rows with room for
        less than the shortest example are complete.

        >>> from albert_tf.config import SequenceConfig
        >>> shape = SequenceConfig(
        ...     max_seq_length=10,
        ...     max_predictions_per_seq=2,
        ...     max_examples_per_row=3,
        ... )
        >>> best_fit = BestFit(shape)
        >>> best_fit.add([6, 5, 4, 8], [1, 1, 1, 1])
        [[0, 2], [3]]
        >>> best_fit.close()
        [[1]]
    """

    def __init__(self, shape: SequenceConfig) -> None:
        self._length = shape.max_seq_length
        self._max_examples = shape.max_examples_per_row
        self._max_masked = shape.max_predictions_per_seq + (
            shape.max_examples_per_row - 1
        )
        self._next_example = 0
        # Sorted by room, then by the last example.
        self._open: list[tuple[int, int, _Row]] = []
        # No open row has an earlier first example.
        self._oldest = 0

    def add(self, lengths: list[int], num_masked: list[int]) -> list[list[int]]:
        """Adds examples, and returns the rows that are complete by then.

        Args:
            lengths: Number of tokens of each example.
            num_masked: Largest number of masked tokens of each example.

        Returns:
            Lists of the numbers of examples, which count all examples added so
            far. The numbers of a row increase.
        """
        complete: list[list[int]] = []
        for length, masked in zip(lengths, num_masked, strict=True):
            number = self._next_example
            row = self._take_best(length, masked)
            if row is None:
                complete += self._close_before(number - _MAX_AGE)
                row = _Row(self._length, self._max_masked)
            row.room -= length
            row.mask_room -= masked
            row.examples.append(number)
            self._next_example += 1
            if (
                row.room < _SHORTEST_EXAMPLE
                or len(row.examples) == self._max_examples
            ):
                complete.append(row.examples)
                continue
            if len(self._open) == _MAX_OPEN_ROWS:
                complete.append(self._open.pop(0)[-1].examples)
            bisect.insort(self._open, (row.room, number, row))
        return complete

    def close(self) -> list[list[int]]:
        """Returns the rows that are still open, and forgets them."""
        return self._close_before(self._next_example)

    def _take_best(self, length: int, masked: int) -> _Row | None:
        """Removes the open row with the least sufficient room."""
        begin = bisect.bisect_left(self._open, (length,))
        for i in range(begin, len(self._open)):
            if self._open[i][-1].mask_room >= masked:
                return self._open.pop(i)[-1]
        return None

    def _close_before(self, number: int) -> list[list[int]]:
        """Removes the open rows whose first example precedes an example."""
        if self._oldest >= number:
            return []
        old = [r for *_, r in self._open if r.examples[0] < number]
        self._open = [o for o in self._open if o[-1].examples[0] >= number]
        firsts = [row.examples[0] for *_, row in self._open]
        self._oldest = min(firsts, default=number)
        return sorted(row.examples for row in old)
