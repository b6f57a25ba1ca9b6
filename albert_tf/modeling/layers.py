"""What ALBERT is made of: embeddings, attention, feed-forward, dropout.

Every layer knows its widths from the `ModelConfig`, so `build()` takes no
shapes and creates all variables at once, e.g. in `strategy.scope()`.

Precision: under `mixed_bfloat16` the matrix products of attention and
feed-forward are bfloat16. Variables, embeddings, attention scores, softmax
and LayerNorm are float32 under either policy.

Reference:
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 3.1.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from albert_tf.config import ModelConfig

LAYER_NORM_EPSILON = 1e-12  # as published; Keras' own default is 1e-3

# Added to the scores of keys that must not be seen, as published. Finite, so
# that a row of nothing but padding gives no NaN.
HIDDEN_KEY_BIAS = -10_000.0


@dataclasses.dataclass(frozen=True)
class Dropout:
    """Dropout whose masks are a function of a seed and a place.

    Nothing is stateful, so that a block that is computed a second time in
    the backward pass sees the same masks, and each replica can be given
    its own. A rate of 0 puts no operation into the program.

    Attributes:
        hidden_rate: Share of embeddings and of sublayer outputs dropped.
        attention_rate: Share of attention probabilities dropped.
        seed: int32, `(2,)`; differs by step and replica. Unused, and may be
            None, where both rates are 0.
    """

    hidden_rate: float = 0.0
    attention_rate: float = 0.0
    seed: tf.Tensor | None = None

    def hidden(self, x: tf.Tensor, place: int) -> tf.Tensor:
        """Drops entries of an embedding or of a sublayer's output.

        Args:
            x: Float, any shape.
            place: Differs between all places of one forward pass.

        Returns:
            Of the shape and dtype of `x`, its expected value the same.
        """
        return _drop(x, self.hidden_rate, self.seed, place)

    def attention(self, x: tf.Tensor, place: int) -> tf.Tensor:
        """Drops attention probabilities; see `hidden`."""
        return _drop(x, self.attention_rate, self.seed, place)


NO_DROPOUT = Dropout()


def _drop(
    x: tf.Tensor, rate: float, seed: tf.Tensor | None, place: int
) -> tf.Tensor:
    if not rate:
        return x
    # The generator is left to TensorFlow: on TPUs, Philox by name takes
    # eight times the step's time.
    seed = tf.random.experimental.stateless_fold_in(seed, place)
    # 16 bits an entry decide, since random numbers are dear. Each number
    # serves one half of the batch with its upper bits, the other with its
    # lower ones.
    batch, *rest = tf.unstack(tf.shape(x))
    bits = tf.random.stateless_uniform(
        tf.stack([(batch + 1) // 2, *rest]),
        seed,
        minval=None,
        maxval=None,
        dtype=tf.uint32,
    )
    sixteen = tf.constant(16, tf.uint32)
    both = tf.concat([bits, tf.bitwise.left_shift(bits, sixteen)], axis=0)
    dropped = round(rate * 2**16)
    keep = both[:batch] >= tf.constant(dropped << 16, tf.uint32)
    # In float32: in bfloat16 the factor would be rounded.
    kept = tf.cast(x, tf.float32) * (2**16 / (2**16 - dropped))
    return tf.cast(tf.where(keep, kept, 0.0), x.dtype)


def initializer(config: ModelConfig) -> keras.initializers.Initializer:
    """Truncated normal, cut at two deviations, as published.

    A Keras initializer draws the same numbers each time it is called, so
    each variable needs one of its own.
    """
    return keras.initializers.TruncatedNormal(stddev=config.initializer_range)


def activation(config: ModelConfig) -> Callable[[tf.Tensor], tf.Tensor]:
    """The activation that `hidden_act` names; GELU by its tanh formula."""
    if config.hidden_act == "gelu":
        return gelu
    return keras.activations.get(config.hidden_act)


@tf.custom_gradient
def gelu(x: tf.Tensor) -> Any:
    """GELU by its tanh formula, of which half is a sigmoid.

    (1 + tanh(y)) / 2 is sigmoid(2 y), which keeps its precision in bfloat16
    where the sum with tanh cancels. The gradient is written out since this is
    the widest of all activations, and on a CPU each operation is a pass over
    it: half as many as by differentiation.

    Args:
        x: Float, any shape.

    Returns:
        Of the shape and dtype of `x`.

    Reference:
        [Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415).
    """
    linear = 2.0 * math.sqrt(2.0 / math.pi)
    cubic = 0.044715 * linear
    gate = tf.sigmoid(x * (linear + cubic * tf.square(x)))

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        slope = x * (linear + 3.0 * cubic * tf.square(x))
        return upstream * (gate + tf.raw_ops.SigmoidGrad(y=gate, dy=slope))

    return x * gate, gradient


def layer_norm() -> keras.layers.LayerNormalization:
    """LayerNorm, in float32 under every precision policy."""
    return keras.layers.LayerNormalization(
        epsilon=LAYER_NORM_EPSILON, dtype="float32", name="layer_norm"
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
        self.layer_norm = layer_norm()

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
        self.layer_norm.build((None, None, config.embedding_size))

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
        return dropout.hidden(self.layer_norm(embedded), place)


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
        self.layer_norm = layer_norm()

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
            self.layer_norm,
        ):
            layer.build(hidden_shape)

    def call(
        self,
        hidden: tf.Tensor,
        score_bias: tf.Tensor,
        dropout: Dropout = NO_DROPOUT,
        place: int = 0,
    ) -> tf.Tensor:
        """Mixes the positions.

        Args:
            hidden: Compute dtype, `(batch, length, H)`.
            score_bias: float32, broadcast to `(batch, heads, length of the
                queries, length of the keys)`; from `visible_keys_bias`.
            dropout: Of the probabilities and of the output.
            place: First of the two places used.

        Returns:
            Compute dtype, `(batch, length, H)`.
        """
        query = self._split_heads(self.query(hidden))
        query *= query.shape[-1] ** -0.5  # before the larger scores
        key = self._split_heads(self.key(hidden))
        value = self._split_heads(self.value(hidden))

        scores = tf.einsum("bqnd,bknd->bnqk", query, key)
        scores = tf.cast(scores, tf.float32) + tf.cast(score_bias, tf.float32)
        probabilities = tf.nn.softmax(scores)
        probabilities = dropout.attention(probabilities, place)

        context = tf.einsum(
            "bnqk,bknd->bqnd", tf.cast(probabilities, value.dtype), value
        )
        context = tf.reshape(context, keras.ops.shape(hidden))
        output = tf.cast(self.output_dense(context), tf.float32)
        output = dropout.hidden(output, place + 1)
        return _add_and_norm(self.layer_norm, hidden, output)

    def _split_heads(self, x: tf.Tensor) -> tf.Tensor:
        """`(batch, length, H)` -> `(batch, length, heads, H / heads)`."""
        heads = self.config.num_attention_heads
        size = self.config.hidden_size // heads
        return tf.reshape(x, (*keras.ops.shape(x)[:2], heads, size))


class FeedForward(keras.layers.Layer):
    """Two dense layers at each position, with residual and LayerNorm."""

    def __init__(self, config: ModelConfig, name: str, dtype: str) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.intermediate = keras.layers.Dense(
            config.intermediate_size,
            activation=activation(config),
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
        self.layer_norm = layer_norm()

    def build(self) -> None:
        hidden_shape = (None, None, self.config.hidden_size)
        self.intermediate.build(hidden_shape)
        self.output_dense.build((None, None, self.config.intermediate_size))
        self.layer_norm.build(hidden_shape)

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
        output = self.output_dense(self.intermediate(hidden))
        output = dropout.hidden(tf.cast(output, tf.float32), place)
        return _add_and_norm(self.layer_norm, hidden, output)


def _add_and_norm(
    norm: keras.layers.LayerNormalization, hidden: tf.Tensor, output: tf.Tensor
) -> tf.Tensor:
    """The end of a sublayer, summed in float32 as its output is."""
    total = tf.cast(hidden, tf.float32) + output
    return tf.cast(norm(total), hidden.dtype)
