"""Attention that keeps one number per score for the backward pass."""

import dataclasses
from typing import Any

import tensorflow as tf

from albert_tf.modeling.attention_bias import (
    AttentionBias,
    ExampleNumbers,
    add_to_scores,
)
from albert_tf.modeling.dropout import Masks, keep_prob
from albert_tf.modeling.fusion import fused
from albert_tf.modeling.kernels.bias import bias_gradient
from albert_tf.modeling.kernels.xla import (
    optimization_barrier,
    store_in_float32,
)
from albert_tf.modeling.target import ProgramTarget

Projected = tuple[tf.Tensor, tf.Tensor]


def attention(
    query: Projected,
    key: Projected,
    value: Projected,
    attention_bias: AttentionBias,
    masks: Masks,
    num_heads: int,
    *,
    target: ProgramTarget,
) -> tf.Tensor:
    """`attention.attention`, with a memory layout that suits the device.

    On a TPU, products and context have the layout of `attention.ToHeads`.
    """
    size = query[1].shape[0] // num_heads

    def heads(projected: Projected, scale: float = 1.0) -> tf.Tensor:
        if target.is_tpu:
            return _add_bias(*projected, num_heads, scale)
        return _add_bias_and_split(*projected, num_heads, scale, target.fuse)

    # Scales the queries rather than the scores, which have more entries.
    context = attend(
        heads(query, size**-0.5),
        heads(key),
        heads(value),
        attention_bias,
        masks,
        target,
    )
    return context if target.is_tpu else _join(context)


@dataclasses.dataclass(frozen=True)
class _Layout:
    """The memory layout of heads, and the three products in that layout.

    Attributes:
        positions_last: Whether the layout is `(batch, heads, size, length)`,
            for TPUs, where positions fill the 128 lanes and the size of a head
            does not. Otherwise it is `(batch, heads, length, size)`.
    """

    positions_last: bool

    def scores(self, query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Q K^T: `(batch, heads, queries, keys)` in either layout."""
        return tf.matmul(
            query,
            key,
            transpose_a=self.positions_last,
            transpose_b=not self.positions_last,
        )

    def sum_over_keys(self, weights: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """W K, where W has the shape of the scores."""
        if self.positions_last:
            return tf.matmul(key, weights, transpose_b=True)
        return tf.matmul(weights, key)

    def sum_over_queries(
        self, weights: tf.Tensor, query: tf.Tensor
    ) -> tf.Tensor:
        """W^T Q, where W has the shape of the scores."""
        if self.positions_last:
            return tf.matmul(query, weights)
        return tf.matmul(weights, query, transpose_a=True)

    def by_query(self, numbers: tf.Tensor) -> tf.Tensor:
        """`(batch, heads, queries)`, to be multiplied with the context."""
        if self.positions_last:
            return numbers[:, :, tf.newaxis]
        return numbers[..., tf.newaxis]

    @property
    def size_axis(self) -> int:
        """The axis over the entries of one head at one position."""
        return 2 if self.positions_last else 3


def _add_bias_and_split(
    product: tf.Tensor,
    bias: tf.Tensor,
    num_heads: int,
    scale: float,
    fuse: bool,
) -> tf.Tensor:
    @tf.custom_gradient
    def split(product: tf.Tensor, bias: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            d_product = _scale_and_join(upstream, scale, fuse=fuse)
            return d_product, bias_gradient(d_product)

        heads = _scale_and_split(product, bias, num_heads, scale, fuse=fuse)
        return heads, gradient

    return split(product, bias)


@fused
def _scale_and_split(
    product: tf.Tensor, bias: tf.Tensor, num_heads: int, scale: float
) -> tf.Tensor:
    total = tf.cast(product, tf.float32) + tf.cast(bias, tf.float32)
    return _split(tf.cast(total * scale, product.dtype), num_heads)


@fused
def _scale_and_join(upstream: tf.Tensor, scale: float) -> tf.Tensor:
    scaled = tf.cast(tf.cast(upstream, tf.float32) * scale, upstream.dtype)
    return _join(scaled)


def _split(x: tf.Tensor, num_heads: int) -> tf.Tensor:
    """`(batch, length, H)` -> `(batch, heads, length, size)`."""
    batch, length, width = tf.unstack(tf.shape(x))
    by_heads = tf.reshape(x, [batch, length, num_heads, width // num_heads])
    return tf.transpose(by_heads, [0, 2, 1, 3])


def _join(by_heads: tf.Tensor) -> tf.Tensor:
    """`(batch, heads, length, size)` -> `(batch, length, H)`."""
    batch, heads, length, size = tf.unstack(tf.shape(by_heads))
    by_length = tf.transpose(by_heads, [0, 2, 1, 3])
    return tf.reshape(by_length, [batch, length, heads * size])


def _add_bias(
    product: tf.Tensor, bias: tf.Tensor, num_heads: int, scale: float
) -> tf.Tensor:
    """For a TPU: `(x W + b) * scale`, `(batch, heads, size, length)`."""

    @tf.custom_gradient
    def add(product: tf.Tensor, bias: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            d_total = tf.cast(upstream, tf.float32) * scale
            d_product = tf.cast(d_total, product.dtype)
            d_bias = tf.reduce_sum(tf.cast(d_product, tf.float32), axis=[0, 3])
            return d_product, tf.cast(tf.reshape(d_bias, [-1]), bias.dtype)

        by_heads = tf.reshape(tf.cast(bias, tf.float32), [num_heads, -1, 1])
        total = tf.cast(product, tf.float32) + by_heads
        result = tf.cast(total * scale, product.dtype)
        # Without the barrier, the compiler for v6e adds the bias wherever the
        # result is read, and computes the product of the scores twice.
        (result,) = optimization_barrier([result])
        return result, gradient

    return add(product, bias)


def attend(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    attention_bias: AttentionBias,
    masks: Masks,
    target: ProgramTarget,
) -> tf.Tensor:
    """softmax(Q K^T + bias) V, with dropout of the probabilities.

    For the backward pass it keeps its arguments, its result and one number
    per score in the compute dtype: the exponential, negative where dropout
    drops it. The softmax denominator divides the context, which is smaller
    than the scores. Likewise, the backward pass computes the sum over keys of
    probabilities times their gradients from the context and its gradient. So
    it computes the gradients of the scores in one pass.

    Args:
        query: Compute dtype, `(batch, heads, queries, size)`, scaled; on a
            TPU `(batch, heads, size, queries)`.
        key: Compute dtype, `(batch, heads, keys, size)`; on a TPU `(batch,
            heads, size, keys)`.
        value: Like `key`.
        attention_bias: As in `attention.attention`.
        masks: Dropout of the probabilities.
        target: Decides layout, fusing, barriers, and how the gradients of the
            scores are stored.

    Returns:
        The context, with the dtype and layout of `query`.

    Reference:
        [Rabe and Staats, 2021](https://arxiv.org/abs/2112.05682), for
        dividing last; [Dao et al., 2022](https://arxiv.org/abs/2205.14135),
        appendix B.2, for the sum.
    """
    layout = _Layout(positions_last=target.is_tpu)

    @tf.custom_gradient
    def attended(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> Any:
        bias = attention_bias
        if target.is_tpu and isinstance(bias, ExampleNumbers):
            # The compiler would store a bias that all heads share.
            bias = bias.bias(num_heads=query.shape[1])
        weights, kept, factor = _exponentials(
            layout.scores(query, key), bias, masks, fuse=target.fuse
        )
        factor = layout.by_query(factor)
        if target.is_tpu:
            # Without the barrier, the compiler computes both values once for
            # each operation that reads them.
            weights, factor = optimization_barrier([weights, factor])
            kept = _kept(weights, masks.rate)
        context = _multiply(
            layout.sum_over_keys(kept, value), factor, fuse=target.fuse
        )

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            d_sum, mean = _context_gradient(
                upstream,
                factor,
                context,
                masks.rate,
                layout.size_axis,
                target.is_tpu,
                fuse=target.fuse,
            )
            d_scores, kept = _scores_gradient(
                layout.scores(d_sum, value),
                weights,
                mean,
                masks.rate,
                target.float32_score_gradients,
                fuse=target.fuse,
            )
            return (
                layout.sum_over_keys(d_scores, key),
                layout.sum_over_queries(d_scores, query),
                layout.sum_over_queries(kept, d_sum),
            )

        return context, gradient

    return attended(query, key, value)


@fused
def _exponentials(
    scores: tf.Tensor, attention_bias: AttentionBias, masks: Masks
) -> tuple[tf.Tensor, ...]:
    """Computes the exponentials of the softmax, and their dropout.

    Returns:
        The exponentials, negative where dropped; the exponentials, 0 where
        dropped; and the factor of the context, 1 / (softmax denominator * keep
        probability).
    """
    dtype, scores = scores.dtype, tf.cast(scores, tf.float32)
    scores = add_to_scores(scores, attention_bias)
    largest = tf.reduce_max(scores, axis=-1, keepdims=True)
    weights = tf.exp(scores - largest)
    total = tf.reduce_sum(weights, axis=-1) * keep_prob(masks.rate)
    if masks.rate:
        keep = masks.keep(tf.shape(weights))
        weights = tf.where(keep, weights, -weights)
    weights = tf.cast(weights, dtype)
    return weights, _kept(weights, masks.rate), 1.0 / total


def _kept(weights: tf.Tensor, rate: float) -> tf.Tensor:
    return tf.nn.relu(weights) if rate else weights


@fused
def _multiply(context: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.cast(context, tf.float32) * factor, context.dtype)


@fused
def _context_gradient(
    upstream: tf.Tensor,
    factor: tf.Tensor,
    context: tf.Tensor,
    rate: float,
    size_axis: int,
    has_barrier: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Two terms of the gradient of the scores.

    Returns:
        The gradient of the context before `_multiply`; and the sum over keys of
        probabilities times their gradients, over the softmax denominator.
    """
    products = tf.cast(upstream, tf.float32) * tf.cast(context, tf.float32)
    mean = tf.reduce_sum(products, axis=size_axis, keepdims=True)
    if has_barrier:
        # Without the barrier, the compiler keeps and copies the gradient in
        # float32, and computes the sum in a separate pass.
        upstream, mean = optimization_barrier([upstream, mean])
    d_sum = tf.cast(upstream, tf.float32) * factor
    mean = tf.squeeze(mean * factor, size_axis)[..., tf.newaxis]
    return tf.cast(d_sum, upstream.dtype), mean * keep_prob(rate)


@fused
def _scores_gradient(
    d_kept: tf.Tensor,
    weights: tf.Tensor,
    mean: tf.Tensor,
    rate: float,
    in_float32: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The gradient of the scores; the exponentials, 0 where dropped.

    With `in_float32`, XLA stores the gradient in float32, and each operation
    that reads it rounds it to the compute dtype.
    """
    signed = tf.cast(weights, tf.float32)
    d_scores = signed * (tf.cast(d_kept, tf.float32) - mean)
    if rate:
        d_scores = tf.where(signed < 0, signed * mean, d_scores)
    if in_float32:
        d_scores = store_in_float32(d_scores)
    return tf.cast(d_scores, weights.dtype), _kept(weights, rate)
