"""Which pieces a masked language model must restore: spans of whole words.

The rule of the paper (spans of n words, p(n) ~ 1/n, 15 % of the pieces),
drawn for a whole batch at once: no loop over rows, words or pieces, and the
lengths of the spans follow p(n) exactly. It serves records that are being
built and, later, masking anew while training.

1. Words: a piece marked as a boundary begins one. Special pieces end a
   segment; what follows them begins a word whatever its mark.
2. The words of a segment are tiled with spans of lengths drawn from p(n).
   The first length is drawn from what is left of a span that a random word
   falls into, so that the tiling has no preferred position and every word is
   equally likely to stand anywhere in a span.
3. Spans are put in random order and taken while they fit the budget; one that
   does not fit is passed over, smaller ones behind it may still fit.
4. Each piece taken becomes `[MASK]` (80 %), stays (10 %), or becomes a random
   ordinary piece (10 %).

Reference:
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 4.1;
    [Joshi et al., 2020](https://arxiv.org/abs/1907.10529).
"""

from typing import NamedTuple

import numpy as np

from albert_tf.features import MASK_ID, PAD_ID, SPECIAL_PIECES, UNK_ID
from albert_tf.keyed_random import random_bits, random_uniform

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

    input_ids: np.ndarray
    positions: np.ndarray
    ids: np.ndarray
    weights: np.ndarray


def mask_batch(
    input_ids: np.ndarray,
    token_boundary: np.ndarray,
    keys: np.ndarray,
    *,
    vocab_size: int,
    max_predictions_per_seq: int,
    masked_lm_prob: float,
    ngram: int,
) -> MaskedBatch:
    """Chooses the pieces to restore and hides them.

    Never restored: special pieces and `<unk>`. An `<unk>` within a word
    stays visible while the rest of the word is hidden.

    Args:
        input_ids: int32, `(batch, length)`, padded with `<pad>`.
        token_boundary: `(batch, length)`, 1 where a word begins.
        keys: uint64, `(batch,)`; a row's masks depend on its key and its
            pieces, on nothing else.
        vocab_size: Pieces of the vocabulary.
        max_predictions_per_seq: Pieces to restore in a row at the most.
        masked_lm_prob: Share of a row's pieces to restore, special pieces
            counted in, padding not.
        ngram: Words in a span at the most.

    Returns:
        The masked rows. A row has a piece to restore wherever one of its
        spans is small enough: if all exceed the budget, the first in the
        random order that has at most `max_predictions_per_seq` is taken.
    """
    special = (input_ids < FIRST_ORDINARY_ID) & (input_ids != UNK_ID)
    after_special = np.ones_like(special)
    after_special[:, 1:] = special[:, :-1]
    opens_segment = after_special & ~special
    opens_word = opens_segment | (token_boundary.astype(bool) & ~special)

    word_rows, word_columns = np.nonzero(opens_word)
    opens_span = _tile_with_spans(
        opens_segment[opens_word],
        random_uniform(
            random_bits(keys, _SPAN_LENGTH)[word_rows], word_columns
        ),
        ngram,
    )
    span_rows = word_rows[opens_span]
    span_columns = word_columns[opens_span]

    # Pieces that may be restored, and the span that each belongs to.
    rows, columns = np.nonzero(input_ids >= FIRST_ORDINARY_ID)
    word_of_piece = np.cumsum(opens_word).reshape(opens_word.shape) - 1
    span_of_word = np.cumsum(opens_span) - 1
    spans = span_of_word[word_of_piece[rows, columns]]

    num_pieces = np.count_nonzero(input_ids != PAD_ID, axis=1)
    budgets = np.rint(masked_lm_prob * num_pieces).astype(np.int64)
    taken = _take_spans(
        span_rows,
        np.bincount(spans, minlength=len(span_rows)),
        random_bits(random_bits(keys, _SPAN_ORDER)[span_rows], span_columns),
        np.clip(budgets, 1, max_predictions_per_seq),
        max_predictions_per_seq,
    )
    chosen = taken[spans]
    rows, columns = rows[chosen], columns[chosen]

    originals = input_ids[rows, columns]
    masked_ids = input_ids.copy()
    masked_ids[rows, columns] = _replace(
        originals, keys, rows, columns, vocab_size
    )

    slots = np.arange(len(rows)) - np.searchsorted(rows, rows)
    shape = (len(input_ids), max_predictions_per_seq)
    positions = np.zeros(shape, np.int32)
    ids = np.zeros(shape, np.int32)
    weights = np.zeros(shape, np.float32)
    positions[rows, slots] = columns
    ids[rows, slots] = originals
    weights[rows, slots] = 1
    return MaskedBatch(masked_ids, positions, ids, weights)


def span_length_probabilities(ngram: int) -> np.ndarray:
    """p(n) ~ 1/n for n = 1, ..., `ngram`; float64, `(ngram,)`."""
    weights = 1 / np.arange(1, ngram + 1)
    return weights / weights.sum()


def _tile_with_spans(
    opens_segment: np.ndarray, uniforms: np.ndarray, ngram: int
) -> np.ndarray:
    """Marks the words that begin a span.

    Args:
        opens_segment: bool, `(words,)`; the first word of a segment.
        uniforms: float64, `(words,)`, in [0, 1).
        ngram: Words in a span at the most.

    Returns:
        bool, `(words,)`.
    """
    probabilities = span_length_probabilities(ngram)
    # P(a span that a random word falls into goes on for r words from it).
    residual = np.cumsum(probabilities[::-1])[::-1]
    residual = residual / residual.sum()
    lengths = 1 + np.where(
        opens_segment,
        np.searchsorted(np.cumsum(residual)[:-1], uniforms, side="right"),
        np.searchsorted(np.cumsum(probabilities)[:-1], uniforms, side="right"),
    )
    # A segment of w words has w lengths drawn, one more than it can need:
    # those that lead beyond its end are dropped.
    first_words = np.flatnonzero(opens_segment)
    segment_ends = np.append(first_words[1:], len(opens_segment))
    segments = np.cumsum(opens_segment) - 1
    words_before = np.cumsum(lengths)
    begins = (
        words_before
        + first_words[segments]
        - (words_before - lengths)[first_words][segments]
    )
    opens_span = opens_segment.copy()
    opens_span[begins[begins < segment_ends[segments]]] = True
    return opens_span


def _take_spans(
    rows: np.ndarray,
    sizes: np.ndarray,
    order_bits: np.ndarray,
    budgets: np.ndarray,
    max_predictions: int,
) -> np.ndarray:
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

    Returns:
        bool, `(spans,)`.
    """
    # 40 random bits under 24 bits of row sort rows and order in one go.
    sort_key = (rows.astype(np.uint64) << np.uint64(40)) | (
        order_bits >> np.uint64(24)
    )
    ordered = np.argsort(sort_key, kind="stable")
    ordered = ordered[sizes[ordered] > 0]
    taken = np.zeros(len(rows), bool)
    left = budgets.copy()
    candidates = ordered
    while True:
        candidates = candidates[sizes[candidates] <= left[rows[candidates]]]
        if not len(candidates):
            break
        row, size = rows[candidates], sizes[candidates]
        running = np.cumsum(size)
        row_begins = np.searchsorted(row, row)
        running -= (running - size)[row_begins]
        fits = running <= left[row]
        taken[candidates[fits]] = True
        left -= np.bincount(
            row[fits], weights=size[fits], minlength=len(left)
        ).astype(np.int64)
        candidates = candidates[~fits]

    untouched = left == budgets
    fallback = ordered[
        untouched[rows[ordered]] & (sizes[ordered] <= max_predictions)
    ]
    _, first_of_row = np.unique(rows[fallback], return_index=True)
    taken[fallback[first_of_row]] = True
    return taken


def _replace(
    originals: np.ndarray,
    keys: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    vocab_size: int,
) -> np.ndarray:
    """What stands in place of each piece to restore; int32."""
    kind = random_uniform(random_bits(keys, _REPLACEMENT_KIND)[rows], columns)
    random_piece = FIRST_ORDINARY_ID + np.floor(
        random_uniform(random_bits(keys, _RANDOM_PIECE)[rows], columns)
        * (vocab_size - FIRST_ORDINARY_ID)
    )
    return np.select(
        [kind < 0.8, kind < 0.9], [MASK_ID, originals], random_piece
    ).astype(np.int32)
