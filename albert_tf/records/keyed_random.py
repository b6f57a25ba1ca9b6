"""Random numbers as a function of a key and a counter.

The random numbers of an example depend only on its key. They do not depend on
the other examples of a batch, on the number of processes, or on numbers drawn
before. The function is the output function of SplitMix64, which passes the
common statistical tests and takes a few integer operations in NumPy.

Reference:
    [Steele et al., 2014](https://doi.org/10.1145/2714064.2660195).
"""

from typing import Any

import numpy as np

from albert_tf.records import array_ops

Array = Any

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def random_bits(keys: Array, counters: Any, ops: Any = array_ops) -> Array:
    """Returns 64 random bits for each pair of a key and a counter.

    Args:
        keys: uint64, of any shape.
        counters: An integer, or integers that broadcast against the keys.
        ops: `array_ops`, or `tensor_ops` for tensors.

    Returns:
        uint64. The values may serve as keys.
    """
    if isinstance(counters, int):
        # NumPy warns if a scalar overflows, but not if an array does.
        counters = np.array([counters])
    bits = keys + (ops.cast(counters, "uint64") + np.uint64(1)) * _GOLDEN
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = bits ^ ops.right_shift(bits, np.uint64(shift))
        bits = bits * np.uint64(factor)
    return bits ^ ops.right_shift(bits, np.uint64(31))


def random_uniform(keys: Array, counters: Any, ops: Any = array_ops) -> Array:
    """Returns float64 in [0, 1) for each pair of a key and a counter."""
    bits = ops.right_shift(random_bits(keys, counters, ops), np.uint64(11))
    return ops.cast(bits, "float64") * 2.0**-53
