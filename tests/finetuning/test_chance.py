"""A loss that stays where constant predictions have it."""

import math

import numpy as np
import pytest

from albert_tf.config import FinetuningConfig, TaskHeadConfig
from albert_tf.config.finetuning import (
    FinetuningOptimizerConfig,
    FinetuningTrainingConfig,
)
from albert_tf.finetuning.feature_files import constant_loss
from albert_tf.finetuning.objective import ChanceWatch


@pytest.mark.parametrize(
    ("step", "loss", "is_reported"),
    [
        (10, 1.09, True),
        (14, 1.09, True),  # the first loop after a tenth of the steps
        (9, 1.09, False),
        (10, 1.0, False),
    ],
)
def test_a_loss_at_chance_after_a_tenth_of_the_steps_is_a_warning(
    step, loss, is_reported, caplog
):
    events = []
    watch = ChanceWatch(
        FinetuningConfig(
            training=FinetuningTrainingConfig(num_train_steps=100),
            optimizer=FinetuningOptimizerConfig(num_warmup_steps=5),
        ),
        constant_loss=1.0986,
        log_event=lambda kind, **facts: events.append((kind, facts)),
    )
    watch.on_loop_end(5, {"loss": 1.09})
    watch.on_loop_end(step, {"loss": loss})
    watch.on_loop_end(step + 5 * is_reported, {"loss": 1.09})
    said = ("loss_at_chance", {"loss": 1.09, "constant_loss": 1.0986})
    assert events == [said] * is_reported
    assert ("THE LOSS IS AT CHANCE" in caplog.text) == is_reported


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
