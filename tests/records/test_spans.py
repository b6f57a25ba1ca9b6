import numpy as np
import pytest

from albert_tf.input import tensor_ops
from albert_tf.records import array_ops
from albert_tf.records.spans import (
    draw_first_words,
    span_length_probabilities,
    take_spans,
)


def test_span_length_probabilities_are_those_of_the_paper():
    """Section 4.1 with N = 3: 6/11, 3/11, 2/11."""
    np.testing.assert_allclose(
        span_length_probabilities(3), [6 / 11, 3 / 11, 2 / 11]
    )


def draw_opens_span(num_rows, num_words, ops):
    """bool, `(num_rows, num_words)`; the words that begin a span."""
    keys = np.random.default_rng(1).integers(
        0, 2**64, num_rows, dtype=np.uint64
    )
    counts = np.full(num_rows, num_words)
    first_words = draw_first_words(keys, counts, 3, ops)
    opens_span = np.zeros(num_rows * num_words, bool)
    opens_span[np.asarray(first_words)] = True
    assert opens_span.sum() == len(first_words)
    return opens_span.reshape(num_rows, num_words)


@pytest.mark.parametrize("ops", [array_ops, tensor_ops])
def test_drawn_spans_have_the_lengths_of_the_paper(ops):
    """Spans that end before the row does; within 4 standard deviations."""
    rows, columns = np.nonzero(draw_opens_span(5000, 40, ops))
    same_row = rows[:-1] == rows[1:]
    # A row may end within a span that begins less than 3 words before its
    # end. Only spans that begin earlier are counted.
    complete = same_row & (columns[:-1] <= 36)
    lengths = np.diff(columns)[complete]
    assert len(lengths) > 50_000
    for n, probability in ((1, 6 / 11), (2, 3 / 11), (3, 2 / 11)):
        sigma = np.sqrt(probability * (1 - probability) / len(lengths))
        assert abs((lengths == n).mean() - probability) < 4 * sigma


@pytest.mark.parametrize("ops", [array_ops, tensor_ops])
def test_every_word_begins_a_span_equally_often(ops):
    """The mean length is 18/11 words, so 11/18 of the words begin a span. The
    second word of a row begins one as often as the tenth."""
    num_rows = 20_000
    rates = draw_opens_span(num_rows, 12, ops).mean(axis=0)[1:]
    sigma = np.sqrt(11 / 18 * 7 / 18 / num_rows)
    np.testing.assert_allclose(rates, 11 / 18, atol=4 * sigma)


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
