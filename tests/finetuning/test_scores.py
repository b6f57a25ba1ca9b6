import dataclasses
import math

import numpy as np
import pytest

from albert_tf.config.task import TaskConfig
from albert_tf.finetuning.scores import score
from albert_tf.finetuning.tasks import TASKS, find_task

LABELS = np.array([1, 1, 1, 0, 0, 0, 0, 1])
PREDICTIONS = np.array([1, 1, 0, 0, 0, 1, 0, 0])
# 2 true and 1 false positives, 3 true and 2 false negatives.


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accuracy", 5 / 8),
        ("f1", 2 * 2 / (2 * 2 + 1 + 2)),
        ("f1_macro", (4 / 7 + 6 / 9) / 2),
        ("matthews", (2 * 3 - 1 * 2) / math.sqrt(3 * 4 * 4 * 5)),
    ],
)
def test_scores_of_classes_equal_their_definitions(name, expected):
    task = dataclasses.replace(TASKS["mrpc"], metrics=(name,))
    scores = score(task, LABELS, PREDICTIONS)
    assert scores == {name: pytest.approx(expected, abs=1e-12), "total": 8}


def test_correlations_equal_their_definitions():
    labels = np.array([0.0, 1, 2, 3, 5])
    predictions = np.array([1.0, 0, 2, 9, 4])
    scores = score(TASKS["stsb"], labels, predictions)
    x, y = labels - labels.mean(), predictions - predictions.mean()
    pearson = (x @ y) / math.sqrt((x @ x) * (y @ y))
    assert scores["pearson"] == pytest.approx(pearson, abs=1e-12)
    # Ranks of the predictions: 2, 1, 3, 5, 4.
    spearman = 1 - 6 * (1 + 1 + 0 + 1 + 1) / (5 * 24)
    assert scores["spearman"] == pytest.approx(spearman, abs=1e-12)


def test_constant_predictions_score_0():
    """JSON has no NaN, and a run must go on."""
    constant = np.ones(8)
    assert score(TASKS["stsb"], LABELS, constant)["pearson"] == 0
    assert score(TASKS["stsb"], LABELS, constant)["spearman"] == 0
    assert score(TASKS["cola"], LABELS, constant)["matthews"] == 0


def test_every_task_has_scores():
    own = TaskConfig(task="regression")
    for task in (*TASKS.values(), find_task(own)):
        if task.kind != "question_answering":
            assert score(task, LABELS, PREDICTIONS)[task.metrics[0]] < 1
