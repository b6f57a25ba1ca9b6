"""Which pieces a masked language model must restore: spans of whole words.

The rule of the paper (spans of n words, p(n) ~ 1/n, 15 % of the pieces),
drawn for a whole batch at once: no loop over rows, words or pieces, and the
lengths of the spans follow p(n) exactly. It serves records that are being
built, with NumPy, and masking anew while training, with TensorFlow: the same
masks of the same keys.

1. Words: a piece marked as a boundary begins one. Special pieces end a
   segment; what follows them begins a word whatever its mark.
2. The words of a row are tiled with spans of lengths drawn from p(n). The
   first length is drawn from what is left of a span that a random word falls
   into, so that the tiling has no preferred position: every word is equally
   likely to stand anywhere in a span. A span is cut where a segment begins.
3. Spans are put in random order and taken while they fit the budget; one that
   does not fit is passed over, smaller ones behind it may still fit.
4. Each piece taken becomes `[MASK]` (80 %), stays (10 %), or becomes a random
   ordinary piece (10 %).

Reference:
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 4.1;
    [Joshi et al., 2020](https://arxiv.org/abs/1907.10529).
"""

from typing import Any, NamedTuple

import numpy as np

from albert_tf.records import array_ops
from albert_tf.records.features import MASK_ID, PAD_ID, SPECIAL_PIECES, UNK_ID
from albert_tf.records.keyed_random import random_bits, random_uniform

# A NumPy array or a tensor.
Array = Any

# Ordinary pieces have the ids from here on.
FIRST_ORDINARY_ID = len(SPECIAL_PIECES)

# What a row's key is used for, each with random numbers of its own.
_SPAN_LENGTH, _SPAN_ORDER, _REPLACEMENT_KIND, _RANDOM_PIECE = range(4)


class MaskedBatch(NamedTuple):
    """Masked examples.

    Attributes:
        input_ids: int32, `(batch, length)`, with the replacements.
        positions: int32, `(batch, max_predictions)`, of the pieces to
            restore, rising; padded with 0.
        ids: int32, `(batch, max_predictions)`, the original pieces there;
            padded with 0.
        weights: float32, `(batch, max_predictions)`; 1 for a piece to
            restore, 0 for padding.
    """

    input_ids: Array
    positions: Array
    ids: Array
    weights: Array


def mask_batch(
    input_ids: Array,
    token_boundary: Array,
    keys: Array,
    *,
    vocab_size: int,
    max_predictions_per_seq: int,
    masked_lm_prob: float,
    ngram: int,
    ops: Any = array_ops,
) -> MaskedBatch:
    """Chooses the pieces to restore and hides them.

    Never restored: special pieces and `<unk>`. An `<unk>` within a word
    stays visible while the rest of the word is hidden.

    Args:
        input_ids: int32, `(batch, length)`, padded with `<pad>`; batch and
            length at most 65536.
        token_boundary: `(batch, length)`, 1 where a word begins.
        keys: uint64, `(batch,)`; a row's masks depend on its key and its
            pieces, on nothing else.
        vocab_size: Pieces of the vocabulary.
        max_predictions_per_seq: Pieces to restore in a row at the most.
        masked_lm_prob: Share of a row's pieces to restore, special pieces
            counted in, padding not.
        ngram: Words in a span at the most.
        ops: `array_ops`, or `tensor_ops` for tensors of static shape.

    Returns:
        The masked rows. A row has a piece to restore wherever one of its
        spans is small enough: if all exceed the budget, the first in the
        random order that has at most `max_predictions_per_seq` is taken.
    """
    num_rows, length = input_ids.shape
    special = (input_ids < FIRST_ORDINARY_ID) & (input_ids != UNK_ID)
    opens_segment = ops.moved_right(special, True) & ~special
    opens_word = opens_segment | (ops.cast(token_boundary, "bool") & ~special)
    opens_span = ops.put(
        ops.reshape(opens_segment, (-1,)),
        ops.take(
            ops.flatnonzero(opens_word),
            _tile_with_spans(
                random_bits(keys, _SPAN_LENGTH, ops),
                ops.count_true(opens_word),
                ngram,
                ops,
            ),
        ),
        True,
    )
    spans = ops.flatnonzero(opens_span)
    span_rows = spans // length

    # A span holds the pieces to the next one; some may not be restored.
    may_restore = ops.reshape(input_ids >= FIRST_ORDINARY_ID, (-1,))
    pieces = ops.flatnonzero(may_restore)
    pieces_before = ops.take(
        ops.cumsum(may_restore) - ops.cast(may_restore, "int64"), spans
    )
    sizes = ops.append(pieces_before[1:], ops.size(pieces)) - pieces_before

    num_pieces = ops.cast(ops.count_true(input_ids != PAD_ID), "float64")
    budgets = ops.cast(ops.rint(num_pieces * masked_lm_prob), "int64")
    taken = _take_spans(
        span_rows,
        sizes,
        random_bits(
            ops.take(random_bits(keys, _SPAN_ORDER, ops), span_rows),
            spans - span_rows * length,
            ops,
        ),
        ops.clip(budgets, 1, max_predictions_per_seq),
        max_predictions_per_seq,
        ops,
    )
    sizes = ops.take(sizes, taken)
    first_pieces = ops.take(pieces_before, taken)
    chosen = ops.take(
        pieces,
        ops.repeat(first_pieces - ops.cumsum(sizes) + sizes, sizes)
        + ops.arange(ops.sum(sizes)),
    )
    rows = chosen // length
    columns = chosen - rows * length

    originals = ops.take(input_ids, chosen)
    masked_ids = ops.put(
        ops.reshape(ops.copy(input_ids), (-1,)),
        chosen,
        _replace(originals, keys, rows, columns, vocab_size, ops),
    )
    slots = rows * max_predictions_per_seq + _number_in_row(rows, num_rows, ops)

    def in_slots(values: Array, dtype: str) -> Array:
        empty = ops.zeros(num_rows * max_predictions_per_seq, dtype)
        return ops.reshape(
            ops.put(empty, slots, ops.cast(values, dtype)),
            (num_rows, max_predictions_per_seq),
        )

    return MaskedBatch(
        ops.reshape(masked_ids, (num_rows, length)),
        in_slots(columns, "int32"),
        in_slots(originals, "int32"),
        in_slots(ops.cast(columns >= 0, "float32"), "float32"),
    )


def span_length_probabilities(ngram: int) -> np.ndarray:
    """p(n) ~ 1/n for n = 1, ..., `ngram`; float64, `(ngram,)`."""
    weights = 1 / np.arange(1, ngram + 1)
    return weights / weights.sum()


def _tile_with_spans(
    keys: Array, num_words: Array, ngram: int, ops: Any = array_ops
) -> Array:
    """Chooses the words that begin a span.

    Args:
        keys: uint64, `(batch,)`.
        num_words: int64, `(batch,)`, of each row.
        ngram: Words in a span at the most.
        ops: `array_ops`, or `tensor_ops` for tensors.

    Returns:
        int64, rising; indices among the words of all rows. The first word
        of a row counts as the end of the span before it: it is left out.
    """
    probabilities = span_length_probabilities(ngram)
    # P(a span that a random word falls into goes on for r words from it).
    residual = np.cumsum(probabilities[::-1])[::-1]
    residual = residual / residual.sum()
    # As many draws as a row has words, more than it can need: those that
    # lead beyond its end are dropped. Bits are compared as they are, which
    # spares making floats of them.
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
    inside = begins < ops.reshape(num_words, (-1, 1))
    first_words = ops.reshape(ops.cumsum(num_words) - num_words, (-1, 1))
    return ops.take(begins + first_words, ops.flatnonzero(inside))


def _take_spans(
    rows: Array,
    sizes: Array,
    order_bits: Array,
    budgets: Array,
    max_predictions: int,
    ops: Any = array_ops,
) -> Array:
    """Takes spans in random order while they fit their row's budget.

    Each turn of the loop takes, in every row, all spans up to the first that
    does not fit what is left. What is left only shrinks, so a span passed
    over never fits later, and the result is that of going through the spans
    one by one. Few turns are needed, since spans have few sizes.

    Args:
        rows: int64, `(spans,)`, rising.
        sizes: int64, `(spans,)`, pieces that may be restored.
        order_bits: uint64, `(spans,)`, random.
        budgets: int64, `(batch,)`, pieces to restore.
        max_predictions: Size of a span that may exceed the budget if nothing
            else fits.
        ops: `array_ops`, or `tensor_ops` for tensors.

    Returns:
        int64, rising; the indices of the spans taken.
    """
    num_rows = budgets.shape[0]
    # 16 bits of the row, 32 random ones, 16 of the span's number in its row:
    # sorting such values is several times faster than an argsort. Their rows
    # are `rows` before and after.
    first = ops.take(_first_in_row(rows, num_rows, ops), rows)
    sort_keys = ops.sort(
        ops.cast(rows, "uint64") * np.uint64(2**48)
        + ops.shift_right(order_bits, 32) * np.uint64(2**16)
        + ops.cast(ops.arange(ops.size(rows)) - first, "uint64")
    )
    ordered = first + ops.cast(sort_keys & np.uint64(2**16 - 1), "int64")
    ordered_sizes = ops.take(sizes, ordered)

    def take_what_fits(
        spans: Array, rows: Array, sizes: Array, left: Array, taken: Array
    ) -> tuple[Array, ...]:
        in_row = ops.sum_by(rows, sizes, num_rows)
        limits = ops.cumsum(in_row) - in_row + left
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

    *_, left, taken = ops.loop_while_any(
        take_what_fits,
        ordered,
        rows,
        ordered_sizes,
        budgets,
        ops.zeros(ops.size(rows), "bool"),
    )
    last_resort = ops.flatnonzero(
        ops.take(left == budgets, rows)
        & (ordered_sizes > 0)
        & (ordered_sizes <= max_predictions)
    )
    is_first = _number_in_row(ops.take(rows, last_resort), num_rows, ops) == 0
    last_resort = ops.take(last_resort, ops.flatnonzero(is_first))
    taken = ops.put(taken, ops.take(ordered, last_resort), True)
    return ops.flatnonzero(taken)


def _first_in_row(rows: Array, num_rows: int, ops: Any) -> Array:
    """int64, `(num_rows,)`; where a row begins in `rows`, which rise."""
    counts = ops.count_by(rows, num_rows)
    return ops.cumsum(counts) - counts


def _number_in_row(rows: Array, num_rows: int, ops: Any) -> Array:
    """int64; 0, 1, ... within each row of `rows`, which rise."""
    first = ops.take(_first_in_row(rows, num_rows, ops), rows)
    return ops.arange(ops.size(rows)) - first


def _replace(
    originals: Array,
    keys: Array,
    rows: Array,
    columns: Array,
    vocab_size: int,
    ops: Any,
) -> Array:
    """What stands in place of each piece to restore; int32."""

    def uniform(purpose: int) -> Array:
        row_keys = ops.take(random_bits(keys, purpose, ops), rows)
        return random_uniform(row_keys, columns, ops)

    kind = uniform(_REPLACEMENT_KIND)
    random_piece = FIRST_ORDINARY_ID + ops.cast(
        uniform(_RANDOM_PIECE) * (vocab_size - FIRST_ORDINARY_ID), "int32"
    )
    kept_or_random = ops.where(kind < 0.9, originals, random_piece)
    return ops.where(kind < 0.8, np.int32(MASK_ID), kept_or_random)
