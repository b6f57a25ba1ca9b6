"""The programs of the trainer pass TensorFlow's TPU bridge."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.training import schedules
from albert_tf.training.evaluate import Evaluator
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train_step import (
    StepSettings,
    make_state,
    make_train_steps,
    metric_names,
)
from tests.helpers import tiny_run, tpu_bridge
from tpu.replica_program import batch_features


@pytest.fixture
def strategy(monkeypatch):
    return tpu_bridge.make_tpu_strategy(monkeypatch)


def lower_training(strategy, config, objective=None):
    """The step of a run, as the program of a core, and its state."""
    objective = objective or Pretraining(config)
    with strategy.scope():
        state = make_state(config, objective)
        train_steps = make_train_steps(strategy, state, config)
    totals = {
        name: tf.TensorSpec([], tf.float32)
        for name in metric_names(config, objective)
    }
    function = train_steps.get_concrete_function(
        batches_of_zeros(strategy, config),
        totals,
        tf.TensorSpec([], tf.int32),
        StepSettings(schedules.dropout_rates(0, config)),
    )
    variables = state.variables().values()
    return tpu_bridge.lower(function, variables), state


def batches_of_zeros(strategy, config):
    """A distributed iterator over batches as the trainer reads them."""
    size = config.data.global_batch_size // strategy.num_replicas_in_sync
    batch = {
        feature.name: np.zeros(
            [size, feature.length(config.data)],
            np.int32 if feature.dtype == "int64" else np.float32,
        )
        for feature in batch_features(config.data)
    }
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    return iter(
        strategy.distribute_datasets_from_function(lambda context: dataset)
    )


def assert_runs_on_tpu(program):
    assert program.tensorflow_operations == []
    assert program.dynamic_shapes == []


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_accumulation_steps": 2, "remat": True},
        pytest.param(
            {"precision": "mixed_bfloat16", "dropout_schedule": "0:0.0"},
            marks=pytest.mark.slow,
        ),
        {"packing": "best_fit", "optimizer": "adamw"},
    ],
)
def test_training_step_is_lowered_for_tpus(strategy, tmp_path, settings):
    config = tiny_run.make_config(tmp_path, tmp_path, **settings)
    program, state = lower_training(strategy, config)
    assert_runs_on_tpu(program)
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
        strategy, model, objective, objective.find_held_out(), config
    )
    function = evaluator._evaluate_batch.get_concrete_function(
        next(batches_of_zeros(strategy, config))
    )
    program = tpu_bridge.lower(function, model.variables)
    assert_runs_on_tpu(program)
    assert program.num_updated_variables == 0
    # Six sums of losses, answers and weights, and the stop flag.
    assert program.num_sums_over_replicas == 7


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
