"""Random numbers as a function of keys instead of a stream.

What is drawn for an example depends on its key alone: not on the other
examples of a batch, on the number of processes, or on what was drawn
before. The function is the output step of SplitMix64, which passes the usual
batteries of tests and is a few integer operations in NumPy.

Reference:
    [Steele et al., 2014](https://doi.org/10.1145/2714064.2660195).
"""

from typing import Any

import numpy as np

from albert_tf.records import array_ops

Array = Any

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def random_bits(keys: Array, counters: Any, ops: Any = array_ops) -> Array:
    """64 random bits for each pair of a key and a counter.

    Args:
        keys: uint64, of any shape.
        counters: Integers, one or many, broadcast against the keys.
        ops: `array_ops`, or `tensor_ops` for tensors.

    Returns:
        uint64. Fit to be keys themselves.
    """
    if isinstance(counters, int):
        # An array, since NumPy warns where a scalar overflows.
        counters = np.array([counters])
    bits = keys + (ops.cast(counters, "uint64") + np.uint64(1)) * _GOLDEN
    bits = (bits ^ ops.shift_right(bits, 30)) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ ops.shift_right(bits, 27)) * np.uint64(0x94D049BB133111EB)
    return bits ^ ops.shift_right(bits, 31)


def random_uniform(keys: Array, counters: Any, ops: Any = array_ops) -> Array:
    """float64 in [0, 1) for each pair of a key and a counter."""
    bits = ops.shift_right(random_bits(keys, counters, ops), 11)
    return ops.cast(bits, "float64") * 2.0**-53
