import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from albert_tf.config import MaskingConfig
from albert_tf.input import tensor_ops
from albert_tf.records.array_ops import random_bits, random_uniform
from albert_tf.records.features import (
    CLS_ID,
    MASK_ID,
    SEP_ID,
    UNK_ID,
)
from albert_tf.records.masking import draw_first_words, mask_rows

VOCAB_SIZE = 997


def mask_slowly(ids, boundary, key, config):
    """The rule of `mask_rows` for one example, a word and a span at a time.

    Returns:
        The ids after masking, and the positions of the masked tokens.
    """
    keys = random_bits(np.array([key], np.uint64), np.arange(4))
    size = len(ids)
    special = [token < 5 and token != UNK_ID for token in ids]
    begins = [
        i for i in range(size) if not special[i] and (i == 0 or special[i - 1])
    ]
    words = [
        i
        for i in range(size)
        if not special[i] and (boundary[i] or i in begins)
    ]
    probabilities = 1 / np.arange(1, config.ngram + 1)
    probabilities /= probabilities.sum()
    residual = np.cumsum(probabilities[::-1])[::-1]
    distribution = residual / residual.sum()
    word = 0
    for draw in range(len(words)):
        bits = int(random_bits(keys[:1], draw)[0])
        limits = np.cumsum(distribution)[:-1]
        word += 1 + sum(bits >= int(limit * 2.0**64) for limit in limits)
        begins += words[word : word + 1]
        distribution = probabilities
    begins = sorted(set(begins))
    spans = [
        [i for i in range(begin, end) if ids[i] >= 5]
        for begin, end in zip(begins, [*begins[1:], size], strict=False)
    ]
    order = random_bits(keys[1:2], np.array(begins, int)) >> np.uint64(32)
    spans = [spans[i] for i in np.argsort(order, kind="stable")]
    limit = config.max_predictions_per_seq
    left = min(max(1, round(size * config.masked_lm_prob)), limit)
    positions = []
    for span in spans:
        if len(span) <= left:
            positions += span
            left -= len(span)
    if not positions:
        fitting = [span for span in spans if 0 < len(span) <= limit]
        positions = fitting[0] if fitting else []
    masked = ids.copy()
    for position in positions:
        kind = random_uniform(keys[2:3], position)
        piece = random_uniform(keys[3:], position) * (VOCAB_SIZE - 5)
        if kind < 0.8:
            masked[position] = MASK_ID
        elif kind >= 0.9:
            masked[position] = 5 + int(piece[0])
    return masked, sorted(positions)


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(1, 70),
    max_examples=st.integers(1, 6),
    continuation=st.floats(0, 1),
    unknown=st.sampled_from([0.0, 0.2, 1.0]),
    special=st.sampled_from([0.0, 0.1, 0.5]),
    max_predictions=st.integers(1, 12),
    prob=st.floats(0.01, 0.9),
    ngram=st.integers(1, 5),
)
# Its words exceed the budgets, and the slots by one.
@hypothesis.example(
    seed=21,
    length=30,
    max_examples=2,
    continuation=0.8,
    unknown=0.0,
    special=0.0,
    max_predictions=6,
    prob=0.1,
    ngram=1,
)
def test_rows_hold_the_masks_of_their_examples(
    seed,
    length,
    max_examples,
    continuation,
    unknown,
    special,
    max_predictions,
    prob,
    ngram,
):
    """In NumPy and in TensorFlow, and in rows of any number of examples: the
    masks of an example depend neither on its place nor on other examples."""
    rng = np.random.default_rng(seed)
    config = MaskingConfig(
        max_seq_length=max(length, 13),
        masked_lm_prob=prob,
        max_predictions_per_seq=max_predictions,
        ngram=ngram,
    )
    shape = 4, length
    ids = rng.integers(5, VOCAB_SIZE, shape).astype(np.int32)
    ids[rng.random(shape) < unknown] = UNK_ID
    ids[rng.random(shape) < special] = SEP_ID
    boundary = (rng.random(shape) >= continuation).astype(np.int32)
    numbers = np.zeros(shape, np.int32)
    keys = rng.integers(0, 2**64, (4, max_examples), dtype=np.uint64)
    num_slots = max_predictions + max_examples - 1
    expected = {
        "input_ids": np.zeros(shape, np.int32),
        "masked_lm_positions": np.zeros((4, num_slots), np.int32),
        "masked_lm_ids": np.zeros((4, num_slots), np.int32),
        "masked_lm_weights": np.zeros((4, num_slots), np.float32),
    }
    is_too_much = False
    for row in range(3):  # the last row is padding
        ends = sorted({*rng.integers(1, length + 1, max_examples).tolist()})
        masked = []
        for number, end in enumerate(ends):
            begin = ends[number - 1] if number else 0
            ids[row, begin] = CLS_ID if number else ids[row, 0]
            part = slice(begin, end)
            numbers[row, part] = number + 1
            expected["input_ids"][row, part], positions = mask_slowly(
                ids[row, part], boundary[row, part], keys[row, number], config
            )
            masked += [begin + position for position in positions]
        is_too_much |= len(masked) > num_slots
        used = slice(0, len(masked))
        if not is_too_much:
            expected["masked_lm_positions"][row, used] = masked
            expected["masked_lm_ids"][row, used] = ids[row, masked]
            expected["masked_lm_weights"][row, used] = 1
    ids[numbers == 0] = boundary[numbers == 0] = 0
    rows = {
        "input_ids": ids,
        "input_mask": numbers,
        "token_boundary": boundary,
    }
    tensors = {name: tf.constant(values) for name, values in rows.items()}
    for args, error in (
        ((rows, keys, VOCAB_SIZE, config), ValueError),
        (
            (tensors, tf.constant(keys), VOCAB_SIZE, config, tensor_ops),
            tf.errors.InvalidArgumentError,
        ),
    ):
        if is_too_much:
            with pytest.raises(error, match="must have a slot for each masked"):
                mask_rows(*args)
            continue
        found = mask_rows(*args)
        assert list(found) == list(expected)
        for name, values in expected.items():
            assert np.asarray(found[name]).dtype == values.dtype
            np.testing.assert_array_equal(found[name], values, err_msg=name)


def mask(ids, boundary, vocab_size=VOCAB_SIZE, masked_lm_prob=0.15):
    """Masks rows of one example each in NumPy."""
    rows = {
        "input_ids": ids,
        "input_mask": np.ones_like(ids),
        "token_boundary": boundary,
    }
    keys = np.arange(len(ids), dtype=np.uint64)[:, np.newaxis]
    config = MaskingConfig(
        max_predictions_per_seq=20, masked_lm_prob=masked_lm_prob
    )
    return mask_rows(rows, keys, vocab_size, config)


@pytest.mark.parametrize("ops", [None, tensor_ops])
def test_a_large_batch_has_the_masks_of_its_halves(ops):
    """2,048 rows of up to 64 examples, 131,072 in all."""
    rng = np.random.default_rng(3)
    shape = 2048, 256
    rows = {
        "input_ids": rng.integers(5, VOCAB_SIZE, shape).astype(np.int32),
        "input_mask": np.repeat(np.arange(1, 65, dtype=np.int32), 4)
        * np.ones((2048, 1), np.int32),
        "token_boundary": np.ones(shape, np.int32),
    }
    keys = rng.integers(0, 2**64, (2048, 64), dtype=np.uint64)
    config = MaskingConfig(max_predictions_per_seq=9, ngram=1)

    def mask_part(part):
        of_part = {name: values[part] for name, values in rows.items()}
        arguments = of_part, keys[part], VOCAB_SIZE, config
        return mask_rows(*arguments, *([ops] if ops else []))

    halves = [mask_part(slice(0, 1024)), mask_part(slice(1024, 2048))]
    for name, values in mask_part(slice(0, 2048)).items():
        parts = [half[name] for half in halves]
        np.testing.assert_array_equal(values, np.concatenate(parts))
    # Of the four tokens of each example, one is masked.
    assert np.sum(halves[0]["masked_lm_weights"]) == 1024 * 64


def test_every_word_is_masked_equally_often():
    """Except for words at the ends of a segment: their spans are shorter and
    fit the rest of a budget a little more often."""
    num_rows, length = 20_000, 48
    ids = np.full((num_rows, length), 7, np.int32)
    ids[:, 0] = CLS_ID
    ids[:, [30, 47]] = SEP_ID
    masked = mask(ids, np.ones_like(ids), masked_lm_prob=0.25)
    positions = masked["masked_lm_positions"][masked["masked_lm_weights"] > 0]
    counts = np.bincount(positions, minlength=length)
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
    masked = mask(ids, rng.random(ids.shape) < 0.5, vocab_size=17)["input_ids"]
    drawn = masked[(masked != 99) & (ids == 99)]
    drawn = drawn[drawn != MASK_ID]
    counts = np.bincount(drawn, minlength=17)
    assert counts[:5].sum() == 0
    sigma = np.sqrt(len(drawn) / 12 * 11 / 12)
    np.testing.assert_allclose(counts[5:], len(drawn) / 12, atol=4 * sigma)


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
