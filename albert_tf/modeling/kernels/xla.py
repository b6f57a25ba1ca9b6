"""TensorFlow's private XLA operations; no other file of the model uses any."""

from collections.abc import Sequence

import tensorflow as tf


def optimization_barrier(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the tensors as XLA sees them without their origin.

    XLA neither moves nor merges operations across the barrier, and computes
    all of the tensors before any result is read. It lowers in programs
    compiled by XLA only.
    """
    # Imported here, since programs for other devices do without.
    from tensorflow.compiler.tf2xla.ops import gen_xla_ops

    return gen_xla_ops.xla_optimization_barrier(list(tensors))
