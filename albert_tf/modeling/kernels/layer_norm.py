"""LayerNorm with its gradient written out, alone and at a sublayer's end."""

from typing import Any

import tensorflow as tf

from albert_tf.modeling.dropout import Masks
from albert_tf.modeling.fusion import fused
from albert_tf.modeling.kernels.bias import bias_gradient
from albert_tf.modeling.kernels.xla import optimization_barrier
from albert_tf.modeling.target import ProgramTarget


def layer_norm(
    x: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    epsilon: float,
    *,
    target: ProgramTarget,
) -> tf.Tensor:
    """`layers.layer_norm`, whose gradient reads `x` less often."""
    del target

    @tf.custom_gradient
    def norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
        normal, scale = _standardize(x, *_moments(x), epsilon)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            rows = list(range(x.shape.rank - 1))
            return (
                _standardize_gradient(upstream * gamma, normal, scale),
                tf.reduce_sum(upstream * normal, axis=rows),
                tf.reduce_sum(upstream, axis=rows),
            )

        return normal * gamma + beta, gradient

    return norm(x, gamma, beta)


def bias_dropout_add_norm(
    residual: tf.Tensor,
    product: tf.Tensor,
    bias: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    epsilon: float,
    masks: Masks,
    *,
    target: ProgramTarget,
) -> tf.Tensor:
    """`layers.bias_dropout_add_norm`: one pass forward and one backward.

    It draws the dropout mask a second time in the backward pass. For the
    gradient, it keeps the normalised rows. On a TPU, it keeps the sum of
    residual and output, rounded to the compute dtype, and the moments of its
    rows. The product that makes this sum also computes the moments, and each
    operation that reads the result, forward or backward, normalises the sum
    again. So the result is never stored.
    """

    @tf.custom_gradient
    def end(
        residual: tf.Tensor,
        product: tf.Tensor,
        bias: tf.Tensor,
        gamma: tf.Tensor,
        beta: tf.Tensor,
    ) -> Any:
        result, normal, scale = _add_and_norm(
            residual,
            product,
            bias,
            gamma,
            beta,
            epsilon,
            masks,
            target.is_tpu,
            fuse=target.fuse,
        )

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            d_residual, d_product, d_gamma_rows = _add_and_norm_gradient(
                upstream, normal, scale, gamma, masks, fuse=target.fuse
            )
            return (
                d_residual,
                d_product,
                bias_gradient(d_product),
                tf.reduce_sum(d_gamma_rows, axis=[0, 1]),
                tf.reduce_sum(tf.cast(upstream, tf.float32), axis=[0, 1]),
            )

        return result, gradient

    return end(residual, product, bias, gamma, beta)


@fused
def _add_and_norm(
    residual: tf.Tensor,
    product: tf.Tensor,
    bias: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    epsilon: float,
    masks: Masks,
    keeps_sum: bool,
) -> tuple[tf.Tensor, ...]:
    """Returns the result, the normalised rows, and the scale of each row."""
    output = tf.cast(product, tf.float32) + tf.cast(bias, tf.float32)
    total = tf.cast(residual, tf.float32) + masks.apply(output)
    mean, square = _moments(total)
    if keeps_sum:
        # Without the barrier, the compiler stores the result, and keeps product
        # and residual in place of their sum.
        total, mean, square = optimization_barrier(
            [tf.cast(total, residual.dtype), mean, square]
        )
        total = tf.cast(total, tf.float32)
    normal, scale = _standardize(total, mean, square, epsilon)
    return tf.cast(normal * gamma + beta, residual.dtype), normal, scale


@fused
def _add_and_norm_gradient(
    upstream: tf.Tensor,
    normal: tf.Tensor,
    scale: tf.Tensor,
    gamma: tf.Tensor,
    masks: Masks,
) -> tuple[tf.Tensor, ...]:
    """Gradients of the residual and of the product, and of gamma by row."""
    dtype, upstream = upstream.dtype, tf.cast(upstream, tf.float32)
    d_total = _standardize_gradient(upstream * gamma, normal, scale)
    return (
        tf.cast(d_total, dtype),
        tf.cast(masks.apply(d_total), dtype),
        upstream * normal,
    )


def _moments(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The mean of each row, and the mean of its squares."""
    mean = tf.reduce_mean(x, axis=-1, keepdims=True)
    return mean, tf.reduce_mean(tf.square(x), axis=-1, keepdims=True)


def _standardize(
    x: tf.Tensor, mean: tf.Tensor, square: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows of mean 0 and deviation 1, and the factor that scaled each row.

    The variance is the mean of squares minus the square of the mean, so both
    means can be computed while `x` is written. The difference is precise enough
    in float32 unless the mean of a row is hundreds of times its deviation.
    """
    # Rounding can make the variance of a constant row negative.
    variance = tf.maximum(square - tf.square(mean), 0.0)
    scale = tf.math.rsqrt(variance + epsilon)
    return (x - mean) * scale, scale


def _standardize_gradient(
    d_normal: tf.Tensor, normal: tf.Tensor, scale: tf.Tensor
) -> tf.Tensor:
    mean = tf.reduce_mean(d_normal, axis=-1, keepdims=True)
    along = tf.reduce_mean(d_normal * normal, axis=-1, keepdims=True)
    return scale * (d_normal - mean - normal * along)
