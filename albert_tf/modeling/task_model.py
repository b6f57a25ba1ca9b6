"""ALBERT with the head of a task: the model that fine-tuning trains."""

from collections.abc import Mapping

import keras
import tensorflow as tf

from albert_tf.config import ModelConfig, TaskHeadConfig
from albert_tf.config.task import MULTIPLE_CHOICE
from albert_tf.modeling.backbone import AlbertBackbone
from albert_tf.modeling.dropout import Dropout, choose
from albert_tf.modeling.target import DEFAULT_TARGET, ProgramTarget
from albert_tf.modeling.task_heads import (
    BeamSpanHead,
    ClassificationHead,
    SpanHead,
)


class AlbertForTask(keras.layers.Layer):
    """The backbone and the head of a task.

    Args:
        dropout_rate: Dropout rate of the head, in training.
        dtype: Precision policy, "float32" or "mixed_bfloat16".
        remat: Whether the backward pass computes the encoder's blocks a second
            time instead of keeping their activations.
        name: First part of the path of every variable.

    Example:
        >>> config = ModelConfig(
        ...     vocab_size=11, embedding_size=4, hidden_size=6,
        ...     num_hidden_layers=2, num_attention_heads=2, intermediate_size=8,
        ... )
        >>> head = TaskHeadConfig("multiple_choice", num_choices=3)
        >>> model = AlbertForTask(config, head)
        >>> model.build()
        >>> ids = tf.constant([[2, 5, 6, 3] * 3])  # an example of three choices
        >>> outputs = model({
        ...     "input_ids": ids,
        ...     "input_mask": tf.ones_like(ids),
        ...     "segment_ids": tf.zeros_like(ids),
        ... })
        >>> outputs["logits"].shape
        TensorShape([1, 3])
    """

    def __init__(
        self,
        config: ModelConfig,
        head: TaskHeadConfig,
        dropout_rate: float = 0.0,
        dtype: str = "float32",
        remat: bool = False,
        name: str = "albert",
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.head_config = head
        self.backbone = AlbertBackbone(
            config,
            dtype=dtype,
            remat=remat,
            has_pooler=head.has_pooler,
            name=name,
        )
        self.head: ClassificationHead | SpanHead | BeamSpanHead
        if head.has_pooler:
            self.head = ClassificationHead(
                config, head.num_outputs, dropout_rate
            )
        elif head.is_beam:
            self.head = BeamSpanHead(config, dropout_rate)
        else:
            self.head = SpanHead(config)

    def build(self) -> None:
        """Creates every variable; needs no shapes."""
        self.backbone.build()
        self.head.build()

    def call(
        self,
        batch: Mapping[str, tf.Tensor],
        dropout: Dropout | None = None,
        target: ProgramTarget = DEFAULT_TARGET,
        training: bool | None = None,
    ) -> dict[str, tf.Tensor]:
        """Computes the logits of the task.

        Args:
            batch: int32 `input_ids`, `input_mask` and `segment_ids`, `(batch,
                length)`, or for multiple choice `(batch, num_choices *
                length)`: the sequences of an example, one after the other.
                For the beam head also `p_mask`, `(batch, length)`, and, to
                compute its loss, `start_position`, `(batch, 1)`.

        Returns:
            For question answering, `start_logits` and `end_logits`, float32,
            `(batch, length)`, or the outputs of `BeamSpanHead`. Otherwise
            `logits`, float32: `(batch, classes)`, `(batch, 1)` for regression,
            `(batch, num_choices)` for multiple choice.
        """
        dropout = choose(dropout, training, self.config)
        inputs = {
            name: self._split_choices(batch[name])
            for name in ("input_ids", "input_mask", "segment_ids")
        }
        input_ids = inputs["input_ids"]
        reads_cls_only = self.head_config.has_pooler
        outputs = self.backbone(
            **inputs,
            # The last block is then computed at [CLS] only.
            output_positions=input_ids[:, :0] if reads_cls_only else None,
            dropout=dropout,
            target=target,
        )
        if isinstance(self.head, ClassificationHead):
            logits = self.head(
                outputs.pooled_output, dropout=dropout, target=target
            )
            if self.head_config.kind == MULTIPLE_CHOICE:
                logits = tf.reshape(logits, [-1, self.head_config.num_choices])
            return {"logits": logits}
        if isinstance(self.head, SpanHead):
            start_logits, end_logits = tf.unstack(
                self.head(outputs.sequence_output)
            )
            return {"start_logits": start_logits, "end_logits": end_logits}
        starts = batch.get("start_position")
        return self.head(
            outputs.sequence_output,
            batch["p_mask"],
            None if starts is None else starts[:, 0],
            dropout=dropout,
            target=target,
        )

    def _split_choices(self, ids: tf.Tensor) -> tf.Tensor:
        """Gives each choice a row: `(batch * num_choices, length)`."""
        num_choices = self.head_config.num_choices
        if num_choices == 1:
            return ids
        return tf.reshape(ids, [-1, keras.ops.shape(ids)[1] // num_choices])
