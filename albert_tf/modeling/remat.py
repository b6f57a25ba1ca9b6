"""Computing activations a second time instead of keeping them.

Reference:
    [Chen et al., 2016](https://arxiv.org/abs/1604.06174).
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops


def recomputed(
    function: Callable[[tf.Tensor], tf.Tensor], on_tpu: bool = False
) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function whose activations are not kept for the backward pass.

    There it is computed once more from its argument. It must give the same
    each time, as blocks do whose dropout is a function of seed and place.

    Args:
        function: Of one tensor; may read variables. Other tensors that it
            reads are constants to it: no gradient goes to them.
        on_tpu: Whether the program is one for a TPU. Some releases of its
            compiler find that `tf.recompute_grad` computes the same twice,
            and keep the first (libtpu 0.0.51 does, 0.0.42 does not): there,
            a barrier that they do not look behind stands before the second.

    Returns:
        A function of the same value and gradients.
    """
    return (
        _recomputed_on_tpu(function) if on_tpu else tf.recompute_grad(function)
    )


def _recomputed_on_tpu(
    function: Callable[[tf.Tensor], tf.Tensor],
) -> Callable[[tf.Tensor], tf.Tensor]:
    @tf.custom_gradient
    def computed(x: tf.Tensor) -> Any:
        result = function(x)

        def gradient(
            upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()
        ) -> tuple[tf.Tensor, list[tf.Tensor]]:
            # Waits for the gradient, so that nothing is computed early.
            again, upstream = gen_xla_ops.xla_optimization_barrier(
                [x, upstream]
            )
            with tf.GradientTape() as tape:
                tape.watch(again)
                result = function(again)
            of_x, *of_variables = tape.gradient(
                result, [again, *variables], output_gradients=upstream
            )
            return of_x, of_variables

        return result, gradient

    return computed
