"""The state of a run: variables, position, checkpoints."""

import dataclasses
import time
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf.cluster.host import Host
from albert_tf.cluster.pjrt import PjrtStrategy
from albert_tf.cluster.workers import wait_for_all
from albert_tf.config import PretrainingConfig
from albert_tf.input import pipeline as input_pipeline
from albert_tf.input.batch_stream import BatchStream
from albert_tf.input.record_sets import RecordSet
from albert_tf.runs.checkpoints import Checkpoint, CheckpointStore
from albert_tf.training import schedules
from albert_tf.training.objective import Objective
from albert_tf.training.pjrt_steps import PjrtSteps
from albert_tf.training.progress import Times
from albert_tf.training.schedules import DropoutRates
from albert_tf.training.train_step import (
    make_state,
    make_train_steps,
    metric_names,
)
from albert_tf.training.warm_start import WarmStart

# The first call of a program is one step, which compiles, and the second at
# most this number of steps, from which the watchdog knows the usual time.
SECOND_CALL_STEPS = 10


@dataclasses.dataclass
class Position:
    """The position of a run: the notes of a checkpoint, and the step."""

    step: int  # number of steps done
    # Since the last line of the log: sums of the metrics, and the number of
    # steps, not 0 where the run was stopped within a device loop.
    totals: dict[str, float]
    num_steps: int = 0
    # The lowest mean loss in a line of the log; None before the first line.
    lowest_loss: float | None = None
    # Whether the evaluation at this step was cut short, and must be repeated.
    to_evaluate: bool = False
    learning_rate: float = 0.0  # of the last step; 0 before the first one

    def to_notes(self, **facts: Any) -> dict[str, Any]:
        """Notes of a checkpoint, as JSON; floats are restored bit for bit."""
        notes = dataclasses.asdict(self)
        del notes["step"]  # the checkpoint stores it itself
        return {**notes, **facts}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Moves to a checkpoint; other facts in its notes are ignored."""
        notes = checkpoint.notes
        self.step = checkpoint.step
        # The checkpoint of another optimizer holds other metrics.
        stored = notes.get("totals", {})
        self.totals = {name: stored.get(name, 0.0) for name in self.totals}
        self.num_steps = notes.get("num_steps", 0)
        self.lowest_loss = notes.get("lowest_loss")
        self.to_evaluate = notes.get("to_evaluate", False)
        self.learning_rate = notes.get("learning_rate", 0.0)

    def means(self) -> dict[str, float]:
        """Mean metrics of the steps since the last line of the log."""
        steps = max(self.num_steps, 1)
        return {name: total / steps for name, total in self.totals.items()}

    def end_line(self, loss: float) -> None:
        """Notes the loss of a line of the log, and clears the sums."""
        lowest = self.lowest_loss
        self.lowest_loss = loss if lowest is None else min(loss, lowest)
        self.clear_totals()

    def clear_totals(self) -> None:
        """Clears the sums."""
        self.totals, self.num_steps = dict.fromkeys(self.totals, 0.0), 0


class Trainer:
    """The state of a run, and the program that advances it; also for dry runs.

    It writes no file, except through `store`.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        objective: Objective,
        records: RecordSet,
        host: Host,
    ) -> None:
        self.config = config
        self.objective = objective
        self.records = records
        self.host = host
        run_dir = config.training.output_dir
        with host.strategy.scope():
            self.state = make_state(config, objective)
            make_steps: Any = make_train_steps
            if isinstance(host.strategy, PjrtStrategy):
                make_steps = PjrtSteps
            self._train_steps = make_steps(
                host.strategy, self.state, config, host.stop_flag
            )
        self.store = CheckpointStore(
            run_dir,
            self.state.variables(),
            keep_max=config.training.keep_checkpoint_max,
            keep_every_n_steps=config.training.keep_every_n_steps,
            writes=host.writes,
        )
        self.stream = BatchStream(
            records,
            config.data,
            config.training.seed,
            objective.record_format,
        )
        names = metric_names(config, objective)
        self.position = Position(0, dict.fromkeys(names, 0.0))
        self.times = Times()  # of the steps since the last line of the log
        self._batches: Any = None
        # Seconds per step of the last call of each program; None after its
        # first call, which compiles.
        self._step_seconds: dict[DropoutRates, float | None] = {}
        self._saved_at = time.monotonic()

    def start(self, initial: WarmStart | None) -> Checkpoint | None:
        """Restores or initializes the variables. The order matters.

        1. The run has a checkpoint: resumes from the newest one, which it
           returns, even if `initial` is given.
        2. `initial` is given: starts from these weights of another model.
        3. Otherwise: starts from random weights.

        Raises:
            UserError: If no checkpoint can be read.
        """
        checkpoint = self.store.restore()
        if checkpoint is not None:
            self.position.restore(checkpoint)
        elif initial is not None:
            initial.apply(self.state.variables())
        return checkpoint

    def advance(self, until: int) -> bool:
        """Trains up to a step, or until a request to stop; returns whether.

        A call of the program ends where the dropout rates change. The first two
        calls of a program are short.
        """
        position = self.position
        if self._batches is None:
            self._open_batches()
        while position.step < until:
            change = schedules.next_dropout_change(position.step, self.config)
            end = until if change is None else min(change, until)
            if self._call_program(end - position.step):
                return True
        return False

    def _call_program(self, num_steps: int) -> bool:
        """Trains up to `num_steps` steps; returns whether to stop.

        The division of a device loop into calls changes no result.
        """
        position = self.position
        rates = schedules.dropout_rates(position.step, self.config)
        is_new = rates not in self._step_seconds
        if is_new:
            num_steps = 1
            logging.info(
                "building the training program: dropout %g (hidden) and %g "
                "(attention)",
                rates.hidden,
                rates.attention,
            )
        seconds = self._step_seconds.get(rates)
        if seconds is None:
            num_steps = min(num_steps, SECOND_CALL_STEPS)
        usual_s = seconds and num_steps * seconds
        activity = (
            f"the device loop of {num_steps} steps from step {position.step} on"
        )
        began, cpu_began = time.monotonic(), time.process_time()
        with self.host.watchdog.limit(activity, usual_s):
            steps = self._train_steps(
                self._batches,
                {n: tf.constant(v) for n, v in position.totals.items()},
                tf.constant(num_steps),
                rates,
            )
            # Here the host waits for the devices.
            totals = {n: float(v) for n, v in steps.totals.items()}
        call_s = time.monotonic() - began
        cpu_s = time.process_time() - cpu_began
        num_steps = int(steps.num_steps)
        position.totals = totals
        position.step += num_steps
        position.num_steps += num_steps
        position.learning_rate = float(steps.learning_rate)
        if is_new:
            self.times.num_compiling += 1
            self.times.compiling_seconds += call_s
            logging.info(
                "compiled and trained step %d in %.0f s", position.step, call_s
            )
        else:
            self.times.num_steps += num_steps
            self.times.seconds += call_s
            self.times.cpu_seconds += cpu_s
        self._step_seconds[rates] = None if is_new else call_s / num_steps
        return bool(float(steps.stops))

    def _open_batches(self) -> None:
        """Opens the stream of batches at this step."""
        with self.host.watchdog.limit("opening the records"):
            self._batches = input_pipeline.iterate(
                self.host.strategy.distribute_datasets_from_function(
                    self.stream.open(self.position.step)
                )
            )

    # Checkpoints.

    def save(self) -> bool:
        """Saves a checkpoint in the background; returns whether it is new."""
        self._saved_at = time.monotonic()
        with self.host.watchdog.limit("saving a checkpoint"):
            return self.store.save(self.position.step, self._notes())

    def save_best(self, loss: float) -> bool:
        """Saves to `best/` if this held-out loss is the lowest so far."""
        with self.host.watchdog.limit("saving a checkpoint"):
            return self.store.save_best(self.position.step, self._notes(), loss)

    def is_late(self) -> bool:
        """Whether `--save_checkpoints_minutes` asks for a checkpoint."""
        minutes = self.config.training.save_checkpoints_minutes
        passed_s = time.monotonic() - self._saved_at
        return bool(minutes) and passed_s >= 60 * minutes

    def finish_saving(self, *directories: str) -> None:
        """Waits for the last checkpoints, in all processes.

        Raises:
            UserError: If one of these directories, `checkpoints` or `best`,
                could not be written; a `RetryError` if the cause is temporary.
        """
        with self.host.watchdog.limit("saving the last checkpoint"):
            self.store.wait()
        for directory in directories:
            if directory in self.store.save_errors:
                raise self.store.save_errors[directory]
        # If this worker ended before the others, they would report it as lost.
        self.wait_for_all()

    def wait_for_all(self) -> None:
        """Waits for all workers, which must be at the same step."""
        wait_for_all(self.host.strategy, self.position.step)

    def _notes(self) -> dict[str, Any]:
        position = self.position
        rates = schedules.dropout_rates(position.step, self.config)
        return position.to_notes(
            dropout=list(rates),
        )
