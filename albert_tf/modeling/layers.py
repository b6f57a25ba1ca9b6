"""What ALBERT is made of, but for attention: embeddings, feed-forward, ends.

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

from albert_tf.config import ModelConfig
from albert_tf.modeling.dropout import NO_DROPOUT, Dropout, Masks
from albert_tf.modeling.fusion import fused

LAYER_NORM_EPSILON = 1e-12  # as published; Keras' own default is 1e-3


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
