"""Sums of losses and of correct predictions."""

import numpy as np
import tensorflow as tf

from albert_tf.training.objective import weighted_sums


def test_equal_logits_count_as_chance():
    """A head of zeros had an accuracy of 1. NaN is never right."""
    logits = tf.constant(
        [
            [0.0, 0.0, 0.0, 0.0],  # four are equal
            [1.0, 3.0, 3.0, 0.0],  # two are the largest, one of them right
            [1.0, 3.0, 3.0, 0.0],  # another is right
            [2.0, 0.0, 5.0, 0.0],
            [np.nan] * 4,
        ]
    )
    labels = tf.constant([2, 1, 0, 2, 0])
    weights = tf.constant([1.0, 10.0, 100.0, 1000.0, 10000.0])
    sums = weighted_sums("label", logits, labels, weights)
    assert float(sums["label_correct_sum"]) == 1 / 4 + 10 / 2 + 1000
