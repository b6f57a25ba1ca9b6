"""The seeds of dropout on each replica in each step."""

import numpy as np
import tensorflow as tf

from albert_tf.modeling.dropout import Dropout
from albert_tf.modeling.target import DEFAULT_TARGET
from albert_tf.training import train_step


def test_dropout_masks_depend_on_seed_step_and_replica_only():
    def mask(seed, step, replica):
        keys = train_step._replica_seed(seed, tf.constant(step), replica)
        masks = Dropout(0.5, 0.5, keys).hidden_masks(0, DEFAULT_TARGET)
        return masks.keep(tf.constant([40])).numpy()

    original = mask(1, 2, 3)
    np.testing.assert_array_equal(mask(1, 2, 3), original)
    for other in (mask(2, 2, 3), mask(1, 3, 3), mask(1, 2, 4)):
        assert (other != original).any()
