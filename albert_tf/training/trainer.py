"""The state of a run, and the program that advances it; also for dry runs."""

import time
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf.cluster.replicas import values_on_first
from albert_tf.cluster.watchdog import Watchdog
from albert_tf.config import PretrainingConfig
from albert_tf.input import device_iterators
from albert_tf.input.batch_stream import BatchStream
from albert_tf.input.record_sets import TrainingData
from albert_tf.io.long_waits import log_long_waits
from albert_tf.io.ownership import Owner
from albert_tf.runs import directory as run_directory
from albert_tf.runs.checkpoints import Checkpoint, CheckpointStore
from albert_tf.runs.rollback import Rollbacks
from albert_tf.training import schedules
from albert_tf.training.objective import InitialWeights, Objective
from albert_tf.training.position import Position
from albert_tf.training.schedules import DropoutRates
from albert_tf.training.train_step import (
    make_state,
    make_train_steps,
    metric_names,
)

# Number of steps in the second call of a program, which measures its speed. The
# first call compiles.
MEASURED_STEPS = 10

# Seconds after which a device loop is reported as long: TensorFlow reads the
# records, and retries for minutes when Cloud Storage does not answer.
LONG_LOOP_S = 120.0


class Trainer:
    """The state of a run, and the program that advances it.

    It writes no file, except through `store`.

    Args:
        stop_flag: float32 scalar; not 0 after a request to stop this process.
        saves: Whether `store` writes checkpoints in this process.
        owner: `Owner.check` is called before each checkpoint is written.
        watchdog: Ends the process if the devices hang; None sets no limits.

    Attributes:
        position: Step, learning rate, and sums of the metrics and of times.
        rollbacks: Content of its file in the run directory.
        stream: The batches, without those that rollbacks skip.
        state: Variables.
        store: Checkpoints.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        objective: Objective,
        data: TrainingData,
        strategy: tf.distribute.Strategy,
        stop_flag: tf.Variable | None = None,
        saves: bool = False,
        owner: Owner | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        self._config = config
        self._watchdog = watchdog or Watchdog()
        self._strategy = strategy
        run_dir = config.training.output_dir
        with values_on_first(strategy), strategy.scope():
            self.state = make_state(config, objective)
            self._train_steps = make_train_steps(
                strategy, self.state, config, stop_flag
            )
        self.store = CheckpointStore(
            run_dir,
            self.state.variables(),
            keep_max=config.training.keep_checkpoint_max,
            keep_every_n_steps=config.training.keep_every_n_steps,
            writes=saves,
            owner=owner,
        )
        self.store.replicas.copy_from_first()
        self.rollbacks = Rollbacks.read(run_dir)
        self.stream = BatchStream(
            data,
            config.data,
            config.training.seed,
            self.rollbacks,
            objective.record_format,
            self._watchdog,
        )
        self.position = Position.at_start(metric_names(config, objective))
        # None: not set yet; `values_on_first` sets it on one replica only.
        self._learning_rate_scale: float | None = None
        self._batches: Any = None
        self._opened_at: Any = None
        # Seconds per step of the last call of each program; None after its
        # first call, which compiles.
        self._step_seconds: dict[DropoutRates, float | None] = {}

    def start(self, initial: InitialWeights | None) -> Checkpoint | None:
        """Restores or initializes the variables. The order matters.

        1. The run has a checkpoint: resumes from the newest one, even if
           `initial` is given.
        2. `initial` is given: starts from these weights of another model.
        3. Otherwise: starts from random weights.

        Returns:
            The checkpoint that the run resumes from, if any.

        Raises:
            UserError: If no checkpoint can be read, or if there is none but
                the directory has other parts of a run.
        """
        checkpoint = self.restore()
        if checkpoint is not None:
            return checkpoint
        run_directory.check_is_new(self._config.training.output_dir)
        if initial is not None:
            initial.apply(self.state.variables())
        return None

    def restore(self, avoided: int | None = None) -> Checkpoint | None:
        """Restores the newest checkpoint, if there is one.

        Args:
            avoided: Step of a checkpoint to use only if there is no other.
        """
        checkpoint = self.store.restore(avoided=avoided)
        if checkpoint is not None:
            self.position.restore(checkpoint)
        return checkpoint

    def advance(self, until: int) -> bool:
        """Trains up to a step, or until all processes stop on request.

        Returns:
            Whether there is a request to stop.
        """
        position = self.position
        while position.step < until:
            rates = self._dropout_rates()
            if rates not in self._step_seconds:
                logging.info(
                    "building the training program: dropout %g (hidden) and "
                    "%g (attention)",
                    rates.hidden,
                    rates.attention,
                )
            self._scale_learning_rate()
            if self.stream.begins_phase(position.step):
                # The losses of other records are not comparable.
                position.lowest_loss = None
            self._open_batches()
            change = self.stream.next_change(position.step)
            end = until if change is None else min(change, until)
            num_steps = self._length_of_call(rates, end - position.step)
            compiled = rates in self._step_seconds
            seconds = self._step_seconds.get(rates)
            began, cpu_began = time.monotonic(), time.process_time()
            usual_s = seconds and num_steps * seconds
            activity = (
                f"the device loop of {num_steps} steps from step "
                f"{position.step} on"
            )
            with (
                self._watchdog.limit(activity, usual_s),
                log_long_waits(
                    activity,
                    "a new program is compiled, the records cannot be read, "
                    "or the devices are slow",
                    max(LONG_LOOP_S, 3 * (usual_s or 0.0)),
                ),
            ):
                try:
                    steps = self._train_steps(
                        self._batches,
                        {n: tf.constant(v) for n, v in position.totals.items()},
                        tf.constant(num_steps),
                        rates,
                    )
                    # Here the host waits for the devices.
                    totals = {n: float(v) for n, v in steps.totals.items()}
                except tf.errors.OpError:
                    # A return to a checkpoint counts this time as lost.
                    position.times.seconds.append(time.monotonic() - began)
                    raise
            ended, call_s = time.time(), time.monotonic() - began
            cpu_s = time.process_time() - cpu_began
            num_steps = int(steps.num_steps)
            position.totals = totals
            position.step += num_steps
            position.num_steps += num_steps
            position.learning_rate = float(steps.learning_rate)
            if compiled:
                position.times.add(steps.times.numpy(), ended, cpu_s)
            else:
                position.times.add_compiling(call_s)
                logging.info(
                    "compiled and trained step %d in %.0f s",
                    position.step,
                    call_s,
                )
            self._step_seconds[rates] = call_s / num_steps if compiled else None
            if float(steps.stops):
                return True
        return False

    def _length_of_call(self, rates: DropoutRates, remaining: int) -> int:
        """Number of steps of the next call of a program.

        The first two calls are short: one step, which compiles, and some that
        measure the speed. The division into calls changes no result.
        """
        if rates not in self._step_seconds:
            return 1
        if self._step_seconds[rates] is None:
            return min(MEASURED_STEPS, remaining)
        return remaining

    @property
    def step_seconds(self) -> float | None:
        """Measured step time of the program at this step; None if unknown."""
        return self._step_seconds.get(self._dropout_rates())

    def close_batches(self) -> None:
        """Closes the stream; the next step opens it."""
        self._batches = None

    def _dropout_rates(self) -> DropoutRates:
        return schedules.dropout_rates(self.position.step, self._config)

    def _scale_learning_rate(self) -> None:
        """Sets the factor of the learning rate at this step."""
        scale = self.rollbacks.learning_rate_scale(self.position.step)
        if scale != self._learning_rate_scale:
            if scale != 1:
                logging.info("the learning rate is scaled by %g", scale)
            self.state.learning_rate_scale.assign(scale)
            self._learning_rate_scale = scale

    def _open_batches(self) -> None:
        """Opens the stream at this step, unless it is open at this step."""
        step = self.position.step
        phase, batch = self.stream.locate(step)
        # Stays the same as long as the open stream yields the right batches.
        origin = phase, batch - step
        if self._batches is not None and self._opened_at == origin:
            return
        self._opened_at = origin
        with self._watchdog.limit("opening the records"):
            self._batches = device_iterators.iterate(
                self._strategy.distribute_datasets_from_function(
                    self.stream.open(step)
                )
            )
