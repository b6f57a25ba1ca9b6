"""Random spans of consecutive words, and their selection within a budget.

The stages 2 and 3 of `masking`, as array operations over all rows of a batch.
"""

from typing import Any, NamedTuple

import numpy as np

from albert_tf.records import array_ops
from albert_tf.records.keyed_random import random_bits

# A NumPy array or a tensor.
Array = Any


class Spans(NamedTuple):
    """The spans of all rows, row by row.

    Attributes:
        rows: int64, `(spans,)`, nondecreasing.
        columns: int64, `(spans,)`, position of the first token in its row.
        sizes: int64, `(spans,)`, number of maskable tokens; may be 0.
        first_tokens: int64, `(spans,)`, index of the first of them among the
            maskable tokens of all rows.
    """

    rows: Array
    columns: Array
    sizes: Array
    first_tokens: Array


def span_length_probabilities(ngram: int) -> np.ndarray:
    """p(n), proportional to 1/n, for n = 1, ..., `ngram`.

    Returns:
        float64, `(ngram,)`.
    """
    weights = 1 / np.arange(1, ngram + 1)
    return weights / weights.sum()


def tile_with_spans(
    opens_segment: Array, opens_word: Array, keys: Array, ngram: int, ops: Any
) -> Array:
    """Covers the words of each row with spans of random lengths.

    Args:
        opens_segment: bool, `(batch, length)`, the first token of each
            segment; NumPy may overwrite it.
        opens_word: bool, `(batch, length)`, the first token of each word.
        keys: uint64, `(batch,)`.
        ngram: Maximum number of words in a span.
        ops: `array_ops` or `tensor_ops`.

    Returns:
        bool, `(batch * length,)`; True for the first token of a span.
    """
    words = ops.flatnonzero(opens_word)
    first_words = draw_first_words(keys, ops.count_true(opens_word), ngram, ops)
    return ops.put(
        ops.reshape(opens_segment, (-1,)), ops.take(words, first_words), True
    )


def draw_first_words(
    keys: Array, num_words: Array, ngram: int, ops: Any = array_ops
) -> Array:
    """Draws span lengths and returns the words that begin a span.

    Args:
        keys: uint64, `(batch,)`.
        num_words: int64, `(batch,)`, number of words in each row.
        ngram: Maximum number of words in a span.
        ops: `array_ops`, or `tensor_ops` for tensors.

    Returns:
        int64, increasing; indices among the words of all rows, without the
        first word of each row.
    """
    probabilities = span_length_probabilities(ngram)
    # P(r words of the span around a random word remain, counted from it).
    residual = np.cumsum(probabilities[::-1])[::-1]
    residual = residual / residual.sum()
    # Each row gets as many draws as the longest row has words. Draws that lead
    # beyond the end of a row are dropped. The random bits are compared as
    # integers, which saves their conversion to floats.
    draws = ops.arange(ops.max(num_words))
    bits = random_bits(
        ops.reshape(keys, (-1, 1)), ops.reshape(draws, (1, -1)), ops
    )
    lengths = ops.cast(bits >= np.uint64(0), "int32")
    for first, later in zip(
        np.cumsum(residual)[:-1], np.cumsum(probabilities)[:-1], strict=True
    ):
        threshold = ops.where(
            draws == 0, np.uint64(first * 2.0**64), np.uint64(later * 2.0**64)
        )
        lengths = lengths + ops.cast(bits >= threshold, "int32")
    begins = ops.cumsum(lengths, 1)
    is_in_row = begins < ops.reshape(num_words, (-1, 1))
    first_words = ops.reshape(ops.cumsum(num_words) - num_words, (-1, 1))
    return ops.take(begins + first_words, ops.flatnonzero(is_in_row))


def measure_spans(opens_span: Array, is_maskable: Array, ops: Any) -> Spans:
    """Counts the maskable tokens of each span.

    A span extends to the beginning of the next one.

    Args:
        opens_span: bool, `(batch * length,)`, the first token of each span.
        is_maskable: bool, `(batch, length)`.
        ops: `array_ops` or `tensor_ops`.
    """
    length = is_maskable.shape[1]
    begins = ops.flatnonzero(opens_span)
    counts = ops.cast(ops.reshape(is_maskable, (-1,)), "int64")
    first_tokens = ops.take(ops.cumsum(counts) - counts, begins)
    ends = ops.append(first_tokens[1:], ops.sum(counts))
    rows = begins // length
    return Spans(
        rows, begins - rows * length, ends - first_tokens, first_tokens
    )


def take_spans(
    rows: Array,
    sizes: Array,
    order_bits: Array,
    budgets: Array,
    max_predictions: int,
    ops: Any = array_ops,
) -> Array:
    """Takes spans in random order while they fit the budget of their row.

    If nothing fits in a row, its first span of at most `max_predictions`
    tokens is taken.

    Args:
        rows: int64, `(spans,)`, nondecreasing.
        sizes: int64, `(spans,)`, number of maskable tokens.
        order_bits: uint64, `(spans,)`, random; the order of a row's spans.
        budgets: int64, `(batch,)`, number of tokens to mask.
        max_predictions: Maximum number of masked tokens in a row.
        ops: `array_ops`, or `tensor_ops` for tensors.

    Returns:
        int64, increasing; the indices of the spans taken.
    """
    shuffled = _shuffle_within_rows(rows, order_bits, budgets.shape[0], ops)
    sizes = ops.take(sizes, shuffled)
    taken, left = _take_what_fits(shuffled, rows, sizes, budgets, ops)
    exceptions = _find_exceptions(
        rows, sizes, budgets, left, max_predictions, ops
    )
    taken = ops.put(taken, ops.take(shuffled, exceptions), True)
    return ops.flatnonzero(taken)


def _shuffle_within_rows(
    rows: Array, order_bits: Array, num_rows: int, ops: Any
) -> Array:
    """Indices of the spans, row by row, in the order of their random bits.

    The rows of the shuffled spans are `rows`, as before.

    Returns:
        int64, `(spans,)`.
    """
    first = ops.take(_first_in_rows(rows, num_rows, ops), rows)
    # 16 bits of the row, 32 random bits, 16 bits of the span's number in its
    # row: sorting such integers is several times faster than an argsort.
    sort_keys = ops.sort(
        ops.cast(rows, "uint64") * np.uint64(2**48)
        + ops.right_shift(order_bits, 32) * np.uint64(2**16)
        + ops.cast(ops.arange(ops.size(rows)) - first, "uint64")
    )
    return first + ops.cast(sort_keys & np.uint64(2**16 - 1), "int64")


def _take_what_fits(
    spans: Array, rows: Array, sizes: Array, budgets: Array, ops: Any
) -> tuple[Array, Array]:
    """Takes each span that fits what the spans before it leave of a budget.

    An iteration takes, in every row, all spans up to the first that does not
    fit. What is left of a budget never grows, so a skipped span never fits
    later, and the result is that of one span after another. Few iterations
    are needed, since spans have few different sizes.

    Args:
        spans: int64, `(spans,)`, indices of the spans in shuffled order.
        rows: int64, `(spans,)`, their rows, nondecreasing.
        sizes: int64, `(spans,)`, their numbers of maskable tokens.
        budgets: int64, `(batch,)`.
        ops: `array_ops` or `tensor_ops`.

    Returns:
        bool, `(spans,)`, by index of a span: whether it is taken; and int64,
        `(batch,)`: what is left of the budgets.
    """
    num_rows = budgets.shape[0]

    def take_more(
        spans: Array, rows: Array, sizes: Array, left: Array, taken: Array
    ) -> tuple[Array, ...]:
        # Cumulative sizes run over all rows, so a limit includes the sizes of
        # the rows before.
        size_of_row = ops.sum_by(rows, sizes, num_rows)
        limits = ops.cumsum(size_of_row) - size_of_row + left
        fits = ops.cumsum(sizes) <= ops.take(limits, rows)
        now = ops.flatnonzero(fits)
        left = left - ops.sum_by(
            ops.take(rows, now), ops.take(sizes, now), num_rows
        )
        taken = ops.put(taken, ops.take(spans, now), True)
        later = ops.flatnonzero(~fits & (sizes <= ops.take(left, rows)))
        return (
            ops.take(spans, later),
            ops.take(rows, later),
            ops.take(sizes, later),
            left,
            taken,
        )

    none_taken = ops.zeros(ops.size(rows), "bool")
    *_, left, taken = ops.loop_until_empty(
        take_more, spans, rows, sizes, budgets, none_taken
    )
    return taken, left


def _find_exceptions(
    rows: Array,
    sizes: Array,
    budgets: Array,
    left: Array,
    max_predictions: int,
    ops: Any,
) -> Array:
    """Finds a span that exceeds the budget, for each row in which none fits.

    Args:
        rows: int64, `(spans,)`, nondecreasing.
        sizes: int64, `(spans,)`, in shuffled order.
        budgets: int64, `(batch,)`.
        left: int64, `(batch,)`, what the spans taken leave of the budgets: all
            of it in a row in which none fits.
        max_predictions: Maximum number of masked tokens in a row.
        ops: `array_ops` or `tensor_ops`.

    Returns:
        int64; the index of the first span of such a row that has at most
        `max_predictions` tokens.
    """
    candidates = ops.flatnonzero(
        ops.take(left == budgets, rows)
        & (sizes > 0)
        & (sizes <= max_predictions)
    )
    numbers = number_within_rows(
        ops.take(rows, candidates), budgets.shape[0], ops
    )
    return ops.take(candidates, ops.flatnonzero(numbers == 0))


def number_within_rows(rows: Array, num_rows: int, ops: Any) -> Array:
    """Numbers the elements of each row 0, 1, ...; int64, as `rows`."""
    first = ops.take(_first_in_rows(rows, num_rows, ops), rows)
    return ops.arange(ops.size(rows)) - first


def _first_in_rows(rows: Array, num_rows: int, ops: Any) -> Array:
    """Index of the first element of each row; int64, `(num_rows,)`."""
    counts = ops.count_by(rows, num_rows)
    return ops.cumsum(counts) - counts
