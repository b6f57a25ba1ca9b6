"""The programs of pretraining and fine-tuning pass TensorFlow's TPU bridge."""

import pytest
import tensorflow as tf

from albert_tf.finetuning.kinds import KINDS
from albert_tf.records.features import features_to_read
from albert_tf.training.pretraining import Pretraining
from tests.helpers import tiny_run, tpu_bridge
from tests.helpers.tiny_albert import HEADS
from tests.helpers.tiny_task import make_random_task


@pytest.fixture
def strategy(monkeypatch):
    return tpu_bridge.make_tpu_strategy(monkeypatch)


def assert_step_runs_on_tpu(program, state):
    tpu_bridge.assert_runs_on_tpu(program)
    assert program.num_updated_variables == len(state.variables())
    # The gradients, and two vectors: weights of the batch, and metrics.
    num_gradients = len(state.model.trainable_variables)
    assert program.num_sums_over_replicas == num_gradients + 2


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "mixed_bfloat16", "dropout_schedule": "0:0.0"},
        pytest.param(
            {
                "gradient_accumulation_steps": 2,
                "remat": True,
                "packing": "best_fit",
                "optimizer": "adamw",
            },
            marks=pytest.mark.slow,
        ),
    ],
)
def test_training_step_is_lowered_for_tpus(strategy, tmp_path, settings):
    config = tiny_run.make_config(tmp_path, tmp_path, **settings)
    features = features_to_read("static", config.data.packing)
    program, state = tpu_bridge.lower_training(
        strategy, config, Pretraining(config), features
    )
    assert_step_runs_on_tpu(program, state)
    tpu_bridge.assert_host_runs_ahead(program, strategy.num_replicas_in_sync)


def test_evaluation_is_lowered_for_tpus(strategy, tmp_path, tiny_records):
    config = tiny_run.make_config(tiny_records, tmp_path)
    objective = Pretraining(config)
    with strategy.scope():
        model = objective.make_model()
    program = tpu_bridge.lower_evaluation(
        strategy, config, objective, model, features_to_read("static")
    )
    tpu_bridge.assert_runs_on_tpu(program)
    assert program.num_updated_variables == 0
    # Sums of losses, correct predictions and weights.
    assert program.num_sums_over_replicas == 6


# Arrays that the evaluator gathers: logits of choices, which are classes; or
# starts and ends of the beam, each with its scores, and the logit of "no
# answer".
NUM_PREDICTIONS = {"multiple_choice": 1, "beam": 5}


@pytest.mark.slow
@pytest.mark.parametrize("kind", NUM_PREDICTIONS)
def test_fine_tuning_and_predictions_are_lowered_for_tpus(
    strategy, tmp_path, kind
):
    """With dropout. Multiple choice is in bfloat16, with micro-batches."""
    changes = {"classifier_dropout": 0.1}
    if kind == "multiple_choice":
        changes["precision"] = "mixed_bfloat16"
        changes["gradient_accumulation_steps"] = 3
    config, objective = make_random_task(HEADS[kind], tmp_path, **changes)
    features = KINDS[config.head.kind].features(config.head)
    program, state = tpu_bridge.lower_training(
        strategy, config, objective, features
    )
    assert_step_runs_on_tpu(program, state)

    program = tpu_bridge.lower_evaluation(
        strategy, config, objective, state.model, features
    )
    tpu_bridge.assert_runs_on_tpu(program)
    assert program.num_updated_variables == 0
    # The three sums of the task, and the gathered predictions, which the bridge
    # also lowers to sums.
    assert program.num_sums_over_replicas == 3 + NUM_PREDICTIONS[kind]


class WritesText(Pretraining):
    """An objective whose loss depends on an operation for CPUs only."""

    def loss(self, sums, weights):
        text = tf.strings.as_string(sums["mlm_loss_sum"])
        return super().loss(sums, weights) + tf.strings.to_number(text)


def test_bridge_refuses_operations_that_tpus_lack(strategy, tmp_path):
    config = tiny_run.make_config(tmp_path, tmp_path)
    with pytest.raises(Exception, match="AsString"):
        tpu_bridge.lower_training(
            strategy, config, WritesText(config), features_to_read("static")
        )
