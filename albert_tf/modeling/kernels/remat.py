"""Rematerialization that XLA cannot undo."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from albert_tf.modeling.kernels.xla import optimization_barrier
from albert_tf.modeling.target import ProgramTarget


def remat(
    function: Callable[[tf.Tensor], tf.Tensor], *, target: ProgramTarget
) -> Callable[[tf.Tensor], tf.Tensor]:
    """`encoder.remat`; if XLA compiles it, with a barrier before recomputation.

    Some releases of XLA detect that `tf.recompute_grad` computes the same
    values twice, and keep the first result: libtpu 0.0.51 does, 0.0.42 does
    not.
    """
    if not target.is_compiled:
        return tf.recompute_grad(function)

    @tf.custom_gradient
    def computed(x: tf.Tensor) -> Any:
        result = function(x)

        def gradient(
            upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()
        ) -> tuple[tf.Tensor, list[tf.Tensor]]:
            # Waits for the gradient, so that nothing is computed early.
            again, upstream = optimization_barrier([x, upstream])
            with tf.GradientTape() as tape:
                tape.watch(again)
                result = function(again)
            d_x, *d_variables = tape.gradient(
                result, [again, *variables], output_gradients=upstream
            )
            return d_x, d_variables

        return result, gradient

    return computed
