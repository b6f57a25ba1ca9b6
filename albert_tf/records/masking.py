"""Whole-word span masking: the tokens that the masked language model predicts.

The rule is that of the paper: 15 % of the tokens, in spans of n words with
p(n) proportional to 1/n. All examples of a batch are masked at once, without a
Python loop over examples, words or tokens. The same code runs in NumPy, where
records are built, and in TensorFlow, where a run masks dynamically; equal keys
give equal masks. A row holds 1 to K examples; the masks of an example do not
depend on the other examples of its row.

`mask_rows` has four stages:

1. `find_words`: a token whose boundary mark is set begins a word. A special
   token ends a segment; the token after it begins a word, marked or not.
2. `draw_first_words`: consecutive spans cover the words of each example.
   Their lengths are drawn from p(n). The first length of an example is drawn
   from the distribution of the words that remain in the span around a random
   word, so that each word is equally likely to begin a span. A span ends where
   a segment ends.
3. `_take_spans`: the spans of an example are shuffled and taken while
   they fit the budget. A span that does not fit is skipped; a smaller span
   after it may still fit.
4. A taken token becomes `[MASK]` (80 %), stays as it is (10 %), or becomes a
   random ordinary piece of the vocabulary (10 %).

Reference:
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 4.1;
    [Joshi et al., 2020](https://arxiv.org/abs/1907.10529).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from albert_tf.config import MaskingConfig
from albert_tf.records import array_ops
from albert_tf.records.array_ops import random_bits, random_uniform
from albert_tf.records.features import MASK_ID, PAD_ID, SPECIAL_PIECES, UNK_ID

# A NumPy array or a tensor.
Array = Any

# The ids from here on are ordinary pieces.
FIRST_ORDINARY_ID = len(SPECIAL_PIECES)

# The uses of an example's key. Each has independent random numbers.
_SPAN_LENGTH, _SPAN_ORDER, _REPLACEMENT_KIND, _RANDOM_PIECE = range(4)


def mask_rows(
    rows: Mapping[str, Array],
    keys: Array,
    vocab_size: int,
    config: MaskingConfig,
    ops: Any = array_ops,
) -> dict[str, Array]:
    """Selects tokens to predict and replaces them.

    Special tokens and `<unk>` are never selected. An `<unk>` within a word
    stays visible while the other tokens of the word are masked. With P as
    `max_predictions_per_seq`, a row has P + K - 1 slots for predictions.

    Args:
        rows: The features `input_ids`, `input_mask` and `token_boundary` of
            records, `(batch, length)`.
        keys: uint64, `(batch, K)`, a key for each example that a row can hold.
            The masks of an example depend only on its key and its tokens.
        config: P, `masked_lm_prob` and `ngram`. Special tokens count as tokens
            of an example, padding does not.
        ops: `array_ops`, or `tensor_ops` for tensors of static shape.

    Returns:
        The features `input_ids`, with the replacements, and
        `features.MASK_FEATURES`; int32 and float32. If all spans of an example
        exceed its budget, the first span in random order with at most P tokens
        is masked. An example without such a span has no masked tokens.

    Raises:
        ValueError: If `batch * K * length` exceeds 2^32 (with the length
            rounded up to a power of two). If the masked tokens of a row exceed
            its slots; for tensors an InvalidArgumentError. This does not happen
            with the masking settings for which the records were packed.

    Example:
        >>> rows = {
        ...     "input_ids": np.array([[2, 20, 21, 22, 23, 3, 0]], np.int32),
        ...     "input_mask": np.array([[1, 1, 1, 1, 1, 1, 0]]),
        ...     "token_boundary": np.array([[1, 1, 0, 1, 1, 1, 0]]),
        ... }
        >>> masked = mask_rows(
        ...     rows,
        ...     np.array([[7]], np.uint64),
        ...     vocab_size=30,
        ...     config=MaskingConfig(
        ...         max_predictions_per_seq=3, masked_lm_prob=0.3, ngram=1
        ...     ),
        ... )
        >>> for values in masked.values():
        ...     print(values.tolist())
        [[2, 20, 21, 4, 4, 3, 0]]
        [[3, 4, 0]]
        [[22, 23, 0]]
        [[1.0, 1.0, 0.0]]
    """
    input_ids = rows["input_ids"]
    max_per_row = keys.shape[1]
    keys = ops.reshape(keys, (-1,))
    examples = _Examples(rows["input_mask"], max_per_row, ops)
    opens_segment, opens_word = find_words(
        input_ids, rows["token_boundary"], ops
    )
    first_words = draw_first_words(
        random_bits(keys, _SPAN_LENGTH, ops),
        examples.count(opens_word),
        config.ngram,
        ops,
    )
    opens_span = ops.put(
        ops.reshape(opens_segment, (-1,)),
        ops.take(ops.flatnonzero(opens_word), first_words),
        True,
    )
    is_maskable = input_ids >= FIRST_ORDINARY_ID
    is_exception = ~is_maskable & (input_ids != PAD_ID)
    spans = _measure_spans(opens_span, is_exception, examples, ops)
    span_keys = _keys_at(spans.examples, keys, _SPAN_ORDER, ops)
    wanted = ops.cast(examples.num_tokens, "float64") * config.masked_lm_prob
    max_predictions = config.max_predictions_per_seq
    order = random_bits(span_keys, spans.positions, ops)
    taken = _take_spans(
        spans,
        ops.right_shift(order, np.uint64(32)),
        ops.clip(ops.cast(ops.rint(wanted), "int64"), 1, max_predictions),
        max_predictions,
        input_ids.shape[1],
        ops,
    )
    # The maskable tokens of the spans taken: indices in the flattened batch.
    lengths = ops.take(spans.lengths, taken)
    begins = ops.repeat(ops.take(spans.begins, taken), lengths)
    tokens = begins + ops.ranges(lengths)
    tokens = ops.take(tokens, ops.flatnonzero(ops.take(is_maskable, tokens)))
    original_ids = ops.take(input_ids, tokens)
    of_tokens, positions = examples.locate(tokens)
    kinds, random_numbers = (
        random_uniform(_keys_at(of_tokens, keys, purpose, ops), positions, ops)
        for purpose in (_REPLACEMENT_KIND, _RANDOM_PIECE)
    )
    random_pieces = FIRST_ORDINARY_ID + ops.cast(
        random_numbers * (vocab_size - FIRST_ORDINARY_ID), "int32"
    )
    replacements = ops.where(
        kinds < 0.8,
        np.int32(MASK_ID),
        ops.where(kinds < 0.9, original_ids, random_pieces),
    )
    num_slots = max_predictions + max_per_row - 1
    masked_ids = ops.put(ops.reshape(input_ids, (-1,)), tokens, replacements)
    return {
        "input_ids": ops.reshape(masked_ids, input_ids.shape),
        **_fill_slots(tokens, original_ids, input_ids.shape, num_slots, ops),
    }


def _keys_at(examples: Array, keys: Array, purpose: int, ops: Any) -> Array:
    """Keys for one purpose, at each element of `examples`; uint64."""
    return ops.take(random_bits(keys, purpose, ops), examples)


def find_words(
    input_ids: Array, token_boundary: Array, ops: Any = array_ops
) -> tuple[Array, Array]:
    """Finds the tokens that open a segment, and those that open a word.

    Both arrays are bool, `(batch, length)`.
    """
    special = (input_ids < FIRST_ORDINARY_ID) & (input_ids != UNK_ID)
    is_first = np.ones((special.shape[0], 1), bool)
    opens_segment = ops.concat([is_first, special[:, :-1]], 1) & ~special
    opens_word = opens_segment | (ops.cast(token_boundary, "bool") & ~special)
    return opens_segment, opens_word


class _Examples:
    """The examples of a batch, whose rows hold one or several of them.

    With at most K examples per row, example n of row r has index
    `r * K + n - 1`. A row with fewer examples leaves indices unused.

    Args:
        numbers: int, `(batch, length)`, the number of the example of each
            token, from 1 on, and 0 for padding. The examples of a row follow
            one another without a gap, and padding follows the last one.
        max_per_row: K.

    Attributes:
        num_tokens: int64, `(batch * K,)`; 0 for an unused index.
        begins: int64, `(batch * K,)`, index of the first token in the flattened
            batch.
    """

    def __init__(self, numbers: Array, max_per_row: int, ops: Any) -> None:
        self._shape = (numbers.shape[0], max_per_row)
        self._ops = ops
        num_rows, self._length = numbers.shape
        rows = np.arange(num_rows)[:, np.newaxis]
        if max_per_row > 1:
            # The padding of a row is one more group, its first.
            groups = ops.cast(numbers, "int64") + rows * (max_per_row + 1)
            self._groups = ops.reshape(groups, (-1,))
        self.num_tokens = self.count(numbers > 0)
        counts = ops.reshape(self.num_tokens, self._shape)
        begins = ops.cumsum(counts, 1) - counts + rows * self._length
        self.begins = ops.reshape(begins, (num_rows * max_per_row,))

    def count(self, flags: Array) -> Array:
        """Number of tokens of each example whose flag is True; `(batch * K,)`.

        The flags are bool, `(batch, length)`; False for padding.
        """
        ops = self._ops
        num_rows, max_per_row = self._shape
        if max_per_row == 1:  # takes a third of the time
            return ops.count_nonzero(flags, 1)
        num_groups = num_rows * (max_per_row + 1)
        counts = ops.bincount(
            self._groups, ops.reshape(flags, (-1,)), num_groups
        )
        counts = ops.reshape(counts, (num_rows, max_per_row + 1))[:, 1:]
        return ops.reshape(counts, (num_rows * max_per_row,))

    def locate(self, tokens: Array) -> tuple[Array, Array]:
        """Returns the example of each token and the position in the example.

        The tokens are indices in the flattened batch; not of padding.
        """
        if self._shape[1] == 1:
            rows = tokens // self._length
            return rows, tokens - rows * self._length
        groups = self._ops.take(self._groups, tokens)
        rows = groups // (self._shape[1] + 1)
        examples = groups - rows - 1
        return examples, tokens - self._ops.take(self.begins, examples)


class _Spans(NamedTuple):
    """The spans of all examples, example by example; int64, `(spans,)`.

    Attributes:
        examples: Indices as in `_Examples`, nondecreasing.
        begins: Index of the first token in the flattened batch, increasing.
        positions: Position of the first token in its example.
        lengths: Number of tokens.
        sizes: Number of maskable tokens; may be 0.
    """

    examples: Array
    begins: Array
    positions: Array
    lengths: Array
    sizes: Array


def draw_first_words(
    keys: Array, num_words: Array, ngram: int, ops: Any = array_ops
) -> Array:
    """Draws span lengths and returns the words that begin a span.

    Args:
        keys: uint64, `(examples,)`.
        num_words: int64, `(examples,)`, number of words in each example.
        ngram: Maximum number of words in a span.

    Returns:
        int64, increasing; indices among the words of all examples, without the
        first word of each example.
    """
    probabilities = 1 / np.arange(1, ngram + 1)
    probabilities = probabilities / probabilities.sum()
    # P(the span around a random word has r words from that word on).
    residual = np.cumsum(probabilities[::-1])[::-1]
    residual = residual / residual.sum()
    # Each example gets as many draws as it has words. Draws that lead beyond
    # its end are dropped. The random bits are compared as integers, which
    # saves their conversion to floats.
    draws = ops.ranges(num_words)
    bits = random_bits(ops.repeat(keys, num_words), draws, ops)

    def count_words(bits: Array, distribution: np.ndarray) -> Array:
        lengths = ops.cast(bits >= np.uint64(0), "int64")
        for limit in np.cumsum(distribution)[:-1]:
            is_longer = bits >= np.uint64(limit * 2.0**64)
            lengths = lengths + ops.cast(is_longer, "int64")
        return lengths

    first_draws = ops.flatnonzero(draws == 0)
    lengths = ops.put(
        count_words(bits, probabilities),
        first_draws,
        count_words(ops.take(bits, first_draws), residual),
    )
    # Cumulative lengths run over all examples. In each example, the lengths
    # drawn before it are replaced by the number of words before it.
    total_lengths = ops.cumsum(lengths)
    ends = ops.cumsum(num_words)
    firsts = ends - num_words
    drawn_before = ops.take(
        ops.concat([np.array([0]), total_lengths], 0), firsts
    )
    begins = total_lengths + ops.repeat(firsts - drawn_before, num_words)
    is_in_example = begins < ops.repeat(ends, num_words)
    return ops.take(begins, ops.flatnonzero(is_in_example))


def _measure_spans(
    opens_span: Array, is_exception: Array, examples: _Examples, ops: Any
) -> _Spans:
    """Counts the tokens and the maskable tokens of each span.

    A span extends to the beginning of the next one, or to the end of its
    example. The exceptions, `(batch, length)`, are the tokens that are neither
    maskable nor padding. They are few, so each is looked up.
    """
    num_rows, length = is_exception.shape
    begins = ops.flatnonzero(opens_span)
    of_spans, positions = examples.locate(begins)
    num_left = ops.take(examples.num_tokens, of_spans) - positions
    next_begins = ops.concat([begins[1:], np.array([num_rows * length])], 0)
    lengths = ops.minimum(next_begins - begins, num_left)
    exceptions = ops.flatnonzero(is_exception)
    # The number of spans that begin up to the exception. The last of them holds
    # the exception, or ended before it if the exception begins an example.
    numbers = ops.searchsorted(begins, exceptions)
    ends = ops.concat([np.array([0]), begins + lengths], 0)
    is_in_span = exceptions < ops.take(ends, numbers)
    num_exceptions = ops.bincount(
        ops.take(numbers, ops.flatnonzero(is_in_span)), None, ops.size(ends)
    )[1:]
    sizes = lengths - num_exceptions
    return _Spans(of_spans, begins, positions, lengths, sizes)


def _take_spans(
    spans: _Spans,
    order: Array,
    budgets: Array,
    max_predictions: int,
    max_spans: int,
    ops: Any,
) -> Array:
    """Takes spans in random order while they fit the budget of their example.

    If nothing fits in an example, its first span of at most `max_predictions`
    tokens is taken.

    Args:
        order: uint64, `(spans,)`, random, below 2**32.
        budgets: int64, `(examples,)`, number of tokens to mask.
        max_spans: Largest number of spans of an example.

    Returns:
        int64, increasing; the indices of the spans taken.
    """
    examples, sizes = spans.examples, spans.sizes
    num_examples = budgets.shape[0]
    # About twice as many spans as the budgets need come first. After them, few
    # examples have a part of their budget left. Only in these are the remaining
    # spans sorted, too.
    limit = ops.total(budgets) * 2**33 // (ops.total(sizes) + 1)
    comes_first = order < ops.cast(limit, "uint64")
    taken = ops.zeros(ops.size(examples), "bool")
    left = budgets
    for candidates in (comes_first, ~comes_first):
        candidates = candidates & ops.take(left > 0, examples)
        shuffled = _shuffle_within_examples(
            candidates, examples, order, num_examples, max_spans, ops
        )
        taken, left = _take_what_fits(
            shuffled, examples, sizes, left, taken, ops
        )
    # An example of which no span fits the budget has all of it left.
    candidates = (sizes > 0) & (sizes <= max_predictions)
    candidates = candidates & ops.take(left == budgets, examples)
    shuffled = _shuffle_within_examples(
        candidates, examples, order, num_examples, max_spans, ops
    )
    counts = ops.bincount(ops.take(examples, shuffled), None, num_examples)
    is_first = ops.ranges(counts) == 0
    exceptions = ops.take(shuffled, ops.flatnonzero(is_first))
    return ops.flatnonzero(ops.put(taken, exceptions, True))


def _shuffle_within_examples(
    is_candidate: Array,
    examples: Array,
    order: Array,
    num_examples: int,
    max_spans: int,
    ops: Any,
) -> Array:
    """Indices of some spans, sorted by their examples, then by `order`."""
    number_bits = (max_spans - 1).bit_length()
    if num_examples > 2 ** (32 - number_bits):
        raise ValueError(
            f"a batch must have at most {2 ** (32 - number_bits)} examples of "
            f"{max_spans} tokens. Received: {num_examples}"
        )
    spans = ops.flatnonzero(is_candidate)
    groups = ops.take(examples, spans)
    counts = ops.bincount(groups, None, num_examples)
    # The example, 32 random bits, and the span's number in the example: sorting
    # integers is several times faster than an argsort.
    sort_keys = ops.sort(
        ops.cast(groups, "uint64") * np.uint64(2 ** (32 + number_bits))
        + ops.take(order, spans) * np.uint64(2**number_bits)
        + ops.cast(ops.ranges(counts), "uint64")
    )
    numbers = ops.cast(sort_keys & np.uint64(2**number_bits - 1), "int64")
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

    `spans` are indices in shuffled order; `examples`, `sizes` and `taken` are
    of all spans. Returns `taken`, and what is left of the budgets.
    """
    num_examples = budgets.shape[0]

    def take_more(
        spans: Array, examples: Array, sizes: Array, left: Array, taken: Array
    ) -> tuple[Array, ...]:
        # Cumulative sizes run over all examples, so an end includes the sizes
        # of the examples before.
        size_of_example = ops.bincount(examples, sizes, num_examples)
        ends = ops.cumsum(size_of_example) - size_of_example + left
        fits = ops.cumsum(sizes) <= ops.take(ends, examples)
        now = ops.flatnonzero(fits)
        left = left - ops.bincount(
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


def _fill_slots(
    tokens: Array, original_ids: Array, shape: Any, num_slots: int, ops: Any
) -> dict[str, Array]:
    """The features `MASK_FEATURES` of rows of a `shape`.

    Args:
        tokens: int64, the masked tokens, increasing indices in the flattened
            batch.
        original_ids: int32, as they were before masking.
    """
    num_rows, length = shape
    rows = tokens // length
    columns = tokens - rows * length
    numbers = ops.ranges(ops.bincount(rows, None, num_rows))
    ops.check(
        numbers < num_slots, "a row must have a slot for each masked token"
    )
    slots = rows * num_slots + numbers

    def in_slots(values: Array, dtype: str) -> Array:
        empty = ops.zeros(num_rows * num_slots, dtype)
        filled = ops.put(empty, slots, ops.cast(values, dtype))
        return ops.reshape(filled, (num_rows, num_slots))

    return {
        "masked_lm_positions": in_slots(columns, "int32"),
        "masked_lm_ids": in_slots(original_ids, "int32"),
        "masked_lm_weights": in_slots(columns >= 0, "float32"),
    }
