"""Array operations, and keyed random numbers, in NumPy and TensorFlow.

`input.tensor_ops` has the same operations for tensors. A function that takes
either module as its argument `ops` is written once. It runs with NumPy in the
processes that build records, which do not import TensorFlow, and with
TensorFlow in a `tf.data` graph. Operators that arrays and tensors share are
used directly: `+ - * // < >= == & | ~ ^`.

Arrays have one axis unless a function says otherwise. Indices and counts are
int64. The functions of NumPy are called with positional arguments only.

The random numbers of an example depend only on its key, not on the other
examples of a batch, the number of processes, or numbers drawn before. They are
the outputs of SplitMix64, which passes the common statistical tests and takes a
few integer operations.

Reference:
    [Steele et al., 2014](https://doi.org/10.1145/2714064.2660195).
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any

clip = np.clip
concat = np.concatenate
count_nonzero = np.count_nonzero
cumsum = np.cumsum  # of int64
flatnonzero = np.flatnonzero
minimum = np.minimum
repeat = np.repeat  # int64 or uint64
reshape = np.reshape
right_shift = np.right_shift  # of uint64
rint = np.rint
size = np.size
sort = np.sort
take = np.take  # of the flattened array; the shape of the indices
total = np.sum
where = np.where
zeros = np.zeros

_THIS_MODULE = sys.modules[__name__]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def cast(values: Array, dtype: str) -> Array:
    """Converts the dtype; the fraction of a float is dropped."""
    return np.asarray(values).astype(dtype, copy=False)


def ranges(counts: Array) -> Array:
    """0, ..., n - 1 for each count n, one after another; int64."""
    begins = counts.cumsum() - counts
    return np.arange(counts.sum()) - np.repeat(begins, counts)


def put(values: Array, indices: Array, new: Array) -> Array:
    """Replaces the values at unique indices; bools by one bool for all."""
    values = values.copy()
    values[indices] = new
    return values


def bincount(groups: Array, weights: Array | None, num_groups: Array) -> Array:
    """Sum of the integers of each group; int64, `(num_groups,)`.

    `weights` of None counts the elements of each group.
    """
    return np.bincount(groups, weights, num_groups).astype(np.int64, copy=False)


def searchsorted(values: Array, sought: Array) -> Array:
    """Number of increasing `values` up to each number sought; int64."""
    return values.searchsorted(sought, side="right")


def check(conditions: Array, message: str) -> None:
    """Raises a ValueError if a bool is False."""
    if not np.all(conditions):
        raise ValueError(message)


def loop_until_empty(
    body: Callable[..., tuple[Array, ...]], *state: Array
) -> tuple[Array, ...]:
    """Repeats `state = body(*state)` until `state[0]` is empty."""
    while len(state[0]):
        state = body(*state)
    return state


def random_bits(keys: Array, counters: Any, ops: Any = _THIS_MODULE) -> Array:
    """Returns 64 random bits for each pair of a key and a counter.

    Args:
        keys: uint64, of any shape.
        counters: An integer, or integers that broadcast against the keys.
        ops: `tensor_ops` for tensors.

    Returns:
        uint64. The values may serve as keys.
    """
    if isinstance(counters, int):
        # NumPy warns if a scalar overflows, but not if an array does.
        counters = np.array([counters])
    bits = keys + (ops.cast(counters, "uint64") + np.uint64(1)) * _GOLDEN
    # In place for arrays.
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits ^= ops.right_shift(bits, np.uint64(shift))
        bits *= np.uint64(factor)
    bits ^= ops.right_shift(bits, np.uint64(31))
    return bits


def random_uniform(
    keys: Array, counters: Any, ops: Any = _THIS_MODULE
) -> Array:
    """Returns float64 in [0, 1) for each pair of a key and a counter."""
    bits = ops.right_shift(random_bits(keys, counters, ops), np.uint64(11))
    return ops.cast(bits, "float64") * 2.0**-53
