"""The loop of steps whose programs JAX runs; see `cluster.pjrt`."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from albert_tf.cluster.pjrt import (
    PjrtStrategy,
    Program,
    ReplicaFunction,
    value_of,
)
from albert_tf.config import PretrainingConfig
from albert_tf.training.schedules import DropoutRates
from albert_tf.training.train_step import (
    Scalars,
    Steps,
    TrainState,
    as_vector,
    learning_rate,
    make_replica_step,
    metric_names,
)

# Steps that the devices may have been given and not finished. With 2, they have
# the next step when they finish one, and a request to stop waits for two.
STEPS_AHEAD = 2


class PjrtSteps:
    """`train_step.make_train_steps` for a `PjrtStrategy`.

    The host gives the devices a step, and its batch, while they compute the
    ones before.
    """

    def __init__(
        self,
        strategy: PjrtStrategy,
        state: TrainState,
        config: PretrainingConfig,
        stop_flag: tf.Variable | None = None,
    ) -> None:
        self._runtime = strategy.runtime
        self._config = config
        self._state = state
        # JAX and TPUs count in int32.
        step = tf.Variable(0, dtype=tf.int32, trainable=False, name="step32")
        self._on_devices = dataclasses.replace(state, step=step)
        self._stop_flag = stop_flag
        self._sums_flags = self._runtime.cluster.num_processes > 1
        self._programs: dict[DropoutRates, Program] = {}

    def __call__(
        self,
        batches: Iterator[Any],
        totals: Mapping[str, Any],
        num_steps: tf.Tensor,
        rates: DropoutRates,
    ) -> Steps:
        program = self._program(rates)
        step = int(self._state.step.numpy())
        # Numbers that the host may have changed.
        self._runtime.assign(self._on_devices.step, step)
        names = list(totals)
        sums = np.array([float(totals[n]) for n in names], np.float32)
        pending: collections.deque[Any] = collections.deque()  # not read yet
        done, stops = 0, 0.0

        def read_oldest() -> None:
            nonlocal sums, stops
            vector = value_of(pending.popleft())
            sums = sums + vector[: len(names)]
            if self._sums_flags:
                stops = max(stops, float(vector[-1]))

        while done < int(num_steps) and not stops:
            batch = next(batches)
            flags = (self._requests_stop(),) if self._sums_flags else ()
            results, _ = program(batch, *flags)
            done += 1
            pending.append(results["all"])
            if len(pending) > STEPS_AHEAD:
                read_oldest()
            if not self._sums_flags:
                stops = self._requests_stop()
        while pending:
            read_oldest()
        step += done
        self._state.step.assign(step)
        rate = learning_rate(self._state.step - 1, self._config)
        totals = dict(zip(names, sums, strict=True))
        return Steps(totals, done, stops, rate)

    def compile(self, batch: Mapping[str, Any], rates: DropoutRates) -> Any:
        """Compiles a step; see `Program.compile`."""
        return self._program(rates).compile(batch, int(self._sums_flags))

    def _requests_stop(self) -> float:
        flag = self._stop_flag
        return 0.0 if flag is None else float(flag.numpy())

    def _program(self, rates: DropoutRates) -> Program:
        if rates not in self._programs:
            device_type = self._runtime.cluster.device_type
            step = make_function(
                self._on_devices, self._config, rates, device_type
            )
            self._programs[rates] = Program(self._runtime, step)
        return self._programs[rates]


def make_function(
    state: TrainState,
    config: PretrainingConfig,
    rates: DropoutRates,
    device_type: str,
) -> ReplicaFunction:
    """The step of a replica, with all results in one vector, "all".

    The step of `state` is of int32.
    """
    replica_step = make_replica_step(state, config, device_type)
    names = metric_names(config, state.objective)

    def step_vector(batch: Any, *flags: tf.Tensor) -> tuple[Scalars, Scalars]:
        all_names = (*names, "stops") if flags else names
        step = as_vector(replica_step, all_names, rates)
        return step(batch, *flags), {}

    return step_vector
