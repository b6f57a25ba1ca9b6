"""Cross-entropy of logits, with a gradient that is never stored."""

from typing import Any

import tensorflow as tf

from albert_tf.modeling.kernels.xla import optimization_barrier


def cross_entropy(
    product: tf.Tensor, bias: tf.Tensor, labels: tf.Tensor
) -> tf.Tensor:
    """The cross-entropy of the logits `product + bias`, for TPUs.

    Each of the three products that read the gradient of the logits computes it
    from the logits: those with the word embeddings and with the hidden states,
    and that which sums it for the gradient of the bias.

    Args:
        product: float32, `(batch, predictions, classes)`.
        bias: float32, `(classes,)`.
        labels: int32, `(batch, predictions)`.

    Returns:
        float32, `(batch, predictions)`, in nats.
    """

    @tf.custom_gradient
    def losses_of(product: tf.Tensor, bias: tf.Tensor) -> Any:
        logits = product + bias
        largest = tf.reduce_max(logits, axis=-1, keepdims=True)
        total = tf.reduce_sum(tf.exp(logits - largest), axis=-1, keepdims=True)
        of_labels = tf.gather(
            logits, labels, axis=-1, batch_dims=labels.shape.rank
        )
        losses = tf.squeeze(largest + tf.math.log(total), -1) - of_labels

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            upstream = upstream[..., tf.newaxis]

            def d_logits(logits: tf.Tensor) -> tf.Tensor:
                d_softmax = tf.exp(logits - largest) * (upstream / total)
                is_label = tf.range(logits.shape[-1]) == labels[..., tf.newaxis]
                return d_softmax - tf.where(is_label, upstream, 0.0)

            # Without the barrier, the compiler stores the gradient.
            (again,) = optimization_barrier([logits])
            d_bias = _sum_rows(d_logits(again))
            return d_logits(logits), d_bias

        return losses, gradient

    return losses_of(product, bias)


def _sum_rows(x: tf.Tensor) -> tf.Tensor:
    """The sum of all rows of `(batch, length, width)`, as a matrix product."""
    # With a single row of ones, the compiler for TPUs would not compute a
    # matrix product. Each of eight rows has ones for every eighth row of `x`.
    shape = tf.shape(x)[:2]
    numbers = tf.reshape(tf.range(tf.reduce_prod(shape)), shape)
    is_summed = numbers % 8 == tf.range(8)[:, tf.newaxis, tf.newaxis]
    sums = tf.einsum("ebl,blw->ew", tf.cast(is_summed, x.dtype), x)
    return tf.reduce_sum(sums, axis=0)
