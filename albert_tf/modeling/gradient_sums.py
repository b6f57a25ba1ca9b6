"""Gradients of shared kernels, added up while the backward pass computes them.

A kernel that all layers share has one gradient for each layer. TensorFlow adds
them up when all are known. Until then, a compiler for TPUs keeps them, rounded
to bfloat16, and reads them in a separate pass over memory. `GradientSums` gives
each layer its own read of the kernel, and joins the reads in a chain. The
backward pass follows the chain from the last layer to the first, and adds the
gradient of each layer to a float32 sum. The compiler makes this addition a part
of the product that computes the gradient.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


def optimization_barrier(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The tensors behind a barrier, which works only where XLA compiles.

    XLA neither moves nor merges operations across the barrier, and computes
    all of the tensors before any result is read.
    """
    # A private module, which programs for other devices do not need.
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops.xla_optimization_barrier(list(tensors))


class GradientSums:
    """Joins the reads of each kernel in one forward pass, and the gradient.

    Args:
        variables: Trainable variables of a model.
        so_far: float32 tensors with the shapes of `variables`: the gradients of
            former micro-batches, with which the sums begin. None begins with
            zeros.
        joins_reads: Whether there are chains. They work only in programs that
            XLA compiles, and not with `remat`.
    """

    def __init__(
        self,
        variables: Sequence[keras.Variable],
        so_far: Sequence[tf.Tensor] | None,
        joins_reads: bool,
    ) -> None:
        self._joins_reads = joins_reads
        # Read here, since Keras casts the values of variables inside a layer.
        self._values = {id(v): v.value for v in variables}
        self._so_far = {}
        if so_far is not None:
            self._so_far = dict(zip(self._values, so_far, strict=True))
        self._chains: dict[int, _Chain] = {}

    def joins(self, variable: keras.Variable) -> bool:
        """Whether the reads of a variable are a chain."""
        return self._joins_reads and id(variable) in self._values

    def read(
        self,
        variable: keras.Variable,
        dtype: str,
        shape: Sequence[int] | None,
    ) -> tf.Tensor:
        """See `ProgramTarget.read`."""
        key = id(variable)
        if key not in self._chains:
            value = tf.convert_to_tensor(self._values[key])
            start = self._so_far.get(key)
            if shape is not None:
                # Between additions, a change of the shape would be a copy.
                value = tf.reshape(value, shape)
                start = None if start is None else tf.reshape(start, shape)
            self._chains[key] = _Chain(value, start)
        return self._chains[key].read(dtype)

    def complete(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Adds `so_far` to the gradients of variables without a chain.

        Args:
            gradients: float32, of `variables`, by the tape that recorded the
                forward pass. Those of variables with a chain include `so_far`.
        """
        return [
            gradient
            if key in self._chains or key not in self._so_far
            else self._so_far[key] + gradient
            for key, gradient in zip(self._values, gradients, strict=True)
        ]


class _Chain:
    """The reads of one kernel, float32, whose gradients add up to `so_far`."""

    def __init__(self, value: tf.Tensor, so_far: tf.Tensor | None) -> None:
        self._end = value
        self._so_far = so_far
        self._has_begun = False

    def read(self, dtype: str) -> tf.Tensor:
        @tf.custom_gradient
        def split(value: tf.Tensor) -> Any:
            def gradient(d_rest: tf.Tensor, d_copy: tf.Tensor) -> tf.Tensor:
                d_value = tf.cast(d_copy, tf.float32)
                if not self._has_begun:
                    # No later read has a gradient: `d_rest` is 0.
                    self._has_begun = True
                    begin = self._so_far
                    return d_value if begin is None else begin + d_value
                # Without the barrier, the compiler adds up all gradients at
                # the end.
                (total,) = optimization_barrier([d_rest])
                return total + d_value

            return (tf.identity(value), tf.cast(value, dtype)), gradient

        self._end, copy = split(self._end)
        return copy
