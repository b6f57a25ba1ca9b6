"""Adding a bias, with a gradient that is summed in float32."""

from typing import Any

import tensorflow as tf

from albert_tf.modeling.device import Device


def add_bias(
    product: tf.Tensor, bias: tf.Tensor, *, target: Device
) -> tf.Tensor:
    """`layers.add_bias` without a float32 copy of the product."""
    del target

    @tf.custom_gradient
    def add(product: tf.Tensor, bias: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return upstream, bias_gradient(upstream)

        return product + bias, gradient

    return add(product, bias)


def bias_gradient(d_sum: tf.Tensor) -> tf.Tensor:
    """The gradient of a bias, as a product with ones.

    Matrix products accumulate bfloat16 in float32. On a CPU, TensorFlow's
    `reduce_sum` does not: over 1,000 rows it is 3 % off, over 8,000 rows 25 %.

    Args:
        d_sum: Float, `(..., width)`; the gradient of the sum.

    Returns:
        The dtype of `d_sum`, `(width,)`.
    """
    rows = tf.reshape(d_sum, [-1, d_sum.shape[-1]])
    return tf.matmul(tf.ones([1, tf.shape(rows)[0]], rows.dtype), rows)[0]
