"""Losses and metrics of pretraining, compared with NumPy and with the paper."""

import math

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import PretrainingConfig, TrainingConfig
from albert_tf.training.pretraining import Pretraining

VOCAB = 11


def example_batch():
    return {
        "input_mask": np.ones((2, 7), np.int32),
        "masked_lm_ids": np.array([[3, 7, 1, 0, 0], [2, 9, 4, 8, 0]]),
        "masked_lm_weights": np.array(
            [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], np.float32
        ),
        "next_sentence_labels": np.array([[0], [1]]),
    }


def random_outputs():
    """One masked token of each example is predicted, and a padding slot."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 5, VOCAB)).astype(np.float32)
    for example, slot in (0, 0), (1, 3), (1, 4):
        label = example_batch()["masked_lm_ids"][example, slot]
        logits[example, slot, label] = 10
    sentences = rng.normal(size=(2, 2)).astype(np.float32)
    return {"mlm_logits": logits, "sentence_logits": sentences}


def sums_of(outputs, batch):
    outputs = {name: tf.constant(value) for name, value in outputs.items()}
    batch = {
        name: tf.constant(
            value, tf.float32 if value.dtype.kind == "f" else tf.int32
        )
        for name, value in batch.items()
    }
    sums = Pretraining(PretrainingConfig()).sums(outputs, batch)
    return {k: float(v) for k, v in sums.items()}


def numpy_sums(name, logits, labels, weights):
    """Losses are minus the logarithm of the label's probability."""
    loss = correct = 0.0
    for place in np.ndindex(labels.shape):
        odds = np.exp(logits[place].astype(float))
        label = labels[place]
        loss -= weights[place] * math.log(odds[label] / odds.sum())
        correct += weights[place] * (odds.argmax() == label)
    return {
        f"{name}_loss_sum": loss,
        f"{name}_correct_sum": correct,
        f"{name}_weight_sum": weights.sum(),
    }


def padding_example():
    batch = example_batch()
    batch["input_mask"][1] = 0
    batch["masked_lm_weights"][1] = 0
    return batch


# Changes of outputs and batch; weights of the sentences.
SUMS = {
    "two examples": ({}, {}, np.ones(2)),
    "a padding example": ({}, padding_example(), np.array([1, 0])),
    # Rows of one and two examples.
    "packed rows": (
        {
            "sentence_logits": np.random.default_rng(1)
            .normal(size=(2, 2, 2))
            .astype(np.float32)
        },
        {
            "next_sentence_labels": np.array([[0, 1], [1, 0]]),
            "next_sentence_weights": np.array([[1, 0], [1, 1]], np.float32),
        },
        np.array([[1, 0], [1, 1]]),
    ),
}


@pytest.mark.parametrize("case", SUMS)
def test_sums_are_those_of_numpy(case):
    """Padding slots and padding examples do not count."""
    more_outputs, more, sentence_weights = SUMS[case]
    outputs, batch = random_outputs() | more_outputs, example_batch() | more
    labels = batch["next_sentence_labels"]
    expected = numpy_sums(
        "mlm",
        outputs["mlm_logits"],
        batch["masked_lm_ids"],
        batch["masked_lm_weights"],
    )
    assert sums_of({"mlm_logits": outputs["mlm_logits"]}, batch) == (
        pytest.approx(expected, rel=1e-6)
    )
    expected |= numpy_sums(
        "sentence",
        outputs["sentence_logits"],
        labels.reshape(sentence_weights.shape),
        sentence_weights,
    )
    assert sums_of(outputs, batch) == pytest.approx(expected, rel=1e-6)


def test_without_masked_tokens_the_loss_is_0_and_not_nan():
    sums = {
        "mlm_loss_sum": 0.0,
        "mlm_correct_sum": 0.0,
        "mlm_weight_sum": 0.0,
    }
    training = TrainingConfig(sentence_objective="none")
    objective = Pretraining(PretrainingConfig(training=training))
    means = objective.metrics(sums)
    assert float(means["masked_lm_loss"]) == 0.0
    assert tuple(means) == objective.metric_names
