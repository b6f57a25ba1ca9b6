"""The programs of fine-tuning pass TensorFlow's TPU bridge."""

import pytest

from albert_tf.cluster.host import Host
from albert_tf.finetuning.kinds import KINDS
from albert_tf.training.evaluate import Evaluator
from tests.helpers import tpu_bridge
from tests.helpers.random_task import make_task
from tests.helpers.tiny_albert import HEADS

# Arrays that the evaluator gathers: logits of choices, which are classes; or
# starts and ends of the beam, each with its scores, and the logit of "no
# answer".
NUM_PREDICTIONS = {"multiple_choice": 1, "beam": 5}


@pytest.fixture
def strategy(monkeypatch):
    return tpu_bridge.make_tpu_strategy(monkeypatch)


def batches_of(strategy, config):
    features = KINDS[config.head.kind].features(config.head)
    return tpu_bridge.batches_of_zeros(strategy, config, features)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NUM_PREDICTIONS)
def test_steps_and_predictions_are_lowered_for_tpus(strategy, tmp_path, kind):
    """With dropout. Multiple choice is in bfloat16, with micro-batches."""
    changes = {"classifier_dropout": 0.1}
    if kind == "multiple_choice":
        changes["precision"] = "mixed_bfloat16"
        changes["gradient_accumulation_steps"] = 3
    config, objective = make_task(HEADS[kind], tmp_path, **changes)

    program, state = tpu_bridge.lower_training(
        strategy, config, objective, batches_of(strategy, config)
    )

    tpu_bridge.assert_runs_on_tpu(program)
    assert program.num_updated_variables == len(state.variables())
    num_gradients = len(state.model.trainable_variables)
    assert program.num_sums_over_replicas == num_gradients + 2

    evaluator = Evaluator(
        Host(strategy),
        state.model,
        objective,
        objective.find_held_out(),
        config,
    )
    function = evaluator._evaluate_batch.get_concrete_function(
        next(batches_of(strategy, config))
    )
    program = tpu_bridge.lower(function, state.model.variables)

    tpu_bridge.assert_runs_on_tpu(program)
    assert program.num_updated_variables == 0
    # The three sums of the task, and the gathered predictions, which the bridge
    # also lowers to sums.
    assert program.num_sums_over_replicas == 3 + NUM_PREDICTIONS[kind]
