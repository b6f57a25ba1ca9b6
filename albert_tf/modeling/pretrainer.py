"""ALBERT with its pretraining heads: the model that a run trains."""

from collections.abc import Mapping

import keras
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.modeling.backbone import AlbertBackbone
from albert_tf.modeling.dropout import NO_DROPOUT, Dropout, choose
from albert_tf.modeling.heads import MaskedLanguageModelHead, SentenceHead
from albert_tf.modeling.target import DEFAULT_TARGET, ProgramTarget


class AlbertPretrainer(keras.layers.Layer):
    """The backbone and the pretraining heads.

    Args:
        sentence_objective: "sop", "nsp", or "none", which leaves out the
            sentence head and the pooler.
        dtype: Precision policy, "float32" or "mixed_bfloat16".
        remat: Whether the backward pass computes the encoder's blocks a second
            time instead of keeping their activations.
        name: First part of the path of every variable.

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

    Reference:
        [Lan et al., 2020](https://arxiv.org/abs/1909.11942).
    """

    def __init__(
        self,
        config: ModelConfig,
        sentence_objective: str = "sop",
        dtype: str = "float32",
        remat: bool = False,
        name: str = "albert",
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.config = config
        self.sentence_objective = sentence_objective
        self.has_sentence_head = sentence_objective != "none"
        backbone = AlbertBackbone(
            config,
            dtype=dtype,
            remat=remat,
            has_pooler=self.has_sentence_head,
            name=name,
        )
        # Keras lists variables in the order in which layers are assigned.
        # The rounding of sums over all variables depends on this order.
        self.embeddings = backbone.embeddings
        self.encoder = backbone.encoder
        self.masked_lm = MaskedLanguageModelHead(config)
        if self.has_sentence_head:
            self.pooler = backbone.pooler
            self.sentence = SentenceHead(config)
        self.backbone = backbone

    def build(self) -> None:
        """Creates every variable; needs no shapes."""
        self.backbone.build()
        self.masked_lm.build()
        if self.has_sentence_head:
            self.sentence.build()

    def call(
        self,
        batch: Mapping[str, tf.Tensor],
        dropout: Dropout | None = None,
        target: ProgramTarget = DEFAULT_TARGET,
        training: bool | None = None,
    ) -> dict[str, tf.Tensor]:
        """Predicts the masked tokens and the class of each pair.

        The encoder's last block is computed only where the heads read it.

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
            With `target.recomputes_logit_gradients`, also the terms of the
            logits, for the loss: `mlm_product`, with their shape, and
            `mlm_bias`, float32, `(vocab_size,)`.
        """
        dropout = choose(dropout, training, self.config)
        sequence_output, pooled_output = self.backbone(
            batch["input_ids"],
            batch["input_mask"],
            batch["segment_ids"],
            output_positions=batch["masked_lm_positions"],
            cls_positions=batch.get("next_sentence_positions"),
            dropout=dropout,
            target=target,
        )
        product, bias = self._mlm_terms(sequence_output, target)
        outputs = {"mlm_logits": product + bias}
        if target.recomputes_logit_gradients:
            outputs |= {"mlm_product": product, "mlm_bias": bias}
        return {**outputs, **self._classify(pooled_output)}

    def encode(
        self,
        batch: Mapping[str, tf.Tensor],
        dropout: Dropout = NO_DROPOUT,
        target: ProgramTarget = DEFAULT_TARGET,
    ) -> dict[str, tf.Tensor]:
        """Encodes every position, and classifies each pair.

        Args:
            batch: As in `call`, without `masked_lm_positions`.

        Returns:
            `sequence_output`: compute dtype, `(batch, length, H)`;
            `pooled_output` and `sentence_logits` as in `call`.
        """
        sequence_output, pooled_output = self.backbone(
            batch["input_ids"],
            batch["input_mask"],
            batch["segment_ids"],
            cls_positions=batch.get("next_sentence_positions"),
            dropout=dropout,
            target=target,
        )
        classes = self._classify(pooled_output)
        return {"sequence_output": sequence_output, **classes}

    def mlm_logits(
        self, hidden: tf.Tensor, target: ProgramTarget = DEFAULT_TARGET
    ) -> tf.Tensor:
        """Scores of all pieces, from the word embeddings of the input.

        Args:
            hidden: Float, `(batch, predictions, H)`; the encoder's output at
                the positions to predict.

        Returns:
            float32, `(batch, predictions, vocab_size)`.
        """
        product, bias = self._mlm_terms(hidden, target)
        return product + bias

    def _mlm_terms(
        self, hidden: tf.Tensor, target: ProgramTarget
    ) -> tuple[tf.Tensor, tf.Tensor]:
        return self.masked_lm(
            hidden, self.backbone.embeddings.word_embeddings, target=target
        )

    def _classify(
        self, pooled_output: tf.Tensor | None
    ) -> dict[str, tf.Tensor]:
        if pooled_output is None:
            return {}
        return {
            "pooled_output": pooled_output,
            "sentence_logits": self.sentence(pooled_output),
        }
