"""ALBERT with its pretraining heads: the model that a run trains."""

from collections.abc import Mapping

import keras
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.modeling.attention import visible_keys_bias
from albert_tf.modeling.dropout import NO_DROPOUT, Dropout
from albert_tf.modeling.encoder import Encoder
from albert_tf.modeling.heads import MaskedLanguageModelHead, SentenceHead
from albert_tf.modeling.layers import Embeddings, initializer

_LANES, _SUBLANES = 128, 8  # of a TPU's registers


class AlbertPretrainer(keras.layers.Layer):
    """Embeddings, encoder, pooler and the pretraining heads.

    Args:
        config: The architecture.
        sentence_objective: "sop", "nsp", or "none", which leaves out the
            sentence head and the pooler.
        dtype: Precision policy, "float32" or "mixed_bfloat16".
        remat: Whether the encoder's blocks are computed a second time in
            the backward pass, so that little is kept for it.
        name: First part of every variable's path.

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
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config, dtype, remat)
        self.masked_lm = MaskedLanguageModelHead(config)
        self.has_sentence_head = sentence_objective != "none"
        if self.has_sentence_head:
            self.pooler = keras.layers.Dense(
                config.hidden_size,
                activation="tanh",
                kernel_initializer=initializer(config),
                dtype="float32",
                name="pooler",
            )
            self.sentence = SentenceHead(config)

    def build(self) -> None:
        """Creates every variable; needs no shapes."""
        self.embeddings.build()
        self.encoder.build()
        self.masked_lm.build()
        if self.has_sentence_head:
            self.pooler.build((None, self.config.hidden_size))
            self.sentence.build()

    def call(
        self, batch: Mapping[str, tf.Tensor], dropout: Dropout | None = None
    ) -> dict[str, tf.Tensor]:
        """The forward pass.

        Args:
            batch: int32 tensors; others are passed over.
                `input_ids`, `input_mask`, `segment_ids`: `(batch, length)`.
                `masked_lm_positions`: `(batch, predictions)`; padding slots
                hold any position. With it, the last block is computed where
                the heads read it: there, and at position 0.
            dropout: Rates and seed; None is no dropout.

        Returns:
            `mlm_logits`: float32, `(batch, predictions, vocab_size)`; or,
            without `masked_lm_positions`, `sequence_output`: compute dtype,
            `(batch, length, H)`.
            `pooled_output`: float32, `(batch, H)`, and `sentence_logits`:
            float32, `(batch, 2)`, unless `sentence_objective` is "none".
        """
        dropout = dropout or NO_DROPOUT
        embedded = self.embeddings(
            batch["input_ids"], batch["segment_ids"], dropout=dropout, place=0
        )
        hidden = self.encoder(
            embedded,
            visible_keys_bias(batch["input_mask"]),
            dropout=dropout,
            first_place=1,
            read_positions=self._read_positions(batch, dropout.on_tpu),
        )
        if "masked_lm_positions" not in batch:
            outputs = {"sequence_output": hidden}
        else:
            first = int(self.has_sentence_head)
            num_masked = keras.ops.shape(batch["masked_lm_positions"])[1]
            masked = hidden[:, first : first + num_masked]
            logits = self.masked_lm(masked, self.embeddings.word_embeddings)
            outputs = {"mlm_logits": logits}
        if self.has_sentence_head:
            outputs["pooled_output"] = self.pooler(hidden[:, 0])
            outputs["sentence_logits"] = self.sentence(outputs["pooled_output"])
        return outputs

    def _read_positions(
        self, batch: Mapping[str, tf.Tensor], on_tpu: bool
    ) -> tf.Tensor | None:
        """Where the heads read the encoder: position 0 first, for the pooler.

        On TPUs any others follow until they fill its registers, which they do
        anyway: told of it, the compiler makes a better plan.
        """
        masked = batch.get("masked_lm_positions")
        if masked is None:
            return None
        before, after = int(self.has_sentence_head), 0
        if on_tpu:
            reads = before + masked.shape[1]
            filled = _rounded_up(reads, _LANES)
            if filled >= batch["input_ids"].shape[1]:
                filled = _rounded_up(reads, _SUBLANES)
            after = filled - reads
        return tf.pad(masked, [[0, 0], [before, after]])


def _rounded_up(number: int, multiple: int) -> int:
    return number + -number % multiple
