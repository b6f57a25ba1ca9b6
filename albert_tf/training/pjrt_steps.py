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
    fold_in,
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
        self._strategy = strategy
        self._config = config
        self._state = state
        # JAX and TPUs count in int32.
        step = tf.Variable(0, dtype=tf.int32, trainable=False, name="step32")
        self._on_devices = dataclasses.replace(state, step=step)
        self._stop_flag = stop_flag
        self._sums_flags = strategy.num_processes > 1
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
        self._on_devices.step.assign(step)
        self._strategy.forget([self._on_devices.step])
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
            strategy = self._strategy
            step = make_function(
                self._on_devices, self._config, rates, strategy.device_type
            )
            self._programs[rates] = Program(
                strategy, step, self._config.data.gradient_accumulation_steps
            )
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
    fold = fold_in if device_type == "TPU" else exact_fold_in
    replica_step = make_replica_step(state, config, device_type, fold)
    names = metric_names(config, state.objective)

    def step_vector(batch: Any, *flags: tf.Tensor) -> tuple[Scalars, Scalars]:
        all_names = (*names, "stops") if flags else names
        step = as_vector(replica_step, all_names, rates)
        return step(batch, *flags), {}

    return step_vector


def exact_fold_in(seed: tf.Tensor, number: Any) -> tf.Tensor:
    """`train_step.fold_in` as TensorFlow's kernels compute it, by arithmetic.

    Its kernels extend the numbers of a seed to 64 bits with their sign, and its
    programs for XLA with zeros, so that half of all seeds differ.
    """
    number = tf.cast(number, tf.int32)
    signed = tf.cast(seed, tf.int64)
    key = tf.constant([0x3EC8F720, 0x02461E29], tf.uint32)
    low = tf.cast(signed, tf.uint32)
    high = tf.cast(
        tf.bitwise.right_shift(signed, tf.constant(32, tf.int64)), tf.uint32
    )
    # Words 0 and 2, and words 1 and 3, of the counter of Philox.
    (key_0, counter_2), (key_1, counter_3) = map(
        tf.unstack, _philox(low, high, key)
    )
    zero = tf.constant(0, tf.uint32)
    even, _ = _philox(
        tf.stack([zero, counter_2]),
        tf.stack([zero, counter_3]),
        tf.stack([key_0, key_1]),
    )
    return tf.stack([tf.bitcast(even[0], tf.int32), number])


def _philox(
    even: tf.Tensor, odd: tf.Tensor, key: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Philox4x32-10 of words 0 and 2, and 1 and 3, of a counter.

    Reference:
        [Salmon et al., 2011](https://doi.org/10.1145/2063384.2063405)
    """
    factors = tf.constant([0xD2511F53, 0xCD9E8D57], tf.uint64)
    weyl = tf.constant([0x9E3779B9, 0xBB67AE85], tf.uint32)
    word = tf.constant(32, tf.uint64)
    for _ in range(10):
        products = tf.cast(even, tf.uint64) * factors
        high = tf.cast(tf.bitwise.right_shift(products, word), tf.uint32)
        low = tf.cast(products, tf.uint32)
        mixed = tf.bitwise.bitwise_xor(high[::-1], odd)
        even, odd = tf.bitwise.bitwise_xor(mixed, key), low[::-1]
        key += weyl
    return even, odd
