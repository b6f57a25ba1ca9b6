"""The losses of the tasks, as sums over a batch.

`Finetuning.loss` divides them by the weight of the global batch, so each record
counts the same on every replica and in every micro-batch.
"""

from collections.abc import Mapping

import tensorflow as tf

from albert_tf.config.task_head import (
    QUESTION_ANSWERING,
    REGRESSION,
    TaskHeadConfig,
)
from albert_tf.training.objective import weighted_sums

Tensors = Mapping[str, tf.Tensor]


def task_sums(
    head: TaskHeadConfig, outputs: Tensors, batch: Tensors
) -> dict[str, tf.Tensor]:
    """Sums losses, correct predictions and weights over a batch.

    Args:
        head: What the model predicts.
        outputs: Outputs of `AlbertForTask`.
        batch: `example_weight`, float32, `(batch, 1)`, 0 for padding; and the
            labels, `(batch, 1)`: `label`, int32, or float32 for regression;
            or `start_position` and `end_position`, int32, and for the beam
            head `is_impossible`, int32.

    Returns:
        float32 scalars `label_loss_sum`, in nats, or of squared errors for
        regression; `label_weight_sum`; and, except for regression,
        `label_correct_sum`.

    Example:
        >>> head = TaskHeadConfig("regression")
        >>> sums = task_sums(
        ...     head,
        ...     {"logits": tf.constant([[1.0], [5.0]])},
        ...     {
        ...         "label": tf.constant([[3.0], [0.0]]),
        ...         "example_weight": tf.constant([[1.0], [0.0]]),
        ...     },
        ... )
        >>> float(sums["label_loss_sum"]), float(sums["label_weight_sum"])
        (4.0, 1.0)
    """
    weights = batch["example_weight"][:, 0]
    if head.kind == QUESTION_ANSWERING:
        return _span_sums(head, outputs, batch, weights)
    labels = batch["label"][:, 0]
    if head.kind == REGRESSION:
        squares = tf.square(outputs["logits"][:, 0] - labels)
        return {
            "label_loss_sum": tf.reduce_sum(weights * squares),
            "label_weight_sum": tf.reduce_sum(weights),
        }
    return weighted_sums("label", outputs["logits"], labels, weights)


def _span_sums(
    head: TaskHeadConfig, outputs: Tensors, batch: Tensors, weights: tf.Tensor
) -> dict[str, tf.Tensor]:
    """The sums for spans; the loss is the mean of the losses of start and end.

    The beam head adds half the loss of answerability, as in
    google-research/albert.
    """
    starts, ends = batch["start_position"][:, 0], batch["end_position"][:, 0]
    start_logits, end_logits = outputs["start_logits"], outputs["end_logits"]
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
    losses = (
        cross_entropy(starts, start_logits) + cross_entropy(ends, end_logits)
    ) / 2
    if head.is_beam:
        is_impossible = tf.cast(batch["is_impossible"][:, 0], tf.float32)
        losses += 0.5 * tf.nn.sigmoid_cross_entropy_with_logits(
            is_impossible, outputs["null_logits"]
        )
    correct = tf.cast(
        (tf.argmax(start_logits, -1, tf.int32) == starts)
        & (tf.argmax(end_logits, -1, tf.int32) == ends),
        tf.float32,
    )
    return {
        "label_loss_sum": tf.reduce_sum(weights * losses),
        "label_correct_sum": tf.reduce_sum(weights * correct),
        "label_weight_sum": tf.reduce_sum(weights),
    }
