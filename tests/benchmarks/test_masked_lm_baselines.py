import doctest
import math

import numpy as np
import pytest

from albert_tf.records.features import CLS_ID, MASK_ID, SEP_ID
from benchmarks import masked_lm_baselines
from benchmarks.masked_lm_baselines import (
    Baselines,
    NgramModel,
    Records,
    neighbours,
    read_records,
)
from tests.helpers import tiny_run

VOCAB_SIZE = 12


def make_records(rows, masked=()):
    """Records of equal length; `masked` has (row, column, id in the input)."""
    original = np.array(rows, np.int32)
    inputs = original.copy()
    for row, column, seen in masked:
        inputs[row, column] = seen
    places = np.array([m[:2] for m in masked], np.int64).reshape(-1, 2)
    return Records(inputs, original, *places.T)


def test_probabilities_equal_kneser_ney_by_hand():
    """Bigrams 5-6 twice, 5-7 once, 6-5 once, 8-5 once; 5 has two histories."""
    tokens = np.array([6, 6, 7, 5, 5])
    before = np.array([[5], [5], [5], [6], [8]])
    model = NgramModel(tokens, before, VOCAB_SIZE)
    after_5 = model.probabilities(np.array([[5]]))[0]

    # Discounts n1 / (n1 + 2 n2): 3/5 of bigrams; the continuation counts of
    # 5, 6, 7 are 2, 1, 1, so 2/4 of unigrams.
    def unigram(continuations):
        return max(continuations - 0.5, 0) / 4 + 0.5 * 3 / 4 / VOCAB_SIZE

    for token, count, continuations in ((5, 0, 2), (6, 2, 1), (7, 1, 1)):
        expected = max(count - 0.6, 0) / 3 + 0.6 * 2 / 3 * unigram(
            continuations
        )
        assert after_5[token] == pytest.approx(expected)
    assert after_5.sum() == pytest.approx(1)


def test_an_unknown_context_is_shortened():
    """Context 6 before 5 is unknown, 5 is known, 9 is not."""
    tokens = np.array([6, 7, 5])
    contexts = np.array([[5, 8], [5, 8], [6, 5]])
    model = NgramModel(tokens, contexts, VOCAB_SIZE)
    shorter = NgramModel(tokens, contexts[:, :1], VOCAB_SIZE)
    unknown = model.probabilities(np.array([[5, 6], [9, 8]]))
    # The counts of the shorter model are raw, those of the longer are numbers
    # of histories; here both are 1.
    np.testing.assert_allclose(
        unknown, shorter.probabilities(np.array([[5], [9]]))
    )
    known = model.probabilities(np.array([[5, 8]]))
    assert abs(known[0] - unknown[0]).max() > 0.01


def test_neighbours_of_both_sides():
    ids = np.array([[5, 6, 7], [8, 9, 10]])
    assert neighbours(ids, 2, -1)[1].tolist() == [[0, 0], [8, 0], [9, 8]]
    assert neighbours(ids, 2, 1)[1].tolist() == [[9, 10], [10, 0], [0, 0]]


@pytest.fixture(scope="module")
def baselines():
    """The token between depends on both sides: 5 ? 7 -> 9, 5 ? 8 -> 10."""
    rows = [[CLS_ID, 5, 9, 7, SEP_ID], [CLS_ID, 5, 10, 8, SEP_ID]] * 20
    rows += [[CLS_ID, 6, 10, 7, SEP_ID], [CLS_ID, 6, 9, 8, SEP_ID]] * 10
    return Baselines(make_records(rows), VOCAB_SIZE, order=3)


def test_both_sides_are_read(baselines):
    masked = make_records(
        [[CLS_ID, 5, 9, 7, SEP_ID], [CLS_ID, 5, 10, 8, SEP_ID]],
        [(0, 2, MASK_ID), (1, 2, MASK_ID)],
    )
    result = baselines.evaluate(masked)
    assert result["3-gram, both sides"][1] == 1
    assert result["3-gram, left"][1] == 0.5
    assert result["3-gram, both sides"][0] < result["3-gram, left"][0]


def test_the_unigram_loss_is_that_of_the_frequencies(baselines):
    """9 is 30 of 180 tokens; each of 7 ordinary pieces counts once more."""
    masked = make_records([[CLS_ID, 5, 9, 7, SEP_ID]], [(0, 2, MASK_ID)])
    loss, correct = baselines.evaluate(masked)["unigram"]
    assert loss == pytest.approx(math.log((180 + 7) / (30 + 1)))
    assert correct == 0


def test_a_token_that_the_mask_kept_is_likely(baselines):
    """Bayes: 10 % of the masked tokens are kept, 10 % become one of 7."""
    row = [[CLS_ID, 5, 10, 8, SEP_ID]]
    replaced, kept = (
        baselines.evaluate(make_records(row, [(0, 2, seen)]))["3-gram, left"][0]
        for seen in (MASK_ID, 10)
    )
    p = math.exp(-replaced)
    assert math.exp(-kept) == pytest.approx(8 * p / (1 + 7 * p))


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_records_are_restored(masking, request):
    records = request.getfixturevalue(
        "tiny_records" if masking == "static" else "tiny_dynamic_records"
    )
    read = read_records([f"{records}/train/*.tfrecord"], max_examples=20)
    assert read.input_ids.shape == (20, tiny_run.LENGTHS["max_seq_length"])
    assert MASK_ID not in read.original_ids
    if masking == "static":
        changed = read.input_ids != read.original_ids
        masked = np.zeros_like(changed)
        masked[read.rows, read.columns] = True
        assert not changed[~masked].any()
        assert changed.sum() > 0.7 * masked.sum() > 0
    else:
        assert len(read.rows) == 0


def test_examples_give_what_they_show():
    failed, tried = doctest.testmod(masked_lm_baselines)
    assert tried and not failed
