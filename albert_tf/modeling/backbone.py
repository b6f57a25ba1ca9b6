"""ALBERT without heads: embeddings, encoder and pooler.

Reference:
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 3.1 and
    Table 4.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.errors import UserError
from albert_tf.modeling import kernels, layers
from albert_tf.modeling.attention import SelfAttention
from albert_tf.modeling.attention_bias import AttentionBias, attention_bias
from albert_tf.modeling.dropout import NO_DROPOUT, Dropout
from albert_tf.modeling.heads import Pooler
from albert_tf.modeling.target import DEFAULT_TARGET, ProgramTarget

# Attention probabilities, attention output, feed-forward output.
SITES_PER_BLOCK = 3


class Encoder(keras.layers.Layer):
    """`num_hidden_layers` layers of `inner_group_num` blocks.

    A block is self-attention followed by a feed-forward sublayer. The layers
    of a group share the kinds of sublayers that `parameter_sharing` names. Each
    layer has its own sublayers of the other kinds. Variables are named after
    the group or the layer that owns them: `group_0_inner_group_0_attention`,
    `layer_3_inner_group_0_ffn`.

    Attributes:
        blocks: The (attention, feed-forward) pairs in the order of their
            application. A shared sublayer occurs once per application.
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
            self.projection = layers.Projection(
                config.embedding_size,
                config.hidden_size,
                layers.initializer(config),
                dtype,
                "embedding_hidden_mapping_in",
            )

        made: dict[str, keras.layers.Layer] = {}

        def sublayer(kind: str, make: Any, layer: int, inner: int) -> Any:
            """Makes a sublayer, or returns the shared one."""
            owner = f"layer_{layer}"
            if config.parameter_sharing in ("all", kind):
                owner = f"group_{config.group_of_layer(layer)}"
            name = f"{owner}_inner_group_{inner}_{kind}"
            if name not in made:
                made[name] = make(config, name, dtype)
            return made[name]

        self.blocks = [
            (
                sublayer("attention", SelfAttention, layer, inner),
                sublayer("ffn", layers.FeedForward, layer, inner),
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
        positions, and everything else at these positions only; see
        `SelfAttention`.

        Args:
            embedded: Float, `(batch, length, E)`.

        Returns:
            Compute dtype, `(batch, length, H)`, or `(batch, outputs, H)`.
        """
        hidden = self.project(embedded, target)

        def apply_block(index: int, hidden: tf.Tensor) -> tf.Tensor:
            attention, feed_forward = self.blocks[index]
            site = first_site + index * SITES_PER_BLOCK
            is_last = index == len(self.blocks) - 1
            hidden = attention(
                hidden,
                attention_bias,
                dropout=dropout,
                site=site,
                target=target,
                output_positions=output_positions if is_last else None,
            )
            return feed_forward(
                hidden, dropout=dropout, site=site + 2, target=target
            )

        for index in range(len(self.blocks)):
            block: Callable[[tf.Tensor], tf.Tensor] = functools.partial(
                apply_block, index
            )
            if self.remat:
                block = kernels.remat(block, target=target)
            hidden = block(hidden)
        return hidden

    def project(
        self, embedded: tf.Tensor, target: ProgramTarget = DEFAULT_TARGET
    ) -> tf.Tensor:
        """The input of the first block: compute dtype, `(batch, length, H)`."""
        hidden = tf.cast(embedded, self.compute_dtype)
        if self.projection is not None:
            product, bias = self.projection(hidden)
            hidden = kernels.add_bias(product, bias, target)
        return hidden


class BackboneOutputs(NamedTuple):
    """The output of `AlbertBackbone`.

    Attributes:
        sequence_output: Compute dtype, `(batch, length, H)`; or `(batch,
            outputs, H)`, at the requested positions.
        pooled_output: float32, `(batch, H)`, or `(batch, examples, H)` for
            packed rows; None without a pooler.
    """

    sequence_output: tf.Tensor
    pooled_output: tf.Tensor | None


class LayerOutputs(NamedTuple):
    """What `AlbertBackbone.layer_outputs` returns, without dropout.

    Attributes:
        hidden_states: Compute dtype, `(batch, length, H)`: the input of the
            first block, and the output of each.
        attentions: float32, `(batch, heads, length, length)` for each block.
            `[b, h, i, j]` is the weight of position j for position i.
    """

    hidden_states: list[tf.Tensor]
    attentions: list[tf.Tensor]


@keras.saving.register_keras_serializable("albert_tf")
class AlbertBackbone(keras.layers.Layer):
    """Embeddings, encoder and pooler.

    `keras.models.load_model` knows it once it is imported.

    Paths of variables begin with the backbone's name even inside another
    layer, so that a checkpoint fits every model built on the backbone.

    Args:
        dtype: Precision policy, "float32" or "mixed_bfloat16".
        remat: Whether the backward pass computes the encoder's blocks a second
            time instead of keeping their activations.
        has_pooler: Whether the backbone has a pooler, which sentence heads
            read.
        name: First part of the path of every variable.

    Example:
        >>> config = ModelConfig(
        ...     vocab_size=11, embedding_size=4, hidden_size=6,
        ...     num_hidden_layers=2, num_attention_heads=2, intermediate_size=8,
        ... )
        >>> backbone = AlbertBackbone(config)
        >>> backbone.build()
        >>> ids = tf.constant([[2, 5, 7, 3, 0]])
        >>> mask = tf.constant([[1, 1, 1, 1, 0]])
        >>> sequence, pooled = backbone(ids, mask, tf.zeros_like(ids))
        >>> sequence.shape, pooled.shape
        (TensorShape([1, 5, 6]), TensorShape([1, 6]))
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: str = "float32",
        remat: bool = False,
        has_pooler: bool = True,
        name: str = "albert",
    ) -> None:
        if dtype not in ("float32", "mixed_bfloat16"):
            raise UserError(
                "dtype must be float32 or mixed_bfloat16", received=dtype
            )
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.embeddings = layers.Embeddings(config)
        self.encoder = Encoder(config, dtype, remat)
        self.pooler = Pooler(config) if has_pooler else None

    def build(self) -> None:
        """Creates every variable; needs no shapes."""
        if self.pooler is not None:
            # Each call of `initializer` draws a seed, so the order of the calls
            # decides the initial weights: the pooler precedes the embeddings.
            self.pooler.kernel_initializer = layers.initializer(self.config)
        with keras.name_scope(self.name, override_parent=""):
            self.embeddings.build()
            self.encoder.build()
            if self.pooler is not None:
                self.pooler.build()

    def call(
        self,
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        segment_ids: tf.Tensor,
        position_ids: tf.Tensor | None = None,
        output_positions: tf.Tensor | None = None,
        cls_positions: tf.Tensor | None = None,
        dropout: Dropout | None = None,
        target: ProgramTarget = DEFAULT_TARGET,
        training: bool | None = None,
    ) -> BackboneOutputs:
        """Encodes a batch of sequences.

        Args:
            input_ids: int32, `(batch, length)`; `[CLS]` first.
            input_mask: int32, `(batch, length)`; 1 for a token, 0 for padding.
                In packed rows, the number of the token's example, from 1.
            segment_ids: int32, `(batch, length)`.
            position_ids: int32, `(batch, length)`. None counts from 0 in each
                example.
            output_positions: int32, `(batch, outputs)`: the positions of
                `sequence_output`, in any order, with repetitions. The last
                block is then computed only at these positions and, for the
                pooler, at `[CLS]`. None is all positions.
            cls_positions: int32, `(batch, examples)`: for packed rows, the
                position of the `[CLS]` of each example; 0 for an unused slot.
                None for rows of one example.
            dropout: Dropout of the forward pass; sites count from 0.
            training: Whether to apply the dropout of the config if `dropout` is
                None; Keras passes it.
        """
        if dropout is None:
            dropout = NO_DROPOUT
            if training:
                limits = tf.int32.min, tf.int32.max
                dropout = Dropout(
                    self.config.hidden_dropout_prob,
                    self.config.attention_probs_dropout_prob,
                    tf.random.uniform([2], *limits, tf.int32),
                )
        packed = cls_positions is not None
        if packed and position_ids is None:
            position_ids = restarted_positions(input_mask, cls_positions)
        embedded = self.embeddings(
            input_ids,
            segment_ids,
            position_ids,
            dropout=dropout,
            site=0,
            target=target,
        )
        hidden = self.encoder(
            embedded,
            attention_bias(input_mask, packed),
            dropout=dropout,
            first_site=1,
            target=target,
            output_positions=self._encoded_positions(
                output_positions, cls_positions
            ),
        )
        sequence_output = hidden
        num_pooled = self._num_pooled(cls_positions)
        if output_positions is not None:
            num_outputs = keras.ops.shape(output_positions)[1]
            sequence_output = hidden[:, num_pooled : num_pooled + num_outputs]
        if self.pooler is None:
            return BackboneOutputs(sequence_output, None)
        if not packed:
            first_tokens = hidden[:, 0]
        elif output_positions is None:
            first_tokens = tf.gather(hidden, cls_positions, batch_dims=1)
        else:
            first_tokens = hidden[:, :num_pooled]
        return BackboneOutputs(sequence_output, self.pooler(first_tokens))

    def layer_outputs(
        self,
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        segment_ids: tf.Tensor,
    ) -> LayerOutputs:
        """Hidden states and attention of each block; arguments as in `call`."""
        bias = attention_bias(tf.convert_to_tensor(input_mask), False)
        embedded = self.embeddings(input_ids, segment_ids, None)
        hidden = self.encoder.project(embedded)
        outputs = LayerOutputs([hidden], [])
        for attention, feed_forward in self.encoder.blocks:
            outputs.attentions.append(attention.probabilities(hidden, bias))
            hidden = feed_forward(attention(hidden, bias))
            outputs.hidden_states.append(hidden)
        return outputs

    def _num_pooled(self, cls_positions: tf.Tensor | None) -> int:
        """Number of positions that the pooler reads of each row."""
        if self.pooler is None:
            return 0
        return 1 if cls_positions is None else cls_positions.shape[1]

    def _encoded_positions(
        self,
        output_positions: tf.Tensor | None,
        cls_positions: tf.Tensor | None,
    ) -> tf.Tensor | None:
        """The pooler's positions, then the requested ones."""
        if output_positions is None:
            return None
        before = self._num_pooled(cls_positions)
        if before and cls_positions is not None:
            return tf.concat([cls_positions, output_positions], 1)
        return tf.pad(output_positions, [[0, 0], [before, 0]])

    def get_config(self) -> dict[str, Any]:
        """Arguments of the constructor, as JSON values."""
        return {
            "config": self.config.to_dict(),
            "dtype": self.dtype_policy.name,
            "remat": self.encoder.remat,
            "has_pooler": self.pooler is not None,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AlbertBackbone":
        """The inverse of `get_config`."""
        model_config = ModelConfig.from_dict(config["config"])
        return cls(**config | {"config": model_config})


def restarted_positions(
    input_mask: tf.Tensor, cls_positions: tf.Tensor
) -> tf.Tensor:
    """Positions that count from 0 in each example of a packed row.

    int32, `(batch, length)`; those of padding count from the row's beginning.

    Example:
        >>> mask = tf.constant([[1, 1, 1, 2, 2, 0]])
        >>> restarted_positions(mask, tf.constant([[0, 3, 0]])).numpy().tolist()
        [[0, 1, 2, 0, 1, 5]]
    """
    # Padding counts like the first example, which begins at position 0.
    example = tf.maximum(input_mask - 1, 0)
    first = tf.gather(cls_positions, example, batch_dims=1)
    return tf.range(tf.shape(input_mask)[1]) - first
