"""The training loop: an outer Python loop around the loop on the devices.

Each iteration trains up to a boundary: the next step at which the host must
act. Then it checks for divergence, logs, evaluates and saves.

After divergence, and after a failed read of intact records, the run returns to
its newest checkpoint. After divergence it skips the batches read since that
checkpoint; the run directory lists them, so that every later process reads the
same batches.
"""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf.cluster.workers import (
    check_agreement,
    is_one_process,
    slice_servers,
)
from albert_tf.errors import RetryError, UserError, first_line
from albert_tf.input.damaged_records import TRAINING_ERRORS, may_be_damage
from albert_tf.runs import checkpoints
from albert_tf.runs.checkpoint_files import BEST_DIR, CHECKPOINTS_DIR
from albert_tf.runs.log import RunLog, read_metrics
from albert_tf.runs.rollback import find_divergence
from albert_tf.training import cost, schedules
from albert_tf.training.evaluate import Evaluator
from albert_tf.training.progress import Profiler, Progress
from albert_tf.training.trainer import Trainer

# Largest number of consecutive returns to a checkpoint because a read failed
# although all records are intact. Progress beyond the failed step resets the
# count.
MAX_REREADS = 3


class Run:
    """A run in one process; made by `train.open_run`.

    Args:
        evaluator: Evaluates the model; None without held-out records.
        run_log: None in processes that do not write the log.
    """

    def __init__(
        self,
        trainer: Trainer,
        evaluator: Evaluator | None,
        run_log: RunLog | None,
        progress: Progress,
    ) -> None:
        self.config = trainer.config
        self.data = trainer.data
        self.host = trainer.host
        self.trainer = trainer
        self.position = trainer.position
        self.evaluator = evaluator
        self.run_log = run_log
        self.progress = progress
        self.profiler = Profiler(
            self.config,
            slice_servers(self.host.strategy),
            is_active=run_log is not None,
        )
        self._saved_at = time.monotonic()
        self._rereads = 0
        self._reread_at = -1  # the step of the last failed read
        # Rate, step time in seconds and peak memory in bytes (None: unknown)
        # before a change of dropout, until they are compared with those after.
        self._before_change: tuple[float, float, int | None] | None = None

    def train(self) -> int:
        """Trains to the last step, or until a request to stop.

        Returns:
            The exit status.
        """
        position, training = self.position, self.config.training
        last_step, evaluated = training.num_train_steps, False
        if position.to_evaluate:
            evaluated = self._evaluate()
            if position.to_evaluate:
                return self._stop_early()
        if position.num_steps and position.step == last_step:
            # The run was stopped here, within a loop of a longer run.
            self.progress.begin_loop(position.step - 1)
            self._end_loop()
        while position.step < last_step:
            began_at, evaluated = position.step, False
            self.progress.begin_loop(began_at)
            if self.profiler.begin_loop(began_at):
                self.log_event("profile")
            boundary = self._next_boundary()
            try:
                stops = self.trainer.advance(boundary)
            except TRAINING_ERRORS as error:
                self._read_again(error, boundary)
                continue
            if position.step < boundary:
                return self._stop_early()
            metrics = self._end_loop()
            if metrics is None:
                continue
            # Evaluate before saving: a run that resumes from this checkpoint
            # does not evaluate this step.
            if self._is_due(training.eval_every_n_steps):
                evaluated = self._evaluate()
            if self._is_late() or self._is_due(
                training.save_checkpoints_steps, training.keep_every_n_steps
            ):
                self.save()
            self._log_changes(began_at, metrics)
            if position.to_evaluate or (stops and boundary < last_step):
                return self._stop_early()
        return self._finish(evaluated)

    def _next_boundary(self) -> int:
        """The step at which the device loop returns to the host.

        It depends only on settings and step. So a resumed run has the same
        device loops and the same lines in its log as an uninterrupted run.
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
            self.data.next_change(step),
            *(s for s in training.profiled_steps() or () if s > step),
        )
        return min(
            *(change for change in changes if change is not None),
            training.num_train_steps,
        )

    def _is_due(self, *intervals: int) -> bool:
        """Whether an action is due: at multiples of an interval and at the end.

        An interval of 0 has no multiples.
        """
        step = self.position.step
        at_end = step == self.config.training.num_train_steps
        return at_end or any(i and step % i == 0 for i in intervals)

    # Metrics.

    def _end_loop(self) -> dict[str, float] | None:
        """Checks for divergence and logs the metrics since the last line.

        Returns:
            All metrics of the line; None if the run has diverged and has
            returned to a checkpoint.
        """
        position = self.position
        rates = schedules.dropout_rates(position.step - 1, self.config)
        metrics = {
            **position.means(),
            "learning_rate": position.learning_rate,
            "dropout": rates.hidden,
        }
        divergence = self._find_divergence(metrics)
        if divergence:
            self._roll_back(divergence, metrics)
            return None
        lowest = position.lowest_loss
        position.lowest_loss = min(
            metrics["loss"], metrics["loss"] if lowest is None else lowest
        )
        metrics |= self.progress.advance(position.times)
        position.clear_totals()
        if self.run_log:
            self.progress.log(position.step, metrics)
            self.run_log.write("train", position.step, metrics)
        return metrics

    def _find_divergence(self, metrics: Mapping[str, float]) -> str:
        return find_divergence(
            metrics["loss"],
            metrics["gradient_norm"],
            self.position.lowest_loss,
            self.config.training,
        )

    def _log_changes(self, began_at: int, metrics: Mapping[str, float]) -> None:
        """Logs scheduled changes after a loop, and the objective's events."""
        step, config = self.position.step, self.config
        self.profiler.steps_per_second = metrics["steps_per_second"]
        # Compare after the first loop at the new rate without compiling.
        if self._before_change and self.progress.was_steady:
            self._compare_dropout(metrics)
        is_last = step == config.training.num_train_steps
        before = schedules.dropout_rates(step - 1, config)
        after = schedules.dropout_rates(step, config)
        if after != before and not is_last:
            self.log_event("dropout", before=before.hidden, after=after.hidden)
            memory_bytes = cost.peak_memory_bytes()
            self._before_change = (
                before.hidden,
                metrics["step_seconds_median"],
                memory_bytes if cost.reset_peak_memory() else None,
            )
        if self.data.next_change(step - 1) == step and not is_last:
            name = self.data.at(step).name
            logging.info("training on %s from step %d on", name, step)
            self.log_event("data", name=name)
        events = self.trainer.objective.events_of_loop(began_at, step, metrics)
        for kind, facts in events.items():
            self.log_event(kind, **facts)

    def _compare_dropout(self, metrics: Mapping[str, float]) -> None:
        """Logs the step time and the memory before and after a change."""
        assert self._before_change
        rate_before, seconds_before, memory_before = self._before_change
        self._before_change = None
        memory = ""
        if memory_before is not None:
            memory = (
                f", peak memory of {cost.memory_owner()} "
                f"{memory_before / 1e9:.2f} GB -> "
                f"{cost.peak_memory_bytes() / 1e9:.2f} GB"
            )
        logging.info(
            "dropout %g -> %g: step %.3g s -> %.3g s%s",
            rate_before,
            metrics["dropout"],
            seconds_before,
            metrics["step_seconds_median"],
            memory,
        )

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

        Args:
            logs: Whether to log the metrics.

        Returns:
            Whether there is a complete evaluation, not cut short by a stop.
        """
        position = self.position
        if self.evaluator is None:
            position.to_evaluate = False
            return False
        try:
            metrics = self.evaluator.run_and_log(
                position.step, self.run_log if logs else None
            )
            position.to_evaluate = metrics is None
            if metrics is not None:
                self._save_best(
                    self.trainer.objective.cost(metrics),
                    self.evaluator.examples,
                )
        except (UserError, tf.errors.OpError):
            position.to_evaluate = True
            self._save_before_error()
            raise
        return metrics is not None

    def _evaluate_complete_run(self) -> bool:
        """Evaluates a run that was complete when it was started.

        The log gets a line unless it has one of the same held-out examples. In
        any case, the checkpoint is saved to `best/` if it belongs there: an
        earlier process may have failed to write it.

        Returns:
            The same as `_evaluate`.
        """
        assert self.evaluator
        step, run_log = self.position.step, self.run_log
        is_logged = any(
            line["split"] == "eval" and line["step"] == step
            for line in read_metrics(self.config.training.output_dir)
        )
        if is_logged and not self.trainer.store.best_is_of(
            self.evaluator.examples
        ):
            is_logged = False
            if run_log:
                run_log.rewind(step, evaluates_again=True)
        return self._evaluate(logs=not is_logged)

    # Checkpoints.

    def save(self) -> None:
        """Saves a checkpoint in the background."""
        self._saved_at = time.monotonic()
        with self.host.watchdog.limit("saving a checkpoint"):
            is_new = self.trainer.store.save(self.position.step, self._notes())
        self._log_checkpoint(is_new, best=False)

    def _save_best(self, loss: float, examples: dict[str, Any]) -> None:
        """Saves a checkpoint to `best/` if its held-out loss is the lowest."""
        with self.host.watchdog.limit("saving a checkpoint"):
            is_new = self.trainer.store.save_best(
                self.position.step, self._notes(), loss, examples
            )
        self._log_checkpoint(is_new, best=True)

    def _save_before_error(self) -> None:
        """Saves the steps before an evaluation that failed.

        The next process repeats only the evaluation. If the checkpoint cannot
        be written, e.g. because a worker is lost, the log says so, and the
        error of the evaluation still ends the run.
        """
        try:
            self.save()
            with self.host.watchdog.limit("saving the last checkpoint"):
                self.trainer.store.wait()
        except (UserError, tf.errors.OpError) as error:
            logging.error(
                "NO CHECKPOINT SAVED at step %d, where the evaluation failed: "
                "%s",
                self.position.step,
                first_line(error),
            )

    def finish_saving(self, *directories: str) -> None:
        """Waits for the last checkpoint, in all processes.

        Args:
            directories: `checkpoints` or `best`: the directories whose last
                checkpoint must be written.

        Raises:
            UserError: If it could not be written; a `RetryError` if the cause
                is temporary.
        """
        store = self.trainer.store
        with self.host.watchdog.limit("saving the last checkpoint"):
            store.wait()
        for directory in directories:
            if directory in store.save_errors:
                raise store.save_errors[directory]
        # If this worker ended before the others, they would report it as lost.
        check_agreement(self.host.strategy, self.position.step)

    def _is_late(self) -> bool:
        """Whether `--save_checkpoints_minutes` asks for a checkpoint.

        Only the process that saves acts on the answer, so processes need not
        agree.
        """
        minutes = self.config.training.save_checkpoints_minutes
        passed_s = time.monotonic() - self._saved_at
        return bool(minutes) and passed_s >= 60 * minutes

    def _notes(self) -> dict[str, Any]:
        position = self.position
        rates = schedules.dropout_rates(position.step, self.config)
        return position.to_notes(
            dropout=list(rates),
            data=self.data.at(position.step).name,
            **{checkpoints.ROLLBACKS_NOTE: len(self.trainer.rollbacks)},
        )

    def _log_checkpoint(self, is_new: bool, *, best: bool) -> None:
        """Logs a checkpoint, and how long training waited for it."""
        if is_new:
            stalled_s = self.trainer.store.seconds_stalled
            self.log_event("checkpoint", best=best, stalled_s=stalled_s)

    # The end of the process.

    def _stop_early(self) -> int:
        """Saves, and returns the exit status of an interrupted run.

        Raises:
            UserError: If the checkpoint could not be written.
        """
        position, stop = self.position, self.host.stop
        assert stop, "a request to stop"
        self._end_profile()
        divergence = self._find_divergence(position.means())
        if divergence and position.num_steps:
            logging.error(
                "NO CHECKPOINT SAVED at step %d, since the run has diverged: "
                "%s",
                position.step,
                divergence,
            )
        else:
            self.save()
        # A failed save to best/ has been logged. It must not change the exit
        # status, which tells a scheduler to continue the run.
        self.finish_saving(CHECKPOINTS_DIR)
        reason = stop.reason or "another worker was asked to stop"
        self.log_event("stop", reason=reason)
        self._finish_log()
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
        if (
            self.evaluator
            and not evaluated
            and not self._evaluate_complete_run()
        ):
            return self._stop_early()
        self.finish_saving(CHECKPOINTS_DIR, BEST_DIR)
        self.log_event("finish")
        self._finish_log()
        logging.info(
            "finished %d steps; the run is in %s",
            self.config.training.num_train_steps,
            self.config.training.output_dir,
        )
        return 0

    def _finish_log(self) -> None:
        if self.run_log:
            self.run_log.finish()

    # Returns to a checkpoint.

    def _roll_back(self, reason: str, metrics: Mapping[str, float]) -> None:
        """Returns to the newest checkpoint, to continue with later data.

        If the previous rollback returned to the same checkpoint, this one
        returns to the checkpoint before it.

        Args:
            reason: How the run has diverged.
            metrics: The metrics of the divergence, for the log.

        Raises:
            UserError: If the settings require the run to stop instead.
        """
        policy, rollbacks = self.config.training, self.trainer.rollbacks
        diverged_at = self.position.step
        logging.error("diverged at step %d: %s", diverged_at, reason)
        self.log_event("diverged", reason=reason, **metrics)
        rollbacks.check_allowed(diverged_at, reason, policy)
        newest = rollbacks.newest
        lost_s = self._restore(avoided=newest.resumed_from if newest else None)
        rollback = rollbacks.plan(
            diverged_at=diverged_at,
            resumed_from=self.position.step,
            reason=reason,
            config=policy,
        )
        # Before the log is rewound: a process that is killed here resumes from
        # this checkpoint. Without the rollback, it would resume from a later
        # one, whose log would lack the lines since this checkpoint.
        rollbacks.add(rollback, writes=self.host.writes)
        lost_s += self._rewind_log()
        self.log_event(
            "rollback", lost_s=lost_s, **dataclasses.asdict(rollback)
        )

    def _read_again(self, error: tf.errors.OpError, boundary: int) -> None:
        """Returns to the newest checkpoint after a failed read.

        Args:
            error: The error from reading.
            boundary: The step up to which batches were requested.

        Raises:
            UserError: If a record is damaged; the error names it.
            RetryError: If the run must be restarted: because it has several
                workers, or because TensorFlow has cancelled a sum over the
                replicas, and refuses all sums of this process from then on.
            tf.errors.OpError: `error` itself, if it has another cause, or if
                reading fails again and again although no record is damaged.
        """
        # Of several processes or hosts, it means that one of them is lost.
        is_cancelled = isinstance(
            error, tf.errors.CancelledError
        ) and isinstance(self.host.strategy, tf.distribute.MirroredStrategy)
        if not (is_cancelled or may_be_damage(error)):
            raise error
        step, reason = self.position.step, first_line(error)
        self.trainer.stream.check_intact(step, boundary)
        if is_cancelled:
            raise RetryError(
                "sums over the replicas must not be cancelled",
                received=reason,
                remedy="Start the same command again: TensorFlow refuses all "
                "further sums of this process. The run continues from its "
                "newest checkpoint.",
            )
        self._rereads = self._rereads + 1 if step <= self._reread_at else 1
        self._reread_at = max(step, self._reread_at)
        if self._rereads > MAX_REREADS:
            raise error
        logging.warning(
            "reading failed at step %d, but all records are intact, so they "
            "are read again: %s",
            step,
            reason,
        )
        if not is_one_process(self.host.strategy):
            # The other workers wait for this one in the step that failed.
            self.log_event("read_again", reason=reason, lost_s=0.0)
            raise RetryError(
                "all workers must be restarted after a failed read",
                received=f"{reason}; all records are intact",
                remedy="Start the job again.",
            )
        lost_s = self._restore() + self._rewind_log()
        self.log_event("read_again", reason=reason, lost_s=lost_s)

    def _restore(self, avoided: int | None = None) -> float:
        """Restores the newest checkpoint.

        Args:
            avoided: Step of a checkpoint to use only if there is no other.

        Returns:
            The time in seconds of the steps that no line of the log includes,
            minus that of the steps before the checkpoint, which the next line
            of the log includes.
        """
        position = self.position
        lost_s = position.times.total
        with self.host.watchdog.limit("the return to a checkpoint"):
            self.trainer.store.wait()
            check_agreement(self.host.strategy, position.step)
            restored = self.trainer.restore(avoided)
            assert restored, "a new run saves one before its first step"
            # The run has continued past this step before, so the evaluation
            # that was cut short at this step is not due again.
            position.to_evaluate = False
            check_agreement(self.host.strategy, position.step)
        return lost_s - position.times.total

    def _rewind_log(self) -> float:
        """Rewinds the log to the restored step.

        Returns:
            The time in seconds of the lines that it drops.
        """
        position, lost_s = self.position, 0.0
        if self.run_log:
            self.run_log.rewind(position.step, num_unlogged=position.num_steps)
            lost_s = self.run_log.lost_seconds
        self._end_profile()
        self.progress.recount()
        self._before_change = None
        return lost_s
