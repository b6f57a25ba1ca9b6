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
        learning_rate_scale: float32 scalar, factor of the scheduled learning
            rate, which rollbacks lower. A variable, not a constant of the
            program, so that a rollback compiles nothing. Checkpoints do not
            hold it: it is a function of step and rollbacks.
    """

    objective: Objective
    model: keras.layers.Layer
    optimizer: AdamW
    step: tf.Variable
    learning_rate_scale: tf.Variable

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

    def scalar(name: str, value: int | float, dtype: tf.DType) -> tf.Variable:
        return tf.Variable(
            value,
            dtype=dtype,
            trainable=False,
            name=name,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )

    return TrainState(
        objective,
        model,
        optimizer,
        step=scalar("step", 0, tf.int64),
        learning_rate_scale=scalar("learning_rate_scale", 1.0, tf.float32),
    )
