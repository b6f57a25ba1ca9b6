"""Compiling elementwise functions with XLA inside a TensorFlow program.

TensorFlow runs one operation at a time, each a pass over memory. On a CPU
these passes take as long as the matrix products. XLA merges them, but its own
CPU products are slow, so only functions marked with `fused` are compiled.
For TPUs and GPUs, XLA compiles the complete program, where marking a function
has no effect.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function that XLA may compile as one operation.

    XLA compiles it once for all calls with tensors of the same shapes and
    equal other arguments, so arguments that differ between layers must be
    tensors. The function has no gradient: its caller provides one through
    `tf.custom_gradient`.

    Args:
        function: Takes tensors, hashable Python values and named tuples of
            both; reads no variables and contains no matrix product.

    Returns:
        The function with a further keyword argument, `fuse`: whether XLA
        compiles this call.
    """
    compiled = tf.function(function, jit_compile=True, autograph=False)

    @functools.wraps(function)
    def call(*args: Any, fuse: bool) -> Any:
        return (compiled if fuse else function)(*args)

    return call
