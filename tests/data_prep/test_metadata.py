import types

import numpy as np
import pytest

from data_prep.builder.metadata import log_summary, unigram_entropy


def test_unigram_entropy_ignores_special_pieces():
    """Three ordinary pieces of probability 1/2, 1/4 and 1/4 have 1.5 bits."""
    counts = np.array([9, 9, 9, 9, 9, 4, 0, 2, 2])
    entropy = unigram_entropy(counts)
    assert entropy == pytest.approx(1.5 * np.log(2))


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("sop", "masked, 40.0 % of the examples with swapped segments;"),
        ("nsp", "masked, 40.0 % of the examples with a random second segment;"),
        ("none", "masked; unigram entropy"),
    ],
)
def test_the_summary_says_what_label_1_means(objective, expected, caplog):
    metadata = types.SimpleNamespace(
        sentence_objective=objective,
        packing="none",
        num_documents=2,
        num_duplicate_documents=0,
        num_examples=5,
        num_pieces=70,
        num_masked=7,
        fill=0.5,
        unigram_entropy_nats=1.5,
        skipped={"cuts of documents": 3},
    )
    with caplog.at_level("INFO", logger="absl"):
        log_summary("out/train", metadata, 2)
    assert expected in caplog.text
    assert caplog.text.strip().endswith("skipped or split: 3 cuts of documents")
