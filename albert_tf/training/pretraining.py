"""The pretraining objective: masked language modeling and sentence order.

The names of the metrics are those of google-research/albert.
`sentence_order_loss` and `sentence_order_accuracy` are also the names for
next-sentence prediction.

Reference:
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 3.1.
"""

import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf.config import PretrainingConfig
from albert_tf.input import record_sets
from albert_tf.input.pipeline import SYNTHETIC_RECORDS
from albert_tf.input.record_format import (
    Batch,
    RecordFormat,
    pretraining_format,
)
from albert_tf.input.record_sets import RecordSet
from albert_tf.interop import formats
from albert_tf.modeling.models import AlbertPretrainer
from albert_tf.records.features import (
    SENTENCE_LABEL,
    SENTENCE_WEIGHTS,
    TOKEN_LABELS,
)
from albert_tf.training import cost, warm_start
from albert_tf.training.objective import (
    Objective,
    Scalars,
    weighted_sums,
)

# Development-set accuracies of ALBERT-base after 125,000 steps at batch 4096
# (Lan et al., 2020, Table 5), by sentence objective.
PAPER_REFERENCE = {
    "sop": {"masked_lm_accuracy": 0.540, "sentence_order_accuracy": 0.865},
    "nsp": {"masked_lm_accuracy": 0.545, "sentence_order_accuracy": 0.905},
    "none": {"masked_lm_accuracy": 0.549},
}


class Pretraining(Objective):
    """Masked language modeling, and a sentence objective unless it is none.

    With `token_label_loss_weight`, also the label of each token, masked or not
    ([Li et al., 2023](https://arxiv.org/abs/2301.08810)).
    """

    def __init__(self, config: PretrainingConfig) -> None:
        self._config = config
        self._sentence_objective = config.training.sentence_objective
        self.metric_names = ("loss", "masked_lm_loss", "masked_lm_accuracy")
        if self._sentence_objective != "none":
            self.metric_names += (
                "sentence_order_loss",
                "sentence_order_accuracy",
            )
        self._num_token_labels = config.num_token_labels
        self._token_label_weight = config.training.token_label_loss_weight
        if self._num_token_labels:
            self.metric_names += ("token_label_loss", "token_label_accuracy")

    def find_training_data(self) -> RecordSet:
        if self._config.data.synthetic_input:
            return SYNTHETIC_RECORDS
        records = record_sets.find_training_data(self._config)
        warning = self._config.data.describe_missing_predictions()
        if warning and records.masking == "dynamic":
            logging.warning("%s", warning)
        return records

    def find_held_out(
        self, records: RecordSet | None = None
    ) -> RecordSet | None:
        if not self._config.data.eval_input_file:
            return None
        held_out = record_sets.find_held_out(self._config)
        if records is not None:
            record_sets.check_held_out(records, held_out, self._config.data)
        return held_out

    def record_format(self, records: RecordSet) -> RecordFormat:
        has_labels = self._num_token_labels > 0
        return pretraining_format(records, self._config.data, has_labels)

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
            num_token_labels=self._num_token_labels,
        )
        model.build()
        return model

    def initial_weights(
        self, records: RecordSet
    ) -> warm_start.WarmStart | None:
        path = self._config.initialization.init_checkpoint
        if not path:
            return None
        weights = formats.read_weights(path)
        return warm_start.plan(self._config, records, weights)

    def weights(self, batch: Batch) -> Scalars:
        weights = {
            "mlm": tf.reduce_sum(batch["masked_lm_weights"]),
            "sentence": tf.reduce_sum(example_weights(batch)),
        }
        if self._num_token_labels:
            weights["token_label"] = tf.reduce_sum(token_label_weights(batch))
        return weights

    def sums(self, outputs: Mapping[str, tf.Tensor], batch: Batch) -> Scalars:
        """Sums losses, correct predictions and weights over a batch.

        Args:
            outputs: Of `AlbertPretrainer`: `mlm_logits`, float32, `(batch,
                predictions, vocab_size)`, and, with a sentence head,
                `sentence_logits`, float32, `(batch, 2)`, or `(batch, examples,
                2)` for packed batches. With token labels,
                `token_label_logits`, float32, `(batch, length, labels)`.
            batch: `masked_lm_ids`, int32, and `masked_lm_weights`, float32,
                both `(batch, predictions)`; a slot of weight 0 is padding.
                `next_sentence_labels`, int32, `(batch, 1)`. `input_mask`,
                int32, `(batch, length)`; an example whose mask begins with 0
                is padding. Packed batches have `next_sentence_labels` of
                `(batch, examples)`, and `next_sentence_weights`, float32, of
                the same shape: 1 for an example with a label, or 0.

        Returns:
            float32 scalars `mlm_loss_sum`, `mlm_correct_sum`,
            `mlm_weight_sum` and, with a sentence head, `sentence_loss_sum`,
            `sentence_correct_sum`, `sentence_weight_sum`; and the same of
            `token_label`. Losses are in nats.
        """
        sums = weighted_sums(
            "mlm",
            outputs["mlm_logits"],
            batch["masked_lm_ids"],
            batch["masked_lm_weights"],
        )
        if "sentence_logits" in outputs:
            labels = batch[SENTENCE_LABEL]
            sums |= weighted_sums(
                "sentence",
                outputs["sentence_logits"],
                labels if SENTENCE_WEIGHTS in batch else labels[:, 0],
                example_weights(batch),
            )
        if self._num_token_labels:
            sums |= weighted_sums(
                "token_label",
                outputs["token_label_logits"],
                batch[TOKEN_LABELS],
                token_label_weights(batch),
            )
        return sums

    def loss(self, sums: Scalars, weights: Scalars) -> tf.Tensor:
        loss = tf.math.divide_no_nan(sums["mlm_loss_sum"], weights["mlm"])
        if "sentence_loss_sum" in sums:
            loss += tf.math.divide_no_nan(
                sums["sentence_loss_sum"], weights["sentence"]
            )
        if "token_label_loss_sum" in sums:
            loss += self._token_label_weight * tf.math.divide_no_nan(
                sums["token_label_loss_sum"], weights["token_label"]
            )
        return loss

    def metrics(self, sums: Mapping[str, Any]) -> Scalars:
        """The `metric_names`: losses in nats, accuracies; float32 scalars.

        `loss` is the sum of the losses, with their weights.
        """

        def mean(task: str, quantity: str) -> tf.Tensor:
            return tf.math.divide_no_nan(
                sums[f"{task}_{quantity}_sum"], sums[f"{task}_weight_sum"]
            )

        masked_lm_loss = mean("mlm", "loss")
        result = {
            "loss": masked_lm_loss,
            "masked_lm_loss": masked_lm_loss,
            "masked_lm_accuracy": mean("mlm", "correct"),
        }
        if "sentence_weight_sum" in sums:
            sentence_loss = mean("sentence", "loss")
            result |= {
                "loss": masked_lm_loss + sentence_loss,
                "sentence_order_loss": sentence_loss,
                "sentence_order_accuracy": mean("sentence", "correct"),
            }
        if "token_label_weight_sum" in sums:
            label_loss = mean("token_label", "loss")
            result |= {
                "loss": result["loss"] + self._token_label_weight * label_loss,
                "token_label_loss": label_loss,
                "token_label_accuracy": mean("token_label", "correct"),
            }
        return result

    def describe(self, values: Mapping[str, float]) -> str:
        return describe(values, self._sentence_objective)

    def describe_evaluation(
        self, values: Mapping[str, float], records: RecordSet
    ) -> list[str]:
        task = self._config.training.held_out_objective()
        lines = [describe(values, task)]
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

    def flops_per_step(self) -> int:
        return cost.flops_per_step(
            self._config.model,
            self._config.data,
            self._sentence_objective,
            self._num_token_labels,
        )

    def chance_loss(self) -> float:
        loss = math.log(self._config.model.vocab_size)
        if self._sentence_objective != "none":
            loss += math.log(2)
        if self._num_token_labels:
            loss += self._token_label_weight * math.log(self._num_token_labels)
        return loss


def example_weights(batch: Batch) -> tf.Tensor:
    """float32, `(batch,)`, packed `(batch, examples)`: 0 for padding, or 1."""
    if SENTENCE_WEIGHTS in batch:
        return batch[SENTENCE_WEIGHTS]
    return tf.cast(batch["input_mask"][:, 0], tf.float32)


def token_label_weights(batch: Batch) -> tf.Tensor:
    """float32, `(batch, length)`: 1 for a token with a label, 0 for others."""
    return tf.cast(batch[TOKEN_LABELS] > 0, tf.float32)


def describe(values: Mapping[str, float], sentence_objective: str) -> str:
    """Formats metrics as one line of text."""
    parts = [
        f"mlm {values['masked_lm_loss']:.3f} "
        f"({values['masked_lm_accuracy']:.1%})"
    ]
    if "sentence_order_loss" in values:
        parts.append(
            f"{sentence_objective} {values['sentence_order_loss']:.3f} "
            f"({values['sentence_order_accuracy']:.1%})"
        )
    if "token_label_loss" in values:
        parts.append(
            f"token label {values['token_label_loss']:.3f} "
            f"({values['token_label_accuracy']:.1%})"
        )
    return ", ".join(parts)
