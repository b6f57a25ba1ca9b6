"""The objective of fine-tuning: a task in the form that the trainer uses."""

import math
import posixpath
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import FinetuningConfig
from albert_tf.config.task import (
    QUESTION_ANSWERING,
    REGRESSION,
    TaskHeadConfig,
)
from albert_tf.errors import name_faults
from albert_tf.finetuning.base_model import BaseModel, plan_start
from albert_tf.finetuning.features import FeatureFiles, task_features
from albert_tf.finetuning.tasks import DEV, TRAIN
from albert_tf.input.record_format import Batch, RecordFormat
from albert_tf.input.record_sets import Phase, RecordSet, TrainingData
from albert_tf.interop.weight_names import list_weights
from albert_tf.io.files import open_existing, write_bytes, write_json
from albert_tf.modeling.models import AlbertForTask
from albert_tf.records.features import TOKENIZER_FILE
from albert_tf.runs.directory import RECORDS_METADATA_FILE, has_checkpoints
from albert_tf.training import cost, warm_start
from albert_tf.training.objective import (
    InitialWeights,
    Objective,
    Scalars,
    weighted_sums,
)

# Scores of the collected predictions of a split.
Score = Callable[[Mapping[str, np.ndarray]], dict[str, float]]

# A loss of at least this fraction of the loss of constant predictions is at
# chance.
AT_CHANCE = 0.98


class Finetuning(Objective):
    """A classification, regression, multiple choice or span task.

    Args:
        config: Settings of the run, with model, head and lengths resolved.
        files: Features of "train" and, if the task has one, "dev".
        base: Initial weights and vocabulary.
        score: Scores predictions for "dev"; None without "dev".
        score_name: The score by which checkpoints are compared.
    """

    reads_lanes = False
    remedies: ClassVar = {
        "records": "Choose another --output_dir, where the features of the "
        "task are made again.",
        "held-out records": "Give a --dev_file or, with --tfds, a dataset with "
        "the split validation, to measure the score.",
    }

    def __init__(
        self,
        config: FinetuningConfig,
        files: FeatureFiles,
        base: BaseModel,
        score: Score | None = None,
        score_name: str = "",
    ) -> None:
        self._config = config
        self._head = config.head
        self._files = files
        self._base = base
        self._score = score
        self._score_name = score_name
        self.num_sequences = config.head.num_choices
        self.metric_names = ("loss", "accuracy")
        if config.head.kind == REGRESSION:
            self.metric_names = ("loss",)

    def find_training_data(self) -> TrainingData:
        return TrainingData((Phase(0, "", self._files.records(TRAIN)),))

    def find_held_out(
        self, data: TrainingData | None = None
    ) -> RecordSet | None:
        if DEV not in self._files.splits:
            return None
        return self._files.records(DEV)

    def record_format(self, records: RecordSet) -> RecordFormat:
        limits = {"input_ids": self._config.model.vocab_size, "segment_ids": 2}
        if self._head.num_classes:
            limits["label"] = self._head.num_classes
        return RecordFormat(
            task_features(self._head.kind, self._head.num_choices), limits
        )

    def describe_records(self, records: RecordSet) -> list[str]:
        labels = self._head.labels
        line = self._head.kind.replace("_", " ")
        if labels:
            line += f" into {len(labels)} classes: {name_faults(labels)}"
        loss = self._files.constant_loss[TRAIN]
        return [line, f"loss of constant predictions: {loss:.3f}"]

    def make_model(self) -> AlbertForTask:
        distribution = self._config.distribution
        model = AlbertForTask(
            self._config.model,
            self._head,
            self._config.training.classifier_dropout,
            dtype=distribution.precision,
            remat=distribution.remat,
        )
        model.build()
        return model

    def initial_weights(
        self, data: TrainingData
    ) -> warm_start.WarmStart | None:
        weights = self._base.weights
        if weights is None or has_checkpoints(self._config.training.output_dir):
            return None
        return plan_start(self._config, weights)

    def write_report(
        self, run_dir: str, initial: InitialWeights | None
    ) -> None:
        """Writes the report, and the vocabulary with its metadata."""
        assert initial is None or isinstance(initial, warm_start.WarmStart)
        warm_start.write_report(run_dir, initial)
        with open_existing(self._base.vocabulary, "rb") as vocabulary:
            write_bytes(
                posixpath.join(run_dir, TOKENIZER_FILE), vocabulary.read()
            )
        write_json(
            posixpath.join(run_dir, RECORDS_METADATA_FILE),
            self._base.describe_vocabulary(),
        )

    def weights(self, batch: Batch) -> Scalars:
        return {"label": tf.reduce_sum(batch["example_weight"])}

    def sums(self, outputs: Any, batch: Batch) -> Scalars:
        return task_sums(self._head, outputs, batch)

    def loss(self, sums: Scalars, weights: Scalars) -> tf.Tensor:
        return tf.math.divide_no_nan(sums["label_loss_sum"], weights["label"])

    def metrics(self, sums: Mapping[str, Any]) -> Scalars:
        quantities = {"loss": "loss", "accuracy": "correct"}
        return {
            name: tf.math.divide_no_nan(
                sums[f"label_{quantities[name]}_sum"], sums["label_weight_sum"]
            )
            for name in self.metric_names
        }

    def predictions(self, outputs: Any, batch: Batch) -> dict[str, tf.Tensor]:
        # The outputs of the beam suffice to find the answers.
        unused = ("start_logits", "end_logits") if self._head.is_beam else ()
        return {n: value for n, value in outputs.items() if n not in unused}

    def evaluate(
        self, sums: Mapping[str, float], predictions: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        metrics = super().evaluate(sums, predictions)
        if self._score is not None:
            metrics |= self._score(predictions)
        return metrics

    def cost(self, metrics: Mapping[str, float]) -> float:
        return -metrics.get(self._score_name, -metrics["loss"])

    def events_of_loop(
        self, began_at: int, step: int, metrics: Mapping[str, float]
    ) -> dict[str, dict[str, float]]:
        """Warns if the model has learned nothing after a tenth of the steps.

        It does so once, at the end of the first device loop after these steps
        and the warm-up, and not in a run that resumes later.
        """
        num_warmup_steps = self._config.optimizer.num_warmup_steps
        tenth = self._config.training.num_train_steps // 10
        constant, loss = self._files.constant_loss[TRAIN], metrics["loss"]
        is_due = began_at < max(tenth, num_warmup_steps) <= step
        if not is_due or loss < AT_CHANCE * constant:
            return {}
        logging.warning(
            "THE LOSS IS AT CHANCE at step %d: it is %.3f, and constant "
            "predictions have a loss of %.3f. Check --init_checkpoint; lower "
            "--learning_rate, use a larger --global_batch_size or a longer "
            "--num_warmup_steps",
            *(step, loss, constant),
        )
        return {"loss_at_chance": {"loss": loss, "constant_loss": constant}}

    def describe(self, metrics: Mapping[str, float]) -> str:
        if "accuracy" not in metrics:
            return f"error {math.sqrt(metrics['loss']):.3f}"
        return f"accuracy {metrics['accuracy']:.1%}"

    def describe_evaluation(
        self, metrics: Mapping[str, float], records: RecordSet
    ) -> list[str]:
        scores = [f"{name} {value:.4g}" for name, value in metrics.items()]
        return [f"{', '.join(scores)}, on {records.num_records} records"]

    def num_parameters(self) -> int:
        weights = list_weights(self._config.model, head=self._head)
        return sum(math.prod(weight.shape) for weight in weights)

    def flops_per_step(self) -> int:
        data, model = self._config.data, self._config.model
        reads = data.max_seq_length if self._is_span else 1
        head = 2 * model.hidden_size * reads * max(2, self._head.num_outputs)
        pooler = 2 * model.hidden_size**2 * self._head.has_pooler
        encoder = cost.encoder_flops(model, data.max_seq_length, reads)
        num_sequences = data.global_batch_size * self.num_sequences
        return 3 * num_sequences * (encoder + pooler + head)

    def chance_loss(self) -> float | None:
        if self._head.num_classes:
            return math.log(self._head.num_classes)
        if self._is_span and not self._head.is_beam:
            return math.log(self._config.data.max_seq_length)
        return None

    @property
    def _is_span(self) -> bool:
        return self._head.kind == QUESTION_ANSWERING


def task_sums(
    head: TaskHeadConfig,
    outputs: Mapping[str, tf.Tensor],
    batch: Mapping[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
    """Sums losses, correct predictions and weights over a batch.

    Args:
        head: What the model predicts.
        outputs: Outputs of `AlbertForTask`.
        batch: `example_weight`, float32, `(batch, 1)`, 0 for padding; and the
            other features of `features.task_features`, `(batch, 1)`.

    Returns:
        float32 scalars `label_loss_sum`, in nats, or of squared errors for
        regression; `label_weight_sum`; and, except for regression,
        `label_correct_sum`. The loss of a span is the mean of the losses of its
        start and end. The beam head adds half the loss of answerability, as in
        google-research/albert.
    """
    weights = batch["example_weight"][:, 0]
    if head.kind == QUESTION_ANSWERING:
        losses, correct = _spans(head, outputs, batch)
        return {
            "label_loss_sum": tf.reduce_sum(weights * losses),
            "label_correct_sum": tf.reduce_sum(weights * correct),
            "label_weight_sum": tf.reduce_sum(weights),
        }
    labels = batch["label"][:, 0]
    if head.kind == REGRESSION:
        squares = tf.square(outputs["logits"][:, 0] - labels)
        return {
            "label_loss_sum": tf.reduce_sum(weights * squares),
            "label_weight_sum": tf.reduce_sum(weights),
        }
    return weighted_sums("label", outputs["logits"], labels, weights)


def _spans(
    head: TaskHeadConfig,
    outputs: Mapping[str, tf.Tensor],
    batch: Mapping[str, tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor]:
    """The loss of each span, and 1 for a correct one, `(batch,)`."""
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
    is_correct = tf.argmax(start_logits, -1, tf.int32) == starts
    is_correct &= tf.argmax(end_logits, -1, tf.int32) == ends
    return losses, tf.cast(is_correct, tf.float32)
