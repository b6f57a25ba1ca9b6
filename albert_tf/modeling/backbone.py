"""ALBERT without heads, for pretraining, fine-tuning and serving."""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.modeling.attention import attention_bias
from albert_tf.modeling.dropout import NO_DROPOUT, Dropout
from albert_tf.modeling.encoder import Encoder
from albert_tf.modeling.heads import Pooler
from albert_tf.modeling.kernels.layouts import num_unused_positions
from albert_tf.modeling.layers import Embeddings, initializer
from albert_tf.modeling.target import DEFAULT_TARGET, ProgramTarget


class BackboneOutputs(NamedTuple):
    """The output of `AlbertBackbone`.

    Attributes:
        sequence_output: Compute dtype, `(batch, length, H)`; or `(batch,
            outputs, H)`, at the requested positions.
        pooled_output: float32, `(batch, H)`; None without a pooler.
    """

    sequence_output: tf.Tensor
    pooled_output: tf.Tensor | None


class AlbertBackbone(keras.layers.Layer):
    """Embeddings, encoder and pooler.

    Paths of variables begin with the backbone's name even inside another
    layer, so that a checkpoint fits every model built on the backbone.

    Args:
        config: The architecture.
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

    Reference:
        [Lan et al., 2020](https://arxiv.org/abs/1909.11942).
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: str = "float32",
        remat: bool = False,
        has_pooler: bool = True,
        name: str = "albert",
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config, dtype, remat)
        self.pooler = Pooler(config) if has_pooler else None

    def build(self) -> None:
        """Creates every variable; needs no shapes."""
        if self.pooler is not None:
            # `initializer` draws a seed, here before those of the embedding
            # tables. The order decides the initial weights.
            self.pooler.kernel_initializer = initializer(self.config)
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
        dropout: Dropout = NO_DROPOUT,
        target: ProgramTarget = DEFAULT_TARGET,
    ) -> BackboneOutputs:
        """Encodes a batch of sequences.

        Args:
            input_ids: int32, `(batch, length)`; `[CLS]` first.
            input_mask: int32, `(batch, length)`; 1 for a token, 0 for padding.
            segment_ids: int32, `(batch, length)`.
            position_ids: int32, `(batch, length)`. None counts from 0 in each
                row.
            output_positions: int32, `(batch, outputs)`: the positions of
                `sequence_output`, in any order, with repetitions. The last
                block is then computed at these positions, and at `[CLS]` for
                the pooler, only. None is all positions.
            dropout: Dropout of the forward pass; sites count from 0.
            target: What the program is compiled for.
        """
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
            attention_bias(input_mask),
            dropout=dropout,
            first_site=1,
            target=target,
            output_positions=self._encoded_positions(
                output_positions, input_ids, target
            ),
        )
        sequence_output = hidden
        if output_positions is not None:
            first = self._num_pooled
            num_outputs = keras.ops.shape(output_positions)[1]
            sequence_output = hidden[:, first : first + num_outputs]
        pooled_output = None
        if self.pooler is not None:
            pooled_output = self.pooler(hidden[:, 0])
        return BackboneOutputs(sequence_output, pooled_output)

    @property
    def _num_pooled(self) -> int:
        """Positions that the pooler reads: `[CLS]` at position 0."""
        return int(self.pooler is not None)

    def _encoded_positions(
        self,
        output_positions: tf.Tensor | None,
        input_ids: tf.Tensor,
        target: ProgramTarget,
    ) -> tf.Tensor | None:
        """The pooler's position, the requested ones, then unused positions."""
        if output_positions is None:
            return None
        before, after = self._num_pooled, 0
        if target.is_tpu:
            after = num_unused_positions(
                before + output_positions.shape[1], input_ids.shape[1]
            )
        return tf.pad(output_positions, [[0, 0], [before, after]])

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
