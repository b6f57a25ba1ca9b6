from typing import NamedTuple

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from albert_tf.config import MaskingConfig
from albert_tf.input import tensor_ops
from albert_tf.records import array_ops
from albert_tf.records.array_ops import random_bits, random_uniform
from albert_tf.records.features import (
    CLS_ID,
    MASK_FEATURES,
    MASK_ID,
    SEP_ID,
    UNK_ID,
)
from albert_tf.records.masking import draw_first_words, mask_rows, take_spans

VOCAB_SIZE = 997


def make_rows(rng, num_rows, length, continuation=0.4, unknown=0.0):
    """Rows `[CLS] A [SEP] B [SEP] <pad>...` of random tokens and words."""
    ids = rng.integers(5, VOCAB_SIZE, (num_rows, length)).astype(np.int32)
    ids[rng.random(ids.shape) < unknown] = UNK_ID
    boundary = (rng.random(ids.shape) >= continuation).astype(np.int32)
    for row in range(num_rows):
        last = int(rng.integers(length // 2, length))
        middle = int(rng.integers(2, last - 1))
        ids[row, 0] = CLS_ID
        ids[row, [middle, last]] = SEP_ID
        ids[row, last + 1 :] = 0
        boundary[row, [0, middle, last]] = 1
        boundary[row, last + 1 :] = 0
    return ids, boundary


class Masked(NamedTuple):
    input_ids: np.ndarray
    positions: np.ndarray
    ids: np.ndarray
    weights: np.ndarray


def mask_with(ops, rows, keys, vocab_size=VOCAB_SIZE, **settings):
    """Masks with `array_ops` or `tensor_ops`; returns arrays."""
    config = MaskingConfig(**{"max_predictions_per_seq": 20, **settings})
    keys = np.asarray(keys, np.uint64)
    if ops is tensor_ops:
        rows = {name: tf.constant(values) for name, values in rows.items()}
        keys = tf.constant(keys)
    masked = mask_rows(rows, keys, vocab_size, config, ops)
    assert list(masked) == ["input_ids", *MASK_FEATURES]
    return Masked(*map(np.asarray, masked.values()))


def as_rows(ids, boundary):
    """Rows of one example each."""
    mask = (ids > 0).astype(np.int32)
    return {"input_ids": ids, "input_mask": mask, "token_boundary": boundary}


def mask(ids, boundary, keys=None, ops=array_ops, **settings):
    """Masks rows of one example, by default in NumPy."""
    if keys is None:
        keys = np.arange(len(ids))
    return mask_with(
        ops, as_rows(ids, boundary), keys[:, np.newaxis], **settings
    )


def assert_equal(batch, other_batch):
    for one, other in zip(batch, other_batch, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def number_words(ids, boundary):
    """Number of the word of each token, by a loop; -1 for special tokens."""
    words = np.full(ids.shape, -1)
    for row in range(len(ids)):
        word = -1
        after_special = True
        for column, token in enumerate(ids[row]):
            special = token in (0, CLS_ID, SEP_ID, MASK_ID)
            if not special:
                word += bool(boundary[row, column]) or after_special
                words[row, column] = word
            after_special = special
    return words


def test_every_word_is_masked_equally_often():
    """Except for words at the ends of a segment: their spans are shorter and
    fit the rest of a budget a little more often."""
    num_rows, length = 20_000, 48
    ids = np.full((num_rows, length), 7, np.int32)
    ids[:, 0] = CLS_ID
    ids[:, [30, 47]] = SEP_ID
    masked = mask(ids, np.ones_like(ids), masked_lm_prob=0.25)
    counts = np.bincount(masked.positions[masked.weights > 0], minlength=length)
    assert counts.sum() == num_rows * 12
    rates = counts / num_rows
    interior = np.r_[3:28, 33:45]
    mean = rates[interior].mean()
    sigma = np.sqrt(mean * (1 - mean) / num_rows)
    np.testing.assert_allclose(rates[interior], mean, atol=4 * sigma)
    ends = np.r_[1:3, 28:30, 31:33, 45:47]
    np.testing.assert_allclose(rates[ends], mean, rtol=0.15)


def test_random_replacements_are_uniform_over_ordinary_pieces():
    """Ids 5 to 16 of a vocabulary of 17 pieces, each with probability 1/12."""
    rng = np.random.default_rng(4)
    ids = np.full((8000, 40), 99, np.int32)  # not in the vocabulary
    ids[:, 0] = CLS_ID
    masked = mask(ids, rng.random(ids.shape) < 0.5, vocab_size=17)
    drawn = masked.input_ids[(masked.input_ids != 99) & (ids == 99)]
    drawn = drawn[drawn != MASK_ID]
    counts = np.bincount(drawn, minlength=17)
    assert counts[:5].sum() == 0
    sigma = np.sqrt(len(drawn) / 12 * 11 / 12)
    np.testing.assert_allclose(counts[5:], len(drawn) / 12, atol=4 * sigma)


def test_words_end_at_a_separator():
    """The token after [SEP] begins a word, even without a boundary mark. In
    google-research/albert it is masked with the word before [SEP]."""
    ids = np.array([[CLS_ID, 8, 9, SEP_ID, 10, 11, SEP_ID]] * 200, np.int32)
    boundary = np.array([[1, 1, 0, 1, 0, 0, 1]] * 200)
    masked = mask(ids, boundary, masked_lm_prob=2 / 7)
    chosen = {tuple(row[:2].tolist()) for row in masked.positions}
    assert chosen == {(1, 2), (4, 5)}
    assert (masked.weights.sum(axis=1) == 2).all()


def test_the_budget_is_at_least_one_token():
    """1 % of 9 tokens rounds to 0, so the budget is 1. The only word of one
    token fits it, and no other word is masked."""
    ids = np.array([[CLS_ID, 8, 9, 10, 11, 12, 13, 14, SEP_ID]] * 50, np.int32)
    boundary = np.array([[1, 1, 0, 0, 1, 1, 0, 0, 1]] * 50)
    masked = mask(ids, boundary, masked_lm_prob=0.01, ngram=1)
    assert (masked.positions[:, 0] == 4).all()
    assert (masked.weights.sum(axis=1) == 1).all()


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(8, 70),
    continuation=st.floats(0, 1),
    unknown=st.floats(0, 1),
    max_predictions=st.integers(1, 12),
    prob=st.floats(0.01, 0.9),
    ngram=st.integers(1, 5),
)
def test_masks_cover_complete_words_within_the_budget(
    seed, length, continuation, unknown, max_predictions, prob, ngram
):
    rng = np.random.default_rng(seed)
    ids, boundary = make_rows(rng, 6, length, continuation, unknown)
    rows = (ids, boundary, rng.integers(0, 2**64, 6, dtype=np.uint64))
    settings = {
        "masked_lm_prob": prob,
        "max_predictions_per_seq": max_predictions,
        "ngram": ngram,
    }
    masked = mask(*rows, **settings)
    assert_equal(mask(*rows, ops=tensor_ops, **settings), masked)
    words = number_words(ids, boundary)
    for row in range(6):
        count = int(masked.weights[row].sum())
        positions = masked.positions[row, :count]
        assert (masked.weights[row, :count] == 1).all()
        assert (np.diff(positions) > 0).all()
        for padding in (masked.positions, masked.ids, masked.weights):
            assert not padding[row, count:].any()
        ordinary = np.flatnonzero(ids[row] >= 5)
        complete = ordinary[
            np.isin(words[row, ordinary], words[row, positions])
        ]
        np.testing.assert_array_equal(positions, complete)
        num_tokens = np.count_nonzero(ids[row])
        budget = max(1, round(prob * num_tokens))
        if count > budget:
            # No span fitted, so the masked words are one span.
            spanned = np.unique(words[row, positions])
            assert spanned[-1] - spanned[0] < ngram
        assert count <= max_predictions
        restored = masked.input_ids[row].copy()
        restored[positions] = masked.ids[row, :count]
        np.testing.assert_array_equal(restored, ids[row])


EDGE_CASES = {
    "padding": ([0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0]),
    "unknown": ([2, 1, 1, 3, 1, 1, 3], [1, 1, 0, 1, 1, 1, 1]),
    "one word": ([2, 9, 9, 9, 9, 9, 3], [1, 1, 0, 0, 0, 0, 1]),
    "one token": ([2, 9, 3, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0]),
    "no special": ([9, 9, 9, 9, 9, 9, 9], [0, 0, 1, 0, 0, 1, 0]),
    "text": ([2, 9, 8, 3, 7, 6, 3], [1, 1, 1, 1, 1, 0, 1]),
}


@pytest.mark.parametrize("max_predictions", [1, 4, 6])
def test_edge_cases_are_masked_equally_in_numpy_and_tensorflow(
    max_predictions,
):
    """Each row alone, all rows together, and an empty batch."""
    ids, boundary = (
        np.array(part, np.int32)
        for part in zip(*EDGE_CASES.values(), strict=True)
    )
    num = len(ids)
    settings = {"max_predictions_per_seq": max_predictions}
    masked = mask(ids, boundary, **settings)
    counts = dict(zip(EDGE_CASES, masked.weights.sum(axis=1), strict=True))
    assert counts["padding"] == counts["unknown"] == 0
    assert counts["one word"] == (5 if max_predictions > 4 else 0)
    assert counts["one token"] == 1
    for some in (slice(num), slice(0), *(slice(n, n + 1) for n in range(num))):
        for ops in (array_ops, tensor_ops):
            keys = np.arange(num)[some]
            alone = mask(ids[some], boundary[some], keys, ops, **settings)
            assert_equal(alone, [part[some] for part in masked])


def pack_rows(rows, keys, groups, length, max_examples):
    """Packs examples; `groups` lists the examples of each packed row.

    Returns the features and the keys of the packed rows.
    """
    packed = {name: np.zeros((len(groups), length), np.int32) for name in rows}
    packed_keys = np.zeros((len(groups), max_examples), np.uint64)
    for row, group in enumerate(groups):
        place = 0
        for number, example in enumerate(group):
            size = np.count_nonzero(rows["input_mask"][example])
            for name, values in rows.items():
                packed[name][row, place : place + size] = values[example, :size]
            packed["input_mask"][row, place : place + size] *= number + 1
            packed_keys[row, number] = keys[example]
            place += size
    return packed, packed_keys


def unpack_masks(masked, numbers):
    """Masks by (row, number): tokens, places in the example, originals."""
    found = {}
    for row, column in zip(*np.nonzero(numbers), strict=True):
        example = int(row), int(numbers[row, column])
        is_own = numbers[row] == example[1]
        places = masked.positions[row]
        belongs = (masked.weights[row] > 0) & is_own[places]
        found[example] = (
            masked.input_ids[row, is_own].tolist(),
            (places[belongs] - np.argmax(is_own)).tolist(),
            masked.ids[row, belongs].tolist(),
        )
    return found


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
    seed=st.integers(0, 2**32 - 1),
    max_examples=st.integers(1, 9),
    continuation=st.floats(0, 1),
    prob=st.floats(0.01, 0.9),
    ngram=st.integers(1, 5),
)
# Its long words exceed the budgets.
@hypothesis.example(
    seed=182, max_examples=3, continuation=0.5, prob=0.125, ngram=2
)
def test_packed_rows_hold_the_masks_of_their_examples(
    seed, max_examples, continuation, prob, ngram
):
    """Full rows of examples of any length, with words of any length: the masks
    of an example depend neither on its place nor on other examples."""
    rng = np.random.default_rng(seed)
    length, groups, sizes = 60, [], []
    for _ in range(3):
        room, first = length, len(sizes)
        while len(sizes) - first < max_examples and room >= 5:
            sizes.append(int(rng.integers(5, room + 1)))
            room -= sizes[-1]
        groups.append(range(first, len(sizes)))
    ids = rng.integers(5, VOCAB_SIZE, (len(sizes), length)).astype(np.int32)
    boundary = (rng.random(ids.shape) >= continuation).astype(np.int32)
    for example, size in enumerate(sizes):
        ids[example, [0, size // 2, size - 1]] = CLS_ID, SEP_ID, SEP_ID
        ids[example, size:] = boundary[example, size:] = 0
    keys = rng.integers(0, 2**64, len(sizes), dtype=np.uint64)
    settings = {
        "masked_lm_prob": prob,
        "max_predictions_per_seq": int(prob * length) + 1,
        "ngram": ngram,
    }
    alone = mask(ids, boundary, keys, **settings)
    rows = as_rows(ids, boundary)
    packed = pack_rows(rows, keys, groups, length, max_examples)
    num_slots = settings["max_predictions_per_seq"] + max_examples - 1
    counts = alone.weights.sum(axis=1)
    if max(counts[list(group)].sum() for group in groups) > num_slots:
        # Long words exceed the budgets.
        message = "a row must have a slot for each masked token"
        with pytest.raises(ValueError, match=message):
            mask_with(array_ops, *packed, **settings)
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            mask_with(tensor_ops, *packed, **settings)
        return
    masked = mask_with(array_ops, *packed, **settings)
    assert masked.positions.shape == (3, num_slots)
    assert_equal(mask_with(tensor_ops, *packed, **settings), masked)
    expected = unpack_masks(alone, rows["input_mask"])
    assert unpack_masks(masked, packed[0]["input_mask"]) == {
        (row, number): expected[example, 1]
        for row, group in enumerate(groups)
        for number, example in enumerate(group, start=1)
    }


def test_drawn_spans_have_the_lengths_of_the_paper():
    """Spans that end before the row does; within 4 standard deviations."""
    keys = np.random.default_rng(1).integers(0, 2**64, 5000, dtype=np.uint64)
    first_words = draw_first_words(keys, np.full(5000, 40), 3)
    rows, columns = np.divmod(first_words, 40)
    # A row may end within a span that begins less than 3 words before its
    # end. Only spans that begin earlier are counted.
    complete = (rows[:-1] == rows[1:]) & (columns[:-1] <= 36)
    lengths = np.diff(columns)[complete]
    assert len(lengths) > 50_000
    for n, probability in ((1, 6 / 11), (2, 3 / 11), (3, 2 / 11)):
        sigma = np.sqrt(probability * (1 - probability) / len(lengths))
        assert abs((lengths == n).mean() - probability) < 4 * sigma


# The budgets of all rows are half of the tokens, or a twentieth.
@pytest.mark.parametrize("num_spans", [40, 400])
def test_spans_are_taken_in_random_order_while_they_fit(num_spans):
    """As by a loop over the spans in the order of their random bits."""
    rng = np.random.default_rng(7)
    for _ in range(50):
        rows = np.sort(rng.integers(0, 4, num_spans))
        sizes = rng.integers(0, 9, num_spans)
        bits = rng.integers(0, 2**64, num_spans, dtype=np.uint64)
        budgets = rng.integers(9, 25, 4)
        expected = np.zeros(num_spans, bool)
        left = budgets.copy()
        for span in np.argsort(bits):
            if 0 < sizes[span] <= left[rows[span]]:
                expected[span] = True
                left[rows[span]] -= sizes[span]
        taken = take_spans(rows, sizes, bits, budgets, 30)
        # A span without maskable tokens makes no difference.
        taken = taken[sizes[taken] > 0]
        np.testing.assert_array_equal(taken, np.flatnonzero(expected))


def test_random_bits_are_the_outputs_of_splitmix64():
    """The first outputs of the reference generator for the seed 1234567: its
    k-th output is this function of the seed and k."""
    key = np.full(3, 1234567, np.uint64)
    assert random_bits(key, np.arange(3)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]
    for number in range(3):
        bits = random_bits(tf.constant(key), number, tensor_ops)
        assert (bits.numpy() == random_bits(key, np.arange(3))[number]).all()
    uniform = random_uniform(key, np.arange(3))
    np.testing.assert_allclose(uniform[0], 6457827717110365317 / 2**64)
