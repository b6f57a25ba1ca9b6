"""Losses and their sums."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import TaskHeadConfig
from albert_tf.config.task import QUESTION_ANSWERING
from albert_tf.finetuning.kinds import KINDS

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
    head = TaskHeadConfig(QUESTION_ANSWERING, squad_head=squad_head)
    sums = KINDS[head.kind].sums(
        head,
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


@pytest.mark.parametrize(
    ("head", "outputs", "labels", "expected"),
    [
        (
            TaskHeadConfig("classification", ("no", "yes", "maybe")),
            {"logits": np.zeros((1, 3))},
            {"label": [[1]]},
            1 / 3,
        ),
        (
            TaskHeadConfig("multiple_choice", num_choices=4),
            {"logits": np.zeros((1, 4))},
            {"label": [[0]]},
            1 / 4,
        ),
        (
            TaskHeadConfig("multi_label_classification", ("joy", "fear")),
            {"logits": np.array([[0.0, 3.0]])},
            {"labels": np.float32([[0, 1]])},
            1 / 2,
        ),
        (
            TaskHeadConfig(QUESTION_ANSWERING),
            {
                "start_logits": np.zeros((1, 5)),
                "end_logits": np.array([[0.0, 0, 2, 2, 0]]),
            },
            {"start_position": [[0]], "end_position": [[2]]},
            1 / 10,
        ),
    ],
)
def test_a_model_that_cannot_tell_is_right_by_chance(
    head, outputs, labels, expected
):
    sums = KINDS[head.kind].sums(
        head,
        {name: tf.constant(v, tf.float32) for name, v in outputs.items()},
        {"example_weight": tf.ones((1, 1))}
        | {name: tf.constant(values) for name, values in labels.items()},
    )
    assert float(sums["label_correct_sum"]) == pytest.approx(expected)
