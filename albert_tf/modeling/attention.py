"""Multi-head self-attention.

Precision as in `layers`: scores have the compute dtype, softmax is float32.
"""

import math

import keras
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.modeling import kernels
from albert_tf.modeling.attention_bias import (
    AttentionBias,
    add_to_scores,
    at_queries,
)
from albert_tf.modeling.dropout import NO_DROPOUT, Dropout
from albert_tf.modeling.kernels import add_bias, split_heads
from albert_tf.modeling.layers import AddAndNorm, Projection, initializer
from albert_tf.modeling.target import DEFAULT_TARGET, ProgramTarget


class SelfAttention(keras.layers.Layer):
    """The self-attention sublayer, with residual and LayerNorm.

    Query, key and value are three kernels of `(H, H)`, as in
    google-research/albert: LAMB scales the update of each kernel by its norm,
    so a single kernel of `(H, 3 H)` would train differently.
    """

    def __init__(self, config: ModelConfig, name: str, dtype: str) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config = config

        def projection(name: str) -> Projection:
            width = config.hidden_size
            return Projection(width, width, initializer(config), dtype, name)

        self.query = projection("query")
        self.key = projection("key")
        self.value = projection("value")
        self.output_projection = projection("output")
        self.layer_norm = AddAndNorm(config.hidden_size)

    def build(self) -> None:
        for projection in self.query, self.key, self.value:
            projection.build()
        self.output_projection.build()
        self.layer_norm.build()

    def call(
        self,
        hidden: tf.Tensor,
        attention_bias: AttentionBias,
        dropout: Dropout = NO_DROPOUT,
        site: int = 0,
        target: ProgramTarget = DEFAULT_TARGET,
        output_positions: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Attends from each position to the positions that the bias allows.

        Args:
            hidden: Compute dtype, `(batch, length, H)`.
            attention_bias: From `attention_bias.attention_bias`.
            site: The first of two: the probabilities, and the output.
            output_positions: int32, `(batch, outputs)`: the result is
                computed at these positions only, from the keys and values of
                all positions. A position that occurs twice is computed twice,
                with different dropout masks.

        Returns:
            Compute dtype, `(batch, length, H)`, or `(batch, outputs, H)`.
        """
        queried = hidden
        if output_positions is not None:
            queried = tf.gather(hidden, output_positions, batch_dims=1)
            attention_bias = at_queries(attention_bias, output_positions)
        context = kernels.attention(
            self.query(queried),
            self.key(hidden),
            self.value(hidden),
            attention_bias,
            dropout.attention_masks(site, target),
            self.config.num_attention_heads,
            target=target,
        )
        return self.layer_norm(
            queried,
            *self.output_projection(context),
            dropout=dropout,
            site=site + 1,
            target=target,
        )

    def probabilities(
        self, hidden: tf.Tensor, attention_bias: AttentionBias
    ) -> tf.Tensor:
        """float32, `(batch, heads, length, length)`, without dropout.

        `[b, h, i, j]` is the weight of position j for position i.
        """
        query, key = (
            split_heads(
                add_bias(*project(hidden)), self.config.num_attention_heads
            )
            for project in (self.query, self.key)
        )
        scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)
        scores = scores / math.sqrt(query.shape[-1])
        return tf.nn.softmax(add_to_scores(scores, attention_bias))
