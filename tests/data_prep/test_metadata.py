import numpy as np
import pytest

from data_prep.builder.metadata import unigram_entropy


def test_unigram_entropy_ignores_special_pieces():
    """Three ordinary pieces of probability 1/2, 1/4 and 1/4 have 1.5 bits."""
    counts = np.array([9, 9, 9, 9, 9, 4, 0, 2, 2])
    entropy = unigram_entropy(counts)
    assert entropy == pytest.approx(1.5 * np.log(2))
