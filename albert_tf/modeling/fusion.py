"""What stands between matrix products, compiled as one.

TensorFlow computes one operation at a time, each a pass over memory. On a CPU
these passes take as long as the products. XLA makes one of many, but its own
products are slow there: so it compiles what is marked here, and nothing else.
TPUs, and GPUs with `--jit_compile`, compile the whole program, in which all of
this has no effect.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

_active = contextvars.ContextVar("_active", default=False)


@contextlib.contextmanager
def fusing(active: bool) -> Iterator[None]:
    """While a program is traced: whether what is marked is compiled."""
    token = _active.set(active)
    try:
        yield
    finally:
        _active.reset(token)


def is_fusing() -> bool:
    """Whether what is marked is compiled at this point of a program."""
    return _active.get()


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function of tensors, without variables or products.

    It is compiled once for all calls with tensors of the same shapes and other
    arguments that are equal, so what differs between the layers of a model
    must be a tensor. No gradient goes through it: who calls it writes one, by
    `tf.custom_gradient`.

    Args:
        function: Of tensors, hashable Python values and named tuples of both.
    """
    compiled = tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return (compiled if is_fusing() else function)(*args)

    return call
