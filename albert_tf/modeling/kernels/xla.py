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


def store_in_float32(tensor: tf.Tensor) -> tf.Tensor:
    """Makes XLA store a float32 tensor in float32, and returns the tensor.

    If all operations that read a float32 tensor round it to bfloat16, XLA may
    store it in bfloat16. The results are the same in either case.
    """
    # XLA lowers the precision of floats only, so the barrier gets integers.
    (bits,) = optimization_barrier([tf.bitcast(tensor, tf.uint32)])
    return tf.bitcast(bits, tf.float32)
