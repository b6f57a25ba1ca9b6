"""Self-attention: which position sees which, and what it makes of them.

Precision is that of `layers`: scores are of the compute dtype, softmax is
float32.
"""

from typing import Any

import keras
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from albert_tf.config import ModelConfig
from albert_tf.modeling.dropout import (
    NO_DROPOUT,
    Dropout,
    Masks,
    kept_share,
)
from albert_tf.modeling.fusion import fused
from albert_tf.modeling.layers import (
    AddAndNorm,
    bias,
    initializer,
    product,
    sum_of_rows,
)

# Added to the scores of keys that must not be seen, as published. Finite, so
# that a row of nothing but padding gives no NaN.
HIDDEN_KEY_BIAS = -10_000.0


def visible_keys_bias(input_mask: tf.Tensor) -> tf.Tensor:
    """What is added to attention scores so that padding is not seen.

    The one place that decides which position sees which.

    Args:
        input_mask: int32, `(batch, length)`; 1 for a piece, 0 for padding.

    Returns:
        float32, `(batch, 1, 1, length)`; 0 where a key is visible.
    """
    hidden = 1.0 - tf.cast(input_mask, tf.float32)
    return hidden[:, tf.newaxis, tf.newaxis, :] * HIDDEN_KEY_BIAS


class SelfAttention(keras.layers.Layer):
    """Multi-head self-attention with its residual and LayerNorm.

    Query, key and value are three kernels of `(H, H)` as published: LAMB
    scales the update of each matrix by its own norm.
    """

    def __init__(self, config: ModelConfig, name: str, dtype: str) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.query = self._dense("query")
        self.key = self._dense("key")
        self.value = self._dense("value")
        self.output_dense = self._dense("output")
        self.layer_norm = AddAndNorm(config.hidden_size)

    def _dense(self, name: str) -> keras.layers.Dense:
        return keras.layers.Dense(
            self.config.hidden_size,
            kernel_initializer=initializer(self.config),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self) -> None:
        hidden_shape = (None, None, self.config.hidden_size)
        for layer in (
            self.query,
            self.key,
            self.value,
            self.output_dense,
        ):
            layer.build(hidden_shape)
        self.layer_norm.build()

    def call(
        self,
        hidden: tf.Tensor,
        score_bias: tf.Tensor,
        dropout: Dropout = NO_DROPOUT,
        place: int = 0,
        read_positions: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Mixes the positions.

        Args:
            hidden: Compute dtype, `(batch, length, H)`.
            score_bias: float32, broadcast to `(batch, heads, length of the
                queries, length of the keys)`; from `visible_keys_bias`.
            dropout: Of the probabilities and of the output.
            place: First of the two places used.
            read_positions: int32, `(batch, reads)`: the result is computed
                there alone, from keys and values of all positions. One that
                stands twice is computed twice, with dropout of its own.

        Returns:
            Compute dtype, `(batch, length, H)`, or `(batch, reads, H)`.
        """
        on_tpu = dropout.on_tpu
        size = self.config.hidden_size // self.config.num_attention_heads
        queried = hidden
        if read_positions is not None:
            queried = tf.gather(hidden, read_positions, batch_dims=1)
        context = mix_positions(
            # Scaled here, before the larger scores.
            self._by_heads(self.query, queried, on_tpu, size**-0.5),
            self._by_heads(self.key, hidden, on_tpu),
            self._by_heads(self.value, hidden, on_tpu),
            score_bias,
            dropout.of_attention(place),
            on_tpu,
        )
        return self.layer_norm(
            queried,
            product(self.output_dense, _joined(context, on_tpu)),
            bias(self.output_dense),
            dropout=dropout,
            place=place + 1,
        )

    def _by_heads(
        self,
        dense: keras.layers.Dense,
        hidden: tf.Tensor,
        on_tpu: bool,
        scale: float = 1.0,
    ) -> tf.Tensor:
        """`(batch, length, H)` -> as `mix_positions` takes it."""
        heads = self.config.num_attention_heads

        @tf.custom_gradient
        def split(product: tf.Tensor, bias: tf.Tensor) -> Any:
            def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                of_product = _from_heads(upstream, on_tpu, scale)
                return of_product, sum_of_rows(of_product)

            return _to_heads(product, bias, heads, on_tpu, scale), gradient

        return split(product(dense, hidden), bias(dense))


@fused
def _to_heads(
    product: tf.Tensor, bias: tf.Tensor, heads: int, on_tpu: bool, scale: float
) -> tf.Tensor:
    total = tf.cast(product, tf.float32) + tf.cast(bias, tf.float32)
    scaled = tf.cast(total * scale, product.dtype)
    batch, length, width = tf.unstack(tf.shape(product))
    if on_tpu:
        by_width = tf.transpose(scaled, [0, 2, 1])
        return tf.reshape(by_width, [batch, heads, width // heads, length])
    by_heads = tf.reshape(scaled, [batch, length, heads, width // heads])
    return tf.transpose(by_heads, [0, 2, 1, 3])


@fused
def _from_heads(upstream: tf.Tensor, on_tpu: bool, scale: float) -> tf.Tensor:
    scaled = tf.cast(tf.cast(upstream, tf.float32) * scale, upstream.dtype)
    return _joined(scaled, on_tpu)


def _joined(by_heads: tf.Tensor, on_tpu: bool) -> tf.Tensor:
    """As `mix_positions` gives it -> `(batch, length, H)`."""
    if on_tpu:
        batch, heads, size, length = tf.unstack(tf.shape(by_heads))
        by_width = tf.reshape(by_heads, [batch, heads * size, length])
        return tf.transpose(by_width, [0, 2, 1])
    batch, heads, length, size = tf.unstack(tf.shape(by_heads))
    by_length = tf.transpose(by_heads, [0, 2, 1, 3])
    return tf.reshape(by_length, [batch, length, heads * size])


def mix_positions(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    score_bias: tf.Tensor,
    masks: Masks,
    on_tpu: bool = False,
) -> tf.Tensor:
    """Attention: values weighed by the softmax of scores.

    All that is kept for the backward pass, beside arguments and result, is
    one number a score: its exponential, in the compute dtype, with the sign
    turned where dropout takes it. The sum that divides them is applied to the
    result, which is smaller. The gradient is written out, so that the product
    of probabilities and their gradients is summed from the result likewise,
    and the gradient of a score is made in one go.

    Args:
        query: Compute dtype, `(batch, heads, length, size)`, scaled; on a TPU
            `(batch, heads, size, length)`, since positions fill its lanes,
            which the size of a head does not.
        key: Likewise.
        value: Likewise.
        score_bias: Float, broadcast to `(batch, heads, length of the queries,
            length of the keys)`; no gradient goes to it.
        masks: Of the probabilities.
        on_tpu: Whether the program is one for a TPU.

    Returns:
        As `value`, at the positions of `query`.

    Reference:
        [Rabe and Staats, 2021](https://arxiv.org/abs/2112.05682), for
        dividing last; [Dao et al., 2022](https://arxiv.org/abs/2205.14135),
        appendix B.2, for the sum.
    """

    def each_with_each(of_queries: tf.Tensor, of_keys: tf.Tensor) -> tf.Tensor:
        """Products of all queries and keys, as scores are."""
        return tf.matmul(
            of_queries, of_keys, transpose_a=on_tpu, transpose_b=not on_tpu
        )

    def sums_for_queries(table: tf.Tensor, of_keys: tf.Tensor) -> tf.Tensor:
        """What keys hold, weighed by a table like the scores."""
        if on_tpu:
            return tf.matmul(of_keys, table, transpose_b=True)
        return tf.matmul(table, of_keys)

    def sums_for_keys(table: tf.Tensor, of_queries: tf.Tensor) -> tf.Tensor:
        if on_tpu:
            return tf.matmul(of_queries, table)
        return tf.matmul(table, of_queries, transpose_a=True)

    @tf.custom_gradient
    def mix(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> Any:
        weights, kept, share = _weights(
            each_with_each(query, key), score_bias, masks
        )
        # One number a query.
        share = share[:, :, tf.newaxis] if on_tpu else share[..., tf.newaxis]
        if on_tpu:
            # Else the compiler computes them again for each that reads them.
            weights, share = gen_xla_ops.xla_optimization_barrier(
                [weights, share]
            )
            kept = _kept(weights, masks.rate)
        context = _divided(sums_for_queries(kept, value), share)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            if on_tpu:
                # Else it is kept, and copied, in float32.
                (upstream,) = gen_xla_ops.xla_optimization_barrier([upstream])
            shared, mean = _context_gradient(
                upstream, share, context, masks.rate, 2 if on_tpu else 3
            )
            of_scores, kept = _scores_gradient(
                each_with_each(shared, value), weights, mean, masks.rate
            )
            return (
                sums_for_queries(of_scores, key),
                sums_for_keys(of_scores, query),
                sums_for_keys(kept, shared),
            )

        return context, gradient

    return mix(query, key, value)


@fused
def _weights(
    scores: tf.Tensor, score_bias: tf.Tensor, masks: Masks
) -> tuple[tf.Tensor, ...]:
    """Exponentials with signs; those kept; what to multiply the result by."""
    dtype, scores = scores.dtype, tf.cast(scores, tf.float32)
    scores += tf.cast(score_bias, tf.float32)
    largest = tf.reduce_max(scores, axis=-1, keepdims=True)
    weights = tf.exp(scores - largest)
    total = tf.reduce_sum(weights, axis=-1) * kept_share(masks.rate)
    if masks.rate:
        keep = masks.keep(tf.shape(weights))
        weights = tf.where(keep, weights, -weights)
    weights = tf.cast(weights, dtype)
    return weights, _kept(weights, masks.rate), 1.0 / total


def _kept(weights: tf.Tensor, rate: float) -> tf.Tensor:
    return tf.nn.relu(weights) if rate else weights


@fused
def _divided(context: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.cast(context, tf.float32) * share, context.dtype)


@fused
def _context_gradient(
    upstream: tf.Tensor,
    share: tf.Tensor,
    context: tf.Tensor,
    rate: float,
    axis: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Of the context before division; the probabilities' mean gradient."""
    shared = tf.cast(upstream, tf.float32) * share
    mean = tf.reduce_sum(shared * tf.cast(context, tf.float32), axis=axis)
    mean = mean[..., tf.newaxis] * kept_share(rate)
    return tf.cast(shared, upstream.dtype), mean


@fused
def _scores_gradient(
    of_kept: tf.Tensor, weights: tf.Tensor, mean: tf.Tensor, rate: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Of the scores; the weights kept, again."""
    signed = tf.cast(weights, tf.float32)
    of_scores = signed * (tf.cast(of_kept, tf.float32) - mean)
    if rate:
        of_scores = tf.where(signed < 0, signed * mean, of_scores)
    return tf.cast(of_scores, weights.dtype), _kept(weights, rate)
