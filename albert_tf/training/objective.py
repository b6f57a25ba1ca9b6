"""What a run trains: the seam between the trainer and a task.

Trainer, evaluator, log and dry run know an `Objective` and nothing of the
task. Pretraining is one (`pretraining.Pretraining`); a fine-tuning task is
another, with its own records, heads, losses and metrics.

All losses are sums with weights: the trainer divides them by the weights of
the global batch, so that each label counts the same, whichever replica and
micro-batch it is part of.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from albert_tf.input.record_format import Batch, RecordFormat
from albert_tf.input.record_sets import RecordSet, TrainingData

Scalars = dict[str, tf.Tensor]


class InitialWeights(Protocol):
    """Weights of another model, which a new run starts from.

    Attributes:
        report: What is taken, as JSON, for the log.
    """

    @property
    def report(self) -> Mapping[str, Any]: ...

    def apply(self, variables: Mapping[str, tf.Variable]) -> None:
        """Assigns the weights to the variables of the run, by path."""
        ...

    def describe(self) -> list[str]:
        """Describes what is taken, one fact a line."""
        ...


class Objective(abc.ABC):
    """A task: its records, model, loss and metrics.

    Attributes:
        metric_names: The keys of `metrics`, `loss` among them.

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

    # Records.

    @abc.abstractmethod
    def find_training_data(self) -> TrainingData:
        """Finds the training records; touches no device.

        Raises:
            UserError: If they are missing or do not fit the settings.
        """

    @abc.abstractmethod
    def find_held_out(
        self, data: TrainingData | None = None
    ) -> RecordSet | None:
        """Finds the records for evaluation; None if there are none.

        Args:
            data: Training records, which the held-out records must fit.

        Raises:
            UserError: If they do not fit.
        """

    @abc.abstractmethod
    def record_format(self, records: RecordSet) -> RecordFormat:
        """Describes how records become batches."""

    @abc.abstractmethod
    def describe_records(self, records: RecordSet) -> Sequence[str]:
        """Describes training records, a line of the log each."""

    # Model.

    @abc.abstractmethod
    def make_model(self) -> keras.layers.Layer:
        """Makes and builds the model, in the current strategy's scope.

        Called as `model(batch, dropout=dropout, target=target)`, with a
        `Dropout` and a `ProgramTarget`, it returns the outputs that
        `sums` takes. The paths of its variables are those of checkpoints.
        """

    @abc.abstractmethod
    def initial_weights(self, data: TrainingData) -> InitialWeights | None:
        """Reads the weights that a new run starts from; None for random ones.

        Raises:
            UserError: If they do not fit the model.
        """

    @abc.abstractmethod
    def write_report(
        self, run_dir: str, initial: InitialWeights | None
    ) -> None:
        """Writes into the directory of a new run what it starts from."""

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
            float32 scalar: the micro-batch's part of the mean loss.
        """

    # Metrics.

    @abc.abstractmethod
    def metrics(self, sums: Mapping[str, Any]) -> Scalars:
        """Computes means, by `metric_names`, from sums over any batches."""

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, tf.Tensor]:
        """Selects what an evaluation collects of each example.

        Returns:
            Tensors `(batch, ...)` for `evaluate`; by default none.
        """
        del outputs, batch
        return {}

    def evaluate(
        self, sums: Mapping[str, float], predictions: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """Computes the metrics of an evaluation, `loss` among them.

        Args:
            sums: Over all held-out records.
            predictions: Of all held-out records, in their order.
        """
        del predictions
        return {n: float(value) for n, value in self.metrics(sums).items()}

    @abc.abstractmethod
    def describe(self, metrics: Mapping[str, float]) -> str:
        """Formats the metrics, without `loss`, for a line of progress."""

    @abc.abstractmethod
    def describe_evaluation(
        self, metrics: Mapping[str, float], records: RecordSet
    ) -> Sequence[str]:
        """Formats the metrics of an evaluation, a line of the log each."""

    # Cost.

    @abc.abstractmethod
    def num_parameters(self) -> int:
        """Number of trainable values."""

    @abc.abstractmethod
    def flops_per_step(self) -> int:
        """Floating-point operations of a step, of all replicas."""

    @abc.abstractmethod
    def memory_per_replica(self, num_replicas: int) -> dict[str, int]:
        """Estimated bytes that a step needs on a device, by purpose."""

    @abc.abstractmethod
    def chance_loss(self) -> float | None:
        """Loss of uniform predictions, in nats; None if it is not known."""
