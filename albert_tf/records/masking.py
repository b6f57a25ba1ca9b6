"""Whole-word span masking: the tokens that the masked language model predicts.

The rule is that of the paper: 15 % of the tokens, in spans of n words with
p(n) proportional to 1/n. All examples of a batch are masked at once, without a
Python loop over examples, words or tokens. The same code runs in NumPy, where
records are built, and in TensorFlow, where a run masks dynamically; equal keys
give equal masks. The rows of a batch hold one example each or, if packed,
several; the masks of an example do not depend on the other examples of its row.

`mask_batch` has four stages:

1. `_find_words`: a token whose boundary mark is set begins a word. A special
   token ends a segment; the token after it begins a word, marked or not.
2. `spans.tile_with_spans`: consecutive spans cover the words of each example.
   Their lengths are drawn from p(n). The first length of an example is drawn
   from the distribution of the words that remain in the span around a random
   word, so that each word is equally likely to begin a span. A span ends where
   a segment ends.
3. `spans.take_spans`: the spans of an example are shuffled and taken while
   they fit the budget. A span that does not fit is skipped; a smaller span
   after it may still fit.
4. `_draw_replacements`: a taken token becomes `[MASK]` (80 %), stays as it is
   (10 %), or becomes a random ordinary piece of the vocabulary (10 %).

Reference:
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 4.1;
    [Joshi et al., 2020](https://arxiv.org/abs/1907.10529).
"""

from typing import Any, NamedTuple

import numpy as np

from albert_tf.records import array_ops
from albert_tf.records.features import MASK_ID, PAD_ID, SPECIAL_PIECES, UNK_ID
from albert_tf.records.keyed_random import random_bits, random_uniform
from albert_tf.records.spans import (
    Examples,
    Spans,
    measure_spans,
    take_spans,
    tile_with_spans,
)

# A NumPy array or a tensor.
Array = Any

# The ids from here on are ordinary pieces.
FIRST_ORDINARY_ID = len(SPECIAL_PIECES)

# The uses of an example's key. Each has independent random numbers.
_SPAN_LENGTH, _SPAN_ORDER, _REPLACEMENT_KIND, _RANDOM_PIECE = range(4)


class MaskedBatch(NamedTuple):
    """Masked examples.

    A row has P slots for predictions, where P is `max_predictions_per_seq`; a
    packed row of at most K examples has P + K - 1.

    Attributes:
        input_ids: int32, `(batch, length)`, with the replacements.
        positions: int32, `(batch, slots)`, positions of the masked tokens in
            their row, in increasing order; padded with 0.
        ids: int32, `(batch, slots)`, the original tokens at these positions;
            padded with 0.
        weights: float32, `(batch, slots)`; 1 for a masked token, 0 for
            padding.
    """

    input_ids: Array
    positions: Array
    ids: Array
    weights: Array


class _Tokens(NamedTuple):
    """The masked tokens of all rows, row by row.

    Attributes:
        indices: int64, `(tokens,)`, indices in the flattened batch, increasing.
        ids: int32, `(tokens,)`, as they were before masking.
    """

    indices: Array
    ids: Array


def mask_batch(
    input_ids: Array,
    token_boundary: Array,
    keys: Array,
    *,
    vocab_size: int,
    max_predictions_per_seq: int,
    masked_lm_prob: float,
    ngram: int,
    example_numbers: Array | None = None,
    max_examples_per_row: int = 1,
    ops: Any = array_ops,
) -> MaskedBatch:
    """Selects tokens to predict and replaces them.

    Special tokens and `<unk>` are never selected. An `<unk>` within a word
    stays visible while the other tokens of the word are masked.

    Args:
        input_ids: int32, `(batch, length)`, padded with `<pad>`; length and
            `batch * max_examples_per_row` are at most 65536.
        token_boundary: `(batch, length)`, 1 where a word begins.
        keys: uint64, `(batch * max_examples_per_row,)`, by row, then by number
            in the row. The masks of an example depend only on its key and its
            tokens.
        vocab_size: Number of pieces in the vocabulary.
        max_predictions_per_seq: P, maximum number of masked tokens in an
            example.
        masked_lm_prob: Fraction of an example's tokens to mask. Special tokens
            count as tokens here, padding does not.
        ngram: Maximum number of words in a span.
        example_numbers: int32, `(batch, length)`, `input_mask` of packed rows;
            None for rows of one example.
        max_examples_per_row: K, maximum number of examples in a packed row.
        ops: `array_ops`, or `tensor_ops` for tensors of static shape.

    Returns:
        The masked batch. If all spans of an example exceed its budget, the
        first span in random order with at most `max_predictions_per_seq`
        tokens is masked. An example without such a span has no masked tokens.

    Raises:
        ValueError: If the masked tokens of a packed row exceed its slots; for
            tensors an InvalidArgumentError. This does not happen with the
            masking settings for which the records were packed.

    Example:
        >>> masked = mask_batch(
        ...     np.array([[2, 20, 21, 22, 23, 3, 0]], np.int32),
        ...     np.array([[1, 1, 0, 1, 1, 1, 0]]),
        ...     np.array([7], np.uint64),
        ...     vocab_size=30,
        ...     max_predictions_per_seq=3,
        ...     masked_lm_prob=0.3,
        ...     ngram=1,
        ... )
        >>> masked.input_ids.tolist()
        [[2, 20, 21, 4, 4, 3, 0]]
        >>> masked.positions.tolist()
        [[3, 4, 0]]
        >>> masked.ids.tolist()
        [[22, 23, 0]]
        >>> masked.weights.tolist()
        [[1.0, 1.0, 0.0]]
    """
    if example_numbers is None:
        example_numbers = ops.cast(input_ids != PAD_ID, "int32")
    examples = Examples(example_numbers, max_examples_per_row, ops)
    opens_segment, opens_word = _find_words(input_ids, token_boundary, ops)
    opens_span = tile_with_spans(
        opens_segment,
        opens_word,
        examples,
        random_bits(keys, _SPAN_LENGTH, ops),
        ngram,
        ops,
    )
    is_maskable = input_ids >= FIRST_ORDINARY_ID
    is_exception = ~is_maskable & (input_ids != PAD_ID)
    spans = measure_spans(opens_span, is_exception, examples, ops)
    span_keys = _keys_at(spans.examples, keys, _SPAN_ORDER, ops)
    taken = take_spans(
        spans.examples,
        spans.sizes,
        random_bits(span_keys, spans.positions, ops),
        _find_budgets(
            examples.num_tokens, masked_lm_prob, max_predictions_per_seq, ops
        ),
        max_predictions_per_seq,
        ops,
    )
    tokens = _list_tokens(spans, taken, input_ids, is_maskable, ops)
    replacements = _draw_replacements(tokens, examples, keys, vocab_size, ops)
    num_slots = max_predictions_per_seq + max_examples_per_row - 1
    return _make_batch(input_ids, tokens, replacements, num_slots, ops)


def _keys_at(examples: Array, keys: Array, purpose: int, ops: Any) -> Array:
    """Keys for one purpose, at each element of `examples`; uint64."""
    return ops.take(random_bits(keys, purpose, ops), examples)


def _find_words(
    input_ids: Array, token_boundary: Array, ops: Any
) -> tuple[Array, Array]:
    """Finds the tokens that open a segment, and those that open a word.

    Returns:
        Two arrays, bool, `(batch, length)`.
    """
    special = (input_ids < FIRST_ORDINARY_ID) & (input_ids != UNK_ID)
    opens_segment = ops.shift_columns(special, True) & ~special
    opens_word = opens_segment | (ops.cast(token_boundary, "bool") & ~special)
    return opens_segment, opens_word


def _find_budgets(
    num_tokens: Array, masked_lm_prob: float, max_predictions: int, ops: Any
) -> Array:
    """Number of tokens to mask in each example, at least 1; int64."""
    wanted = ops.rint(ops.cast(num_tokens, "float64") * masked_lm_prob)
    return ops.clip(ops.cast(wanted, "int64"), 1, max_predictions)


def _list_tokens(
    spans: Spans, taken: Array, input_ids: Array, is_maskable: Array, ops: Any
) -> _Tokens:
    """Lists the maskable tokens of the spans taken."""
    lengths = ops.take(spans.lengths, taken)
    begins = ops.repeat(ops.take(spans.begins, taken), lengths)
    indices = begins + ops.ranges(lengths)
    indices = ops.take(indices, ops.flatnonzero(ops.take(is_maskable, indices)))
    return _Tokens(indices, ops.take(input_ids, indices))


def _draw_replacements(
    tokens: _Tokens,
    examples: Examples,
    keys: Array,
    vocab_size: int,
    ops: Any,
) -> Array:
    """Draws what each masked token becomes; int32, `(tokens,)`."""
    of_tokens, positions = examples.locate(tokens.indices)

    def uniform(purpose: int) -> Array:
        token_keys = _keys_at(of_tokens, keys, purpose, ops)
        return random_uniform(token_keys, positions, ops)

    kind = uniform(_REPLACEMENT_KIND)
    random_piece = FIRST_ORDINARY_ID + ops.cast(
        uniform(_RANDOM_PIECE) * (vocab_size - FIRST_ORDINARY_ID), "int32"
    )
    original_or_random = ops.where(kind < 0.9, tokens.ids, random_piece)
    return ops.where(kind < 0.8, np.int32(MASK_ID), original_or_random)


def _make_batch(
    input_ids: Array,
    tokens: _Tokens,
    replacements: Array,
    num_slots: int,
    ops: Any,
) -> MaskedBatch:
    """Puts the replacements, and the predictions of each row, in place."""
    num_rows, length = input_ids.shape
    masked_ids = ops.put(
        ops.reshape(ops.copy(input_ids), (-1,)), tokens.indices, replacements
    )
    rows = tokens.indices // length
    columns = tokens.indices - rows * length
    numbers = ops.ranges(ops.count_by(rows, num_rows))
    ops.check(
        ops.max(numbers) < num_slots,
        "a row must have a slot for each masked token",
    )
    slots = rows * num_slots + numbers

    def in_slots(values: Array, dtype: str) -> Array:
        empty = ops.zeros(num_rows * num_slots, dtype)
        return ops.reshape(
            ops.put(empty, slots, ops.cast(values, dtype)),
            (num_rows, num_slots),
        )

    return MaskedBatch(
        ops.reshape(masked_ids, (num_rows, length)),
        in_slots(columns, "int32"),
        in_slots(tokens.ids, "int32"),
        in_slots(ops.cast(columns >= 0, "float32"), "float32"),
    )
