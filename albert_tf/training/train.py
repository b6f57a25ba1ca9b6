"""A pretraining run, from top to bottom.

1. data and the run's directory; 2. devices; 3. model, optimizer and program;
4. state: restored from the newest checkpoint, or taken from another model, or
as initialised; 5. the loop: an outer Python loop around
`train_step.make_train_steps`; 6. the end.

A run is a function of its settings, its seed, the step, and what it has noted
in its directory (`rollback`, `corrupt_records`): so it can be killed at any
moment, and ends as one that never was.

Keras 3 supplies the layers, not the loop: its `fit`, its clipping and its
gradient accumulation are wrong or crash under strategies.
"""

import dataclasses
import math
import posixpath
import time
from typing import Any, Self

import tensorflow as tf
from absl import logging

from albert_tf.cluster.preemption import StopRequest, watch_for_stop
from albert_tf.cluster.strategy import make_strategy, per_replica_batch_size
from albert_tf.cluster.workers import (
    check_agreement,
    is_chief,
    is_one_process,
    name_lost_workers,
)
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.input import (
    corrupt_records,
)
from albert_tf.input import (
    record_sets as training_records,
)
from albert_tf.input.batch_stream import BatchStream
from albert_tf.runs import checkpoints
from albert_tf.runs import directory as run_directory
from albert_tf.runs.log import TENSORBOARD_DIR, RunLog
from albert_tf.runs.rollback import Rollbacks, find_divergence
from albert_tf.training import (
    evaluate,
    metrics,
    schedules,
    step_cost,
    warm_start,
)
from albert_tf.training.progress import Progress
from albert_tf.training.train_step import (
    StepSettings,
    figure_names,
    make_state,
    make_train_steps,
)


def train(config: PretrainingConfig) -> int:
    """Trains, or goes on training, until `num_train_steps`.

    Returns:
        0, or the exit status of a run that was asked to stop, after a
        checkpoint; see `preemption`.

    Raises:
        UserError: For settings, records or checkpoints that do not fit, for
            a run that diverges, and for workers that are lost.
    """
    # 1. Data and the run's directory, before any device is touched.
    data = training_records.find_training_data(config)
    held_out = None
    if config.data.eval_input_file:
        held_out = training_records.find_held_out(config)
        for phase in data.phases:
            training_records.check_held_out(phase.records, held_out)
    run_directory.check(config, data)

    # 2. Devices.
    strategy = make_strategy(config.distribution)
    with (
        watch_for_stop() as stop,
        name_lost_workers(config.distribution, strategy),
    ):
        # Not before: to read it uses TensorFlow, and workers must find each
        # other, and a CPU be split, before anything does.
        initial = warm_start.read(config, data)
        return Run(config, data, held_out, strategy, stop, initial).train()


@dataclasses.dataclass
class Position:
    """Where a run stands; with the variables, all that a checkpoint holds.

    Attributes:
        step: Updates made.
        totals: Sums of the steps' figures since the last line of the log.
        num_steps: Steps in them.
        lowest_loss: The lowest mean loss of a line of the log; None at first.
        to_evaluate: Whether an evaluation is due that was cut short.
    """

    step: int
    totals: dict[str, float]
    num_steps: int = 0
    lowest_loss: float | None = None
    to_evaluate: bool = False

    def to_notes(self, **facts: Any) -> dict[str, Any]:
        """JSON for a checkpoint; floats come back as they were."""
        notes = dataclasses.asdict(self)
        del notes["step"]  # the checkpoint has its own
        return {**notes, **facts}

    @classmethod
    def from_checkpoint(cls, checkpoint: checkpoints.Checkpoint) -> Self:
        """The reverse of `to_notes`; facts beside it are passed over."""
        names = {f.name for f in dataclasses.fields(cls)} - {"step"}
        notes = {n: v for n, v in checkpoint.notes.items() if n in names}
        return cls(step=checkpoint.step, **notes)


class DropoutSwitch:
    """Tells what a change of dropout did to a step's time and memory.

    Args:
        rate: Of hidden layers, before.
        step_seconds: Median before.
    """

    def __init__(self, rate: float, step_seconds: float) -> None:
        self.rate, self.step_seconds = rate, step_seconds
        self.memory_bytes = step_cost.peak_memory_bytes()

    def log(self, rate: float, step_seconds: float) -> None:
        """Logs both, once the new rate has had a loop of its own."""
        logging.info(
            "dropout %g -> %g: step %.3g s -> %.3g s, peak memory %.2f GB -> "
            "%.2f GB",
            self.rate,
            rate,
            self.step_seconds,
            step_seconds,
            self.memory_bytes / 1e9,
            step_cost.peak_memory_bytes() / 1e9,
        )


class Run:
    """One process' part of a run.

    Args:
        config: The settings.
        data: Training records.
        held_out: Held-out records, or None.
        strategy: Devices.
        stop: Tells when to stop.
        initial: Weights that a new run begins with; None for its own.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        data: training_records.TrainingData,
        held_out: training_records.Records | None,
        strategy: tf.distribute.Strategy,
        stop: StopRequest,
        initial: warm_start.WarmStart | None = None,
    ) -> None:
        self.config = config
        self.data = data
        self.strategy = strategy
        self.stop = stop
        run_dir = config.training.output_dir
        num_replicas = strategy.num_replicas_in_sync
        per_replica = per_replica_batch_size(
            "global_batch_size",
            config.data.global_batch_size,
            num_replicas,
            config.data.gradient_accumulation_steps,
        )
        if held_out is not None:
            per_replica_batch_size(
                "eval_batch_size", config.data.eval_batch_size, num_replicas
            )
        self.is_chief = is_chief(strategy)
        if self.is_chief:
            run_directory.write(config, data)
        else:
            logging.set_verbosity(logging.WARNING)

        # 3. Model, optimizer and program.
        with strategy.scope():
            self.state = make_state(config)
            self.train_steps = make_train_steps(
                strategy, self.state, config, stop.flag
            )
        self.evaluator = None
        if held_out is not None:
            self.evaluator = evaluate.Evaluator(
                strategy, self.state.pretrainer, held_out, config, stop.flag
            )

        # 4. State.
        self.store = checkpoints.CheckpointStore(
            run_dir,
            self.state.variables(),
            keep_max=config.training.keep_checkpoint_max,
            keep_every_n_steps=config.training.keep_every_n_steps,
            writes=self.is_chief,
        )
        self.rollbacks = Rollbacks.read(run_dir)
        self.corrupt_records = corrupt_records.CorruptRecords.read(run_dir)
        self.stream = BatchStream(
            data,
            config.data,
            config.training.seed,
            self.rollbacks,
            self.corrupt_records,
            config.model.vocab_size,
        )
        self.position = Position(0, self._no_totals())
        self.learning_rate = 0.0
        self.profiling = False
        self.step_seconds = 0.0
        self.switch: DropoutSwitch | None = None
        # Where `batches` was opened, and the programs that were traced.
        self.batches: Any = None
        self.origin: tuple[training_records.Phase, int] | None = None
        self.programs: set[StepSettings] = set()
        restored = self.store.restore()
        if restored is None and len(self.rollbacks):
            raise UserError(
                "rollbacks.json must be of a run that has checkpoints",
                received=f"{run_dir}, which has none",
                remedy="Restore them, or remove it to start anew.",
            )
        if restored:
            self.position = self._position_of(restored)
        elif initial:
            initial.apply(self.state.variables())
        check_agreement(strategy, self.position.step)
        self.run_log = None
        if self.is_chief:
            position = self.position
            self.run_log = RunLog(run_dir, position.step, position.to_evaluate)
        self.progress = Progress(
            config.training.num_train_steps,
            config.data.global_batch_size * config.data.max_seq_length,
            step_cost.flops_per_step(
                config.model, config.data, config.training.sentence_objective
            ),
            step_cost.peak_flops(strategy, config.distribution),
            run_dir,
            metrics.describe,
        )
        logging.info(
            "%s at step %d of %d",
            f"continuing from {restored.path}" if restored else "starting",
            self.position.step,
            config.training.num_train_steps,
        )
        if restored:
            self._log_event("resume")
        elif initial:
            self._log_event("start", warm_start=initial.report)
        else:
            self._log_event("start")
        self._log_summary(num_replicas, per_replica)
        if restored is None:
            if self.is_chief:
                warm_start.write_report(run_dir, initial)
            # A run that diverges, or meets a damaged record, goes back to a
            # checkpoint; and better that the first one fails now than later.
            self._save()
            self._finish_saving()

    def train(self) -> int:
        """Trains to the end, or until the run is to stop.

        Returns:
            The exit status.
        """
        # 5. The loop.
        last_step = self.config.training.num_train_steps
        evaluated = False
        if self.position.to_evaluate:
            evaluated = self._evaluate()
            if not evaluated:
                return self._stop_early()
        while self.position.step < last_step:
            evaluated = False
            self._profile()
            boundary = self._next_boundary()
            try:
                stops = self._advance(boundary)
            except corrupt_records.READING_ERRORS as error:
                self._leave_out(error, boundary)
                continue
            if self.position.step < boundary:
                return self._stop_early()
            figures = self._take_figures()
            divergence = find_divergence(
                figures["loss"],
                figures["gradient_norm"],
                self.position.lowest_loss,
                self.config.training,
            )
            if divergence:
                self._roll_back(divergence, figures)
                continue
            self._log_figures(figures)
            # The evaluation comes first, so that its line is there when its
            # checkpoint is.
            if self._is_due(self.config.training.eval_every_n_steps):
                evaluated = self._evaluate()
            if self._is_due(self.config.training.save_checkpoints_steps):
                self._save()
            self._log_switches()
            if self.position.to_evaluate or (stops and boundary < last_step):
                return self._stop_early()

        # 6. The end.
        self._stop_profile()
        self._finish_saving()
        if (
            self.evaluator
            and not evaluated  # a finished run, started again
            and self.evaluator.run_and_log(last_step, None) is None
        ):
            return self._stop_early()
        self._log_event("finish")
        logging.info(
            "finished %d steps; the run is in %s",
            last_step,
            self.config.training.output_dir,
        )
        return 0

    def _advance(self, boundary: int) -> bool:
        """Trains up to a step, or to where all processes are to stop.

        Returns:
            Whether they are to stop.
        """
        position = self.position
        while position.step < boundary:
            settings = self._settings()
            self._open_batches()
            change = self.stream.next_change(position.step)
            until = boundary if change is None else min(change, boundary)
            steps = self.train_steps(
                self.batches,
                {n: tf.constant(v) for n, v in position.totals.items()},
                tf.constant(until - position.step),
                settings,
            )
            # Here the host waits for the devices.
            position.totals = {n: float(v) for n, v in steps.totals.items()}
            num_steps = int(steps.num_steps)
            position.step += num_steps
            position.num_steps += num_steps
            self.learning_rate = float(steps.learning_rate)
            self.progress.add_steps(
                steps.times.numpy(), time.time(), settings in self.programs
            )
            self.programs.add(settings)
            if float(steps.stops):
                return True
        return False

    def _settings(self) -> StepSettings:
        step = self.position.step
        settings = StepSettings(
            schedules.dropout_rates(step, self.config),
            self.rollbacks.learning_rate_scale(step),
        )
        if settings not in self.programs:
            logging.info("tracing the step with %s", settings)
        return settings

    def _open_batches(self) -> None:
        """Opens the stream at this step, unless it is read on to it."""
        step = self.position.step
        phase, batch = self.stream.locate(step)
        # Constant while batches are read one after the other.
        origin = phase, batch - step
        if self.batches is not None and self.origin == origin:
            return
        self.origin = origin
        self.batches = iter(
            self.strategy.distribute_datasets_from_function(
                self.stream.open(step)
            )
        )

    def _next_boundary(self) -> int:
        """The step at which the host looks at what was done.

        A function of settings and step alone, so that a continued run cuts
        its loops, and so its log, as one that was never stopped.
        """
        step, training = self.position.step, self.config.training
        every = (
            training.steps_per_loop,
            training.save_checkpoints_steps,
            training.eval_every_n_steps,
        )
        changes = (
            schedules.next_dropout_change(step, self.config),
            self.data.next_change(step),
            *(s for s in training.profiled_steps() or () if s > step),
        )
        return min(
            *((step // n + 1) * n for n in every if n),
            *(change for change in changes if change is not None),
            training.num_train_steps,
        )

    def _is_due(self, every: int) -> bool:
        """Whether what is done every so many steps, and at the end, is."""
        step = self.position.step
        at_end = step == self.config.training.num_train_steps
        return at_end or (every > 0 and step % every == 0)

    def _take_figures(self) -> dict[str, float]:
        """Means since the last line of the log; sums begin anew."""
        position = self.position
        means = {n: v / position.num_steps for n, v in position.totals.items()}
        position.totals, position.num_steps = self._no_totals(), 0
        return {
            **means,
            "learning_rate": self.learning_rate,
            "dropout": schedules.dropout_rates(
                position.step - 1, self.config
            ).hidden,
        }

    def _position_of(self, checkpoint: checkpoints.Checkpoint) -> Position:
        position = Position.from_checkpoint(checkpoint)
        # Another optimizer has other figures.
        position.totals = {
            name: position.totals.get(name, 0.0) for name in self._no_totals()
        }
        return position

    def _no_totals(self) -> dict[str, float]:
        return dict.fromkeys(figure_names(self.config), 0.0)

    def _log_figures(self, figures: dict[str, float]) -> None:
        position = self.position
        if position.lowest_loss is None:
            position.lowest_loss = figures["loss"]
        position.lowest_loss = min(figures["loss"], position.lowest_loss)
        timed = {**figures, **self.progress.advance()}
        self.step_seconds = timed["step_seconds_median"]
        if self.switch and self.progress.was_steady:
            self.switch.log(figures["dropout"], self.step_seconds)
            self.switch = None
        if self.run_log:
            self.progress.log(position.step, timed)
            self.run_log.write("train", position.step, timed)

    def _evaluate(self) -> bool:
        """Evaluates, where there is something to evaluate on.

        Returns:
            Whether it was done, and not cut short by a stop.
        """
        if self.evaluator is None:
            return False
        position = self.position
        figures = self.evaluator.run_and_log(position.step, self.run_log)
        position.to_evaluate = figures is None
        if figures is not None:
            self.store.save_best(position.step, self._notes(), figures["loss"])
        return figures is not None

    def _save(self) -> None:
        if self.store.save(self.position.step, self._notes()):
            self._log_event("checkpoint", stalled_s=self.store.seconds_stalled)

    def _finish_saving(self) -> None:
        """Waits for the last checkpoint, in all processes.

        Raises:
            UserError: If it could not be written.
        """
        self.store.wait()
        if self.store.failed:
            raise UserError(
                "the last checkpoint must be written",
                received=self.store.failed,
                remedy="Make room and start again: the run goes on from the "
                "newest checkpoint that is whole.",
            )
        # Workers that ended before would be taken for lost.
        check_agreement(self.strategy, self.position.step)

    def _notes(self) -> dict[str, Any]:
        step = self.position.step
        rates = schedules.dropout_rates(step, self.config)
        return self.position.to_notes(
            dropout=list(rates),
            data=self.data.at(step).name,
            **{checkpoints.ROLLBACKS_NOTE: len(self.rollbacks)},
        )

    def _stop_early(self) -> int:
        """Saves, and gives the exit status of a run that was cut short.

        Raises:
            UserError: If the checkpoint could not be written.
        """
        self._stop_profile()
        position = self.position
        steps = max(position.num_steps, 1)
        divergence = find_divergence(
            position.totals["loss"] / steps,
            position.totals["gradient_norm"] / steps,
            position.lowest_loss,
            self.config.training,
        )
        if divergence and position.num_steps:
            logging.error(
                "NOT SAVED at step %d, where it has diverged: %s",
                position.step,
                divergence,
            )
        else:
            self._save()
        self._finish_saving()
        reason = self.stop.reason or "another worker is to stop"
        self._log_event("stop", reason=reason)
        logging.warning(
            "%s: stopped at step %d; the same command goes on from the newest "
            "checkpoint",
            reason,
            self.position.step,
        )
        return self.stop.exit_status

    def _roll_back(self, reason: str, figures: dict[str, float]) -> None:
        """Goes back to the newest checkpoint, to go on with later data.

        Where it went back to that one before, it was no good, and the one
        before it is taken.

        Raises:
            UserError: If the run is to stop instead.
        """
        diverged_at, policy = self.position.step, self.config.training
        logging.error("diverged at step %d: %s", diverged_at, reason)
        self._log_event("diverged", reason=reason, **figures)
        self.rollbacks.check_allowed(diverged_at, reason, policy)
        newest = self.rollbacks.newest
        self._go_back(avoided=newest.resumed_from if newest else None)
        rollback = self.rollbacks.plan(
            diverged_at=diverged_at,
            resumed_from=self.position.step,
            reason=reason,
            config=policy,
        )
        self.rollbacks.add(rollback, writes=self.is_chief)
        self._log_event("rollback", **dataclasses.asdict(rollback))

    def _leave_out(self, error: tf.errors.OpError, boundary: int) -> None:
        """Finds the damaged records that an error comes of, and goes back.

        Raises:
            UserError: If the run is to stop instead.
            tf.errors.OpError: If no record is damaged: the error itself.
        """
        found = self.stream.find_damage(self.position.step, boundary)
        if not found:
            raise error
        # Those who did not meet them, in their share, do not know of them.
        self.corrupt_records.add(found, self.config.data)
        self._log_event("corrupt_records", records=[str(r) for r in found])
        if not is_one_process(self.strategy):
            # Others wait in the step that failed here.
            raise UserError(
                "the workers must start again after damaged records",
                received=f"{len(found)}, now noted",
                remedy="Start the job again: it goes on without them.",
            )
        self._go_back()

    def _go_back(self, avoided: int | None = None) -> None:
        """Takes the newest checkpoint up again.

        Args:
            avoided: The step of one that is taken only if there is no other.
        """
        self.store.wait()
        check_agreement(self.strategy, self.position.step)
        restored = self.store.restore(avoided=avoided)
        assert restored, "a run begins with a checkpoint"
        self.position = self._position_of(restored)
        # Its evaluation was made by those who went on from it.
        self.position.to_evaluate = False
        self._stop_profile()
        self.switch = None
        check_agreement(self.strategy, self.position.step)
        self.batches = None
        if self.run_log:
            self.run_log.rewind(self.position.step)
        self.progress.start_again()

    def _log_switches(self) -> None:
        """Tells of what is another from this step on."""
        step = self.position.step
        if step == self.config.training.num_train_steps:
            return
        before = schedules.dropout_rates(step - 1, self.config)
        after = schedules.dropout_rates(step, self.config)
        if after != before:
            self._log_event("dropout", before=before.hidden, after=after.hidden)
            self.switch = DropoutSwitch(before.hidden, self.step_seconds)
            step_cost.reset_peak_memory()
        if self.data.next_change(step - 1) == step:
            name = self.data.at(step).name
            logging.info("training on %s from step %d on", name, step)
            self._log_event("data", name=name)

    def _profile(self) -> None:
        """Starts and ends the profiler where `profile_steps` says."""
        steps = self.config.training.profiled_steps()
        if steps is None or not self.is_chief:
            return
        first, last = steps
        if self.position.step == first and not self.profiling:
            tf.profiler.experimental.start(
                posixpath.join(self.config.training.output_dir, TENSORBOARD_DIR)
            )
            self.profiling = True
        elif self.position.step >= last:
            self._stop_profile()

    def _stop_profile(self) -> None:
        """Writes what was profiled, if anything."""
        if self.profiling:
            tf.profiler.experimental.stop()
            self.profiling = False
            self._log_event("profile")

    def _log_event(self, kind: str, **facts: Any) -> None:
        if self.run_log:
            self.run_log.write_event(kind, self.position.step, **facts)

    def _log_summary(
        self, num_replicas: int, per_replica_batch_size: int
    ) -> None:
        config = self.config
        logging.info("configuration: %s", config.to_dict())
        variables = self.state.pretrainer.trainable_variables
        logging.info(
            "%d parameters; batch %d = %d replicas x %d examples in %d parts",
            sum(math.prod(v.shape) for v in variables),
            config.data.global_batch_size,
            num_replicas,
            per_replica_batch_size,
            config.data.gradient_accumulation_steps,
        )
        line, warning = schedules.describe_learning_rate(config)
        logging.info("%s", line)
        if warning:
            logging.warning("%s", warning)
        for phase in self.data.phases:
            records = phase.records
            logging.info(
                "from step %d, %s: %d records in %d files, %s masking; %.1f "
                "steps an epoch",
                phase.first_step,
                phase.name or "input_file",
                records.num_examples,
                len(records.files),
                records.masking,
                records.num_examples / config.data.global_batch_size,
            )
            if records.metadata is not None:
                logging.info(
                    "unigram entropy of the corpus: %.3f nats, the masked-LM "
                    "loss of frequencies alone",
                    records.metadata.unigram_entropy_nats,
                )
