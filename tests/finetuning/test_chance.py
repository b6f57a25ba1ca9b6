"""Detection of a loss that stays at the loss of constant predictions."""

import itertools
import math

import numpy as np
import pytest

from albert_tf.config import FinetuningConfig, TaskHeadConfig
from albert_tf.config.task import (
    FinetuningOptimizerConfig,
    FinetuningTrainingConfig,
)
from albert_tf.finetuning.features import constant_loss
from albert_tf.finetuning.objective import loss_at_chance


@pytest.mark.parametrize(
    ("ends", "loss", "is_reported"),
    [
        ([0, 5, 10, 15], 1.09, True),
        # No loop ends at step 10; the first one after it ends at 14.
        ([0, 5, 14, 19], 1.09, True),
        ([0, 5, 9], 1.09, False),
        ([0, 5, 10, 15], 1.0, False),
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
    events = [
        loss_at_chance(config, 1.0986, begin, end, loss)
        for begin, end in itertools.pairwise(ends)
    ]
    said = {"loss": loss, "constant_loss": 1.0986}
    assert list(filter(None, events)) == [said] * is_reported
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
