"""The objective of fine-tuning, and the model that it starts from."""

import dataclasses
import functools
import math
import posixpath
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.config import FinetuningConfig, ModelConfig
from albert_tf.config.task import TaskHeadConfig
from albert_tf.errors import UserError, name_faults
from albert_tf.finetuning.features import FeatureFiles
from albert_tf.finetuning.kinds import KINDS
from albert_tf.finetuning.tasks import DEV, TRAIN
from albert_tf.input.record_format import Batch, RecordFormat
from albert_tf.input.record_sets import RecordSet
from albert_tf.interop import formats
from albert_tf.interop.weight_names import ModelWeights, list_weights
from albert_tf.io import shipped
from albert_tf.io.files import (
    open_existing,
    write_bytes,
    write_json,
)
from albert_tf.modeling.models import AlbertForTask
from albert_tf.records.features import TOKENIZER_FILE, check_values_match
from albert_tf.records.tokenization import Tokenizer
from albert_tf.runs.directory import (
    RECORDS_METADATA_FILE,
    has_checkpoints,
    load_config,
    load_tokenizer,
)
from albert_tf.training import cost, warm_start
from albert_tf.training.objective import Objective, Scalars

# Scores of the collected predictions of a split.
Score = Callable[[Mapping[str, np.ndarray]], dict[str, float]]


# --- the model that a run starts from ----------------------------------------


class BaseModel(NamedTuple):
    """Architecture, vocabulary and initial weights.

    Attributes:
        config: The architecture, with the dropout rates of the run.
        vocabulary: Path of the SentencePiece model of `tokenizer`.
        weights: Initial weights; None for random weights, or if the run
            resumes from a checkpoint.
        head: What a run of fine-tuning predicts; None for other models.
    """

    config: ModelConfig
    vocabulary: str
    tokenizer: Tokenizer
    weights: ModelWeights | None = None
    head: TaskHeadConfig | None = None


def find_base_model(config: FinetuningConfig) -> BaseModel:
    """Finds the model that a run resumes or starts from.

    1. If the run has a checkpoint: its architecture and vocabulary.
    2. With `init_checkpoint`: that model.
    3. With `from_scratch`: `albert_config_file`, with random weights.

    Raises:
        UserError: If none of the three cases applies, if the vocabulary is
            unknown or belongs to another model, or if the architecture
            differs from `albert_config_file`.
    """
    settings = config.initialization
    if has_checkpoints(config.training.output_dir):
        base = base_model_of_run(config.training.output_dir)
        return base._replace(config=_with_dropout(config, base.config))
    weights, lower_cases = None, None
    model = config.model
    vocabulary = shipped.find(settings.init_vocabulary, shipped.VOCABULARY)
    if settings.init_checkpoint:
        weights = formats.read_weights(settings.init_checkpoint)
        model, lower_cases = weights.config, weights.do_lower_case
        own = weights.vocabulary
        if not (vocabulary or own):
            raise UserError(
                f"{weights.source} must contain its vocabulary, "
                f"{TOKENIZER_FILE}",
                received="none",
                remedy="Pass the vocabulary of the model as --init_vocabulary.",
            )
        vocabulary = vocabulary or own
        if own and Tokenizer(vocabulary).sha256 != Tokenizer(own).sha256:
            raise UserError(
                "init_vocabulary must be the vocabulary of init_checkpoint",
                received=f"{vocabulary}, and {own}, which differ",
                remedy="Omit --init_vocabulary.",
            )
    elif not settings.from_scratch:
        raise UserError(
            "--init_checkpoint is required: without a pretrained model, "
            "fine-tuning starts from random weights",
            remedy="Give a pretrained model, or set --from_scratch.",
        )
    tokenizer = Tokenizer(vocabulary, lower_cases)
    check_values_match(
        vocabulary,
        {"vocab_size": tokenizer.vocab_size},
        {"vocab_size": model.vocab_size},
        other="the model",
        remedy="Choose another --init_vocabulary.",
    )
    if weights and config.data.max_seq_length > weights.max_seq_length:
        logging.warning(
            "%s was trained on %d tokens: fine-tuning on max_seq_length=%d "
            "also uses positions that were not trained",
            weights.source,
            weights.max_seq_length,
            config.data.max_seq_length,
        )
    model = _with_dropout(config, model)
    return BaseModel(model, vocabulary, tokenizer, weights)


def _with_dropout(config: FinetuningConfig, model: ModelConfig) -> ModelConfig:
    rate = config.training.dropout
    return dataclasses.replace(
        model, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate
    )


def base_model_of_run(run_dir: str) -> BaseModel:
    """The architecture and the vocabulary of a run of fine-tuning.

    Raises:
        UserError: If the directory holds no such run, or no vocabulary.
    """
    config = load_config(run_dir, FinetuningConfig)
    assert isinstance(config, FinetuningConfig)
    vocabulary = posixpath.join(run_dir, TOKENIZER_FILE)
    tokenizer = load_tokenizer(run_dir, config.model.vocab_size)
    return BaseModel(config.model, vocabulary, tokenizer, head=config.head)


def plan_start(
    config: FinetuningConfig, weights: ModelWeights
) -> warm_start.WarmStart:
    """Plans which weights a run takes over.

    The head is taken over only if the model was fine-tuned on a task with the
    same labels.
    """
    head, old = config.head, weights.head
    # The same weights score any number of choices.
    keeps_head = old is not None and head == dataclasses.replace(
        old, num_choices=head.num_choices
    )
    paths = [weight.path for weight in list_weights(config.model, head=head)]
    backbone = {weight.path for weight in list_weights(config.model)}
    sources = {
        path: path
        for path in paths
        if path in weights.values and (keeps_head or path in backbone)
    }
    report = warm_start.make_report(config, weights, sources, paths)
    new = report["initialized"]
    report |= {
        "initialized": [p for p in new if p not in weights.values],
        "replaced": [p for p in new if p in weights.values],
        "unused": sorted(set(weights.values) - set(paths)),
    }
    return warm_start.WarmStart(weights, sources, None, False, report)


# --- the objective -----------------------------------------------------------


class Finetuning(Objective):
    """A task of one of the kinds of `config.task.KINDS`.

    Args:
        config: Settings of the run, with model, head and lengths resolved.
        files: Features of "train" and, if the task has one, "dev".
        score: Scores predictions for "dev"; None without "dev".
        score_name: The score by which checkpoints are compared.
    """

    def __init__(
        self,
        config: FinetuningConfig,
        files: FeatureFiles,
        base: BaseModel,
        score: Score | None = None,
        score_name: str = "",
    ) -> None:
        self._config, self._head = config, config.head
        self._kind = KINDS[config.head.kind]
        self._files, self._base = files, base
        self._score, self._score_name = score, score_name
        self.num_sequences = config.head.num_choices
        self.metric_names = self._kind.metric_names

    def find_training_data(self) -> RecordSet:
        return self._files.records(TRAIN)

    def find_held_out(
        self, records: RecordSet | None = None
    ) -> RecordSet | None:
        found = self._files.records(DEV)
        return found if found.files else None

    def record_format(self, records: RecordSet) -> RecordFormat:
        return RecordFormat(self._kind.features(self._head))

    def describe_records(self, records: RecordSet) -> list[str]:
        line, labels = self._head.kind.replace("_", " "), self._head.labels
        if labels:
            line += f" into {len(labels)} classes: {name_faults(labels)}"
        return [line]

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
        self, records: RecordSet
    ) -> warm_start.WarmStart | None:
        weights = self._base.weights
        return plan_start(self._config, weights) if weights else None

    def write_report(
        self, run_dir: str, initial: warm_start.WarmStart | None
    ) -> None:
        """Writes the report, and the vocabulary with its metadata."""
        super().write_report(run_dir, initial)
        path = functools.partial(posixpath.join, run_dir)
        with open_existing(self._base.vocabulary, "rb") as vocabulary:
            write_bytes(path(TOKENIZER_FILE), vocabulary.read())
        metadata = self._base.tokenizer.describe()
        write_json(path(RECORDS_METADATA_FILE), metadata)

    def weights(self, batch: Batch) -> Scalars:
        return {"label": tf.reduce_sum(self._kind.weights(batch))}

    def sums(self, outputs: Any, batch: Batch) -> Scalars:
        return self._kind.sums(self._head, outputs, batch)

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
        return self._kind.predictions(self._head, outputs, batch)

    def evaluate(
        self, sums: Mapping[str, float], predictions: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        metrics = super().evaluate(sums, predictions)
        if self._score is not None:
            metrics |= self._score(predictions)
        return metrics

    def selection_loss(self, metrics: Mapping[str, float]) -> float:
        return -metrics.get(self._score_name, -metrics["loss"])

    def describe(self, metrics: Mapping[str, float]) -> str:
        if "accuracy" not in metrics:
            return f"error {math.sqrt(metrics['loss']):.3f}"
        return f"accuracy {metrics['accuracy']:.1%}"

    def describe_evaluation(
        self, metrics: Mapping[str, float], records: RecordSet
    ) -> list[str]:
        scores = [f"{name} {value:.4g}" for name, value in metrics.items()]
        return [f"{', '.join(scores)}, on {records.num_records} records"]

    def flops_per_step(self) -> int:
        data, model = self._config.data, self._config.model
        reads = 1 if self._head.has_pooler else data.max_seq_length
        head = 2 * model.hidden_size * reads * max(2, self._head.num_outputs)
        pooler = 2 * model.hidden_size**2 * self._head.has_pooler
        encoder = cost.encoder_flops(model, data.max_seq_length, reads)
        num_sequences = data.global_batch_size * self.num_sequences
        return 3 * num_sequences * (encoder + pooler + head)

    def chance_loss(self) -> float | None:
        length = self._config.data.max_seq_length
        return self._kind.chance_loss(self._head, length)
