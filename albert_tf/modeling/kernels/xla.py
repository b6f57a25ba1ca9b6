"""TensorFlow's private XLA operations; no other file of the model uses any."""

from collections.abc import Sequence

import tensorflow as tf


def optimization_barrier(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the tensors behind a barrier for XLA's optimizations.

    XLA neither moves nor merges operations across the barrier, and computes
    all of the tensors before any result is read. The operation works only in
    programs that XLA compiles.
    """
    # Imported here, since programs for other devices do not need it.
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops.xla_optimization_barrier(list(tensors))
