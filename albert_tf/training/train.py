"""A run, from top to bottom.

`train` checks the records and the run directory, connects the devices, and
makes a `Trainer`. `Trainer.begin` restores the newest checkpoint, or takes the
weights of another model, or initialises them. `Trainer.train` is the loop.

On the same kind and number of devices, the weights at a step are a function of
settings, seed, records and initial weights. So a run can be killed at any
moment and resumed, with the same result.

Keras 3 supplies the layers, not the loop: under strategies, its `fit`, its
clipping and its gradient accumulation give wrong results or crash.
"""

import dataclasses
import math
import posixpath
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.cluster import versions
from albert_tf.cluster.host import Host, connect
from albert_tf.cluster.runtime import Loop
from albert_tf.cluster.strategy import per_replica_batch_size
from albert_tf.cluster.workers import wait_for_all
from albert_tf.config import PretrainingConfig, TrainingConfig
from albert_tf.errors import RetryError, UserError
from albert_tf.input.pipeline import describe_reread, training_dataset
from albert_tf.input.record_format import explained_reads
from albert_tf.input.record_sets import RecordSet
from albert_tf.runs import directory as run_directory
from albert_tf.runs.checkpoints import (
    BEST_DIR,
    CHECKPOINTS_DIR,
    Checkpoint,
    CheckpointStore,
    list_checkpoints,
)
from albert_tf.runs.log import RunLog, read_events, read_metrics
from albert_tf.training import cost, schedules
from albert_tf.training.evaluate import Evaluator
from albert_tf.training.objective import Objective
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.progress import Profiler, Progress, Times
from albert_tf.training.schedules import DropoutRates
from albert_tf.training.train_step import (
    make_replica_step,
    make_state,
    metric_names,
)
from albert_tf.training.warm_start import WarmStart

# The first call of a program is one step, which compiles, and the second at
# most this number of steps, from which the watchdog knows the usual time.
SECOND_CALL_STEPS = 10


def train(
    config: PretrainingConfig,
    objective: Objective | None = None,
    strategy: tf.distribute.Strategy | None = None,
    began: float | None = None,
) -> int:
    """Trains, or resumes training, until `num_train_steps`.

    Args:
        objective: By default, pretraining.
        strategy: Devices; None connects those of the settings.
        began: When the command began, in seconds since the epoch; None: now.
            The log counts the time from then on as start-up.

    Returns:
        The exit status: 0 after the last step. A request to stop saves a
        checkpoint and returns another status; see `cluster.preemption`.

    Raises:
        UserError: For settings, records or checkpoints that do not fit, and for
            a run that diverges.
        RetryError: For lost workers and hosts.
    """
    began = began or time.time()
    config.require("output_dir")
    if config.training.dry_run or config.training.mode == "eval":
        raise UserError(
            "train() trains: mode must be train, and dry_run off",
            received=f"{config.training.mode}, {config.training.dry_run}",
            remedy="Use the commands with --mode and --dry_run.",
        )
    # 1. Records and run directory, before any device is touched.
    objective = objective or Pretraining(config)
    records = objective.find_training_data()
    held_out = objective.find_held_out(records)
    checkpoints = run_directory.check(config, records)

    # 2. Devices.
    with connect(config.distribution, strategy, can_stop=True) as host:
        # After the devices: reading weights starts TensorFlow, and the cluster
        # and logical CPUs must be configured before.
        initial = None
        if not checkpoints:
            initial = objective.initial_weights(records)
        # 3. The run: resumed, warm-started or fresh. 4. The loop.
        with host.owning(config.training.output_dir) as host:
            with host.watchdog.limit("the start of the run"):
                trainer = Trainer(config, objective, records, host, held_out)
                trainer.begin(initial, began)
            return trainer.train()


@dataclasses.dataclass
class Position:
    """The position of a run: the notes of a checkpoint, and its step."""

    step: int  # number of steps done
    # Since the last line of the log: sums of the metrics, and the number of
    # steps, not 0 where the run was stopped within a device loop.
    totals: dict[str, float]
    num_steps: int = 0
    # The lowest mean loss in a line of the log; None before the first line.
    lowest_loss: float | None = None
    # Whether the evaluation at this step was cut short, and must be repeated.
    to_evaluate: bool = False

    def to_notes(self) -> dict[str, Any]:
        """Notes of a checkpoint, as JSON; floats are restored bit for bit."""
        notes = dataclasses.asdict(self)
        del notes["step"]  # the checkpoint stores it itself
        return notes

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

    def means(self) -> dict[str, float]:
        """Mean metrics of the steps since the last line of the log."""
        steps = max(self.num_steps, 1)
        return {name: total / steps for name, total in self.totals.items()}


@dataclasses.dataclass
class Program:
    """The compiled steps for some dropout rates."""

    loop: Loop
    # Of the last call; None after the first one, which compiles.
    step_seconds: float | None = None


class Trainer:
    """A run in one process: its state, and the loop that advances it.

    A dry run makes one too, calls `start` and `advance`, and writes no file.

    Args:
        held_out: Records to evaluate on; None evaluates nothing.

    Attributes:
        state: The model and the optimizer.
        position: Where the run is; changes with each step.
        times: Of the steps since the last line of the log, in this process.
        store: The checkpoints.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        objective: Objective,
        records: RecordSet,
        host: Host,
        held_out: RecordSet | None = None,
    ) -> None:
        self.config = config
        self.objective = objective
        self.records = records
        self.host = host
        num_replicas = host.strategy.num_replicas_in_sync
        per_replica_batch_size(config.data, num_replicas)
        if held_out is not None:
            per_replica_batch_size(config.data, num_replicas, "eval_batch_size")
        with host.strategy.scope():
            self.state = make_state(config, objective)
        self._evaluator: Evaluator | None = None
        if held_out is not None:
            self._evaluator = Evaluator(
                host, self.state.model, objective, held_out, config
            )
        self.store = CheckpointStore(
            config.training.output_dir,
            self.state.variables(),
            keep_max=config.training.keep_checkpoint_max,
            keep_every_n_steps=config.training.keep_every_n_steps,
            writes=host.writes,
        )
        names = metric_names(config, objective)
        self.position = Position(0, dict.fromkeys(names, 0.0))
        self.times = Times()
        self._progress = Progress(
            config, objective, records, cost.peak_flops(host.strategy)
        )
        self._profiler = Profiler(config, is_active=host.writes)
        self._run_log: RunLog | None = None  # only where the run is written
        self._batches: Any = None
        self._programs: dict[DropoutRates, Program] = {}
        self._saved_at = time.monotonic()

    # The start.

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

    def begin(self, initial: WarmStart | None, began: float) -> None:
        """Starts the run, and opens its directory and its log.

        Args:
            initial, began: See `start` and `train`.
        """
        if not self.host.is_chief:
            logging.set_verbosity(logging.WARNING)
        restore_began = time.monotonic()
        resumed = self.start(initial)
        restore_s = time.monotonic() - restore_began
        self._wait_for_all()
        # The settings, which now have been found to fit the checkpoint, and the
        # log. Lines of steps after the checkpoint are dropped.
        run_dir, position = self.config.training.output_dir, self.position
        if self.host.writes:
            if resumed is not None:
                self._warn_of_changes()
            run_directory.write(self.config, self.records)
            self._run_log = RunLog(
                run_dir,
                position.step,
                position.to_evaluate,
                position.num_steps,
            )
        start_up_s = time.time() - began - restore_s
        self._log_start(
            resumed, initial, start_up_s=start_up_s, restore_s=restore_s
        )
        log_summary(self)
        if resumed is None:
            # A new run saves its first checkpoint. If it cannot be written, the
            # run ends before training.
            if self.host.writes:
                self.objective.write_report(run_dir, initial)
            self.save()
            self._finish_saving(CHECKPOINTS_DIR)

    def _warn_of_changes(self) -> None:
        """Warns of what changed settings mean for the data and for `best/`."""
        now = self.config
        before = run_directory.load_config(now.training.output_dir, type(now))
        found = describe_reread(
            before.data,
            now.data,
            same_seed=before.training.seed == now.training.seed,
            step=self.position.step,
        )
        if found and not now.data.synthetic_input:
            logging.warning("settings of the input have changed: %s", found)
        best = posixpath.join(now.training.output_dir, BEST_DIR)
        names = ("eval_input_file", "eval_batch_size", "max_eval_steps")
        if list_checkpoints(best) and any(
            getattr(before.data, n) != getattr(now.data, n) for n in names
        ):
            logging.warning(
                "the loss of %s may be of other held-out examples: remove it "
                "then",
                best,
            )

    # The loop.

    def train(self) -> int:
        """Trains to the last step or a request to stop; returns the status.

        Each iteration trains up to a boundary, the next step at which the host
        must act: it logs, evaluates and saves there. A divergence ends the run.
        """
        position, training = self.position, self.config.training
        last_step = training.num_train_steps
        if position.to_evaluate or position.step == last_step:
            # Either the last process was stopped in this evaluation, or the run
            # is complete; then, its log may lack a line, and `best/` the
            # checkpoint, of an evaluation on these records.
            self._evaluate(logs=not self._has_evaluated())
            if position.to_evaluate:
                return self._stop_early()
        while position.step < last_step:
            if self._profiler.begin_loop(position.step):
                self._log_event("profile")
            boundary = self._next_boundary()
            stops = self.advance(boundary)
            if position.step < boundary:
                return self._stop_early()
            self._log_loop()
            # Evaluate before saving: a run that resumes from this checkpoint
            # does not evaluate this step.
            if self._is_due(training.eval_every_n_steps):
                self._evaluate()
            if self._is_late() or self._is_due(
                training.save_checkpoints_steps, training.keep_every_n_steps
            ):
                self.save()
            self._log_dropout()
            if position.to_evaluate or (stops and boundary < last_step):
                return self._stop_early()
        return self._finish()

    def _next_boundary(self) -> int:
        """The step up to which to train before the host acts again.

        It depends only on settings and step. So a resumed run has the same
        lines in its log as an uninterrupted run.
        """
        step, training = self.position.step, self.config.training
        boundaries = [training.num_train_steps]
        for interval in (
            training.steps_per_loop,
            training.save_checkpoints_steps,
            training.eval_every_n_steps,
            training.keep_every_n_steps,
        ):
            if interval:
                boundaries.append((step // interval + 1) * interval)
        for profiled in training.profiled_steps() or ():
            if profiled > step:
                boundaries.append(profiled)
        change = schedules.next_dropout_change(step, self.config)
        if change is not None:
            boundaries.append(change)
        return min(boundaries)

    def advance(self, until: int) -> bool:
        """Trains up to a step. Returns whether a request to stop ended that.

        Args:
            until: At most the next step at which the dropout rates change.

        Raises:
            UserError: If a shard is damaged, or a read failed twice.
            RetryError: If a read failed, but all shards are intact.
        """
        stops = False
        try:
            with explained_reads(self.host, self.records):
                if self._batches is None:
                    self._open_batches()
                while self.position.step < until and not stops:
                    stops = self._call_program(until - self.position.step)
        except RetryError as error:
            self._log_failed_read(error)
            raise
        return stops

    def _open_batches(self) -> None:
        """Opens the stream of batches at this step."""
        make_dataset = training_dataset(
            self.records,
            self.config,
            self.objective.record_format(self.records),
            self.position.step,
        )
        with self.host.watchdog.limit("opening the records"):
            self._batches = iter(
                self.host.strategy.distribute_datasets_from_function(
                    make_dataset
                )
            )

    def _call_program(self, num_steps: int) -> bool:
        """Trains up to `num_steps` steps; returns whether to stop.

        All have the dropout rates of the first. The division of a device loop
        into calls changes no result. The first two calls of a program are
        short.
        """
        position = self.position
        rates = schedules.dropout_rates(position.step, self.config)
        is_new = rates not in self._programs
        if is_new:
            self._programs[rates] = self._make_program(rates)
            num_steps = 1
        program = self._programs[rates]
        usual_s = None
        if program.step_seconds is None:
            num_steps = min(num_steps, SECOND_CALL_STEPS)
        else:
            usual_s = num_steps * program.step_seconds
        activity = (
            f"the device loop of {num_steps} steps from step {position.step} on"
        )
        began, cpu_began = time.monotonic(), time.process_time()
        with self.host.watchdog.limit(activity, usual_s):
            sums, done, stops = program.loop(
                self._batches,
                tf.constant(list(position.totals.values())),
                tf.constant(num_steps),
            )
            # Here the host waits for the devices.
            totals = np.asarray(sums).tolist()
        call_s = time.monotonic() - began
        cpu_s = time.process_time() - cpu_began
        num_steps = int(done)
        position.totals = dict(zip(position.totals, totals, strict=True))
        position.step += num_steps
        position.num_steps += num_steps
        if is_new:
            self.times.num_compiling += 1
            self.times.compiling_seconds += call_s
            logging.info(
                "compiled and trained step %d in %.0f s", position.step, call_s
            )
        else:
            program.step_seconds = call_s / num_steps
            self.times.num_steps += num_steps
            self.times.seconds += call_s
            self.times.cpu_seconds += cpu_s
        return bool(stops)

    def _make_program(self, rates: DropoutRates) -> Program:
        logging.info(
            "building the training program: dropout %g (hidden) and %g "
            "(attention)",
            rates.hidden,
            rates.attention,
        )
        runtime = self.host.runtime
        step = make_replica_step(
            self.state, self.config, rates, runtime.cluster.device_type
        )
        return Program(runtime.loop(step, self.host.stop_flag))

    def _log_failed_read(self, error: RetryError) -> None:
        """Logs a read that may yet succeed.

        Raises:
            UserError: If it has failed in the same way since the newest
                checkpoint, and so is expected to fail again.
        """
        self.store.wait()
        failure = {
            "reason": error.fault,
            "checkpoint": self.store.newest_step(),
        }
        if self._run_log and any(
            event["event"] == "failed" and failure.items() <= event.items()
            for event in read_events(self.config.training.output_dir)
        ):
            raise UserError(
                "a read must not fail twice in the same way",
                received=error.fault,
                remedy="Check the file system and the records: python -m "
                "data_prep.inspect_records.",
            ) from None
        self._log_event("failed", **failure)

    # The log.

    def _log_loop(self) -> None:
        """Logs the metrics since the last line, unless the run diverged."""
        position, config = self.position, self.config
        last = position.step - 1
        learning_rate = schedules.learning_rate(
            tf.constant(last), config.optimizer, config.training.num_train_steps
        )
        metrics = {
            **position.means(),
            "learning_rate": float(learning_rate),
            "dropout": schedules.dropout_rates(last, config).hidden,
        }
        self._stop_if_diverged(metrics)
        lowest, loss = position.lowest_loss, metrics["loss"]
        position.lowest_loss = loss if lowest is None else min(loss, lowest)
        metrics |= self._progress.advance(self.times)
        self.clear_sums()
        if self._run_log:
            self._progress.log(position.step, metrics)
            self._run_log.write("train", position.step, metrics)

    def clear_sums(self) -> None:
        """Clears the sums of the metrics and the times, after a line."""
        position = self.position
        position.totals = dict.fromkeys(position.totals, 0.0)
        position.num_steps = 0
        self.times = Times()

    def _stop_if_diverged(self, metrics: Mapping[str, float]) -> None:
        """Ends a run that has diverged; nothing is saved from then on.

        Args:
            metrics: Means of the steps since the last line of the log.

        Raises:
            UserError: If the run has diverged.
        """
        training, step = self.config.training, self.position.step
        divergence = find_divergence(
            metrics, self.position.lowest_loss, training
        )
        if not divergence:
            return
        self._log_event("diverged", reason=divergence, **metrics)
        self.store.wait()
        raise UserError(
            "loss and gradient norm must stay finite, and the loss at most "
            f"divergence_loss_increase={training.divergence_loss_increase:g} "
            "(0: any) above its lowest value",
            received=f"{divergence}, at step {step}",
            remedy="No checkpoint has been saved since. Start a new run from "
            "the last good one, with a lower --learning_rate: "
            f"--init_checkpoint={training.output_dir} --output_dir=NEW.",
        )

    def _log_dropout(self) -> None:
        """Logs a scheduled change of the dropout rates, after a loop."""
        step, config = self.position.step, self.config
        is_last = step == config.training.num_train_steps
        before = schedules.dropout_rates(step - 1, config)
        after = schedules.dropout_rates(step, config)
        if after != before and not is_last:
            self._log_event("dropout", before=before.hidden, after=after.hidden)

    def _log_event(self, kind: str, **facts: Any) -> None:
        """Logs an event at the current step."""
        if self._run_log:
            self._run_log.write_event(kind, self.position.step, **facts)

    def _log_start(
        self,
        resumed: Checkpoint | None,
        initial: WarmStart | None,
        **seconds: float,
    ) -> None:
        """Logs where the run starts, with which software, and its event."""
        logging.info(
            "%s at step %d of %d",
            f"continuing from {resumed.path}" if resumed else "starting",
            self.position.step,
            self.config.training.num_train_steps,
        )
        software = versions.software()
        logging.info(
            "software: %s",
            ", ".join(f"{name} {value}" for name, value in software.items()),
        )
        devices, _ = cost.describe_devices(self.host.strategy)
        facts = {**seconds, "software": software, "devices": devices}
        if resumed:
            log = self._run_log
            facts["lost_s"] = log.lost_seconds if log else 0.0
        elif initial:
            facts["warm_start"] = initial.report
        self._log_event("resume" if resumed else "start", **facts)

    # Evaluation.

    def _evaluate(self, logs: bool = True) -> None:
        """Evaluates, if there are held-out records, and saves the best model.

        Afterwards, `position.to_evaluate` tells whether a request to stop cut
        the evaluation short.
        """
        position = self.position
        position.to_evaluate = False
        if self._evaluator is None:
            return
        metrics = self._evaluator.run_and_log(
            position.step, self._run_log if logs else None
        )
        if metrics is None:
            position.to_evaluate = True
            return
        loss = self.objective.selection_loss(metrics)
        with self.host.watchdog.limit("saving a checkpoint"):
            is_new = self.store.save_best(
                position.step, position.to_notes(), loss
            )
        if is_new:
            self._log_checkpoint(best=True)

    def _has_evaluated(self) -> bool:
        """Whether the log has the evaluation at this step."""
        return any(
            line["split"] == "eval" and line["step"] == self.position.step
            for line in read_metrics(self.config.training.output_dir)
        )

    # Checkpoints.

    def save(self) -> None:
        """Saves a checkpoint in the background, and logs it."""
        self._saved_at = time.monotonic()
        with self.host.watchdog.limit("saving a checkpoint"):
            is_new = self.store.save(
                self.position.step, self.position.to_notes()
            )
        if is_new:
            self._log_checkpoint(best=False)

    def _log_checkpoint(self, *, best: bool) -> None:
        """Logs a checkpoint, and how long training waited for it."""
        stalled_s = self.store.seconds_stalled
        self._log_event("checkpoint", best=best, stalled_s=stalled_s)

    def _is_due(self, *intervals: int) -> bool:
        """Whether an action is due: at multiples (of 0: never), and the end."""
        step = self.position.step
        at_end = step == self.config.training.num_train_steps
        return at_end or any(i and step % i == 0 for i in intervals)

    def _is_late(self) -> bool:
        """Whether `--save_checkpoints_minutes` asks for a checkpoint."""
        minutes = self.config.training.save_checkpoints_minutes
        passed_s = time.monotonic() - self._saved_at
        return bool(minutes) and passed_s >= 60 * minutes

    def _finish_saving(self, *directories: str) -> None:
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
        self._wait_for_all()

    def _wait_for_all(self) -> None:
        """Waits for all workers, which must be at the same step."""
        wait_for_all(self.host.strategy, self.position.step)

    # The end of the process.

    def _stop_early(self) -> int:
        """Saves, and returns the exit status of an interrupted run."""
        position, stop = self.position, self.host.stop
        assert stop, "a request to stop"
        self._end_profile()
        if position.num_steps:
            self._stop_if_diverged(position.means())
        self.save()
        # A failed save to best/ has been logged. It must not change the exit
        # status, which tells a scheduler to continue the run.
        self._finish_saving(CHECKPOINTS_DIR)
        reason = stop.reason or "another worker was asked to stop"
        self._log_event("stop", reason=reason)
        logging.warning(
            "%s: stopped at step %d; the same command continues from the "
            "newest checkpoint",
            reason,
            position.step,
        )
        return stop.exit_status

    def _finish(self) -> int:
        """Ends a run that has done all steps; returns the exit status."""
        self._end_profile()
        self._finish_saving(CHECKPOINTS_DIR, BEST_DIR)
        self._log_event("finish")
        logging.info(
            "finished %d steps; the run is in %s",
            self.config.training.num_train_steps,
            self.config.training.output_dir,
        )
        return 0

    def _end_profile(self) -> None:
        if self._profiler.end():
            self._log_event("profile")


def log_summary(trainer: Trainer) -> None:
    """Logs settings, sizes, learning rate and records."""
    config, records = trainer.config, trainer.records
    num_replicas = trainer.host.strategy.num_replicas_in_sync
    logging.info("configuration: %s", config.to_dict())
    variables = trainer.state.model.trainable_variables
    rows, unit, packed = config.data.global_batch_size, "examples", ""
    if records.packing != "none":
        unit, examples = "rows", rows * records.examples_per_row
        packed = f"; {rows} rows hold {examples:.0f} examples on average"
    logging.info(
        "%d parameters; batch %d = %d replicas x %d %s in %d micro-batches%s",
        sum(math.prod(v.shape) for v in variables),
        rows,
        num_replicas,
        rows // num_replicas,
        unit,
        config.data.gradient_accumulation_steps,
        packed,
    )
    line, warning = schedules.describe_learning_rate(
        config, records.examples_per_row
    )
    logging.info("%s", line)
    if warning:
        logging.warning("%s", warning)
    logging.info(
        "%d records in %d files; %.1f steps per epoch; %s",
        records.num_records,
        len(records.files),
        records.num_records / config.data.global_batch_size,
        "; ".join(trainer.objective.describe_records(records)),
    )


def find_divergence(
    means: Mapping[str, float],
    lowest_loss: float | None,
    config: TrainingConfig,
) -> str:
    """Describes why a run has diverged; "" if it has not.

    Args:
        means: `loss` and `gradient_norm` of the steps since the last check.
            The norm may be NaN while the loss, which is computed before it, is
            still finite.
        lowest_loss: The lowest mean loss so far; None at the first check.
    """
    loss, gradient_norm = means["loss"], means["gradient_norm"]
    if not math.isfinite(loss + gradient_norm):
        return f"loss {loss} and gradient norm {gradient_norm}"
    allowed = config.divergence_loss_increase
    if lowest_loss is not None and allowed and loss > lowest_loss + allowed:
        return (
            f"loss {loss:.3f}, more than divergence_loss_increase="
            f"{allowed:g} above the lowest loss, {lowest_loss:.3f}"
        )
    return ""
