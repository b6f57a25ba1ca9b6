import numpy as np
import pytest

from albert_tf.config import MaskingConfig
from albert_tf.records.masking import mask_batch
from data_prep.builder.mask_limits import largest_mask_counts

NUM_ROWS, LENGTH = 60, 48


def random_rows(rng, word_length):
    """`[CLS] A [SEP] B [SEP]`, of words of up to `word_length` tokens."""
    ids = np.zeros((NUM_ROWS, LENGTH), np.int32)
    boundary = np.zeros((NUM_ROWS, LENGTH), np.int32)
    for row in range(NUM_ROWS):
        length = rng.integers(5, LENGTH + 1)
        # Some tokens are <unk>, 1.
        ids[row, :length] = np.where(
            rng.random(length) < 0.1, 1, rng.integers(5, 99, length)
        )
        begin = 0
        while begin < length:
            boundary[row, begin] = 1
            begin += rng.integers(1, word_length + 1)
        separator = rng.integers(2, length - 2)
        ids[row, [0, separator, length - 1]] = 2, 3, 3
    return ids, boundary


@pytest.mark.parametrize("word_length", [1, 4, 20])
@pytest.mark.parametrize("ngram", [1, 3])
def test_no_key_masks_more_tokens_than_the_limit(word_length, ngram):
    """In over a quarter of the rows, some key masks as many."""
    config = MaskingConfig(
        max_seq_length=LENGTH, max_predictions_per_seq=9, ngram=ngram
    )
    rng = np.random.default_rng(0)
    ids, boundary = random_rows(rng, word_length)
    limits = largest_mask_counts(ids, boundary, config)
    most = np.zeros(NUM_ROWS, np.int64)
    for _ in range(300):
        masked = mask_batch(
            ids,
            boundary,
            rng.integers(0, 2**64, NUM_ROWS, np.uint64),
            vocab_size=99,
            max_predictions_per_seq=9,
            masked_lm_prob=config.masked_lm_prob,
            ngram=ngram,
        )
        most = np.maximum(most, masked.weights.sum(axis=1).astype(np.int64))
    assert (most <= limits).all()
    assert np.mean(most == limits) > 0.25
    budgets = np.rint(0.15 * (ids > 0).sum(axis=1)).clip(1, 9)
    if word_length == 20:
        assert np.mean(most > budgets) > 0.1
