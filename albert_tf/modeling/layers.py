"""What ALBERT is made of: embeddings, attention, feed-forward, dropout.

Every layer knows its widths from the `ModelConfig`, so `build()` takes no
shapes and creates all variables at once, e.g. in `strategy.scope()`.

Precision: under `mixed_bfloat16` the matrix products of attention and
feed-forward are bfloat16, attention scores among them. Variables, embeddings,
softmax and LayerNorm are float32 under either policy.

Reference:
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 3.1.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

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
        on_tpu: Whether the program is one for a TPU, whose compiler computes
            masks as it goes along; other masks of the same kind. It also
            keeps attention probabilities in memory: see `mix_positions`.
    """

    hidden_rate: float = 0.0
    attention_rate: float = 0.0
    seed: tf.Tensor | None = None
    on_tpu: bool = False

    def hidden(self, x: tf.Tensor, place: int) -> tf.Tensor:
        """Drops entries of an embedding or of a sublayer's output.

        Args:
            x: Float, any shape.
            place: Differs between all places of one forward pass.

        Returns:
            Of the shape and dtype of `x`, its expected value the same.
        """
        if not self.hidden_rate:
            return x
        keep = self._keep(tf.shape(x), self.hidden_rate, place)
        # In float32: in bfloat16 the factor would be rounded.
        kept = tf.cast(x, tf.float32) / kept_share(self.hidden_rate)
        return tf.cast(tf.where(keep, kept, 0.0), x.dtype)

    def attention(self, shape: tf.Tensor, place: int) -> tf.Tensor:
        """Which attention probabilities are kept.

        Args:
            shape: int32, theirs.
            place: As for `hidden`.

        Returns:
            bool, of that shape; `kept_share(attention_rate)` of it is true.
        """
        return self._keep(shape, self.attention_rate, place)

    def _keep(self, shape: tf.Tensor, rate: float, place: int) -> tf.Tensor:
        bits = _computed_bits if self.on_tpu else _generated_bits
        least = round(rate * 2**16) << 16
        return bits(shape, self.seed, place) >= tf.constant(least, tf.uint32)


NO_DROPOUT = Dropout()


def kept_share(rate: float) -> float:
    """What is left at a rate of dropout: 16 bits an entry decide."""
    return 1.0 - round(rate * 2**16) / 2**16


def _generated_bits(
    shape: tf.Tensor, seed: tf.Tensor | None, place: int
) -> tf.Tensor:
    """uint32 of a shape, of which the upper 16 bits are random.

    The generator is left to TensorFlow: on TPUs, Philox by name takes eight
    times the step's time.
    """
    seed = tf.random.experimental.stateless_fold_in(seed, place)
    # Random numbers are dear. Each serves one half of the batch with its
    # upper bits, the other with its lower ones.
    batch, *rest = tf.unstack(shape)
    bits = tf.random.stateless_uniform(
        tf.stack([(batch + 1) // 2, *rest]),
        seed,
        minval=None,
        maxval=None,
        dtype=tf.uint32,
    )
    sixteen = tf.constant(16, tf.uint32)
    both = tf.concat([bits, tf.bitwise.left_shift(bits, sixteen)], axis=0)
    return both[:batch]


def _computed_bits(
    shape: tf.Tensor, seed: tf.Tensor | None, place: int
) -> tf.Tensor:
    """As `_generated_bits`, by arithmetic on the number of each entry.

    For a compiler that joins operations: no bits are ever in memory. The
    number, with two keys, goes through a hash function that changes half of
    the bits for each that differs; its last step, which changes lower bits
    alone, is left out. (Without its first, masks of examples that are some
    apart agree too often, or too seldom.) Numbers begin anew at 2^32 entries.

    Reference:
        [Wellons, 2018](https://nullprogram.com/blog/2018/07/31/), lowbias32.
    """
    first, second = tf.unstack(tf.bitcast(seed, tf.uint32))
    # Keys of different places have nothing in common.
    key = _hashed(
        first + tf.constant(place * 0x9E3779B9 & 0xFFFFFFFF, tf.uint32)
    )
    other_key = _hashed(tf.bitwise.bitwise_xor(key, _hashed(second)))
    sizes = tf.unstack(shape)
    number = tf.zeros([1] * len(sizes), tf.uint32)
    stride = tf.constant(1, tf.uint32)
    for axis, size in reversed(list(enumerate(sizes))):
        along = [-1 if other == axis else 1 for other in range(len(sizes))]
        steps = tf.cast(tf.reshape(tf.range(size), along), tf.uint32)
        number += steps * stride
        stride *= tf.cast(size, tf.uint32)
    bits = _folded(tf.bitwise.bitwise_xor(number, key), 16)
    bits = _times(bits, 0x7FEB352D) + other_key
    return _times(_folded(bits, 15), 0x846CA68B)


def _hashed(x: tf.Tensor) -> tf.Tensor:
    """uint32 of uint32: lowbias32 in full."""
    x = _times(_folded(x, 16), 0x7FEB352D)
    return _folded(_times(_folded(x, 15), 0x846CA68B), 16)


def _folded(x: tf.Tensor, bits: int) -> tf.Tensor:
    shifted = tf.bitwise.right_shift(x, tf.constant(bits, tf.uint32))
    return tf.bitwise.bitwise_xor(x, shifted)


def _times(x: tf.Tensor, factor: int) -> tf.Tensor:
    return x * tf.constant(factor, tf.uint32)


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


def affine(dense: keras.layers.Dense, x: tf.Tensor) -> tf.Tensor:
    """What `dense` computes, but for its activation; called within a layer.

    Args:
        dense: Built.
        x: Compute dtype of the layer, `(batch, length, width)`.

    Returns:
        Compute dtype, `(batch, length, units)`.
    """
    product = tf.tensordot(x, dense.kernel, axes=1)
    return add_bias(product, tf.convert_to_tensor(dense.bias))


@tf.custom_gradient
def add_bias(x: tf.Tensor, bias: tf.Tensor) -> Any:
    """Adds to each row; the gradient of the bias is a product with ones.

    Products add up bfloat16 in float32. TensorFlow's own gradient of a bias
    does not on a CPU: of 1,000 rows it is 3 % off, of 8,000 a quarter.

    Args:
        x: Float, `(..., width)`.
        bias: Of that dtype, `(width,)`.

    Returns:
        Of the shape and dtype of `x`.
    """

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.reshape(upstream, [-1, bias.shape[0]])
        ones = tf.ones([1, tf.shape(rows)[0]], rows.dtype)
        return upstream, tf.matmul(ones, rows)[0]

    return x + bias, gradient


class LayerNorm(keras.layers.Layer):
    """LayerNorm over the last axis, in float32 under every precision policy.

    Args:
        width: Size of that axis.

    Reference:
        [Ba et al., 2016](https://arxiv.org/abs/1607.06450).
    """

    def __init__(self, width: int, name: str = "layer_norm") -> None:
        super().__init__(name=name, dtype="float32")
        self.width = width

    def build(self) -> None:
        self.gamma = self.add_weight(
            name="gamma", shape=(self.width,), initializer="ones"
        )
        self.beta = self.add_weight(
            name="beta", shape=(self.width,), initializer="zeros"
        )

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
    """LayerNorm by as few passes over `x` as there can be.

    Variance is the mean of squares less the square of the mean, so that both
    means come of the pass that makes `x`; of that difference float32 keeps
    enough as long as a row's mean is not hundreds of its deviations. The
    gradient is written out, since by differentiation it reads `x` more often.
    """
    mean = tf.reduce_mean(x, axis=-1, keepdims=True)
    square = tf.reduce_mean(tf.square(x), axis=-1, keepdims=True)
    # Rounding may leave a row of equal numbers a variance below 0.
    variance = tf.maximum(square - tf.square(mean), 0.0)
    scale = tf.math.rsqrt(variance + LAYER_NORM_EPSILON)
    normal = (x - mean) * scale

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
        rows = list(range(x.shape.rank - 1))
        of_normal = upstream * gamma
        along = tf.reduce_mean(of_normal * normal, axis=-1, keepdims=True)
        mean = tf.reduce_mean(of_normal, axis=-1, keepdims=True)
        return (
            scale * (of_normal - mean - normal * along),
            tf.reduce_sum(upstream * normal, axis=rows),
            tf.reduce_sum(upstream, axis=rows),
        )

    return normal * gamma + beta, gradient


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
        self.layer_norm = LayerNorm(config.hidden_size)

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
        query = self._by_heads(self.query, hidden)
        query *= query.shape[2] ** -0.5  # before the larger scores
        context = mix_positions(
            query,
            self._by_heads(self.key, hidden),
            self._by_heads(self.value, hidden),
            score_bias,
            dropout,
            place,
        )
        batch, length, width = tf.unstack(tf.shape(hidden))
        context = tf.reshape(context, [batch, width, length])
        output = affine(self.output_dense, tf.transpose(context, [0, 2, 1]))
        output = dropout.hidden(tf.cast(output, tf.float32), place + 1)
        return _add_and_norm(self.layer_norm, hidden, output)

    def _by_heads(
        self, dense: keras.layers.Dense, hidden: tf.Tensor
    ) -> tf.Tensor:
        """`(batch, length, H)` -> `(batch, heads, H / heads, length)`.

        Positions come last, since they fill the lanes of a TPU, which the
        width of a head does not; with the width last all of it is copied.
        """
        projected = tf.transpose(affine(dense, hidden), [0, 2, 1])
        batch, length = tf.unstack(tf.shape(hidden))[:2]
        heads = self.config.num_attention_heads
        size = self.config.hidden_size // heads
        return tf.reshape(projected, [batch, heads, size, length])


def mix_positions(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    score_bias: tf.Tensor,
    dropout: Dropout = NO_DROPOUT,
    place: int = 0,
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
        dropout: Of the probabilities.
        place: Its place.

    Returns:
        As `value`, at the positions of `query`.

    Reference:
        [Rabe and Staats, 2021](https://arxiv.org/abs/2112.05682), for
        dividing last; [Dao et al., 2022](https://arxiv.org/abs/2205.14135),
        appendix B.2, for the sum.
    """
    rate, dtype = dropout.attention_rate, value.dtype

    @tf.custom_gradient
    def mix(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> Any:
        scores = tf.matmul(query, key, transpose_a=True)
        scores = tf.cast(scores, tf.float32) + tf.cast(score_bias, tf.float32)
        largest = tf.reduce_max(scores, axis=-1, keepdims=True)
        weights = tf.exp(scores - largest)
        total = tf.reduce_sum(weights, axis=-1) * kept_share(rate)
        if rate:
            keep = dropout.attention(tf.shape(weights), place)
            weights = tf.where(keep, weights, -weights)
        weights = tf.cast(weights, dtype)
        if dropout.on_tpu:
            # Else the compiler computes them again for each that reads them.
            weights, total = gen_xla_ops.xla_optimization_barrier(
                [weights, total]
            )
        kept = tf.nn.relu(weights) if rate else weights
        share = (1.0 / total)[:, :, tf.newaxis, :]
        context = tf.matmul(value, kept, transpose_b=True)
        context = tf.cast(tf.cast(context, tf.float32) * share, dtype)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            if dropout.on_tpu:
                # Else it is kept, and copied, in float32.
                (upstream,) = gen_xla_ops.xla_optimization_barrier([upstream])
            shared = tf.cast(upstream, tf.float32) * share
            mean = tf.reduce_sum(shared * tf.cast(context, tf.float32), axis=2)
            mean = mean[..., tf.newaxis] * kept_share(rate)
            shared = tf.cast(shared, dtype)
            of_kept = tf.matmul(shared, value, transpose_a=True)
            of_kept = tf.cast(of_kept, tf.float32)
            signed = tf.cast(weights, tf.float32)
            of_scores = signed * (of_kept - mean)
            if rate:
                of_scores = tf.where(signed < 0, signed * mean, of_scores)
            of_scores = tf.cast(of_scores, dtype)
            return (
                tf.matmul(key, of_scores, transpose_b=True),
                tf.matmul(query, of_scores),
                tf.matmul(shared, kept),
            )

        return context, gradient

    return mix(query, key, value)


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
        self.layer_norm = LayerNorm(config.hidden_size)

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
        intermediate = self.activation(affine(self.intermediate, hidden))
        output = affine(self.output_dense, intermediate)
        output = dropout.hidden(tf.cast(output, tf.float32), place)
        return _add_and_norm(self.layer_norm, hidden, output)


def _add_and_norm(
    norm: LayerNorm, hidden: tf.Tensor, output: tf.Tensor
) -> tf.Tensor:
    """The end of a sublayer, summed in float32 as its output is."""
    total = tf.cast(hidden, tf.float32) + output
    return tf.cast(norm(total), hidden.dtype)
