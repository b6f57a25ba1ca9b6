"""5-grams predict a masked token from what its neighbours tell."""

import numpy as np
import pytest

from albert_tf.records.features import MASK_ID
from albert_tf.records.tokenization import Tokenizer
from data_prep.ngram_baselines import (
    NgramModel,
    mask_sentences,
    number_contexts,
)
from tests.helpers.small_builds import VOCABULARY

ROWS = np.array([[5, 6, 5, 6, 5, 7]])


@pytest.mark.parametrize(
    "before, expected",
    [
        # About [MASK], nothing is known: 5, 6 and 7 occur 3, 2 and 1 times,
        # and each loses a third to all 8 pieces.
        (MASK_ID, [(3 - 1 / 3) / 6, (2 - 1 / 3) / 6, (1 - 1 / 3) / 6]),
        # Nothing followed 7: 5, 6 and 7 follow 2, 1 and 1 different tokens.
        (7, [(2 - 1 / 2) / 4, (1 - 1 / 2) / 4, (1 - 1 / 2) / 4]),
    ],
)
def test_a_masked_neighbour_is_not_a_new_one(before, expected):
    counted = [ids[0] for ids in number_contexts(ROWS, -1, 8)]
    model = NgramModel(ROWS[0], counted, vocab_size=8)
    shown = number_contexts(np.array([[before, MASK_ID]]), -1, 8)
    (found,) = model.probabilities([ids[0, 1:] for ids in shown])
    rest = (1 - sum(expected)) / 8
    np.testing.assert_allclose(found[5:], np.add(expected, rest))
    np.testing.assert_allclose(found[:5], rest)


def test_masked_sentences_are_whole_and_known():
    """Not the end of a segment with the beginning of the next one, and none
    with an unknown token."""
    tokenizer = Tokenizer(VOCABULARY)
    first = "It was cold. The old mill by the river"
    second = "was sold. He paid ☃ for it at last. The owner left the town."
    segments = tokenizer.encode_batch([first, second])
    a, b = np.split(segments.ids, segments.ends[:1])
    (masked,) = mask_sentences([[2, *a, 3, *b, 3]], tokenizer)
    whole = masked["text"].replace("[MASK]", masked["word"])
    assert whole == "the owner left the town."
