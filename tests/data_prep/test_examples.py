import numpy as np

from data_prep.builder.examples import EVAL, TRAIN, choose_split


def test_holdout_fraction_is_the_fraction_of_held_out_documents():
    """A quarter of 4,000 documents, within four standard deviations."""
    documents = [[f"Document {i}."] for i in range(4000)]
    held_out = sum(choose_split(d, 0.25) == EVAL for d in documents)
    assert abs(held_out - 1000) < 4 * np.sqrt(4000 * 3 / 16)
    assert choose_split(documents[0], 0.0) == TRAIN


def test_case_and_line_breaks_do_not_change_the_split():
    for i in range(50):
        expected = choose_split([f"One is {i}.", "Two."], 0.5)
        assert choose_split([f"ONE is {i}. TWO."], 0.5) == expected
