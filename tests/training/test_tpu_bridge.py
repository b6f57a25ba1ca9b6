"""The programs of the trainer pass TensorFlow's TPU bridge."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.cluster.host import Host
from albert_tf.records.features import features_to_read
from albert_tf.training.evaluate import Evaluator
from albert_tf.training.pretraining import Pretraining
from tests.helpers import tiny_run, tpu_bridge


@pytest.fixture
def strategy(monkeypatch):
    return tpu_bridge.make_tpu_strategy(monkeypatch)


def lower_training(strategy, config, objective=None):
    """The step of a pretraining run, and its state."""
    return tpu_bridge.lower_training(
        strategy,
        config,
        objective or Pretraining(config),
        batches_of_zeros(strategy, config),
    )


def batches_of_zeros(strategy, config):
    features = features_to_read("static", config.data.packing)
    return tpu_bridge.batches_of_zeros(strategy, config, features)


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_accumulation_steps": 2, "remat": True},
        pytest.param(
            {
                "precision": "mixed_bfloat16",
                "dropout_schedule": "0:0.0",
            },
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"packing": "best_fit", "optimizer": "adamw"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_training_step_is_lowered_for_tpus(strategy, tmp_path, settings):
    config = tiny_run.make_config(tmp_path, tmp_path, **settings)
    program, state = lower_training(strategy, config)
    tpu_bridge.assert_runs_on_tpu(program)
    tpu_bridge.assert_host_runs_ahead(program, strategy.num_replicas_in_sync)
    assert program.num_updated_variables == len(state.variables())
    # The gradients, and two vectors: weights of the batch, and metrics.
    num_gradients = len(state.model.trainable_variables)
    assert program.num_sums_over_replicas == num_gradients + 2


def test_evaluation_is_lowered_for_tpus(strategy, tmp_path, tiny_records):
    config = tiny_run.make_config(tiny_records, tmp_path)
    objective = Pretraining(config)
    with strategy.scope():
        model = objective.make_model()
    evaluator = Evaluator(
        Host(strategy), model, objective, objective.find_held_out(), config
    )
    function = evaluator._evaluate_batch.get_concrete_function(
        next(batches_of_zeros(strategy, config))
    )
    program = tpu_bridge.lower(function, model.variables)
    tpu_bridge.assert_runs_on_tpu(program)
    assert program.num_updated_variables == 0
    # Sums of losses, correct predictions and weights.
    assert program.num_sums_over_replicas == 6


class WritesText(Pretraining):
    """An objective whose loss depends on an operation for CPUs only."""

    def loss(self, sums, weights):
        text = tf.strings.as_string(sums["mlm_loss_sum"])
        return super().loss(sums, weights) + tf.strings.to_number(text)


class CallsPython(Pretraining):
    """An objective whose loss depends on a Python function."""

    def loss(self, sums, weights):
        loss = super().loss(sums, weights)
        return loss + tf.numpy_function(np.square, [loss], tf.float32)


@pytest.mark.parametrize(
    ("objective", "reason"),
    [
        (WritesText, "AsString"),
        pytest.param(CallsPython, "PyFunc", marks=pytest.mark.slow),
    ],
)
def test_bridge_refuses_operations_that_tpus_lack(
    strategy, tmp_path, objective, reason
):
    config = tiny_run.make_config(tmp_path, tmp_path)
    with pytest.raises(Exception, match=reason):
        lower_training(strategy, config, objective(config))
