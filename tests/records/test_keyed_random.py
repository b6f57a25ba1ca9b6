import numpy as np
import tensorflow as tf

from albert_tf.input import tensor_ops
from albert_tf.records.keyed_random import random_bits, random_uniform


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
