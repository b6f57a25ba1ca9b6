"""A run, from top to bottom.

`train` does four things:

1. It checks records and run directory.
2. It connects the devices.
3. It opens the run (`open_run`).
4. It trains (`Run.train`).

On the same kind and number of devices, the weights at a step are a function of
settings, seed, records and initial weights. So a run can be killed at any
moment and resumed, with the same result.

Keras 3 supplies the layers, not the loop: under strategies, its `fit`, its
clipping and its gradient accumulation give wrong results or crash.
"""

import math
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import tensorflow as tf
from absl import logging

from albert_tf.cluster import versions
from albert_tf.cluster.host import Host, connect
from albert_tf.cluster.strategy import per_replica_batch_size
from albert_tf.config import PretrainingConfig, TrainingConfig
from albert_tf.errors import UserError
from albert_tf.input.record_format import (
    TRAINING_ERRORS,
    explain_failed_read,
)
from albert_tf.input.record_sets import RecordSet
from albert_tf.runs import directory as run_directory
from albert_tf.runs.checkpoints import (
    BEST_DIR,
    CHECKPOINTS_DIR,
    Checkpoint,
)
from albert_tf.runs.log import RunLog, read_metrics
from albert_tf.training import cost, schedules
from albert_tf.training.evaluate import Evaluator
from albert_tf.training.objective import Objective
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.progress import Profiler, Progress, Times
from albert_tf.training.trainer import Trainer
from albert_tf.training.warm_start import WarmStart


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
        initial = None if checkpoints else objective.initial_weights(records)
        # 3. The run: resumed, warm-started or fresh. 4. The loop.
        with host.owning(config.training.output_dir) as host:
            with host.watchdog.limit("the start of the run"):
                run = open_run(
                    config, objective, records, held_out, host, initial, began
                )
            return run.train()


def open_run(
    config: PretrainingConfig,
    objective: Objective,
    records: RecordSet,
    held_out: RecordSet | None,
    host: Host,
    initial: WarmStart | None = None,
    began: float | None = None,
) -> "Run":
    """Opens a run: resumes it, or starts a new one from `initial` or at random.

    `began`: see `train`.
    """
    began = began or time.time()
    num_replicas = host.strategy.num_replicas_in_sync
    per_replica_batch_size(config.data, num_replicas)
    if held_out is not None:
        per_replica_batch_size(config.data, num_replicas, "eval_batch_size")
    if not host.is_chief:
        logging.set_verbosity(logging.WARNING)
    # Model, optimizer and program.
    trainer = Trainer(config, objective, records, host)
    evaluator = None
    if held_out is not None:
        model = trainer.state.model
        evaluator = Evaluator(host, model, objective, held_out, config)
    restore_began = time.monotonic()
    resumed = trainer.start(initial)
    restore_s = time.monotonic() - restore_began
    position = trainer.position
    trainer.wait_for_all()
    # The settings, which now have been found to fit the checkpoint, and the
    # log. Lines of steps after the checkpoint are dropped.
    run_log = None
    if host.writes:
        run_directory.write(config, records)
        run_log = RunLog(
            config.training.output_dir,
            position.step,
            position.to_evaluate,
            position.num_steps,
        )
    run = Run(trainer, evaluator, run_log)
    times = {
        "start_up_s": time.time() - began - restore_s,
        "restore_s": restore_s,
    }
    _log_start(run, resumed, initial, times)
    _log_summary(trainer)
    # A new run saves its first checkpoint. If it cannot be written, the run
    # ends before training.
    if resumed is None:
        if host.writes:
            objective.write_report(config.training.output_dir, initial)
        run.save()
        trainer.finish_saving(CHECKPOINTS_DIR)
    return run


class Run:
    """The loop of a run in one process; made by `open_run`.

    Each iteration trains up to a boundary, the next step at which the host must
    act. Then it checks for divergence, logs, evaluates and saves.

    Args:
        evaluator: Evaluates the model; None without held-out records.
        run_log: None in processes that do not write the log.
    """

    def __init__(
        self,
        trainer: Trainer,
        evaluator: Evaluator | None,
        run_log: RunLog | None,
    ) -> None:
        self.config = trainer.config
        self.host = trainer.host
        self.trainer = trainer
        self.position = trainer.position
        self.evaluator = evaluator
        self.run_log = run_log
        self.progress = Progress(
            self.config,
            trainer.objective,
            trainer.records,
            cost.peak_flops(self.host.strategy),
        )
        self.profiler = Profiler(self.config, is_active=run_log is not None)
        self.devices, _ = cost.describe_devices(self.host.strategy)

    def train(self) -> int:
        """Trains to the last step or a request to stop; returns the status."""
        position, training = self.position, self.config.training
        last_step, evaluated = training.num_train_steps, False
        if position.to_evaluate:
            evaluated = self._evaluate()
            if position.to_evaluate:
                return self._stop_early()
        while position.step < last_step:
            evaluated = False
            if self.profiler.begin_loop(position.step):
                self.log_event("profile")
            boundary = self._next_boundary()
            try:
                stops = self.trainer.advance(boundary)
            except TRAINING_ERRORS as error:
                self._explain_failed_step(error)
            if position.step < boundary:
                return self._stop_early()
            self._end_loop()
            # Evaluate before saving: a run that resumes from this checkpoint
            # does not evaluate this step.
            if self._is_due(training.eval_every_n_steps):
                evaluated = self._evaluate()
            if self.trainer.is_late() or self._is_due(
                training.save_checkpoints_steps, training.keep_every_n_steps
            ):
                self.save()
            self._log_changes()
            if position.to_evaluate or (stops and boundary < last_step):
                return self._stop_early()
        return self._finish(evaluated)

    def _next_boundary(self) -> int:
        """The step up to which to train before the host acts again.

        It depends only on settings and step. So a resumed run has the same
        lines in its log as an uninterrupted run.
        """
        step, training = self.position.step, self.config.training
        due = (
            training.steps_per_loop,
            training.save_checkpoints_steps,
            training.eval_every_n_steps,
            training.keep_every_n_steps,
        )
        changes = (
            *((step // every + 1) * every for every in due if every),
            schedules.next_dropout_change(step, self.config),
            *(s for s in training.profiled_steps() or () if s > step),
        )
        return min(
            *(change for change in changes if change is not None),
            training.num_train_steps,
        )

    def _is_due(self, *intervals: int) -> bool:
        """Whether an action is due: at multiples (of 0: never), and the end."""
        step = self.position.step
        at_end = step == self.config.training.num_train_steps
        return at_end or any(i and step % i == 0 for i in intervals)

    # Metrics.

    def _end_loop(self) -> None:
        """Logs the metrics since the last line, unless the run diverged."""
        position = self.position
        rates = schedules.dropout_rates(position.step - 1, self.config)
        metrics = {
            **position.means(),
            "learning_rate": position.learning_rate,
            "dropout": rates.hidden,
        }
        self._stop_if_diverged(metrics)
        metrics |= self.progress.advance(self.trainer.times)
        self.trainer.times = Times()
        position.end_line(metrics["loss"])
        if self.run_log:
            self.progress.log(position.step, metrics)
            self.run_log.write("train", position.step, metrics)

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
        self.log_event("diverged", reason=divergence, **metrics)
        self.trainer.store.wait()
        raise UserError(
            "loss and gradient norm must stay finite, and the loss at most "
            f"divergence_loss_increase={training.divergence_loss_increase:g} "
            "(0: any) above its lowest value",
            received=f"{divergence}, at step {step}",
            remedy="No checkpoint has been saved since. Start a new run from "
            "the last good one, with a lower --learning_rate: "
            f"--init_checkpoint={training.output_dir} --output_dir=NEW.",
        )

    def _log_changes(self) -> None:
        """Logs scheduled changes after a loop."""
        step, config = self.position.step, self.config
        is_last = step == config.training.num_train_steps
        before = schedules.dropout_rates(step - 1, config)
        after = schedules.dropout_rates(step, config)
        if after != before and not is_last:
            self.log_event("dropout", before=before.hidden, after=after.hidden)

    def log_event(self, kind: str, **facts: Any) -> None:
        """Logs an event at the current step."""
        if self.run_log:
            self.run_log.write_event(kind, self.position.step, **facts)

    def _end_profile(self) -> None:
        if self.profiler.end():
            self.log_event("profile")

    # Evaluation.

    def _evaluate(self, logs: bool = True) -> bool:
        """Evaluates, if there are held-out records, and saves the best model.

        Returns whether the evaluation is complete, not cut short by a stop.
        """
        position = self.position
        if self.evaluator is None:
            position.to_evaluate = False
            return False
        metrics = self.evaluator.run_and_log(
            position.step, self.run_log if logs else None
        )
        position.to_evaluate = metrics is None
        if metrics is not None:
            loss = self.trainer.objective.cost(metrics)
            self._log_checkpoint(self.trainer.save_best(loss), best=True)
        return metrics is not None

    # Checkpoints.

    def save(self) -> None:
        """Saves a checkpoint in the background, and logs it."""
        self._log_checkpoint(self.trainer.save(), best=False)

    def _log_checkpoint(self, is_new: bool, *, best: bool) -> None:
        """Logs a checkpoint, and how long training waited for it."""
        if is_new:
            stalled_s = self.trainer.store.seconds_stalled
            self.log_event("checkpoint", best=best, stalled_s=stalled_s)

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
        self.trainer.finish_saving(CHECKPOINTS_DIR)
        reason = stop.reason or "another worker was asked to stop"
        self.log_event("stop", reason=reason)
        logging.warning(
            "%s: stopped at step %d; the same command continues from the "
            "newest checkpoint",
            reason,
            position.step,
        )
        return stop.exit_status

    def _finish(self, evaluated: bool) -> int:
        """Ends a run that has done all steps; returns the exit status."""
        self._end_profile()
        if self.evaluator and not evaluated:
            # The run was complete when it was started. The log gets a line
            # unless it has one, and `best/` the checkpoint if an earlier
            # process failed to write it.
            is_logged = any(
                line["split"] == "eval" and line["step"] == self.position.step
                for line in read_metrics(self.config.training.output_dir)
            )
            if not self._evaluate(logs=not is_logged):
                return self._stop_early()
        self.trainer.finish_saving(CHECKPOINTS_DIR, BEST_DIR)
        self.log_event("finish")
        logging.info(
            "finished %d steps; the run is in %s",
            self.config.training.num_train_steps,
            self.config.training.output_dir,
        )
        return 0

    def _explain_failed_step(self, error: tf.errors.OpError) -> NoReturn:
        """Raises an error that says what to do after a failed read."""
        records = self.trainer.records
        with self.host.watchdog.limit("the search for damaged shards"):
            explain_failed_read(error, self.host.strategy, records)


def _log_start(
    run: Run,
    resumed: Checkpoint | None,
    initial: WarmStart | None,
    times: Mapping[str, float],
) -> None:
    """Logs where the run starts, with which software, and its event."""
    position, training = run.position, run.config.training
    logging.info(
        "%s at step %d of %d",
        f"continuing from {resumed.path}" if resumed else "starting",
        position.step,
        training.num_train_steps,
    )
    software = versions.software()
    logging.info(
        "software: %s",
        ", ".join(f"{name} {value}" for name, value in software.items()),
    )
    facts: dict[str, Any] = {**times, "software": software}
    facts["devices"] = run.devices
    if resumed:
        facts["lost_s"] = run.run_log.lost_seconds if run.run_log else 0.0
    elif initial:
        facts["warm_start"] = initial.report
    run.log_event("resume" if resumed else "start", **facts)


def _log_summary(trainer: Trainer) -> None:
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
        *(rows, num_replicas, rows // num_replicas, unit),
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
