"""Random spans of consecutive words, and their selection within a budget.

Stages 2 and 3 of `masking`, as array operations over all examples of a
batch. `Examples` says which tokens belong to which example.
"""

from typing import Any, NamedTuple

import numpy as np

from albert_tf.records import array_ops
from albert_tf.records.keyed_random import random_bits

# A NumPy array or a tensor.
Array = Any


class Examples:
    """The examples of a batch, whose rows hold one or several of them.

    With at most K examples per row, example n of row r has index
    `r * K + n - 1`. A row with fewer examples leaves indices unused.

    Args:
        numbers: int, `(batch, length)`, the number of the example of each
            token, from 1 on, and 0 for padding. The examples of a row follow
            one another without a gap, and padding follows the last one.
        max_per_row: K.
        ops: `array_ops`, or `tensor_ops` for tensors of static shape.

    Attributes:
        num_tokens: int64, `(batch * K,)`; 0 for an unused index.

    Example:
        >>> examples = Examples(np.array([[1, 1, 2, 2, 2, 0]]), 3, array_ops)
        >>> examples.num_tokens.tolist()
        [2, 3, 0]
        >>> [indices.tolist() for indices in examples.locate(np.arange(5))]
        [[0, 0, 1, 1, 1], [0, 1, 0, 1, 2]]
    """

    def __init__(self, numbers: Array, max_per_row: int, ops: Any) -> None:
        num_rows, self._length = numbers.shape
        self._numbers = numbers
        self._max_per_row = max_per_row
        self._ops = ops
        is_number = ops.reshape(numbers, (num_rows, 1, self._length)) == (
            ops.reshape(ops.cast(1 + ops.arange(max_per_row), "int32"), (-1, 1))
        )
        self.num_tokens = ops.count_true(
            ops.reshape(is_number, (num_rows * max_per_row, self._length))
        )
        counts = ops.reshape(self.num_tokens, (num_rows, max_per_row))
        starts = ops.reshape(ops.arange(num_rows), (-1, 1)) * self._length
        self._begins = ops.cumsum(counts, 1) - counts + starts

    def __len__(self) -> int:
        """The number of indices, `batch * K`."""
        return self.num_tokens.shape[0]

    def locate(self, tokens: Array) -> tuple[Array, Array]:
        """Returns the example of each token and the position in the example.

        Args:
            tokens: int64, indices in the flattened batch; not of padding.

        Returns:
            Two int64 arrays of the shape of `tokens`.
        """
        ops = self._ops
        examples = tokens // self._length
        if self._max_per_row > 1:
            numbers = ops.cast(ops.take(self._numbers, tokens), "int64")
            examples = examples * self._max_per_row + numbers - 1
        return examples, tokens - ops.take(self._begins, examples)


class Spans(NamedTuple):
    """The spans of all examples, example by example.

    Attributes:
        examples: int64, `(spans,)`, indices as in `Examples`, nondecreasing.
        positions: int64, `(spans,)`, position of the first token in its
            example.
        sizes: int64, `(spans,)`, number of maskable tokens; may be 0.
        first_tokens: int64, `(spans,)`, index of the span's first maskable
            token among the maskable tokens of the batch.
    """

    examples: Array
    positions: Array
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
    opens_segment: Array,
    opens_word: Array,
    examples: Examples,
    keys: Array,
    ngram: int,
    ops: Any,
) -> Array:
    """Covers the words of each example with spans of random lengths.

    Args:
        opens_segment: bool, `(batch, length)`, the first token of each
            segment; NumPy may overwrite it.
        opens_word: bool, `(batch, length)`, the first token of each word.
        keys: uint64, `(examples,)`.
        ngram: Maximum number of words in a span.
        ops: `array_ops` or `tensor_ops`.

    Returns:
        bool, `(batch * length,)`; True for the first token of a span.
    """
    words = ops.flatnonzero(opens_word)
    num_words = ops.count_by(examples.locate(words)[0], len(examples))
    first_words = draw_first_words(keys, num_words, ngram, ops)
    return ops.put(
        ops.reshape(opens_segment, (-1,)), ops.take(words, first_words), True
    )


def draw_first_words(
    keys: Array, num_words: Array, ngram: int, ops: Any = array_ops
) -> Array:
    """Draws span lengths and returns the words that begin a span.

    Args:
        keys: uint64, `(examples,)`.
        num_words: int64, `(examples,)`, number of words in each example.
        ngram: Maximum number of words in a span.
        ops: `array_ops`, or `tensor_ops` for tensors.

    Returns:
        int64, increasing; indices among the words of all examples, without the
        first word of each example.
    """
    probabilities = span_length_probabilities(ngram)
    # P(the span around a random word has r words from that word on).
    residual = np.cumsum(probabilities[::-1])[::-1]
    residual = residual / residual.sum()
    # Each example gets as many draws as it has words. Draws that lead beyond
    # its end are dropped. The random bits are compared as integers, which
    # saves their conversion to floats.
    first_words = ops.repeat(ops.cumsum(num_words) - num_words, num_words)
    draws = ops.arange(ops.sum(num_words)) - first_words
    bits = random_bits(ops.repeat(keys, num_words), draws, ops)
    lengths = ops.cast(bits >= np.uint64(0), "int32")
    for first, later in zip(
        np.cumsum(residual)[:-1], np.cumsum(probabilities)[:-1], strict=True
    ):
        threshold = ops.where(
            draws == 0, np.uint64(first * 2.0**64), np.uint64(later * 2.0**64)
        )
        lengths = lengths + ops.cast(bits >= threshold, "int32")
    # Cumulative lengths run over all examples; those of the examples before
    # are subtracted.
    ends = ops.cumsum(lengths)
    begins = ends - ops.take(ends - ops.cast(lengths, "int64"), first_words)
    is_in_example = begins < ops.repeat(num_words, num_words)
    return ops.take(begins + first_words, ops.flatnonzero(is_in_example))


def measure_spans(
    opens_span: Array, is_maskable: Array, examples: Examples, ops: Any
) -> Spans:
    """Counts the maskable tokens of each span.

    A span extends to the beginning of the next one.

    Args:
        opens_span: bool, `(batch * length,)`, the first token of each span.
        is_maskable: bool, `(batch, length)`.
        ops: `array_ops` or `tensor_ops`.
    """
    begins = ops.flatnonzero(opens_span)
    counts = ops.cast(ops.reshape(is_maskable, (-1,)), "int64")
    first_tokens = ops.take(ops.cumsum(counts) - counts, begins)
    ends = ops.append(first_tokens[1:], ops.sum(counts))
    of_spans, positions = examples.locate(begins)
    return Spans(of_spans, positions, ends - first_tokens, first_tokens)


def take_spans(
    examples: Array,
    sizes: Array,
    order_bits: Array,
    budgets: Array,
    max_predictions: int,
    ops: Any = array_ops,
) -> Array:
    """Takes spans in random order while they fit the budget of their example.

    If nothing fits in an example, its first span of at most `max_predictions`
    tokens is taken.

    Args:
        examples: int64, `(spans,)`, the examples of the spans, nondecreasing.
        sizes: int64, `(spans,)`, number of maskable tokens.
        order_bits: uint64, `(spans,)`, random; the order of the spans of an
            example.
        budgets: int64, `(examples,)`, number of tokens to mask.
        max_predictions: Maximum number of masked tokens in an example.
        ops: `array_ops`, or `tensor_ops` for tensors.

    Returns:
        int64, increasing; the indices of the spans taken.
    """
    shuffled = _shuffle_within_groups(
        examples, order_bits, budgets.shape[0], ops
    )
    sizes = ops.take(sizes, shuffled)
    taken, left = _take_what_fits(shuffled, examples, sizes, budgets, ops)
    exceptions = _find_exceptions(
        examples, sizes, budgets, left, max_predictions, ops
    )
    taken = ops.put(taken, ops.take(shuffled, exceptions), True)
    return ops.flatnonzero(taken)


def _shuffle_within_groups(
    groups: Array, order_bits: Array, num_groups: int, ops: Any
) -> Array:
    """Indices of the spans, group by group, in the order of their random bits.

    The spans of a group stay together, so `groups` also holds the groups of
    the shuffled spans.

    Returns:
        int64, `(spans,)`.
    """
    first = ops.take(_first_in_groups(groups, num_groups, ops), groups)
    # 16 bits of the group, 32 random bits, 16 bits of the span's number in its
    # group: sorting such integers is several times faster than an argsort.
    sort_keys = ops.sort(
        ops.cast(groups, "uint64") * np.uint64(2**48)
        + ops.right_shift(order_bits, 32) * np.uint64(2**16)
        + ops.cast(ops.arange(ops.size(groups)) - first, "uint64")
    )
    return first + ops.cast(sort_keys & np.uint64(2**16 - 1), "int64")


def _take_what_fits(
    spans: Array, examples: Array, sizes: Array, budgets: Array, ops: Any
) -> tuple[Array, Array]:
    """Takes each span that fits what the spans before it leave of a budget.

    An iteration takes, in every example, all spans up to the first that does
    not fit. What is left of a budget never grows, so a skipped span never fits
    later, and the result is as if spans were tried one by one. Few iterations
    are needed, since spans have few different sizes.

    Args:
        spans: int64, `(spans,)`, indices of the spans in shuffled order.
        examples: int64, `(spans,)`, their examples, nondecreasing.
        sizes: int64, `(spans,)`, their numbers of maskable tokens.
        budgets: int64, `(examples,)`.
        ops: `array_ops` or `tensor_ops`.

    Returns:
        bool, `(spans,)`, by index of a span: whether it is taken; and int64,
        `(examples,)`: what is left of the budgets.
    """
    num_examples = budgets.shape[0]

    def take_more(
        spans: Array, examples: Array, sizes: Array, left: Array, taken: Array
    ) -> tuple[Array, ...]:
        # Cumulative sizes run over all examples, so an end includes the sizes
        # of the examples before.
        size_of_example = ops.sum_by(examples, sizes, num_examples)
        ends = ops.cumsum(size_of_example) - size_of_example + left
        fits = ops.cumsum(sizes) <= ops.take(ends, examples)
        now = ops.flatnonzero(fits)
        left = left - ops.sum_by(
            ops.take(examples, now), ops.take(sizes, now), num_examples
        )
        taken = ops.put(taken, ops.take(spans, now), True)
        later = ops.flatnonzero(~fits & (sizes <= ops.take(left, examples)))
        return (
            ops.take(spans, later),
            ops.take(examples, later),
            ops.take(sizes, later),
            left,
            taken,
        )

    none_taken = ops.zeros(ops.size(examples), "bool")
    *_, left, taken = ops.loop_until_empty(
        take_more, spans, examples, sizes, budgets, none_taken
    )
    return taken, left


def _find_exceptions(
    examples: Array,
    sizes: Array,
    budgets: Array,
    left: Array,
    max_predictions: int,
    ops: Any,
) -> Array:
    """Finds a span to take although it exceeds the budget of its example.

    Only examples of which no span fits the budget get such an exception.

    Args:
        examples: int64, `(spans,)`, nondecreasing.
        sizes: int64, `(spans,)`, in shuffled order.
        budgets: int64, `(examples,)`.
        left: int64, `(examples,)`, what the spans taken leave of the budgets;
            equal to the budget if no span fits.
        max_predictions: Maximum number of masked tokens in an example.
        ops: `array_ops` or `tensor_ops`.

    Returns:
        int64; the index of the first span of such an example that has at most
        `max_predictions` tokens.
    """
    candidates = ops.flatnonzero(
        ops.take(left == budgets, examples)
        & (sizes > 0)
        & (sizes <= max_predictions)
    )
    numbers = number_within_groups(
        ops.take(examples, candidates), budgets.shape[0], ops
    )
    return ops.take(candidates, ops.flatnonzero(numbers == 0))


def number_within_groups(groups: Array, num_groups: int, ops: Any) -> Array:
    """Numbers the elements of each group 0, 1, ...; int64, `(elements,)`."""
    first = ops.take(_first_in_groups(groups, num_groups, ops), groups)
    return ops.arange(ops.size(groups)) - first


def _first_in_groups(groups: Array, num_groups: int, ops: Any) -> Array:
    """Index of the first element of each group; int64, `(num_groups,)`."""
    counts = ops.count_by(groups, num_groups)
    return ops.cumsum(counts) - counts
