"""The layers of ALBERT: projections, LayerNorm, embeddings, feed-forward.

A layer holds the variables and calls the formulas of `kernels`. `site` is the
first dropout site of a layer.

Every layer knows its widths when it is constructed, so `build()` needs no
shapes and creates all variables at once, e.g. in `strategy.scope()`.

Precision: under `mixed_bfloat16` the matrix products of attention and
feed-forward are bfloat16, including attention scores. Variables, embeddings,
softmax and LayerNorm are float32 under either policy.

Reference:
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 3.1.
"""

import keras
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.modeling import kernels
from albert_tf.modeling.dropout import NO_DROPOUT, Dropout
from albert_tf.modeling.target import DEFAULT_TARGET, ProgramTarget

LAYER_NORM_EPSILON = 1e-12  # as in google-research/albert; Keras has 1e-3


def initializer(config: ModelConfig) -> keras.initializers.Initializer:
    """Truncated normal, cut at two standard deviations.

    A Keras initializer draws the same numbers each time it is called, so each
    variable needs a separate one. This call draws the seed from Python's
    random number generator, so the order of the calls decides the initial
    weights of a run.
    """
    return _DrawnOnHost(stddev=config.initializer_range)


class _DrawnOnHost(keras.initializers.TruncatedNormal):
    """Draws the numbers on the CPU, also in the scope of another device.

    The random number generators of devices differ, so on a TPU the same seed
    would give other weights.
    """

    def __call__(
        self, shape: tuple[int, ...], dtype: str | None = None
    ) -> tf.Tensor:
        with tf.device("CPU:0"):
            return super().__call__(shape, dtype)


class Projection(keras.layers.Layer):
    """`x W` and `b`, returned separately.

    The formula that follows adds the bias in float32, together with the
    activation, dropout or residual. `b` starts at 0.
    """

    def __init__(
        self,
        input_width: int,
        width: int,
        kernel_initializer: keras.initializers.Initializer | str | None,
        dtype: keras.DTypePolicy | str = "float32",
        name: str | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.input_width = input_width
        self.width = width
        self.kernel_initializer = kernel_initializer

    def build(self) -> None:
        shape = (self.input_width, self.width)
        self.kernel = self.add_weight(
            shape, self.kernel_initializer, name="kernel"
        )
        self.bias = self.add_weight((self.width,), "zeros", name="bias")

    def call(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Compute dtype: the product, `(..., width)`; the bias, `(width,)`."""
        kernel = tf.cast(self.kernel, self.compute_dtype)
        product = tf.tensordot(x, kernel, axes=1)
        return product, tf.convert_to_tensor(self.bias)


class _Norm(keras.layers.Layer):
    """Scale and shift of LayerNorm over the last axis, always float32."""

    def __init__(self, width: int, name: str = "layer_norm") -> None:
        # No autocast: inputs may have another dtype.
        super().__init__(name=name, dtype="float32", autocast=False)
        self.width = width

    def build(self) -> None:
        self.gamma = self.add_weight((self.width,), "ones", name="gamma")
        self.beta = self.add_weight((self.width,), "zeros", name="beta")


class LayerNorm(_Norm):
    """LayerNorm over the last axis, float32 under every precision policy."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return kernels.layer_norm(
            x, self.gamma.value, self.beta.value, LAYER_NORM_EPSILON
        )


class AddAndNorm(_Norm):
    """The end of a sublayer: bias, dropout, residual and LayerNorm."""

    def call(
        self,
        residual: tf.Tensor,
        product: tf.Tensor,
        bias: tf.Tensor,
        dropout: Dropout = NO_DROPOUT,
        site: int = 0,
        target: ProgramTarget = DEFAULT_TARGET,
    ) -> tf.Tensor:
        """Computes `kernels.bias_dropout_add_norm`."""
        return kernels.bias_dropout_add_norm(
            residual,
            product,
            bias,
            self.gamma.value,
            self.beta.value,
            LAYER_NORM_EPSILON,
            dropout.hidden_masks(site, target),
            target=target,
        )


class Embeddings(keras.layers.Layer):
    """Word, segment and position embeddings of width E, normalised.

    Always float32: the gradient of a segment's embedding is a sum over half
    of all positions, for which bfloat16 is not precise enough.
    """

    def __init__(self, config: ModelConfig, name: str = "embeddings") -> None:
        super().__init__(name=name, dtype="float32")
        self.config = config
        self.layer_norm = LayerNorm(config.embedding_size)

    def build(self) -> None:
        config = self.config

        def add_table(name: str, rows: int) -> keras.Variable:
            shape = (rows, config.embedding_size)
            return self.add_weight(shape, initializer(config), name=name)

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
        position_ids: tf.Tensor | None = None,
        dropout: Dropout = NO_DROPOUT,
        site: int = 0,
        target: ProgramTarget = DEFAULT_TARGET,
    ) -> tf.Tensor:
        """Embeds tokens.

        Args:
            input_ids: int32, `(batch, length)`.
            segment_ids: int32, `(batch, length)`, below `type_vocab_size`.
            position_ids: int32, `(batch, length)`, below
                `max_position_embeddings`. None counts from 0 in each row.

        Returns:
            float32, `(batch, length, E)`.
        """
        embedded = self.look_up(input_ids)
        embedded += tf.gather(self.token_type_embeddings, segment_ids)
        if position_ids is None:
            # A slice: its gradient needs no scatter.
            length = keras.ops.shape(input_ids)[1]
            embedded += self.first_positions(length)
        else:
            embedded += tf.gather(self.position_embeddings, position_ids)
        normed = self.layer_norm(embedded)
        return dropout.hidden_masks(site, target).apply(normed)

    # `serving` replaces these two, to read rows of int8.
    def look_up(self, input_ids: tf.Tensor) -> tf.Tensor:
        """The word embeddings of tokens: float32, `(batch, length, E)`."""
        return tf.gather(self.word_embeddings, input_ids)

    def first_positions(self, length: int | tf.Tensor) -> tf.Tensor:
        """The embeddings of positions from 0: float32, `(length, E)`."""
        return self.position_embeddings[:length]


class FeedForward(keras.layers.Layer):
    """The feed-forward sublayer, with residual and LayerNorm.

    `LayerNorm(x + dropout(gelu(x W_1 + b_1) W_2 + b_2))` at each position.
    """

    def __init__(self, config: ModelConfig, name: str, dtype: str) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config = config
        width, inner = config.hidden_size, config.intermediate_size
        self.intermediate = Projection(
            width, inner, initializer(config), dtype, "intermediate"
        )
        self.output_projection = Projection(
            inner, width, initializer(config), dtype, "output"
        )
        self.layer_norm = AddAndNorm(config.hidden_size)

    def build(self) -> None:
        self.intermediate.build()
        self.output_projection.build()
        self.layer_norm.build()

    def call(
        self,
        hidden: tf.Tensor,
        dropout: Dropout = NO_DROPOUT,
        site: int = 0,
        target: ProgramTarget = DEFAULT_TARGET,
    ) -> tf.Tensor:
        """Compute dtype, `(batch, length, H)`, to the same."""
        product, bias = self.intermediate(hidden)
        intermediate = activate(self.config.hidden_act, target, product, bias)
        return self.layer_norm(
            hidden,
            *self.output_projection(intermediate),
            dropout=dropout,
            site=site,
            target=target,
        )


def activate(
    hidden_act: str, target: ProgramTarget, product: tf.Tensor, bias: tf.Tensor
) -> tf.Tensor:
    """`x W + b`, then the activation `ModelConfig.hidden_act`.

    It is "gelu" or the name of a Keras activation.
    """
    if hidden_act == "gelu":
        return kernels.bias_gelu(product, bias, target=target)
    named = keras.activations.get(hidden_act)
    return named(kernels.add_bias(product, bias, target))
