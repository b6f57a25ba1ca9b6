"""Array operations in NumPy for code that also runs in TensorFlow.

`input.tensor_ops` has the same functions for tensors. A function that takes
either module as its argument `ops` is written once. It runs with NumPy in the
processes that build records, which do not import TensorFlow, and with
TensorFlow in a `tf.data` graph. Operators that arrays and tensors share are
used directly: `+ - * // < >= == & | ~ ^`.

Arrays have one axis unless a function says otherwise. Indices and counts are
int64.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any


def cast(values: Array, dtype: str) -> Array:
    """Converts the dtype; the fraction of a float is dropped."""
    return np.asarray(values).astype(dtype, copy=False)


def zeros(length: Array, dtype: str) -> Array:
    """`length` zeros; False for the dtype "bool"."""
    return np.zeros(length, dtype)


def size(values: Array) -> Array:
    """Number of values."""
    return len(values)


def reshape(values: Array, shape: tuple[int, ...]) -> Array:
    """Changes the shape, from and to any number of axes."""
    return values.reshape(shape)


def shift_columns(values: Array, first: bool) -> Array:
    """Shifts bool, `(rows, columns)`, right by one; `first` fills column 0."""
    shifted = np.full_like(values, first)
    shifted[:, 1:] = values[:, :-1]
    return shifted


def concat(first: Array, second: Array) -> Array:
    """Joins two arrays; int64."""
    return np.concatenate([first, second])


def repeat(values: Array, counts: Array) -> Array:
    """Repeats each value as often as its count; int64 or uint64."""
    return np.repeat(values, counts)


def ranges(counts: Array) -> Array:
    """0, ..., n - 1 for each count n, one after another; int64."""
    return np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)


def copy(values: Array) -> Array:
    """Copies the values, so that `put` may overwrite them."""
    return values.copy()


def sum(values: Array) -> Array:  # noqa: A001
    """Sum of all values, int64."""
    return values.sum()


def max(values: Array) -> Array:  # noqa: A001
    """Maximum of nonnegative values; 0 for an empty array."""
    return values.max(initial=0)


def cumsum(values: Array, axis: int = 0) -> Array:
    """Cumulative sums of integers or bools along an axis; int64."""
    # Cast first: np.cumsum takes twice as long if it casts.
    return values.astype(np.int64, copy=False).cumsum(axis)


def flatnonzero(flags: Array) -> Array:
    """Indices of the True values of the flattened array, increasing; int64."""
    return np.flatnonzero(flags)


def take(values: Array, indices: Array) -> Array:
    """Values at the indices of the flattened array; the shape of `indices`."""
    return values.take(indices)


def put(values: Array, indices: Array, new: Array) -> Array:
    """Replaces the values at unique indices; bools by one bool for all.

    NumPy overwrites `values`.
    """
    values[indices] = new
    return values


def sum_by(groups: Array, values: Array, num_groups: Array) -> Array:
    """Sum of the integers of each group; int64, `(num_groups,)`."""
    sums = np.bincount(groups, weights=values, minlength=num_groups)
    return sums.astype(np.int64)


def count_by(groups: Array, num_groups: Array) -> Array:
    """Number of elements of each group; int64, `(num_groups,)`."""
    return np.bincount(groups, minlength=num_groups)


def count_in_rows(flags: Array) -> Array:
    """Number of True values in each row of bool, `(rows, columns)`; int64."""
    return np.count_nonzero(flags, axis=1)


def searchsorted(values: Array, sought: Array) -> Array:
    """Number of increasing `values` up to each number sought; int64."""
    return values.searchsorted(sought, side="right")


def sort(values: Array) -> Array:
    """Sorts in increasing order; uint64."""
    return np.sort(values)


def where(flags: Array, values: Array, others: Array) -> Array:
    """`values` where a flag is True, `others` elsewhere."""
    return np.where(flags, values, others)


def minimum(values: Array, others: Array) -> Array:
    """The smaller value of each pair."""
    return np.minimum(values, others)


def clip(values: Array, low: int, high: int) -> Array:
    """Limits integers to the range from `low` to `high`; int64."""
    return np.clip(values, low, high)


def rint(values: Array) -> Array:
    """Rounds to the nearest integer, halves to the even one; float64."""
    return np.rint(values)


def right_shift(values: Array, num_bits: int) -> Array:
    """Shifts uint64 right by `num_bits` bits."""
    return values >> np.uint64(num_bits)


def check(condition: Array, message: str) -> None:
    """Raises a ValueError if a bool is False."""
    if not condition:
        raise ValueError(message)


def loop_until_empty(
    body: Callable[..., tuple[Array, ...]], *state: Array
) -> tuple[Array, ...]:
    """Repeats `state = body(*state)` until `state[0]` is empty."""
    while len(state[0]):
        state = body(*state)
    return state
