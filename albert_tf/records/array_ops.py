"""The few array operations that masking is written over, in NumPy.

`tensor_ops` has the same functions for TensorFlow: a rule that is given one
module or the other is written once, and runs in the processes that build
records, which load no TensorFlow, and in the graph of `tf.data`. What both
kinds of arrays share is written as operators: `+ - * // < >= == & | ~ ^`.

Arrays are flat unless a function says otherwise; indices and counts are
int64.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any


def cast(values: Array, dtype: str) -> Array:
    """The values in another dtype; floats lose their fraction."""
    return np.asarray(values).astype(dtype, copy=False)


def arange(length: Array) -> Array:
    """int64, 0 to `length` - 1."""
    return np.arange(length)


def zeros(length: Array, dtype: str) -> Array:
    """Zeros, or False for "bool"."""
    return np.zeros(length, dtype)


def size(values: Array) -> Array:
    """Number of values."""
    return len(values)


def reshape(values: Array, shape: tuple[int, ...]) -> Array:
    """Another shape, of as many values, from and to any number of axes."""
    return values.reshape(shape)


def moved_right(values: Array, first: bool) -> Array:
    """bool, `(rows, columns)`, a column to the right; `first` fills it."""
    moved = np.full_like(values, first)
    moved[:, 1:] = values[:, :-1]
    return moved


def append(values: Array, last: Array) -> Array:
    """int64, with one value more."""
    return np.append(values, last)


def repeat(values: Array, counts: Array) -> Array:
    """Each value as often as its count says."""
    return np.repeat(values, counts)


def copy(values: Array) -> Array:
    """Values that `put` may change."""
    return values.copy()


def sum(values: Array) -> Array:  # noqa: A001
    """Of all values, int64."""
    return values.sum()


def max(values: Array) -> Array:  # noqa: A001
    """Largest of all values, none of them negative; 0 of none."""
    return values.max(initial=0)


def cumsum(values: Array, axis: int = 0) -> Array:
    """int64, running sums of integers or bools along an axis."""
    # Cast first: np.cumsum takes twice as long where it casts itself.
    return values.astype(np.int64, copy=False).cumsum(axis)


def count_true(flags: Array) -> Array:
    """int64, `(rows,)`; how many are True, `(rows, columns)`."""
    return np.count_nonzero(flags, axis=1)


def flatnonzero(flags: Array) -> Array:
    """int64, rising; the indices of what is True."""
    return np.flatnonzero(flags)


def take(values: Array, indices: Array) -> Array:
    """The values at the indices, of the indices' shape."""
    return values.take(indices)


def put(values: Array, indices: Array, new: Array) -> Array:
    """The values with others at unique indices; `values` may be reused."""
    values[indices] = new
    return values


def sum_by(groups: Array, values: Array, num_groups: Array) -> Array:
    """int64, `(num_groups,)`; sums of the integers of each group."""
    sums = np.bincount(groups, weights=values, minlength=num_groups)
    return sums.astype(np.int64)


def count_by(groups: Array, num_groups: Array) -> Array:
    """int64, `(num_groups,)`; how often each group occurs."""
    return np.bincount(groups, minlength=num_groups)


def sort(values: Array) -> Array:
    """uint64, rising."""
    return np.sort(values)


def where(flags: Array, values: Array, others: Array) -> Array:
    """The values where True, the others elsewhere."""
    return np.where(flags, values, others)


def clip(values: Array, low: int, high: int) -> Array:
    """int64, neither below `low` nor above `high`."""
    return np.clip(values, low, high)


def rint(values: Array) -> Array:
    """float64, nearest whole numbers; halves go to the even one."""
    return np.rint(values)


def shift_right(values: Array, num_bits: int) -> Array:
    """uint64, without the lowest bits."""
    return values >> np.uint64(num_bits)


def loop_while_any(
    body: Callable[..., tuple[Array, ...]], *state: Array
) -> tuple[Array, ...]:
    """Repeats `state = body(*state)` while `state[0]` is not empty."""
    while len(state[0]):
        state = body(*state)
    return state
