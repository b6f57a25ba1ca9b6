"""The trainer's program of some steps, without a run around it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.cluster.runtime import runtime_of
from albert_tf.cluster.strategy import make_strategy
from albert_tf.config import PretrainingConfig
from albert_tf.input.pipeline import training_dataset
from albert_tf.training.objective import Objective
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.schedules import DropoutRates
from albert_tf.training.train_step import (
    make_replica_step,
    make_state,
    metric_names,
)

NO_DROPOUT = DropoutRates(0.0, 0.0)


def make_dataset(config: PretrainingConfig, objective: Objective) -> Any:
    """The batches of a training, as a function of the input context."""
    records = objective.find_training_data()
    return training_dataset(records, config, objective.record_format(records))


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
        self._config = config
        self._runtime = runtime_of(strategy)
        self._loops: dict[DropoutRates, Any] = {}
        self.batches = iter(
            strategy.distribute_datasets_from_function(
                make_batches or make_dataset(config, objective)
            )
        )
        self.names = metric_names(config, objective)

    def loop(self, rates: DropoutRates) -> Any:
        """The program."""
        if rates not in self._loops:
            step = make_replica_step(
                self.state,
                self._config,
                rates,
                self._runtime.cluster.device_type,
            )
            self._loops[rates] = self._runtime.loop(step)
        return self._loops[rates]

    def arguments(
        self, num_steps: int, start: Mapping[str, float] | None = None
    ) -> tuple[Any, ...]:
        """What the program takes; metrics are summed up from `start` or 0."""
        start = start or {}
        sums = tf.constant([start.get(name, 0.0) for name in self.names])
        return self.batches, sums, tf.constant(num_steps)

    def run(
        self,
        num_steps: int = 1,
        rates: DropoutRates = NO_DROPOUT,
        start: Mapping[str, float] | None = None,
    ) -> dict[str, np.float32]:
        """Trains some steps; returns the sums of their metrics."""
        sums, done, _ = self.loop(rates)(*self.arguments(num_steps, start))
        assert int(done) == num_steps
        return dict(zip(self.names, np.asarray(sums), strict=True))
