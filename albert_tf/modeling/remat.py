"""Rematerialization: computing activations twice instead of keeping them.

Reference:
    [Chen et al., 2016](https://arxiv.org/abs/1604.06174).
"""

from collections.abc import Callable

import tensorflow as tf


def remat(
    function: Callable[[tf.Tensor], tf.Tensor],
) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function whose activations are not kept for the backward pass.

    The backward pass computes the function a second time from its argument.
    The result must be the same each time, which holds for blocks whose
    dropout is a function of seed and site.

    Args:
        function: Takes one tensor; may read variables. Other tensors that it
            reads are constants to it: they get no gradient.

    Returns:
        A function with the same value and gradients.
    """
    return tf.recompute_grad(function)
