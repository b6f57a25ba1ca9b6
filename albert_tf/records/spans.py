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
        begins: int64, `(batch * K,)`, index of the first token in the flattened
            batch.

    Example:
        >>> examples = Examples(np.array([[1, 1, 2, 2, 2, 0]]), 3, array_ops)
        >>> examples.num_tokens.tolist()
        [2, 3, 0]
        >>> [indices.tolist() for indices in examples.locate(np.arange(5))]
        [[0, 0, 1, 1, 1], [0, 1, 0, 1, 2]]
        >>> is_word = np.array([[True, True, False, True, True, False]])
        >>> examples.count(is_word).tolist()
        [2, 2, 0]
    """

    def __init__(self, numbers: Array, max_per_row: int, ops: Any) -> None:
        self._shape = (numbers.shape[0], max_per_row)
        self._ops = ops
        # The padding of a row is one more group, its first.
        num_rows, length = numbers.shape
        rows = np.arange(num_rows)[:, np.newaxis]
        groups = ops.cast(numbers, "int64") + rows * (max_per_row + 1)
        self._groups = ops.reshape(groups, (-1,))
        self.num_tokens = self.count(numbers > 0)
        counts = ops.reshape(self.num_tokens, self._shape)
        begins = ops.cumsum(counts, 1) - counts + rows * length
        self.begins = ops.reshape(begins, (num_rows * max_per_row,))

    def count(self, flags: Array) -> Array:
        """Number of tokens of each example whose flag is True.

        Args:
            flags: bool, `(batch, length)`; False for padding.

        Returns:
            int64, `(batch * K,)`.
        """
        ops = self._ops
        num_rows, max_per_row = self._shape
        if max_per_row == 1:  # takes a third of the time
            return ops.count_in_rows(flags)
        num_groups = num_rows * (max_per_row + 1)
        counts = ops.sum_by(self._groups, ops.reshape(flags, (-1,)), num_groups)
        counts = ops.reshape(counts, (num_rows, max_per_row + 1))[:, 1:]
        return ops.reshape(counts, (num_rows * max_per_row,))

    def locate(self, tokens: Array) -> tuple[Array, Array]:
        """Returns the example of each token and the position in the example.

        Args:
            tokens: int64, indices in the flattened batch; not of padding.

        Returns:
            Two int64 arrays of the shape of `tokens`.
        """
        groups = self._ops.take(self._groups, tokens)
        rows = groups // (self._shape[1] + 1)
        examples = groups - rows - 1
        return examples, tokens - self._ops.take(self.begins, examples)


class Spans(NamedTuple):
    """The spans of all examples, example by example.

    Attributes:
        examples: int64, `(spans,)`, indices as in `Examples`, nondecreasing.
        begins: int64, `(spans,)`, index of the first token in the flattened
            batch, increasing.
        positions: int64, `(spans,)`, position of the first token in its
            example.
        lengths: int64, `(spans,)`, number of tokens.
        sizes: int64, `(spans,)`, number of maskable tokens; may be 0.
    """

    examples: Array
    begins: Array
    positions: Array
    lengths: Array
    sizes: Array


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
    first_words = draw_first_words(keys, examples.count(opens_word), ngram, ops)
    begins = ops.take(ops.flatnonzero(opens_word), first_words)
    return ops.put(ops.reshape(opens_segment, (-1,)), begins, True)


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
    draws = ops.ranges(num_words)
    bits = random_bits(ops.repeat(keys, num_words), draws, ops)
    is_first = draws == 0
    lengths = ops.cast(bits >= np.uint64(0), "int64")
    for first, later in zip(
        np.cumsum(residual)[:-1], np.cumsum(probabilities)[:-1], strict=True
    ):
        is_longer = (is_first & (bits >= np.uint64(first * 2.0**64))) | (
            ~is_first & (bits >= np.uint64(later * 2.0**64))
        )
        lengths = lengths + ops.cast(is_longer, "int64")
    # Cumulative lengths run over all examples. In each example, the lengths
    # drawn before it are replaced by the number of words before it.
    total_lengths = ops.cumsum(lengths)
    ends = ops.cumsum(num_words)
    firsts = ends - num_words
    drawn_before = ops.take(ops.concat(np.array([0]), total_lengths), firsts)
    begins = total_lengths + ops.repeat(firsts - drawn_before, num_words)
    is_in_example = begins < ops.repeat(ends, num_words)
    return ops.take(begins, ops.flatnonzero(is_in_example))


def measure_spans(
    opens_span: Array, is_exception: Array, examples: Examples, ops: Any
) -> Spans:
    """Counts the tokens and the maskable tokens of each span.

    A span extends to the beginning of the next one, or to the end of its
    example.

    Args:
        opens_span: bool, `(batch * length,)`, the first token of each span.
        is_exception: bool, `(batch, length)`, the tokens that are neither
            maskable nor padding. They are few, so each is looked up.
        examples: The examples of the batch.
        ops: `array_ops` or `tensor_ops`.
    """
    num_rows, length = is_exception.shape
    begins = ops.flatnonzero(opens_span)
    of_spans, positions = examples.locate(begins)
    num_left = ops.take(examples.num_tokens, of_spans) - positions
    next_begins = ops.concat(begins[1:], np.array([num_rows * length]))
    lengths = ops.minimum(next_begins - begins, num_left)
    exceptions = ops.flatnonzero(is_exception)
    # The number of spans that begin up to the exception. The last of them holds
    # the exception, or ended before it if the exception begins an example.
    numbers = ops.searchsorted(begins, exceptions)
    ends = ops.concat(np.array([0]), begins + lengths)
    is_in_span = exceptions < ops.take(ends, numbers)
    num_exceptions = ops.count_by(
        ops.take(numbers, ops.flatnonzero(is_in_span)), ops.size(ends)
    )[1:]
    sizes = lengths - num_exceptions
    return Spans(of_spans, begins, positions, lengths, sizes)


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
        order_bits: uint64, `(spans,)`, random; their upper 32 bits are the
            order of the spans of an example.
        budgets: int64, `(examples,)`, number of tokens to mask.
        max_predictions: Maximum number of masked tokens in an example.
        ops: `array_ops`, or `tensor_ops` for tensors.

    Returns:
        int64, increasing; the indices of the spans taken.
    """
    num_examples = budgets.shape[0]
    order = ops.right_shift(order_bits, 32)
    # About twice as many spans as the budgets need come first. After them, few
    # examples have a part of their budget left. Only in these are the remaining
    # spans sorted, too.
    limit = ops.sum(budgets) * 2**33 // (ops.sum(sizes) + 1)
    comes_first = order < ops.cast(limit, "uint64")
    taken = ops.zeros(ops.size(examples), "bool")
    left = budgets
    for candidates in (comes_first, ~comes_first):
        spans = ops.flatnonzero(candidates & ops.take(left > 0, examples))
        spans = _shuffle_within_examples(
            spans, examples, order, num_examples, ops
        )
        taken, left = _take_what_fits(spans, examples, sizes, left, taken, ops)
    # An example of which no span fits the budget has all of it left.
    is_candidate = (sizes > 0) & (sizes <= max_predictions)
    spans = _shuffle_within_examples(
        ops.flatnonzero(is_candidate & ops.take(left == budgets, examples)),
        examples,
        order,
        num_examples,
        ops,
    )
    numbers = ops.ranges(ops.count_by(ops.take(examples, spans), num_examples))
    exceptions = ops.take(spans, ops.flatnonzero(numbers == 0))
    return ops.flatnonzero(ops.put(taken, exceptions, True))


def _shuffle_within_examples(
    spans: Array, examples: Array, order: Array, num_examples: int, ops: Any
) -> Array:
    """Puts some spans of each example in their random order.

    Args:
        spans: int64, increasing; indices of spans.
        examples: int64, `(spans,)`, of all spans, nondecreasing.
        order: uint64, `(spans,)`, random, below 2**32.

    Returns:
        int64; `spans` in the order of their examples, then of `order`.
    """
    groups = ops.take(examples, spans)
    counts = ops.count_by(groups, num_examples)
    # 16 bits of the example, 32 random bits, 16 bits of the span's number in
    # the example: sorting integers is several times faster than an argsort.
    sort_keys = ops.sort(
        ops.cast(groups, "uint64") * np.uint64(2**48)
        + ops.take(order, spans) * np.uint64(2**16)
        + ops.cast(ops.ranges(counts), "uint64")
    )
    numbers = ops.cast(sort_keys & np.uint64(2**16 - 1), "int64")
    firsts = ops.repeat(ops.cumsum(counts) - counts, counts)
    return ops.take(spans, firsts + numbers)


def _take_what_fits(
    spans: Array,
    examples: Array,
    sizes: Array,
    budgets: Array,
    taken: Array,
    ops: Any,
) -> tuple[Array, Array]:
    """Takes each span that fits what the spans before it leave of a budget.

    An iteration takes, in every example, all spans up to the first that does
    not fit. What is left of a budget never grows, so a skipped span never fits
    later, and the result is as if spans were tried one by one. Few iterations
    are needed, since spans have few different sizes.

    Args:
        spans: int64, indices of the spans to try, in shuffled order.
        examples: int64, `(spans,)`, the examples of all spans, nondecreasing.
        sizes: int64, `(spans,)`, numbers of maskable tokens of all spans.
        budgets: int64, `(examples,)`.
        taken: bool, `(spans,)`, of all spans; NumPy may overwrite it.
        ops: `array_ops` or `tensor_ops`.

    Returns:
        `taken` with the spans taken; and int64, `(examples,)`: what is left of
        the budgets.
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

    *_, left, taken = ops.loop_until_empty(
        take_more,
        spans,
        ops.take(examples, spans),
        ops.take(sizes, spans),
        budgets,
        taken,
    )
    return taken, left
