"""The two pretraining heads: masked pieces, and the order of segments.

Both are float32 under every precision policy, since logits decide the loss.
On a TPU that costs nothing: a float32 product is one bfloat16 pass there,
and its sum stays float32.
"""

import keras
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.modeling.layers import (
    LayerNorm,
    activation,
    bias,
    initializer,
    product,
)


class MaskedLanguageModelHead(keras.layers.Layer):
    """Predicts the pieces at masked positions with the word embeddings.

    Reference:
        [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 3.1;
        here the transform goes from H down to E.
    """

    def __init__(self, config: ModelConfig, name: str = "masked_lm") -> None:
        super().__init__(name=name, dtype="float32")
        self.config = config
        self.transform = keras.layers.Dense(
            config.embedding_size,
            kernel_initializer=initializer(config),
            dtype="float32",
            name="transform",
        )
        self.activation = activation(config)
        self.layer_norm = LayerNorm(config.embedding_size)

    def build(self) -> None:
        config = self.config
        self.transform.build((None, None, config.hidden_size))
        self.layer_norm.build()
        self.output_bias = self.add_weight(
            name="output_bias", shape=(config.vocab_size,), initializer="zeros"
        )

    def call(
        self, masked: tf.Tensor, word_embeddings: keras.Variable
    ) -> tf.Tensor:
        """Scores every piece at every masked position.

        Args:
            masked: Float, `(batch, predictions, H)`; the encoder's output at
                the masked positions.
            word_embeddings: float32, `(vocab_size, E)`, those of the input.

        Returns:
            float32 logits, `(batch, predictions, vocab_size)`.
        """
        transformed = self.activation(
            product(self.transform, masked), bias(self.transform)
        )
        embedded = self.layer_norm(transformed)
        logits = tf.einsum("bpe,ve->bpv", embedded, word_embeddings)
        return logits + self.output_bias


class SentenceHead(keras.layers.Layer):
    """Tells which of two ways a pair of segments was made.

    Sentence order (0 in order, 1 swapped), or next sentence (0 next, 1 from
    another document).

    Reference:
        [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 3.1,
        "Inter-sentence coherence loss".
    """

    NUM_CLASSES = 2

    def __init__(self, config: ModelConfig, name: str = "sentence") -> None:
        super().__init__(name=name, dtype="float32")
        self.config = config

    def build(self) -> None:
        config = self.config
        self.output_weights = self.add_weight(
            name="output_weights",
            shape=(self.NUM_CLASSES, config.hidden_size),
            initializer=initializer(config),
        )
        self.output_bias = self.add_weight(
            name="output_bias", shape=(self.NUM_CLASSES,), initializer="zeros"
        )

    def call(self, pooled_output: tf.Tensor) -> tf.Tensor:
        """Scores both classes.

        Args:
            pooled_output: Float, `(batch, H)`.

        Returns:
            float32 logits, `(batch, 2)`.
        """
        logits = tf.einsum("bh,ch->bc", pooled_output, self.output_weights)
        return logits + self.output_bias
