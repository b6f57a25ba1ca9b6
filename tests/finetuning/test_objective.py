"""Losses and their sums."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import TaskHeadConfig
from albert_tf.config.task import QUESTION_ANSWERING
from albert_tf.finetuning.objective import task_sums
from tests.helpers.random_task import make_task
from tests.helpers.step_program import StepProgram

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


def test_each_text_is_to_find_its_own_second_text():
    """Among those of the batch, without a record that only fills it."""
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(4, 2, 5))
    units = embeddings / np.linalg.norm(embeddings, axis=2, keepdims=True)
    logits = units[:3, 0] @ units[:3, 1].T / 0.1
    sums = task_sums(
        TaskHeadConfig("embedding", num_choices=2, temperature=0.1),
        {"embeddings": tf.constant(embeddings, tf.float32)},
        {"example_weight": tf.constant([[1.0], [1.0], [1.0], [0.0]])},
    )
    losses = cross_entropies(logits, np.arange(3))
    assert float(sums["label_loss_sum"]) == pytest.approx(
        losses.sum(), rel=1e-5
    )
    right = (logits.argmax(axis=1) == np.arange(3)).sum()
    assert float(sums["label_correct_sum"]) == right < 3


@pytest.mark.slow
def test_wrong_second_texts_are_those_of_a_micro_batch(tmp_path):
    """Of each replica: two train as one does with two micro-batches, and not
    as one with all pairs in a micro-batch."""
    two = {"strategy": "mirrored", "num_logical_cpus": 2}
    parts = {"gradient_accumulation_steps": 2}
    losses = []
    for i, changes in enumerate((two, parts, {})):
        task = make_task(
            TaskHeadConfig("embedding", num_choices=2),
            tmp_path / str(i),
            **{"num_train_steps": 10, "global_batch_size": 8} | changes,
        )
        program = StepProgram(*task)
        losses.append([program.run().totals["loss"] for _ in range(10)])
    replicas, micro_batches, whole = np.array(losses, np.float32)
    np.testing.assert_allclose(replicas, micro_batches, rtol=1e-4)
    assert (whole > replicas + 0.1).all()


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
