"""Computing activations a second time instead of keeping them.

Reference:
    [Chen et al., 2016](https://arxiv.org/abs/1604.06174).
"""

from collections.abc import Callable

import tensorflow as tf


def recomputed(
    function: Callable[[tf.Tensor], tf.Tensor],
) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function whose activations are not kept for the backward pass.

    There it is computed once more from its argument. It must give the same
    each time, as blocks do whose dropout is a function of seed and place.

    Args:
        function: Of one tensor; may read variables. Other tensors that it
            reads are constants to it: no gradient goes to them.

    Returns:
        A function of the same value and gradients.
    """
    return tf.recompute_grad(function)
