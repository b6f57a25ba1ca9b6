"""The encoder: layers that share their parameters, wholly or in part.

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
from albert_tf.modeling.dropout import NO_DROPOUT, Dropout
from albert_tf.modeling.layers import (
    FeedForward,
    add_bias,
    bias,
    initializer,
    product,
)
from albert_tf.modeling.remat import recomputed

# Attention probabilities, attention output, feed-forward output.
PLACES_PER_BLOCK = 3

LayerT = TypeVar("LayerT", bound=keras.layers.Layer)


class Encoder(keras.layers.Layer):
    """`num_hidden_layers` layers of `inner_group_num` blocks.

    A block is self-attention followed by a feed-forward layer. The layers
    of a group use the same sublayers, but for those that
    `parameter_sharing` leaves unshared, which each layer has of its own.
    Variables are named after what they belong to, the group or the layer:
    `group_0_inner_group_0_attention`, `layer_3_inner_group_0_ffn`.

    Attributes:
        blocks: The (attention, feed-forward) pairs in the order applied. A
            shared sublayer stands there once for each application.
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
            self.projection = keras.layers.Dense(
                config.hidden_size,
                kernel_initializer=initializer(config),
                dtype=self.dtype_policy,
                name="embedding_hidden_mapping_in",
            )

        made: dict[str, keras.layers.Layer] = {}

        def sublayer(
            kind: str,
            make: Callable[[ModelConfig, str, str], LayerT],
            layer: int,
            inner: int,
        ) -> LayerT:
            """Makes a sublayer, or finds the one that is shared."""
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
            self.projection.build((None, None, self.config.embedding_size))
        for block in self.blocks:
            for sublayer in block:
                if not sublayer.built:
                    sublayer.build()

    def call(
        self,
        embedded: tf.Tensor,
        score_bias: tf.Tensor,
        dropout: Dropout = NO_DROPOUT,
        first_place: int = 0,
        read_positions: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Applies all layers.

        Of the last block, all but keys and values is computed only where the
        result is read; below it, attention reads every position.

        Args:
            embedded: Float, `(batch, length, E)`.
            score_bias: float32, `(batch, 1, 1, length)`; from
                `visible_keys_bias`.
            dropout: Of all sublayers.
            first_place: First of the places used,
                `PLACES_PER_BLOCK * len(blocks)` in all.
            read_positions: int32, `(batch, reads)`: where the result is read,
                the same position any number of times. None is everywhere.

        Returns:
            Compute dtype, `(batch, length, H)`, or `(batch, reads, H)`.
        """
        hidden = tf.cast(embedded, self.compute_dtype)
        if self.projection is not None:
            hidden = add_bias(
                product(self.projection, hidden), bias(self.projection)
            )
        last = len(self.blocks) - 1
        for index, (attention, feed_forward) in enumerate(self.blocks):
            block: Callable[[tf.Tensor], tf.Tensor] = functools.partial(
                _apply_block,
                attention,
                feed_forward,
                score_bias,
                dropout,
                first_place + index * PLACES_PER_BLOCK,
                read_positions if index == last else None,
            )
            if self.remat:
                block = recomputed(block, dropout.on_tpu)
            hidden = block(hidden)
        return hidden


def _apply_block(
    attention: SelfAttention,
    feed_forward: FeedForward,
    score_bias: tf.Tensor,
    dropout: Dropout,
    place: int,
    read_positions: tf.Tensor | None,
    hidden: tf.Tensor,
) -> tf.Tensor:
    hidden = attention(
        hidden,
        score_bias,
        dropout=dropout,
        place=place,
        read_positions=read_positions,
    )
    return feed_forward(hidden, dropout=dropout, place=place + 2)
