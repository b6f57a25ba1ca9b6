"""The encoder: layers that share all, some or none of their parameters.

Reference:
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 3.1 and
    Table 4.
"""

import functools
from collections.abc import Callable
from typing import TypeVar

import keras
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.modeling.attention import SelfAttention
from albert_tf.modeling.attention_bias import AttentionBias
from albert_tf.modeling.dropout import NO_DROPOUT, Dropout
from albert_tf.modeling.kernels import remat as remat_kernels
from albert_tf.modeling.layers import (
    FeedForward,
    Projection,
    add_bias,
    initializer,
)
from albert_tf.modeling.target import (
    DEFAULT_TARGET,
    ProgramTarget,
    has_kernel,
)

# Attention probabilities, attention output, feed-forward output.
SITES_PER_BLOCK = 3

LayerT = TypeVar("LayerT", bound=keras.layers.Layer)


class Encoder(keras.layers.Layer):
    """`num_hidden_layers` layers of `inner_group_num` blocks.

    A block is self-attention followed by a feed-forward sublayer. The layers
    of a group share the kinds of sublayers that `parameter_sharing` names. Each
    layer has its own sublayers of the other kinds. Variables are named after
    the group or the layer that owns them: `group_0_inner_group_0_attention`,
    `layer_3_inner_group_0_ffn`.

    Args:
        dtype: Precision policy, "float32" or "mixed_bfloat16".
        remat: Whether the backward pass computes each block a second time.
        name: Part of the variables' paths.

    Attributes:
        blocks: The (attention, feed-forward) pairs in the order of their
            application. A shared sublayer occurs once per application.

    Example:
        >>> encoder = Encoder(ModelConfig(num_hidden_layers=3))
        >>> (first, _), (second, _), (third, _) = encoder.blocks
        >>> first is second is third
        True
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: str = "float32",
        remat: bool = False,
        name: str = "encoder",
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.remat = remat
        self.projection = None
        if config.embedding_size != config.hidden_size:
            self.projection = Projection(
                config.embedding_size,
                config.hidden_size,
                initializer(config),
                self.dtype_policy,
                name="embedding_hidden_mapping_in",
            )

        made: dict[str, keras.layers.Layer] = {}

        def sublayer(
            kind: str,
            make: Callable[[ModelConfig, str, str], LayerT],
            layer: int,
            inner: int,
        ) -> LayerT:
            """Makes a sublayer, or returns the shared one."""
            shared = config.parameter_sharing in ("all", kind)
            owner = (
                f"group_{config.group_of_layer(layer)}"
                if shared
                else f"layer_{layer}"
            )
            name = f"{owner}_inner_group_{inner}_{kind}"
            if name not in made:
                made[name] = make(config, name, dtype)
            return made[name]

        self.blocks = [
            (
                sublayer("attention", SelfAttention, layer, inner),
                sublayer("ffn", FeedForward, layer, inner),
            )
            for layer in range(config.num_hidden_layers)
            for inner in range(config.inner_group_num)
        ]

    def build(self) -> None:
        if self.projection is not None:
            self.projection.build()
        for block in self.blocks:
            for sublayer in block:
                if not sublayer.built:
                    sublayer.build()

    def call(
        self,
        embedded: tf.Tensor,
        attention_bias: AttentionBias,
        dropout: Dropout = NO_DROPOUT,
        first_site: int = 0,
        target: ProgramTarget = DEFAULT_TARGET,
        output_positions: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Applies all layers.

        With `output_positions`, the last block computes keys and values at all
        positions, and everything else at these positions only. The other blocks
        compute everything at all positions, since the next block reads them.

        Args:
            embedded: Float, `(batch, length, E)`.
            attention_bias: From `attention_bias.attention_bias`.
            first_site: The first of `SITES_PER_BLOCK * len(blocks)` dropout
                sites.
            output_positions: int32, `(batch, outputs)`: the positions to
                return, in any order, with repetitions. None returns all.

        Returns:
            Compute dtype, `(batch, length, H)`, or `(batch, outputs, H)`.
        """
        hidden = tf.cast(embedded, self.compute_dtype)
        if self.projection is not None:
            hidden = target.fastest(add_bias)(
                *self.projection(hidden, target=target)
            )
        last = len(self.blocks) - 1
        for index, (attention, feed_forward) in enumerate(self.blocks):
            block: Callable[[tf.Tensor], tf.Tensor] = functools.partial(
                _apply_block,
                attention,
                feed_forward,
                attention_bias,
                dropout,
                first_site + index * SITES_PER_BLOCK,
                target,
                output_positions if index == last else None,
            )
            if self.remat:
                block = target.fastest(remat)(block)
            hidden = block(hidden)
        return hidden


def _apply_block(
    attention: SelfAttention,
    feed_forward: FeedForward,
    attention_bias: AttentionBias,
    dropout: Dropout,
    site: int,
    target: ProgramTarget,
    output_positions: tf.Tensor | None,
    hidden: tf.Tensor,
) -> tf.Tensor:
    hidden = attention(
        hidden,
        attention_bias,
        dropout=dropout,
        site=site,
        target=target,
        output_positions=output_positions,
    )
    return feed_forward(hidden, dropout=dropout, site=site + 2, target=target)


@has_kernel(remat_kernels.remat)
def remat(
    function: Callable[[tf.Tensor], tf.Tensor],
) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function whose activations are not kept for the backward pass.

    The backward pass computes the function a second time from its argument.
    The result must be the same each time, which holds for blocks whose
    dropout is a function of seed and site.

    Args:
        function: Takes one tensor; may read variables. Other tensors that it
            reads are constants to it: they get no gradient.

    Returns:
        A function with the same value and gradients.

    Reference:
        [Chen et al., 2016](https://arxiv.org/abs/1604.06174).
    """
    return tf.recompute_grad(function)
