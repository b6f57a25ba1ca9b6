"""GELU of a projection in one pass, and its gradient in another."""

import math
from typing import Any

import tensorflow as tf

from albert_tf.modeling.device import Device
from albert_tf.modeling.fusion import fused
from albert_tf.modeling.kernels.bias import bias_gradient

# (1 + tanh(y)) / 2 is sigmoid(2 y), and 2 y is this polynomial of x.
_LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715 * _LINEAR


def bias_gelu(
    product: tf.Tensor, bias: tf.Tensor, *, target: Device
) -> tf.Tensor:
    """`layers.bias_gelu`, which keeps only its arguments for the gradient."""

    @tf.custom_gradient
    def gelu(product: tf.Tensor, bias: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            d_sum = _gelu_gradient(product, bias, upstream, fuse=target.fuse)
            return d_sum, bias_gradient(d_sum)

        return _gelu(product, bias, fuse=target.fuse), gradient

    return gelu(product, bias)


@fused
def _gelu(product: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    x = tf.cast(product, tf.float32) + tf.cast(bias, tf.float32)
    gate = tf.sigmoid(x * (_LINEAR + _CUBIC * tf.square(x)))
    return tf.cast(x * gate, product.dtype)


@fused
def _gelu_gradient(
    product: tf.Tensor, bias: tf.Tensor, upstream: tf.Tensor
) -> tf.Tensor:
    x = tf.cast(product, tf.float32) + tf.cast(bias, tf.float32)
    gate = tf.sigmoid(x * (_LINEAR + _CUBIC * tf.square(x)))
    slope = x * (_LINEAR + 3.0 * _CUBIC * tf.square(x))
    derivative = gate + gate * (1.0 - gate) * slope
    return tf.cast(tf.cast(upstream, tf.float32) * derivative, product.dtype)
