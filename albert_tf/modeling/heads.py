"""The pooler and the two pretraining heads: masked LM, sentence order.

All are float32 under every precision policy, since the loss is sensitive to
the precision of logits. On a TPU this costs nothing: there, a float32 product
is one bfloat16 pass, accumulated in float32.
"""

import keras
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.modeling.layers import (
    LayerNorm,
    Projection,
    activate,
    initializer,
)
from albert_tf.modeling.target import DEFAULT_TARGET, ProgramTarget


class Pooler(Projection):
    """`tanh(x W + b)` of the `[CLS]` token, for heads that classify sequences.

    The backbone sets its `kernel_initializer` before `build()`.

    Reference:
        [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 3.
    """

    def __init__(self, config: ModelConfig, name: str = "pooler") -> None:
        size = config.hidden_size
        super().__init__(size, size, None, dtype="float32", name=name)

    def call(  # type: ignore[override]
        self, first_tokens: tf.Tensor
    ) -> tf.Tensor:
        """Pools sequences.

        Args:
            first_tokens: Float, `(batch, H)`, or `(batch, examples, H)` for
                packed rows; the encoder's output at `[CLS]`.

        Returns:
            float32, with the shape of `first_tokens`.
        """
        if first_tokens.shape.rank == 3:
            examples, width = first_tokens.shape[1:]
            flat = tf.reshape(first_tokens, [-1, width])
            return tf.reshape(self.call(flat), [-1, examples, width])
        # TensorFlow merges a product, `bias_add` and tanh into one operation.
        product = tf.matmul(first_tokens, self.kernel)
        return tf.tanh(tf.nn.bias_add(product, self.bias))


class MaskedLanguageModelHead(keras.layers.Layer):
    """Predicts the tokens at masked positions with the word embeddings.

    Reference:
        [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 3.1.
        Here the transform reduces the width from H to E.
    """

    def __init__(self, config: ModelConfig, name: str = "masked_lm") -> None:
        super().__init__(name=name, dtype="float32")
        self.config = config
        self.transform = Projection(
            config.hidden_size,
            config.embedding_size,
            initializer(config),
            name="transform",
        )
        self.layer_norm = LayerNorm(config.embedding_size)

    def build(self) -> None:
        config = self.config
        self.transform.build()
        self.layer_norm.build()
        self.output_bias = self.add_weight(
            name="output_bias", shape=(config.vocab_size,), initializer="zeros"
        )

    def call(
        self,
        masked: tf.Tensor,
        word_embeddings: keras.Variable,
        target: ProgramTarget = DEFAULT_TARGET,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Scores every piece of the vocabulary at every masked position.

        Args:
            masked: Float, `(batch, predictions, H)`; the encoder's output at
                the masked positions.
            word_embeddings: float32, `(vocab_size, E)`; those of the input.

        Returns:
            The two terms of the logits: the product, float32, `(batch,
            predictions, vocab_size)`, and the bias, float32, `(vocab_size,)`.
        """
        transformed = activate(
            self.config.hidden_act,
            target,
            *self.transform(masked, target=target),
        )
        embedded = self.layer_norm(transformed, target=target)
        product = tf.einsum("bpe,ve->bpv", embedded, word_embeddings)
        return product, tf.convert_to_tensor(self.output_bias)


class SentenceHead(keras.layers.Layer):
    """Classifies a pair of segments into one of two classes.

    Sentence order: 0 in order, 1 swapped. Next sentence: 0 next, 1 from
    another document.

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
            pooled_output: Float, `(batch, H)`, or `(batch, examples, H)` for
                packed rows.

        Returns:
            float32 logits, `(batch, 2)` or `(batch, examples, 2)`.
        """
        packed = pooled_output.shape.rank == 3
        product = "beh,ch->bec" if packed else "bh,ch->bc"
        logits = tf.einsum(product, pooled_output, self.output_weights)
        return logits + self.output_bias
