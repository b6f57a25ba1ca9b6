"""Packs the examples of a shard into rows of `max_seq_length` tokens.

An example goes, in the order of the shard, to the open row with the least room
that suffices: streaming best fit. No example is divided or thrown away. The
rows depend on nothing but the examples of the shard and their order.

A row also has room for P + K - 1 masked tokens, where P is
`max_predictions_per_seq` and K is `max_examples_per_row`. If P is the fraction
`masked_lm_prob` of the row, rounded up, K examples of ordinary text, whose
masks are rounded and at least 1, do not exceed this limit. Examples of very
long words may have more masked tokens; they then go to different rows.

References:
    [Krell et al., 2021](https://arxiv.org/abs/2107.02027) pack BERT's examples;
    their algorithm sorts the lengths of all examples first.
    [Ding et al., 2024](https://arxiv.org/abs/2404.10830) use best fit.
"""

import bisect
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from albert_tf.config import MaskingConfig, SequenceConfig
from albert_tf.records.array_ops import ranges
from albert_tf.records.features import (
    EXAMPLE_NUMBERS,
    LABEL_FEATURE,
    PACKED_FEATURES,
)
from albert_tf.records.masking import FIRST_ORDINARY_ID, find_words

# Largest number of rows that wait for more examples.
_MAX_OPEN_ROWS = 64

# When an example fits into no open row, those are closed whose first example is
# this many examples old. So few examples wait for their rows.
_MAX_AGE = 2048

# The shortest example is [CLS], two words and [SEP].
_SHORTEST_EXAMPLE = 4


def pack_rows(
    batches: Iterable[Mapping[str, np.ndarray]], config: MaskingConfig
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the packed rows of a shard, in batches.

    Args:
        batches: The examples of the shard in order: the features of unpacked
            records, with or without masks.
        config: Lengths of a row, and the masking rule.

    Yields:
        The features of packed records, `(rows, length)` by name.
    """
    best_fit = BestFit(config)
    waiting: dict[str, np.ndarray] = {}
    num_examples = 0
    for batch in itertools.chain(batches, [None]):
        if batch is None:
            rows = best_fit.close()
        else:
            lengths = np.count_nonzero(batch["input_mask"], axis=1)
            if "masked_lm_weights" in batch:
                num_masked = np.count_nonzero(
                    batch["masked_lm_weights"], axis=1
                )
            else:
                num_masked = largest_mask_counts(
                    batch["input_ids"], batch["token_boundary"], config
                )
            rows = best_fit.add(lengths.tolist(), num_masked.tolist())
            numbers = num_examples + np.arange(len(lengths))[:, np.newaxis]
            num_examples += len(lengths)
            waiting = {
                name: np.concatenate([waiting[name], new]) if waiting else new
                for name, new in {**batch, EXAMPLE_NUMBERS: numbers}.items()
            }
        if rows:
            order = np.searchsorted(
                waiting[EXAMPLE_NUMBERS][:, 0], np.concatenate(rows)
            )
            examples = {name: v[order] for name, v in waiting.items()}
            yield _lay_out_rows(examples, [len(row) for row in rows], config)
            waiting = {
                name: np.delete(values, order, axis=0)
                for name, values in waiting.items()
            }


def _lay_out_rows(
    examples: dict[str, np.ndarray], sizes: list[int], config: MaskingConfig
) -> dict[str, np.ndarray]:
    """Returns the features of rows of `sizes` examples, given row by row."""
    row_of = np.repeat(np.arange(len(sizes)), sizes)
    slot_of = ranges(np.array(sizes))[:, np.newaxis]
    is_token = examples["input_mask"] > 0
    is_masked = examples.get("masked_lm_weights", is_token) > 0
    is_example = np.ones(slot_of.shape, bool)
    lengths = is_token.sum(axis=1, keepdims=True)
    begins = np.cumsum(lengths, axis=0) - lengths
    begins -= begins[slot_of == 0][row_of][:, np.newaxis]
    examples["input_mask"] = is_token * (slot_of + 1)
    examples["next_sentence_positions"] = begins
    examples["next_sentence_weights"] = is_example.astype(np.float32)
    if "masked_lm_positions" in examples:
        examples["masked_lm_positions"] = (
            examples["masked_lm_positions"] + begins
        )
    rows = {}
    for feature in (*PACKED_FEATURES, LABEL_FEATURE):
        if feature.name not in examples:
            continue
        values = examples[feature.name]
        is_used = is_example
        if feature.per_token or feature.per_prediction:
            is_used = is_token if feature.per_token else is_masked
        shape = len(sizes), feature.length(config)
        num_used = np.bincount(row_of, is_used.sum(axis=1), shape[0])
        rows[feature.name] = np.zeros(shape, values.dtype)
        rows[feature.name][np.arange(shape[1]) < num_used[:, np.newaxis]] = (
            values[is_used]
        )
    return rows


def largest_mask_counts(
    input_ids: np.ndarray, token_boundary: np.ndarray, config: MaskingConfig
) -> np.ndarray:
    """Returns the largest number of tokens that dynamic masking can mask.

    Masking takes spans while they fit the budget of an example. If no span
    fits, masking takes a single larger one (`albert_tf/records/masking.py`).
    So the number, int64 `(batch,)`, is the budget, except for examples of few
    and long words.

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


class _OpenRow(NamedTuple):
    """A row that waits for examples; rows are sorted by the first two."""

    room: int  # for tokens
    last: int  # its last example
    mask_room: int  # for masked tokens
    examples: list[int]


class BestFit:
    """Assigns examples to rows.

    Example:
        Example 2 goes to the row of example 0, which has room for 4 tokens,
        not to the row of example 1, which has room for 5. Rows with room for
        less than the shortest example are complete.

        >>> shape = SequenceConfig(max_seq_length=10, max_predictions_per_seq=2)
        >>> best_fit = BestFit(shape)
        >>> best_fit.add([6, 5, 4, 8], [1, 1, 1, 1])
        [[0, 2], [3]]
        >>> best_fit.close()
        [[1]]
    """

    def __init__(self, shape: SequenceConfig) -> None:
        self._max_examples = shape.max_examples_per_row
        self._length = shape.max_seq_length
        self._max_masked = shape.max_predictions_per_seq + (
            shape.max_examples_per_row - 1
        )
        self._next_example = 0
        self._open: list[_OpenRow] = []  # sorted
        # No open row has an earlier first example.
        self._oldest = 0

    def add(self, lengths: list[int], num_masked: list[int]) -> list[list[int]]:
        """Adds examples, and returns the rows that are complete by then.

        Args:
            lengths: Number of tokens of each example.
            num_masked: Largest number of masked tokens of each example.

        Returns:
            For each row, the increasing numbers of its examples, from 0.
        """
        complete: list[list[int]] = []
        for length, masked in zip(lengths, num_masked, strict=True):
            number = self._next_example
            self._next_example += 1
            for i in range(
                bisect.bisect_left(self._open, (length,)), len(self._open)
            ):
                if self._open[i].mask_room >= masked:
                    row = self._open.pop(i)
                    break
            else:
                complete += self._close_before(number - _MAX_AGE)
                row = _OpenRow(self._length, number, self._max_masked, [])
            examples = [*row.examples, number]
            room = row.room - length
            if room < _SHORTEST_EXAMPLE or len(examples) == self._max_examples:
                complete.append(examples)
                continue
            if len(self._open) == _MAX_OPEN_ROWS:
                complete.append(self._open.pop(0).examples)
            mask_room = row.mask_room - masked
            row = _OpenRow(room, number, mask_room, examples)
            bisect.insort(self._open, row)
        return complete

    def close(self) -> list[list[int]]:
        """Returns the rows that are still open, and forgets them."""
        return self._close_before(self._next_example)

    def _close_before(self, number: int) -> list[list[int]]:
        """Removes the open rows whose first example precedes an example."""
        if self._oldest >= number:
            return []
        firsts = [row.examples[0] for row in self._open]
        rows = list(zip(firsts, self._open, strict=True))
        self._open = [row for first, row in rows if first >= number]
        self._oldest = min((f for f in firsts if f >= number), default=number)
        return sorted(row.examples for first, row in rows if first < number)
