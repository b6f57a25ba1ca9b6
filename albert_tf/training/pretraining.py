"""The pretraining objective: masked language modeling and sentence order.

Reference:
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 3.1.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf
from absl import logging

from albert_tf.config import PretrainingConfig
from albert_tf.input import record_sets, synthetic
from albert_tf.input.held_out import check_held_out
from albert_tf.input.record_format import (
    Batch,
    RecordFormat,
    pretraining_format,
)
from albert_tf.input.record_sets import RecordSet, TrainingData
from albert_tf.modeling.pretrainer import AlbertPretrainer
from albert_tf.training import cost, losses, metrics, warm_start
from albert_tf.training.objective import InitialWeights, Objective, Scalars


class Pretraining(Objective):
    """Masked language modeling, and a sentence objective unless it is "none".

    Example:
        >>> from albert_tf.config import PretrainingConfig
        >>> Pretraining(PretrainingConfig()).metric_names[:2]
        ('loss', 'masked_lm_loss')
    """

    remedies: ClassVar = {
        "records": "Build them again with python -m data_prep.build_tfrecords "
        "--overwrite.",
        "held-out records": "Build records with --holdout_fraction, and give "
        "their eval/ as --eval_input_file.",
    }

    def __init__(self, config: PretrainingConfig) -> None:
        self._config = config
        self._sentence_objective = config.training.sentence_objective
        self.metric_names = metrics.names(self._sentence_objective)
        self.reads_lanes = not config.data.synthetic_input

    def find_training_data(self) -> TrainingData:
        if self._config.data.synthetic_input:
            phase = record_sets.Phase(0, "", synthetic.RECORDS)
            return TrainingData((phase,))
        data = record_sets.find_training_data(self._config)
        warning = self._config.data.describe_missing_predictions()
        if warning and any(p.records.masking == "dynamic" for p in data.phases):
            logging.warning("%s", warning)
        return data

    def find_held_out(
        self, data: TrainingData | None = None
    ) -> RecordSet | None:
        if not self._config.data.eval_input_file:
            return None
        held_out = record_sets.find_held_out(self._config)
        for phase in data.phases if data else ():
            check_held_out(phase.records, held_out)
        return held_out

    def record_format(self, records: RecordSet) -> RecordFormat:
        return pretraining_format(
            records, self._config.data, self._config.model.vocab_size
        )

    def describe_records(self, records: RecordSet) -> list[str]:
        lines = [f"{records.masking} masking"]
        if records.packing != "none":
            lines[0] += (
                f", packed rows of {records.examples_per_row:.2f} examples"
            )
        if records.useful_share is not None:
            lines.append(f"{records.useful_share:.1%} of the positions filled")
        if records.metadata is not None:
            lines.append(
                "unigram entropy of the corpus: "
                f"{records.metadata.unigram_entropy_nats:.3f} nats, the "
                "masked-LM loss if only token frequencies are known"
            )
        return lines

    def make_model(self) -> AlbertPretrainer:
        distribution = self._config.distribution
        model = AlbertPretrainer(
            self._config.model,
            self._sentence_objective,
            dtype=distribution.precision,
            remat=distribution.remat,
        )
        model.build()
        return model

    def initial_weights(
        self, data: TrainingData
    ) -> warm_start.WarmStart | None:
        return warm_start.read(self._config, data)

    def write_report(
        self, run_dir: str, initial: InitialWeights | None
    ) -> None:
        assert initial is None or isinstance(initial, warm_start.WarmStart)
        warm_start.write_report(run_dir, initial)

    def weights(self, batch: Batch) -> Scalars:
        return {
            "mlm": tf.reduce_sum(batch["masked_lm_weights"]),
            "sentence": tf.reduce_sum(losses.example_weights(batch)),
        }

    def sums(self, outputs: Any, batch: Batch) -> Scalars:
        return losses.pretraining_sums(outputs, batch)

    def loss(self, sums: Scalars, weights: Scalars) -> tf.Tensor:
        loss = tf.math.divide_no_nan(sums["mlm_loss_sum"], weights["mlm"])
        if "sentence_loss_sum" in sums:
            loss += tf.math.divide_no_nan(
                sums["sentence_loss_sum"], weights["sentence"]
            )
        return loss

    def metrics(self, sums: Mapping[str, Any]) -> Scalars:
        return metrics.means(sums)

    def describe(self, values: Mapping[str, float]) -> str:
        return metrics.describe(values, self._sentence_objective)

    def describe_evaluation(
        self, values: Mapping[str, float], records: RecordSet
    ) -> list[str]:
        task = self._config.training.held_out_objective()
        reference = metrics.describe_reference(self._sentence_objective, task)
        lines = [f"{metrics.describe(values, task)}; {reference}"]
        if task != self._sentence_objective:
            lines.append(
                "model trained with sentence_objective="
                f"{self._sentence_objective}, evaluated on {task} records"
            )
        if records.metadata is not None:
            lines.append(
                f"held-out mlm loss {values['masked_lm_loss']:.3f} nats; "
                "unigram entropy of the corpus "
                f"{records.metadata.unigram_entropy_nats:.3f} nats"
            )
        return lines

    def num_parameters(self) -> int:
        return cost.num_parameters(self._config.model, self._sentence_objective)

    def flops_per_step(self) -> int:
        return cost.flops_per_step(
            self._config.model, self._config.data, self._sentence_objective
        )

    def memory_per_replica(self, num_replicas: int) -> dict[str, int]:
        config = self._config
        return cost.estimate_memory(
            config,
            num_replicas,
            self.num_parameters(),
            num_logits=cost.num_predictions(config.data)
            * config.model.vocab_size,
        )

    def chance_loss(self) -> float:
        loss = math.log(self._config.model.vocab_size)
        if self._sentence_objective != "none":
            loss += math.log(2)
        return loss
