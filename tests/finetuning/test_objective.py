"""Losses and their sums, and the detection of a loss at chance."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import FinetuningConfig, TaskHeadConfig
from albert_tf.config.task import (
    QUESTION_ANSWERING,
    FinetuningOptimizerConfig,
    FinetuningTrainingConfig,
)
from albert_tf.finetuning.features import FeatureFiles, constant_loss
from albert_tf.finetuning.objective import Finetuning, task_sums

# Two questions, of which the second has no answer, and one padding record.
# The first prediction is right; the second has the right start only.
START_LOGITS = np.array([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0], [9.0, 0.0, 0.0]])
END_LOGITS = np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 0.5], [9.0, 0.0, 0.0]])
STARTS, ENDS = np.array([1, 0, 1]), np.array([2, 0, 1])
IMPOSSIBLE = np.array([0, 1, 0])
NULL_LOGITS = np.array([-0.5, 2.0, 7.0])
WEIGHTS = np.array([1.0, 1.0, 0.0])


def cross_entropies(logits, labels):
    log_sums = np.log(np.exp(logits).sum(axis=1))
    return log_sums - logits[np.arange(len(labels)), labels]


@pytest.mark.parametrize("squad_head", ["plain", "beam"])
def test_the_sums_of_spans_are_those_of_the_formula(squad_head):
    """The loss of answerability counts half, as in google-research/albert."""
    sums = task_sums(
        TaskHeadConfig(QUESTION_ANSWERING, squad_head=squad_head),
        {
            "start_logits": tf.constant(START_LOGITS, tf.float32),
            "end_logits": tf.constant(END_LOGITS, tf.float32),
            "null_logits": tf.constant(NULL_LOGITS, tf.float32),
        },
        {
            "start_position": tf.constant(STARTS[:, None], tf.int32),
            "end_position": tf.constant(ENDS[:, None], tf.int32),
            "is_impossible": tf.constant(IMPOSSIBLE[:, None], tf.int32),
            "example_weight": tf.constant(WEIGHTS[:, None], tf.float32),
        },
    )
    losses = (
        cross_entropies(START_LOGITS, STARTS)
        + cross_entropies(END_LOGITS, ENDS)
    ) / 2
    if squad_head == "beam":
        probability = 1 / (1 + np.exp(-NULL_LOGITS))
        of_label = np.where(IMPOSSIBLE, probability, 1 - probability)
        losses -= np.log(of_label) / 2
    assert float(sums["label_loss_sum"]) == pytest.approx(
        (WEIGHTS * losses).sum(), rel=1e-6
    )
    assert float(sums["label_correct_sum"]) == 1.0
    assert float(sums["label_weight_sum"]) == 2.0


# --- a loss at chance --------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "loss", "is_reported"),
    [
        # No loop ends at step 10; the first one after it ends at 14.
        ([0, 5, 14, 19], 1.09, True),
        ([0, 5, 9], 1.09, False),
        ([0, 5, 14, 19], 1.0, False),
        # A run that resumes has warned before.
        ([10, 15], 1.09, False),
    ],
)
def test_a_loss_at_chance_after_a_tenth_of_the_steps_is_one_warning(
    ends, loss, is_reported, caplog
):
    config = FinetuningConfig(
        training=FinetuningTrainingConfig(num_train_steps=100),
        optimizer=FinetuningOptimizerConfig(num_warmup_steps=5),
    )
    files = FeatureFiles("", 8, {}, {}, {"train": 1.0986}, "")
    objective = Finetuning(config, files, base=None)
    events = [
        objective.events_of_loop(begin, end, {"loss": loss})
        for begin, end in itertools.pairwise(ends)
    ]
    event = {"loss_at_chance": {"loss": loss, "constant_loss": 1.0986}}
    assert list(filter(None, events)) == [event] * is_reported
    assert caplog.text.count("THE LOSS IS AT CHANCE") == is_reported


def test_a_loss_at_chance_is_that_of_constant_predictions():
    """Entropies by hand; three of four records have the same label."""
    entropy = 0.75 * math.log(4 / 3) + 0.25 * math.log(4)
    labels = [{"label": np.array([i > 0])} for i in range(4)]
    head = TaskHeadConfig("classification", ("no", "yes"))
    assert constant_loss(labels, head) == pytest.approx(entropy)
    spans = [
        {
            "start_position": np.array([3 * (i > 0)]),
            "end_position": np.array([4]),
            "is_impossible": np.array([i == 0]),
        }
        for i in range(4)
    ]
    for name, expected in (("plain", entropy / 2), ("beam", entropy)):
        head = TaskHeadConfig("question_answering", squad_head=name)
        assert constant_loss(spans, head) == pytest.approx(expected)
