"""The interface between the trainer and a task.

Trainer, evaluator, log and dry run know the task only as an `Objective`.
`pretraining.Pretraining` and `finetuning.objective.Finetuning` implement it,
with their own records, heads, losses and metrics.

An objective returns sums of losses, not means. The trainer adds up the weights
of the global batch, and the objective divides the sums of each micro-batch by
these weights. So each label counts the same in every replica and micro-batch.
"""

import abc
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from albert_tf.input.record_format import Batch, RecordFormat
from albert_tf.input.record_sets import RecordSet
from albert_tf.io.files import write_json
from albert_tf.training.warm_start import REPORT_FILE, WarmStart

Scalars = dict[str, tf.Tensor]


def weighted_sums(
    name: str, logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
) -> Scalars:
    """Sums the cross-entropy and the correct predictions of a classifier.

    Args:
        name: Prefix of the keys returned.
        logits: float32, `(..., classes)`.
        labels: int32, `(...)`, as `weights`, which are float32.

    Returns:
        float32 scalars `NAME_loss_sum`, in nats, `NAME_correct_sum`,
        `NAME_weight_sum`.
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    correct = correctness(logits, labels)
    return {
        f"{name}_loss_sum": tf.reduce_sum(weights * losses),
        f"{name}_correct_sum": tf.reduce_sum(weights * correct),
        f"{name}_weight_sum": tf.reduce_sum(weights),
    }


def correctness(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """1 for a right prediction, 0 for a wrong one, 1/n for one of n equal ones.

    So a model that cannot tell classes apart has the accuracy of chance.

    Args:
        logits: float32, `(..., classes)`.
        labels: int32, `(...)`.

    Returns:
        float32, `(...)`, without gradient. 0 if the logits are NaN.
    """
    # Not argmax: on a TPU, it reads the logits once more, while the softmax of
    # the losses needs their maximum anyway.
    logits = tf.stop_gradient(logits)
    largest = tf.reduce_max(logits, axis=-1, keepdims=True)
    is_largest = tf.cast(logits >= largest, tf.float32)
    of_labels = tf.gather(
        is_largest, labels, axis=-1, batch_dims=labels.shape.rank
    )
    return tf.math.divide_no_nan(of_labels, tf.reduce_sum(is_largest, axis=-1))


class Objective(abc.ABC):
    """A task: its records, model, loss and metrics.

    Attributes:
        metric_names: The keys of `metrics`, `loss` among them.
        num_sequences: Number of sequences of `max_seq_length` tokens in an
            example.

    Example:
        >>> from albert_tf.config import PretrainingConfig
        >>> from albert_tf.training.pretraining import Pretraining
        >>> class MaskedTokensOnly(Pretraining):
        ...     def loss(self, sums, weights):
        ...         return sums["mlm_loss_sum"] / weights["mlm"]
        >>> objective = MaskedTokensOnly(PretrainingConfig())
        >>> objective.loss({"mlm_loss_sum": 6.0}, {"mlm": 4.0})
        1.5
    """

    metric_names: tuple[str, ...]
    num_sequences: int = 1

    # Records.

    @abc.abstractmethod
    def find_training_data(self) -> RecordSet:
        """Finds the training records; touches no device.

        Raises:
            UserError: If they are missing or do not fit the settings.
        """

    @abc.abstractmethod
    def find_held_out(
        self, records: RecordSet | None = None
    ) -> RecordSet | None:
        """Finds the records for evaluation; None if there are none.

        Raises:
            UserError: If they do not fit, or not the training records.
        """

    @abc.abstractmethod
    def record_format(self, records: RecordSet) -> RecordFormat:
        """Describes how records become batches."""

    @abc.abstractmethod
    def describe_records(self, records: RecordSet) -> Sequence[str]:
        """Describes training records in lines for the log."""

    # Model.

    @abc.abstractmethod
    def make_model(self) -> keras.layers.Layer:
        """Makes and builds the model, in the current strategy's scope.

        Called as `model(batch, dropout=dropout, target=target)`, with a
        `Dropout` and a `ProgramTarget`, it returns the outputs that
        `sums` takes. The paths of its variables are those of checkpoints.
        """

    @abc.abstractmethod
    def initial_weights(self, records: RecordSet) -> WarmStart | None:
        """Reads the weights that a new run starts from; None for random ones.

        Raises:
            UserError: If they do not fit the model.
        """

    def write_report(self, run_dir: str, initial: WarmStart | None) -> None:
        """Writes a report on the initial weights into a new run's directory."""
        if initial is not None:
            write_json(posixpath.join(run_dir, REPORT_FILE), initial.report)

    # Loss.

    @abc.abstractmethod
    def weights(self, batch: Batch) -> Scalars:
        """Sums the weights of a batch: float32 scalars, one per loss."""

    @abc.abstractmethod
    def sums(self, outputs: Any, batch: Batch) -> Scalars:
        """Sums losses, correct answers and weights over a batch.

        Returns:
            float32 scalars; the trainer adds them up over micro-batches,
            replicas and, in an evaluation, batches.
        """

    @abc.abstractmethod
    def loss(self, sums: Scalars, weights: Scalars) -> tf.Tensor:
        """Computes the loss to differentiate.

        Args:
            sums: Of a micro-batch.
            weights: Of the global batch.

        Returns:
            float32 scalar. These scalars of all micro-batches add up to the
            mean loss of the global batch.
        """

    # Metrics.

    @abc.abstractmethod
    def metrics(self, sums: Mapping[str, Any]) -> Scalars:
        """Computes the means named by `metric_names` from sums over batches."""

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, tf.Tensor]:
        """Tensors `(batch, ...)` that an evaluation collects, by name."""
        del outputs, batch
        return {}

    def evaluate(
        self, sums: Mapping[str, float], predictions: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """Computes the metrics of an evaluation, `loss` among them.

        Args:
            sums: The `sums` of all held-out records.
            predictions: The `predictions` of all held-out records, in order.
        """
        del predictions
        return {n: float(value) for n, value in self.metrics(sums).items()}

    def selection_loss(self, metrics: Mapping[str, float]) -> float:
        """What selects the best checkpoint: the lower, the better.

        Args:
            metrics: The result of `evaluate`.
        """
        return metrics["loss"]

    @abc.abstractmethod
    def describe(self, metrics: Mapping[str, float]) -> str:
        """Formats the metrics, without `loss`, for a line of progress."""

    @abc.abstractmethod
    def describe_evaluation(
        self, metrics: Mapping[str, float], records: RecordSet
    ) -> Sequence[str]:
        """Formats the metrics of an evaluation in lines for the log."""

    # Cost.

    @abc.abstractmethod
    def flops_per_step(self) -> int:
        """Floating-point operations of a step, of all replicas."""

    @abc.abstractmethod
    def chance_loss(self) -> float | None:
        """Loss of uniform predictions, in nats; None if it is not known."""
