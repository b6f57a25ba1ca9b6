"""ALBERT with heads: the models that pretraining and fine-tuning train."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from albert_tf.config import ModelConfig, TaskHeadConfig
from albert_tf.config.task import MULTIPLE_CHOICE
from albert_tf.modeling.backbone import AlbertBackbone
from albert_tf.modeling.dropout import NO_DROPOUT, Dropout
from albert_tf.modeling.heads import (
    BeamSpanHead,
    ClassificationHead,
    MaskedLanguageModelHead,
    SentenceHead,
    SpanHead,
)
from albert_tf.modeling.target import DEFAULT_TARGET, ProgramTarget

# The name of the head of token labels, which only training has.
TOKEN_LABEL_HEAD = "token_labels"


class AlbertPretrainer(keras.layers.Layer):
    """The backbone and the pretraining heads.

    `dtype`, `remat` and `name`: see `AlbertBackbone`.

    Args:
        sentence_objective: "sop", "nsp", or "none", which leaves out the
            sentence head and the pooler.
        num_token_labels: Number of outputs of a head that labels each token;
            0 without it.

    Attributes:
        max_seq_length: Of the training, where `interop.formats.load` knows it;
            later positions were not trained.

    Example:
        >>> config = ModelConfig(
        ...     vocab_size=11, embedding_size=4, hidden_size=6,
        ...     num_hidden_layers=2, num_attention_heads=2, intermediate_size=8,
        ... )
        >>> pretrainer = AlbertPretrainer(config)
        >>> pretrainer.build()
        >>> ids = tf.constant([[2, 5, 4, 3]])
        >>> outputs = pretrainer({
        ...     "input_ids": ids,
        ...     "input_mask": tf.ones_like(ids),
        ...     "segment_ids": tf.zeros_like(ids),
        ...     "masked_lm_positions": tf.constant([[2]]),
        ... })
        >>> outputs["mlm_logits"].shape, outputs["sentence_logits"].shape
        (TensorShape([1, 1, 11]), TensorShape([1, 2]))
    """

    def __init__(
        self,
        config: ModelConfig,
        sentence_objective: str = "sop",
        dtype: str = "float32",
        remat: bool = False,
        name: str = "albert",
        num_token_labels: int = 0,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.max_seq_length = config.max_position_embeddings
        self.sentence_objective = sentence_objective
        self.has_sentence_head = sentence_objective != "none"
        backbone = AlbertBackbone(
            config, dtype, remat, has_pooler=self.has_sentence_head, name=name
        )
        # Keras lists variables in the order in which layers are assigned.
        # The rounding of sums over all variables depends on this order.
        self.embeddings = backbone.embeddings
        self.encoder = backbone.encoder
        self.masked_lm = MaskedLanguageModelHead(config)
        if self.has_sentence_head:
            self.pooler = backbone.pooler
            self.sentence = SentenceHead(config)
        self.token_labels = None
        if num_token_labels:
            self.token_labels = ClassificationHead(
                config, num_token_labels, name=TOKEN_LABEL_HEAD
            )
        self.backbone = backbone

    def build(self) -> None:
        """Creates every variable; needs no shapes."""
        self.backbone.build()
        self.masked_lm.build()
        if self.has_sentence_head:
            self.sentence.build()
        if self.token_labels is not None:
            self.token_labels.build()

    def call(
        self,
        batch: Mapping[str, tf.Tensor],
        dropout: Dropout = NO_DROPOUT,
        target: ProgramTarget = DEFAULT_TARGET,
    ) -> dict[str, tf.Tensor]:
        """Predicts the masked tokens and the class of each pair.

        The encoder's last block is computed only where the heads read it: at
        all positions with the head of token labels.

        Args:
            batch: int32 tensors; further ones are ignored.
                `input_ids`, `input_mask`, `segment_ids`: `(batch, length)`.
                `masked_lm_positions`: `(batch, predictions)`; padding slots
                may hold any position. `next_sentence_positions`: `(batch,
                examples)`, only in packed batches; the positions of `[CLS]`,
                and 0 for an unused slot. In packed batches, `input_mask` holds
                the number of each token's example.

        Returns:
            `mlm_logits`: float32, `(batch, predictions, vocab_size)`.
            `pooled_output`: float32, `(batch, H)`, and `sentence_logits`:
            float32, `(batch, 2)`, unless `sentence_objective` is "none". For
            packed batches `(batch, examples, H)` and `(batch, examples, 2)`.
            `token_label_logits`: float32, `(batch, length, labels)`, with
            `num_token_labels`.
        """
        positions = batch["masked_lm_positions"]
        has_labels = self.token_labels is not None
        outputs = self.encode(
            batch,
            output_positions=None if has_labels else positions,
            dropout=dropout,
            target=target,
        )
        masked = outputs.pop("sequence_output")
        if self.token_labels is not None:
            outputs["token_label_logits"] = self.token_labels(masked)
            masked = tf.gather(masked, positions, batch_dims=1)
        return {"mlm_logits": self.mlm_logits(masked, target), **outputs}

    def encode(
        self, batch: Mapping[str, tf.Tensor], **options: Any
    ) -> dict[str, tf.Tensor]:
        """Encodes every position, and classifies each pair.

        Args:
            batch: As in `call`, without `masked_lm_positions`.
            options: Further arguments of the backbone.

        Returns:
            `sequence_output`: compute dtype, `(batch, length, H)`;
            `pooled_output` and `sentence_logits` as in `call`.
        """
        sequence_output, pooled_output = self.backbone(
            batch["input_ids"],
            batch["input_mask"],
            batch["segment_ids"],
            cls_positions=batch.get("next_sentence_positions"),
            **options,
        )
        outputs = {"sequence_output": sequence_output}
        if pooled_output is not None:
            outputs["pooled_output"] = pooled_output
            outputs["sentence_logits"] = self.sentence(pooled_output)
        return outputs

    def mlm_logits(
        self, hidden: tf.Tensor, target: ProgramTarget = DEFAULT_TARGET
    ) -> tf.Tensor:
        """`mlm_logits` as in `call`, of the encoder's output at positions."""
        words = self.backbone.embeddings.word_embeddings
        return self.masked_lm(hidden, word_embeddings=words, target=target)


class AlbertForTask(keras.layers.Layer):
    """The backbone and the head of a task.

    `dtype`, `remat` and `name`: see `AlbertBackbone`.

    Args:
        dropout_rate: Dropout rate of the head, in training.
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
        self.max_seq_length = config.max_position_embeddings
        self.head_config = head
        self.backbone = AlbertBackbone(
            config, dtype, remat, has_pooler=head.has_pooler, name=name
        )
        self.head: ClassificationHead | SpanHead | BeamSpanHead
        if "classifier" in head.layers:
            outputs = head.num_outputs
            self.head = ClassificationHead(config, outputs, dropout_rate)
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
        dropout: Dropout = NO_DROPOUT,
        target: ProgramTarget = DEFAULT_TARGET,
    ) -> dict[str, tf.Tensor]:
        """Computes the logits of the task.

        Args:
            batch: int32 `input_ids`, `input_mask` and `segment_ids`, `(batch,
                length)`, or for multiple choice `(batch, num_choices *
                length)`: the sequences of an example, one after
                the other.
                For the beam head also `p_mask`, `(batch, length)`, and, to
                compute its loss, `start_position`, `(batch, 1)`.

        Returns:
            For question answering, `start_logits` and `end_logits`, float32,
            `(batch, length)`, or the outputs of `BeamSpanHead`. Otherwise
            `logits`, float32: `(batch, classes)`, `(batch, length, classes)`
            for token classification, `(batch, 1)` for regression, `(batch,
            num_choices)` for multiple choice.
        """
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
            read = outputs.sequence_output
            if outputs.pooled_output is not None:
                read = outputs.pooled_output
            logits = self.head(read, dropout=dropout, target=target)
            if self.head_config.kind == MULTIPLE_CHOICE:
                logits = tf.reshape(logits, [-1, self.head_config.num_choices])
            return {"logits": logits}
        if isinstance(self.head, SpanHead):
            starts, ends = tf.unstack(self.head(outputs.sequence_output))
            return {"start_logits": starts, "end_logits": ends}
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
