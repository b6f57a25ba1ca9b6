"""The bias of attention scores: which positions attend to which."""

from typing import NamedTuple, TypeAlias

import tensorflow as tf

# Added to the scores of masked keys, as in google-research/albert. It is
# finite, so that a row of padding only does not give NaN.
MASKED_KEY_BIAS = -10_000.0


class ExampleNumbers(NamedTuple):
    """The attention bias of packed rows, before it is computed.

    Each position attends to the positions of its own example only. This bias
    has an entry for each pair of positions. It is computed where it is added to
    the scores, so that programs that XLA fuses do not store it. Padding has the
    number 0 and attends to padding, so that its softmax is defined.

    Attributes:
        queries: int32, `(batch, queries)`: the number of each position's
            example.
        keys: int32, `(batch, keys)`; likewise.

    Example:
        >>> numbers = tf.constant([[1, 1, 2, 0]])
        >>> bias = ExampleNumbers(numbers, numbers).bias()
        >>> (bias[0, 0] == 0).numpy().astype(int).tolist()
        [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    """

    queries: tf.Tensor
    keys: tf.Tensor

    def bias(self) -> tf.Tensor:
        """float32, `(batch, 1, queries, keys)`."""
        # Cast, since TensorFlow compares int32 tensors of a GPU on the host.
        queries = tf.cast(self.queries, tf.float32)[
            :, tf.newaxis, :, tf.newaxis
        ]
        keys = tf.cast(self.keys, tf.float32)[:, tf.newaxis, tf.newaxis, :]
        return tf.where(tf.equal(queries, keys), 0.0, MASKED_KEY_BIAS)


AttentionBias: TypeAlias = tf.Tensor | ExampleNumbers


def attention_bias(
    input_mask: tf.Tensor, packed: bool = False
) -> AttentionBias:
    """The bias of attention scores, which masks keys.

    No other function decides which positions attend to which.

    Args:
        input_mask: As in `AlbertBackbone.call`.
        packed: Whether a row holds several examples.

    Returns:
        float32, `(batch, 1, 1, length)`: 0 for keys to attend to,
        `MASKED_KEY_BIAS` for padding. For packed rows, `ExampleNumbers`.
    """
    if packed:
        return ExampleNumbers(queries=input_mask, keys=input_mask)
    masked = 1.0 - tf.cast(input_mask, tf.float32)
    # LiteRT has no [:, tf.newaxis] for unknown shapes.
    return tf.expand_dims(tf.expand_dims(masked, 1), 1) * MASKED_KEY_BIAS


def at_queries(bias: AttentionBias, positions: tf.Tensor) -> AttentionBias:
    """The bias for queries at `positions` only, int32, `(batch, queries)`."""
    if isinstance(bias, ExampleNumbers):
        chosen = tf.gather(bias.queries, positions, batch_dims=1)
        return bias._replace(queries=chosen)
    return bias  # All queries have the same bias.


def add_to_scores(scores: tf.Tensor, bias: AttentionBias) -> tf.Tensor:
    """Adds the bias, without a gradient, to the scores.

    Args:
        scores: float32, `(batch, heads, queries, keys)`.
        bias: From `attention_bias`, or a float tensor that broadcasts to the
            scores.
    """
    if isinstance(bias, ExampleNumbers):
        bias = bias.bias()
    return scores + tf.stop_gradient(tf.cast(bias, tf.float32))
