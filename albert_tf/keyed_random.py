"""Random numbers as a function of keys instead of a stream.

What is drawn for an example depends on its key alone: not on the other
examples of a batch, on the number of processes, or on what was drawn
before. The function is the output step of SplitMix64, which passes the usual
batteries of tests and is a few integer operations in NumPy.

Reference:
    [Steele et al., 2014](https://doi.org/10.1145/2714064.2660195).
"""

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def random_bits(keys: np.ndarray, counters: np.ndarray | int) -> np.ndarray:
    """64 random bits for each pair of a key and a counter.

    Args:
        keys: uint64, of any shape.
        counters: Integers of the same shape, or one for all.

    Returns:
        uint64, of the shape of `keys`. Fit to be keys themselves.
    """
    counters = np.broadcast_to(counters, keys.shape).astype(np.uint64)
    bits = keys + _GOLDEN * (counters + np.uint64(1))
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def random_uniform(keys: np.ndarray, counters: np.ndarray | int) -> np.ndarray:
    """float64 in [0, 1) for each pair of a key and a counter."""
    return (random_bits(keys, counters) >> np.uint64(11)) * 2.0**-53
