"""What training changes: the variables of model, optimizer and step."""

import dataclasses

import keras
import tensorflow as tf

from albert_tf.config import PretrainingConfig
from albert_tf.runs import checkpoints
from albert_tf.training.objective import Objective
from albert_tf.training.optimizers import AdamW, make_optimizer


@dataclasses.dataclass(frozen=True)
class TrainState:
    """The objective and the variables that training changes.

    Attributes:
        objective: The objective of the run.
        model: Model and heads of the objective.
        optimizer: Built for the model's trainable variables.
        step: int64 scalar, number of steps done.
    """

    objective: Objective
    model: keras.layers.Layer
    optimizer: AdamW
    step: tf.Variable

    def variables(self) -> dict[str, tf.Variable]:
        """Everything that a checkpoint holds, by path."""
        return {
            **checkpoints.model_variables(self.model),
            **self.optimizer.slots,
            "step": self.step,
        }


def make_state(config: PretrainingConfig, objective: Objective) -> TrainState:
    """Initial model, optimizer and step, in the current strategy's scope."""
    # Initializers draw their seeds from Python's generator, in the order in
    # which variables are made: the same on every host and in every run.
    keras.utils.set_random_seed(config.training.seed)
    model = objective.make_model()
    optimizer = make_optimizer(config.optimizer)
    optimizer.build(model.trainable_variables)
    step = tf.Variable(
        0,
        dtype=tf.int64,
        trainable=False,
        name="step",
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )
    return TrainState(objective, model, optimizer, step)
