"""ALBERT without heads, for pretraining, fine-tuning and serving."""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.errors import UserError
from albert_tf.modeling.attention_bias import attention_bias
from albert_tf.modeling.dropout import Dropout, choose
from albert_tf.modeling.encoder import Encoder
from albert_tf.modeling.heads import Pooler
from albert_tf.modeling.layers import Embeddings, initializer
from albert_tf.modeling.target import DEFAULT_TARGET, ProgramTarget

# The registers of a TPU.
_LANES, _SUBLANES = 128, 8


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
        if dtype not in ("float32", "mixed_bfloat16"):
            raise UserError(
                "dtype must be float32 or mixed_bfloat16", received=dtype
            )
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config, dtype, remat)
        self.pooler = Pooler(config) if has_pooler else None

    def build(self) -> None:
        """Creates every variable; needs no shapes."""
        if self.pooler is not None:
            # Each call of `initializer` draws a seed, so the order of the calls
            # decides the initial weights: the pooler precedes the embeddings.
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
        dropout = choose(dropout, training, self.config)
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
                output_positions, cls_positions, input_ids, target
            ),
        )
        sequence_output = hidden
        if output_positions is not None:
            first = self._num_pooled(cls_positions)
            num_outputs = keras.ops.shape(output_positions)[1]
            sequence_output = hidden[:, first : first + num_outputs]
        pooled_output = None
        if self.pooler is not None:
            pooled_output = self.pooler(
                self._first_tokens(hidden, output_positions, cls_positions)
            )
        return BackboneOutputs(sequence_output, pooled_output)

    def _num_pooled(self, cls_positions: tf.Tensor | None) -> int:
        """Number of positions that the pooler reads: one for each `[CLS]`."""
        if self.pooler is None:
            return 0
        return 1 if cls_positions is None else cls_positions.shape[1]

    def _encoded_positions(
        self,
        output_positions: tf.Tensor | None,
        cls_positions: tf.Tensor | None,
        input_ids: tf.Tensor,
        target: ProgramTarget,
    ) -> tf.Tensor | None:
        """The pooler's positions, the requested ones, then unused positions."""
        if output_positions is None:
            return None
        before, after = self._num_pooled(cls_positions), 0
        if target.is_tpu:
            after = _num_unused_positions(
                before + output_positions.shape[1], input_ids.shape[1]
            )
        if before and cls_positions is not None:
            output_positions = tf.concat([cls_positions, output_positions], 1)
            before = 0
        return tf.pad(output_positions, [[0, 0], [before, after]])

    def _first_tokens(
        self,
        hidden: tf.Tensor,
        output_positions: tf.Tensor | None,
        cls_positions: tf.Tensor | None,
    ) -> tf.Tensor:
        """The output at `[CLS]`, `(batch, H)`, or at those of packed rows."""
        if cls_positions is None:
            return hidden[:, 0]
        if output_positions is None:
            return tf.gather(hidden, cls_positions, batch_dims=1)
        return hidden[:, : self._num_pooled(cls_positions)]

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

    Args:
        input_mask: int32, `(batch, length)`; the number of each token's
            example, from 1; 0 for padding, whose positions count from
            the beginning of the row.
        cls_positions: int32, `(batch, examples)`; where each example begins.

    Returns:
        int32, `(batch, length)`.

    Example:
        >>> mask = tf.constant([[1, 1, 1, 2, 2, 0]])
        >>> restarted_positions(mask, tf.constant([[0, 3, 0]])).numpy().tolist()
        [[0, 1, 2, 0, 1, 5]]
    """
    # Padding counts like the first example, which begins at position 0.
    example = tf.maximum(input_mask - 1, 0)
    first = tf.gather(cls_positions, example, batch_dims=1)
    return tf.range(tf.shape(input_mask)[1]) - first


def _num_unused_positions(num_positions: int, length: int) -> int:
    """Number of positions to add to those that the heads read, on a TPU.

    The registers of a TPU hold these positions as padding in any case. If they
    are part of the program, the compiler finds a better schedule.

    Args:
        num_positions: Positions that the heads read of each row.
        length: Positions of a row.
    """
    filled = _round_up(num_positions, _LANES)
    if filled >= length:
        filled = _round_up(num_positions, _SUBLANES)
    return filled - num_positions


def _round_up(number: int, multiple: int) -> int:
    return number + -number % multiple
