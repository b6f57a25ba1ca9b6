"""The pooler, and the heads of pretrained and fine-tuned models.

All are float32 under every precision policy, since the loss is sensitive to
the precision of logits. On a TPU this costs nothing: there, a float32 product
is one bfloat16 pass, accumulated in float32.

Heads of fine-tuned models have a dropout rate of their own,
`classifier_dropout`: the paper fine-tunes most models without dropout in the
encoder, and with a rate of 0.1 in the head.
"""

import keras
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.modeling.dropout import NO_DROPOUT, Dropout
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

    def __init__(self, config: ModelConfig) -> None:
        size = config.hidden_size
        super().__init__(size, size, None, name="pooler")

    def call(self, first_tokens: tf.Tensor) -> tf.Tensor:
        """`(batch, H)`, or `(batch, examples, H)` for packed rows."""
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
        self.transform.build()
        self.layer_norm.build()
        self.output_bias = self.add_weight(
            (self.config.vocab_size,), "zeros", name="output_bias"
        )

    def call(
        self,
        masked: tf.Tensor,
        word_embeddings: keras.Variable,
        target: ProgramTarget = DEFAULT_TARGET,
    ) -> tf.Tensor:
        """Scores every piece of the vocabulary at every masked position.

        Args:
            masked: Float, `(batch, predictions, H)`; the encoder's output at
                the masked positions.
            word_embeddings: float32, `(vocab_size, E)`; those of the input.

        Returns:
            The logits: float32, `(batch, predictions, vocab_size)`.
        """
        transformed = activate(
            self.config.hidden_act,
            target,
            *self.transform(masked),
        )
        embedded = self.layer_norm(transformed)
        product = tf.einsum("bpe,ve->bpv", embedded, word_embeddings)
        return product + tf.convert_to_tensor(self.output_bias)


class SentenceHead(keras.layers.Layer):
    """Classifies a pair of segments into one of two classes.

    Sentence order: 0 in order, 1 swapped. Next sentence: 0 next, 1 from
    another document.

    Reference:
        [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 3.1,
        "Inter-sentence coherence loss".
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(name="sentence", dtype="float32")
        self.config = config

    def build(self) -> None:
        self.output_weights = self.add_weight(
            (2, self.config.hidden_size),
            initializer(self.config),
            name="output_weights",
        )
        self.output_bias = self.add_weight((2,), "zeros", name="output_bias")

    def call(self, pooled_output: tf.Tensor) -> tf.Tensor:
        """float32 logits, `(batch, 2)` or `(batch, examples, 2)`."""
        packed = pooled_output.shape.rank == 3
        product = "beh,ch->bec" if packed else "bh,ch->bc"
        logits = tf.einsum(product, pooled_output, self.output_weights)
        return logits + self.output_bias


def mean_of_tokens(
    sequence_output: tf.Tensor, input_mask: tf.Tensor
) -> tf.Tensor:
    """The embedding of each text: the mean over its tokens, without padding.

    Args:
        sequence_output: Float, `(batch, length, H)`.
        input_mask: int32, `(batch, length)`; 1 for a token, 0 for padding.

    Returns:
        float32, `(batch, H)`.

    Reference:
        [Reimers and Gurevych, 2019](https://arxiv.org/abs/1908.10084).
    """
    mask = tf.cast(input_mask, tf.float32)[..., tf.newaxis]
    total = tf.reduce_sum(tf.cast(sequence_output, tf.float32) * mask, axis=1)
    # A record that only fills a batch has no tokens.
    return total / tf.maximum(tf.reduce_sum(mask, axis=1), 1.0)


# --- Heads of fine-tuned models -----------------------------------------------


# Above the dropout sites of every encoder.
HEAD_SITE = 1 << 20

# Starts and ends that the beam head considers, as in google-research/albert.
BEAM_SIZE = 5

# Added to the logits of positions that no answer may contain.
_EXCLUDED = -1e30


class ClassificationHead(Projection):
    """Dropout and one dense layer, on the pooled output or on each token.

    It serves classification, regression, and multiple choice, where each answer
    is a separate row with one output.

    Args:
        num_outputs: Number of classes; 1 for regression and multiple choice.
        dropout_rate: Dropout rate of its input.

    Reference:
        [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 4.1.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_outputs: int,
        dropout_rate: float = 0.0,
        name: str = "classifier",
    ) -> None:
        super().__init__(
            config.hidden_size,
            num_outputs,
            initializer(config),
            dtype="float32",
            name=name,
        )
        self.dropout_rate = dropout_rate

    def call(
        self,
        hidden: tf.Tensor,
        dropout: Dropout = NO_DROPOUT,
        target: ProgramTarget = DEFAULT_TARGET,
    ) -> tf.Tensor:
        """float32 logits of `hidden`, `(..., H)`: `(..., num_outputs)`."""
        kept = _apply_dropout(hidden, self.dropout_rate, dropout, target)
        product, bias = super().call(kept)
        return product + bias


class SpanHead(Projection):
    """One dense layer that scores every token as start and as end of an answer.

    Reference:
        [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 4.2.
    """

    def __init__(self, config: ModelConfig) -> None:
        size, draw = config.hidden_size, initializer(config)
        super().__init__(size, 2, draw, name="span")

    def call(self, sequence_output: tf.Tensor) -> tf.Tensor:
        """float32 logits, `(2, batch, length)`: as start, as end."""
        product, bias = super().call(sequence_output)
        return tf.transpose(product + bias, [2, 0, 1])


class BeamSpanHead(keras.layers.Layer):
    """The head for SQuAD 2.0: start, end given the start, answerability.

    In training, the scores of the end depend on the true start. In prediction,
    they are computed for each of the `BEAM_SIZE` best starts.

    Args:
        dropout_rate: Dropout rate before the last layer of answerability.

    Reference:
        [Lan et al., 2020](https://arxiv.org/abs/1909.11942), appendix A.3,
        from [Yang et al., 2019](https://arxiv.org/abs/1906.08237).
    """

    def __init__(
        self,
        config: ModelConfig,
        dropout_rate: float = 0.0,
        name: str = "beam_span",
    ) -> None:
        super().__init__(name=name, dtype="float32")
        size = config.hidden_size
        self.dropout_rate = dropout_rate

        def projection(inputs: int, outputs: int, part: str) -> Projection:
            return Projection(inputs, outputs, initializer(config), name=part)

        self.start = projection(size, 1, "start")
        # Each transform reads two concatenated vectors of width H.
        self.end_transform = projection(2 * size, size, "end_transform")
        self.end_layer_norm = LayerNorm(size, name="end_layer_norm")
        self.end = projection(size, 1, "end")
        self.null_transform = projection(2 * size, size, "null_transform")
        self.null_initializer = initializer(config)
        self.hidden_size = size

    def build(self) -> None:
        for part in (
            self.start,
            self.end_transform,
            self.end_layer_norm,
            self.end,
            self.null_transform,
        ):
            part.build()
        self.null_weights = self.add_weight(
            (self.hidden_size, 1), self.null_initializer, name="null_weights"
        )

    def call(
        self,
        sequence_output: tf.Tensor,
        p_mask: tf.Tensor,
        true_starts: tf.Tensor | None = None,
        dropout: Dropout = NO_DROPOUT,
        target: ProgramTarget = DEFAULT_TARGET,
    ) -> dict[str, tf.Tensor]:
        """Scores the possible answers, and the absence of an answer.

        A program computes only the outputs that it uses.

        Args:
            sequence_output: Float, `(batch, length, H)`.
            p_mask: int32, `(batch, length)`: 1 for a token that no answer
                contains; 0 for the document, and for `[CLS]`, the span of a
                question without answer.
            true_starts: int32, `(batch,)`; None in predictions.

        Returns:
            float32 `start_logits`, `(batch, length)`; `end_logits`,
            `(batch, length)`, given the true start, if there is one;
            `null_logits`, `(batch,)`, the logit of no answer. Of the beam, best
            first: `start_positions`, int32, and `start_log_probs`,
            float32, `(batch, BEAM_SIZE)`; `end_positions` and `end_log_probs`,
            `(batch, BEAM_SIZE, BEAM_SIZE)`, the best ends of each start.
        """
        hidden = tf.cast(sequence_output, tf.float32)
        excluded = tf.where(p_mask == 0, 0.0, _EXCLUDED)
        product, bias = self.start(hidden)
        start_logits = (product + bias)[..., 0] + excluded
        outputs = {"start_logits": start_logits}

        def end_logits(starts: tf.Tensor) -> tf.Tensor:
            """float32, `(batch, starts, length)`, for positions `starts`."""
            scores = self._end_scores(hidden, starts)
            return scores + excluded[:, tf.newaxis]

        if true_starts is not None:
            outputs["end_logits"] = end_logits(true_starts[:, tf.newaxis])[:, 0]
        length = hidden.shape[1]  # None in an exported program
        beam = (
            tf.minimum(BEAM_SIZE, tf.shape(hidden)[1])
            if length is None
            else min(BEAM_SIZE, length)
        )
        outputs["start_log_probs"], starts = tf.math.top_k(
            tf.nn.log_softmax(start_logits), beam
        )
        outputs["start_positions"] = starts
        outputs["end_log_probs"], outputs["end_positions"] = tf.math.top_k(
            tf.nn.log_softmax(end_logits(starts)), beam
        )
        outputs["null_logits"] = self._null_logits(
            hidden, start_logits, dropout, target
        )
        return outputs

    def _end_scores(self, hidden: tf.Tensor, starts: tf.Tensor) -> tf.Tensor:
        at_starts = tf.gather(hidden, starts, batch_dims=1)
        # The product with [token, start] is a sum of two products; so it is
        # computed once for each token and once for each start.
        of_token, of_start = tf.split(self.end_transform.kernel, 2)
        product = (
            tf.einsum("blh,ho->blo", hidden, of_token)[:, tf.newaxis]
            + tf.einsum("bsh,ho->bso", at_starts, of_start)[:, :, tf.newaxis]
        )
        transformed = tf.tanh(product + self.end_transform.bias)
        normalized = self.end_layer_norm(transformed)
        product, bias = self.end(normalized)
        return (product + bias)[..., 0]

    def _null_logits(
        self,
        hidden: tf.Tensor,
        start_logits: tf.Tensor,
        dropout: Dropout,
        target: ProgramTarget,
    ) -> tf.Tensor:
        probabilities = tf.nn.softmax(start_logits)
        expected_start = tf.einsum("bl,blh->bh", probabilities, hidden)
        product, bias = self.null_transform(
            tf.concat([expected_start, hidden[:, 0]], axis=-1)
        )
        transformed = tf.tanh(product + bias)
        kept = _apply_dropout(transformed, self.dropout_rate, dropout, target)
        return tf.matmul(kept, self.null_weights)[:, 0]


def _apply_dropout(
    x: tf.Tensor, rate: float, dropout: Dropout, target: ProgramTarget
) -> tf.Tensor:
    """Drops entries of `x` in training, at the rate of the head."""
    if dropout.seed is None:
        return x
    return dropout.masks(rate, HEAD_SITE, target).apply(x)
