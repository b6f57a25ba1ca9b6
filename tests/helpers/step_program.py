"""The trainer's program of some steps, without a run around it."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from albert_tf.cluster.strategy import make_strategy
from albert_tf.config import PretrainingConfig
from albert_tf.input.batch_stream import BatchStream
from albert_tf.training.objective import Objective
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.schedules import DropoutRates
from albert_tf.training.train_step import (
    Steps,
    make_state,
    make_train_steps,
    metric_names,
)

NO_DROPOUT = DropoutRates(0.0, 0.0)


def make_dataset(config: PretrainingConfig, objective: Objective) -> Any:
    """The batches of a training, as a function of the input context."""
    stream = BatchStream(
        objective.find_training_data(),
        config.data,
        config.training.seed,
        format_of=objective.record_format,
    )
    return stream.open(0)


class StepProgram:
    """The program of a config, its variables, and batches for it.

    Args:
        objective: None is pretraining.
        make_batches: As the result of `make_dataset`, which None calls.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        objective: Objective | None = None,
        make_batches: Callable[[Any], tf.data.Dataset] | None = None,
    ) -> None:
        objective = objective or Pretraining(config)
        strategy = make_strategy(config.distribution)
        with strategy.scope():
            self.state = make_state(config, objective)
            self.train_steps = make_train_steps(strategy, self.state, config)
        self.batches = iter(
            strategy.distribute_datasets_from_function(
                make_batches or make_dataset(config, objective)
            )
        )
        self.zeros = dict.fromkeys(
            metric_names(config, objective), tf.constant(0.0)
        )

    def arguments(self, num_steps: int, rates: DropoutRates) -> tuple[Any, ...]:
        """What the program takes; metrics are summed up from zero."""
        return self.batches, self.zeros, tf.constant(num_steps), rates

    def run(
        self, num_steps: int = 1, rates: DropoutRates = NO_DROPOUT
    ) -> Steps:
        """Trains some steps."""
        return self.train_steps(*self.arguments(num_steps, rates))
