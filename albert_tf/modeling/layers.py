"""What ALBERT is made of: embeddings, attention, feed-forward.

Every layer knows its widths from the `ModelConfig`, so `build()` takes no
shapes and creates all variables at once, e.g. in `strategy.scope()`.

Precision: under `mixed_bfloat16` the matrix products of attention and
feed-forward are bfloat16, attention scores among them. Variables, embeddings,
softmax and LayerNorm are float32 under either policy.

Reference:
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 3.1.
"""

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from albert_tf.config import ModelConfig
from albert_tf.fusion import fused
from albert_tf.modeling.dropout import (
    NO_DROPOUT,
    Dropout,
    Masks,
    kept_share,
)

LAYER_NORM_EPSILON = 1e-12  # as published; Keras' own default is 1e-3

# Added to the scores of keys that must not be seen, as published. Finite, so
# that a row of nothing but padding gives no NaN.
HIDDEN_KEY_BIAS = -10_000.0


def initializer(config: ModelConfig) -> keras.initializers.Initializer:
    """Truncated normal, cut at two deviations, as published.

    A Keras initializer draws the same numbers each time it is called, so
    each variable needs one of its own.
    """
    return keras.initializers.TruncatedNormal(stddev=config.initializer_range)


def activation(
    config: ModelConfig,
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """The activation that `hidden_act` names, of a product and its bias."""
    if config.hidden_act == "gelu":
        return gelu
    named = keras.activations.get(config.hidden_act)
    return lambda product, bias: named(add_bias(product, bias))


@tf.custom_gradient
def gelu(product: tf.Tensor, bias: tf.Tensor) -> Any:
    """GELU of a sum by its tanh formula, in float32.

    Args:
        product: Float, `(..., width)`.
        bias: Of that dtype, `(width,)`.

    Returns:
        Of the shape and dtype of `product`.

    Reference:
        [Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415).
    """

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        of_sum = _gelu_gradient(product, bias, upstream)
        return of_sum, sum_of_rows(of_sum)

    return _gelu(product, bias), gradient


# (1 + tanh(y)) / 2 is sigmoid(2 y), and 2 y is this polynomial of x.
_LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715 * _LINEAR


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
    of_x = gate + gate * (1.0 - gate) * slope
    return tf.cast(tf.cast(upstream, tf.float32) * of_x, product.dtype)


def product(dense: keras.layers.Dense, x: tf.Tensor) -> tf.Tensor:
    """The product in `dense`, whose bias is left to what follows.

    Args:
        dense: Built.
        x: Compute dtype of the layer that this is called in, `(batch, length,
            width)`.

    Returns:
        Compute dtype, `(batch, length, units)`.
    """
    return tf.tensordot(x, dense.kernel, axes=1)


def bias(dense: keras.layers.Dense) -> tf.Tensor:
    """The bias of `dense`: compute dtype, `(units,)`."""
    return tf.convert_to_tensor(dense.bias)


@tf.custom_gradient
def add_bias(x: tf.Tensor, bias: tf.Tensor) -> Any:
    """Adds to each row.

    Args:
        x: Float, `(..., width)`.
        bias: Of that dtype, `(width,)`.

    Returns:
        Of the shape and dtype of `x`.
    """
    return x + bias, lambda upstream: (upstream, sum_of_rows(upstream))


def sum_of_rows(x: tf.Tensor) -> tf.Tensor:
    """The gradient of a bias, as a product with ones.

    Products add up bfloat16 in float32. TensorFlow's sums, and so its own
    gradient of a bias, do not on a CPU: of 1,000 rows it is 3 % off, of 8,000
    a quarter.

    Args:
        x: Float, `(..., width)`.

    Returns:
        Of its dtype, `(width,)`.
    """
    rows = tf.reshape(x, [-1, x.shape[-1]])
    return tf.matmul(tf.ones([1, tf.shape(rows)[0]], rows.dtype), rows)[0]


class _Norm(keras.layers.Layer):
    """Scale and shift of LayerNorm over the last axis, always float32."""

    def __init__(self, width: int, name: str = "layer_norm") -> None:
        # No autocast: what comes in may be of another dtype.
        super().__init__(name=name, dtype="float32", autocast=False)
        self.width = width

    def build(self) -> None:
        self.gamma = self.add_weight(
            name="gamma", shape=(self.width,), initializer="ones"
        )
        self.beta = self.add_weight(
            name="beta", shape=(self.width,), initializer="zeros"
        )


class LayerNorm(_Norm):
    """LayerNorm over the last axis, in float32 under every precision policy.

    Args:
        width: Size of that axis.

    Reference:
        [Ba et al., 2016](https://arxiv.org/abs/1607.06450).
    """

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Gives each row mean 0 and deviation 1, then scales and shifts it.

        Args:
            x: float32, `(..., width)`.

        Returns:
            float32, of its shape.
        """
        return _normalized(x, self.gamma.value, self.beta.value)


@tf.custom_gradient
def _normalized(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> Any:
    normal, scale = _standardized(x)

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
        rows = list(range(x.shape.rank - 1))
        return (
            _standardized_gradient(upstream * gamma, normal, scale),
            tf.reduce_sum(upstream * normal, axis=rows),
            tf.reduce_sum(upstream, axis=rows),
        )

    return normal * gamma + beta, gradient


def _standardized(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows of mean 0 and deviation 1, and what they were multiplied by.

    Variance is the mean of squares less the square of the mean, so that both
    means come of the pass that makes `x`; of that difference float32 keeps
    enough as long as a row's mean is not hundreds of its deviations.
    """
    mean = tf.reduce_mean(x, axis=-1, keepdims=True)
    square = tf.reduce_mean(tf.square(x), axis=-1, keepdims=True)
    # Rounding may leave a row of equal numbers a variance below 0.
    variance = tf.maximum(square - tf.square(mean), 0.0)
    scale = tf.math.rsqrt(variance + LAYER_NORM_EPSILON)
    return (x - mean) * scale, scale


def _standardized_gradient(
    upstream: tf.Tensor, normal: tf.Tensor, scale: tf.Tensor
) -> tf.Tensor:
    """Written out, since by differentiation it reads `x` more often."""
    along = tf.reduce_mean(upstream * normal, axis=-1, keepdims=True)
    mean = tf.reduce_mean(upstream, axis=-1, keepdims=True)
    return scale * (upstream - mean - normal * along)


class AddAndNorm(_Norm):
    """The end of a sublayer: bias, dropout, residual and LayerNorm.

    Args:
        width: Of the hidden states.
    """

    def call(
        self,
        hidden: tf.Tensor,
        product: tf.Tensor,
        bias: tf.Tensor,
        dropout: Dropout = NO_DROPOUT,
        place: int = 0,
    ) -> tf.Tensor:
        """Normalises `hidden` plus what is left of `product` and `bias`.

        All of it is float32, as the sum of a sublayer's output is.

        Args:
            hidden: Compute dtype, `(batch, length, width)`; the residual.
            product: Likewise, the last of the sublayer.
            bias: Compute dtype, `(width,)`.
            dropout: Of `product` and `bias`.
            place: Its place.

        Returns:
            As `hidden`.
        """
        masks = dropout.of_hidden(place)

        @tf.custom_gradient
        def end(
            hidden: tf.Tensor,
            product: tf.Tensor,
            bias: tf.Tensor,
            gamma: tf.Tensor,
            beta: tf.Tensor,
        ) -> Any:
            result, normal, scale = _add_and_norm(
                hidden, product, bias, gamma, beta, masks
            )

            def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
                of_hidden, of_product, of_scaled = _add_and_norm_gradient(
                    upstream, normal, scale, gamma, masks
                )
                return (
                    of_hidden,
                    of_product,
                    sum_of_rows(of_product),
                    tf.reduce_sum(of_scaled, axis=[0, 1]),
                    tf.reduce_sum(tf.cast(upstream, tf.float32), axis=[0, 1]),
                )

            return result, gradient

        return end(hidden, product, bias, self.gamma.value, self.beta.value)


@fused
def _add_and_norm(
    hidden: tf.Tensor,
    product: tf.Tensor,
    bias: tf.Tensor,
    gamma: tf.Tensor,
    beta: tf.Tensor,
    masks: Masks,
) -> tuple[tf.Tensor, ...]:
    output = tf.cast(product, tf.float32) + tf.cast(bias, tf.float32)
    total = tf.cast(hidden, tf.float32) + masks.applied(output)
    normal, scale = _standardized(total)
    return tf.cast(normal * gamma + beta, hidden.dtype), normal, scale


@fused
def _add_and_norm_gradient(
    upstream: tf.Tensor,
    normal: tf.Tensor,
    scale: tf.Tensor,
    gamma: tf.Tensor,
    masks: Masks,
) -> tuple[tf.Tensor, ...]:
    """Gradients of the residual and of the product; of gamma, by rows."""
    dtype, upstream = upstream.dtype, tf.cast(upstream, tf.float32)
    of_total = _standardized_gradient(upstream * gamma, normal, scale)
    return (
        tf.cast(of_total, dtype),
        tf.cast(masks.applied(of_total), dtype),
        upstream * normal,
    )


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


class Embeddings(keras.layers.Layer):
    """Word, segment and position embeddings of width E, normalised.

    Always float32: the gradient of a segment's embedding is a sum over half
    of all positions, which bfloat16 cannot hold.
    """

    def __init__(self, config: ModelConfig, name: str = "embeddings") -> None:
        super().__init__(name=name, dtype="float32")
        self.config = config
        self.layer_norm = LayerNorm(config.embedding_size)

    def build(self) -> None:
        config = self.config

        def add_table(name: str, rows: int) -> keras.Variable:
            return self.add_weight(
                name=name,
                shape=(rows, config.embedding_size),
                initializer=initializer(config),
            )

        self.word_embeddings = add_table("word_embeddings", config.vocab_size)
        self.token_type_embeddings = add_table(
            "token_type_embeddings", config.type_vocab_size
        )
        self.position_embeddings = add_table(
            "position_embeddings", config.max_position_embeddings
        )
        self.layer_norm.build()

    def call(
        self,
        input_ids: tf.Tensor,
        segment_ids: tf.Tensor,
        dropout: Dropout = NO_DROPOUT,
        place: int = 0,
    ) -> tf.Tensor:
        """Embeds pieces.

        Args:
            input_ids: int32, `(batch, length)`.
            segment_ids: int32, `(batch, length)`, below `type_vocab_size`.
            dropout: Of the result.
            place: Its place.

        Returns:
            float32, `(batch, length, E)`.
        """
        length = keras.ops.shape(input_ids)[1]
        embedded = (
            tf.gather(self.word_embeddings, input_ids)
            + tf.gather(self.token_type_embeddings, segment_ids)
            + self.position_embeddings[:length]
        )
        return dropout.of_hidden(place).applied(self.layer_norm(embedded))


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
        size = self.config.hidden_size // self.config.num_attention_heads
        queried = hidden
        if read_positions is not None:
            queried = tf.gather(hidden, read_positions, batch_dims=1)
        context = mix_positions(
            # Scaled here, before the larger scores.
            self._by_heads(self.query, queried, size**-0.5),
            self._by_heads(self.key, hidden),
            self._by_heads(self.value, hidden),
            score_bias,
            dropout.of_attention(place),
            dropout.on_tpu,
        )
        batch, length, width = tf.unstack(tf.shape(queried))
        context = tf.reshape(context, [batch, width, length])
        return self.layer_norm(
            queried,
            product(self.output_dense, tf.transpose(context, [0, 2, 1])),
            bias(self.output_dense),
            dropout=dropout,
            place=place + 1,
        )

    def _by_heads(
        self, dense: keras.layers.Dense, hidden: tf.Tensor, scale: float = 1.0
    ) -> tf.Tensor:
        """`(batch, length, H)` -> `(batch, heads, H / heads, length)`.

        Positions come last, since they fill the lanes of a TPU, which the
        width of a head does not; with the width last all of it is copied.
        """
        heads = self.config.num_attention_heads

        @tf.custom_gradient
        def split(product: tf.Tensor, bias: tf.Tensor) -> Any:
            def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                of_product = _from_heads(upstream, scale)
                return of_product, sum_of_rows(of_product)

            return _to_heads(product, bias, heads, scale), gradient

        return split(product(dense, hidden), bias(dense))


@fused
def _to_heads(
    product: tf.Tensor, bias: tf.Tensor, heads: int, scale: float
) -> tf.Tensor:
    total = tf.cast(product, tf.float32) + tf.cast(bias, tf.float32)
    by_width = tf.transpose(tf.cast(total * scale, product.dtype), [0, 2, 1])
    batch, width, length = tf.unstack(tf.shape(by_width))
    return tf.reshape(by_width, [batch, heads, width // heads, length])


@fused
def _from_heads(upstream: tf.Tensor, scale: float) -> tf.Tensor:
    batch, heads, size, length = tf.unstack(tf.shape(upstream))
    by_width = tf.reshape(upstream, [batch, heads * size, length])
    scaled = tf.cast(by_width, tf.float32) * scale
    return tf.transpose(tf.cast(scaled, upstream.dtype), [0, 2, 1])


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
        query: Compute dtype, `(batch, heads, size, length)`, scaled.
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

    @tf.custom_gradient
    def mix(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> Any:
        scores = tf.matmul(query, key, transpose_a=True)
        weights, kept, share = _weights(scores, score_bias, masks)
        if on_tpu:
            # Else the compiler computes them again for each that reads them.
            weights, share = gen_xla_ops.xla_optimization_barrier(
                [weights, share]
            )
            kept = _kept(weights, masks.rate)
        context = tf.matmul(value, kept, transpose_b=True)
        context = _divided(context, share)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            if on_tpu:
                # Else it is kept, and copied, in float32.
                (upstream,) = gen_xla_ops.xla_optimization_barrier([upstream])
            shared, mean = _context_gradient(
                upstream, share, context, masks.rate
            )
            of_kept = tf.matmul(shared, value, transpose_a=True)
            of_scores, kept = _scores_gradient(
                of_kept, weights, mean, masks.rate
            )
            return (
                tf.matmul(key, of_scores, transpose_b=True),
                tf.matmul(query, of_scores),
                tf.matmul(shared, kept),
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
    return weights, _kept(weights, masks.rate), (1.0 / total)[:, :, tf.newaxis]


def _kept(weights: tf.Tensor, rate: float) -> tf.Tensor:
    return tf.nn.relu(weights) if rate else weights


@fused
def _divided(context: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.cast(context, tf.float32) * share, context.dtype)


@fused
def _context_gradient(
    upstream: tf.Tensor, share: tf.Tensor, context: tf.Tensor, rate: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Of the context before division; the probabilities' mean gradient."""
    shared = tf.cast(upstream, tf.float32) * share
    mean = tf.reduce_sum(shared * tf.cast(context, tf.float32), axis=2)
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


class FeedForward(keras.layers.Layer):
    """Two dense layers at each position, with residual and LayerNorm."""

    def __init__(self, config: ModelConfig, name: str, dtype: str) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.activation = activation(config)
        self.intermediate = keras.layers.Dense(
            config.intermediate_size,
            kernel_initializer=initializer(config),
            dtype=self.dtype_policy,
            name="intermediate",
        )
        self.output_dense = keras.layers.Dense(
            config.hidden_size,
            kernel_initializer=initializer(config),
            dtype=self.dtype_policy,
            name="output",
        )
        self.layer_norm = AddAndNorm(config.hidden_size)

    def build(self) -> None:
        hidden_shape = (None, None, self.config.hidden_size)
        self.intermediate.build(hidden_shape)
        self.output_dense.build((None, None, self.config.intermediate_size))
        self.layer_norm.build()

    def call(
        self,
        hidden: tf.Tensor,
        dropout: Dropout = NO_DROPOUT,
        place: int = 0,
    ) -> tf.Tensor:
        """Transforms each position.

        Args:
            hidden: Compute dtype, `(batch, length, H)`.
            dropout: Of the output.
            place: Its place.

        Returns:
            Compute dtype, `(batch, length, H)`.
        """
        intermediate = self.activation(
            product(self.intermediate, hidden), bias(self.intermediate)
        )
        return self.layer_norm(
            hidden,
            product(self.output_dense, intermediate),
            bias(self.output_dense),
            dropout=dropout,
            place=place,
        )
