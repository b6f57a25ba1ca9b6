"""The training loop: an outer Python loop around the loop on the devices.

Each iteration trains up to a boundary: the next step at which the host must
act. Then it checks for divergence, logs, evaluates and saves.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf.cluster.preemption import StopRequest
from albert_tf.cluster.watchdog import Watchdog
from albert_tf.cluster.workers import slice_servers
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.input.damaged_records import TRAINING_ERRORS
from albert_tf.input.record_sets import TrainingData
from albert_tf.runs.checkpoint_files import BEST_DIR, CHECKPOINTS_DIR
from albert_tf.runs.log import RunLog, read_metrics
from albert_tf.runs.rollback import find_divergence
from albert_tf.training import schedules
from albert_tf.training.evaluate import Evaluator
from albert_tf.training.listener import Listener
from albert_tf.training.profiling import Profiler
from albert_tf.training.progress import Progress
from albert_tf.training.recovery import Recovery
from albert_tf.training.saver import Saver
from albert_tf.training.switches import DataSwitch, DropoutSwitch
from albert_tf.training.trainer import Trainer


class Run:
    """A run in one process; made by `train.open_run`.

    Args:
        evaluator: Evaluates the model; None without held-out records.
        stop: Request to stop, set by signals and notices.
        run_log: None in processes that do not write the log.
        watchdog: Ends the process if the devices hang.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        data: TrainingData,
        strategy: tf.distribute.Strategy,
        trainer: Trainer,
        evaluator: Evaluator | None,
        stop: StopRequest,
        run_log: RunLog | None,
        progress: Progress,
        watchdog: Watchdog,
    ) -> None:
        self.config = config
        self.data = data
        self.strategy = strategy
        self.trainer = trainer
        self.position = trainer.position
        self.evaluator = evaluator
        self.stop = stop
        self.run_log = run_log
        self.progress = progress
        self.saver = Saver(
            config, data, strategy, trainer, self.log_event, watchdog
        )
        self.listeners: Sequence[Listener] = (
            *([self._profiler(config)] if run_log else []),
            DropoutSwitch(config, progress, self.log_event),
            DataSwitch(config, data, self.log_event),
            *trainer.state.objective.listeners(self.log_event),
            progress,
        )
        self.recovery = Recovery(
            config,
            trainer,
            strategy,
            run_log,
            self.listeners,
            self.log_event,
            watchdog,
        )

    def _profiler(self, config: PretrainingConfig) -> Profiler:
        return Profiler(config, self.log_event, slice_servers(self.strategy))

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
            self.progress.on_loop_begin(position.step - 1)
            self._end_loop()
        while position.step < last_step:
            evaluated = False
            for listener in self.listeners:
                listener.on_loop_begin(position.step)
            boundary, stops = self._next_boundary(), False
            try:
                stops = self.trainer.advance(boundary)
            except TRAINING_ERRORS as error:
                self.recovery.read_again(error, boundary)
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
            if self.saver.is_late() or self._is_due(
                training.save_checkpoints_steps, training.keep_every_n_steps
            ):
                self.saver.save()
            for listener in self.listeners:
                listener.on_loop_end(position.step, metrics)
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

    def _end_loop(self) -> dict[str, float] | None:
        """Checks for divergence and logs the metrics since the last line.

        Returns:
            All metrics of the line; None if the run has diverged and has
            returned to a checkpoint.
        """
        metrics = self._metrics()
        divergence = self._find_divergence(metrics)
        if divergence:
            self.recovery.roll_back(divergence, metrics)
            return None
        return self._log_metrics(metrics)

    def _metrics(self) -> dict[str, float]:
        """The means since the last line of the log."""
        position = self.position
        rates = schedules.dropout_rates(position.step - 1, self.config)
        return {
            **position.means(),
            "learning_rate": position.learning_rate,
            "dropout": rates.hidden,
        }

    def _find_divergence(self, metrics: Mapping[str, float]) -> str:
        return find_divergence(
            metrics["loss"],
            metrics["gradient_norm"],
            self.position.lowest_loss,
            self.config.training,
        )

    def _log_metrics(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Logs the metrics, with those of the times, and clears their sums.

        Returns:
            All metrics of the line.
        """
        position = self.position
        if position.lowest_loss is None:
            position.lowest_loss = metrics["loss"]
        position.lowest_loss = min(metrics["loss"], position.lowest_loss)
        timed = {**metrics, **self.progress.advance(position.times)}
        position.clear_totals()
        if self.run_log:
            self.progress.log(position.step, timed)
            self.run_log.write("train", position.step, timed)
        return timed

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
                self.saver.save_best(
                    self.trainer.state.objective.cost(metrics),
                    self.evaluator.examples,
                )
        except (UserError, tf.errors.OpError):
            position.to_evaluate = True
            self.saver.save_before_error()
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

    def _stop_early(self) -> int:
        """Saves, and returns the exit status of an interrupted run.

        Raises:
            UserError: If the checkpoint could not be written.
        """
        position = self.position
        for listener in self.listeners:
            listener.on_stop(position.step)
        divergence = self._find_divergence(position.means())
        if divergence and position.num_steps:
            logging.error(
                "NO CHECKPOINT SAVED at step %d, since the run has diverged: "
                "%s",
                position.step,
                divergence,
            )
        else:
            self.saver.save()
        # A failed save to best/ has been logged. It must not change the exit
        # status, which tells a scheduler to continue the run.
        self.saver.finish(CHECKPOINTS_DIR)
        reason = self.stop.reason or "another worker was asked to stop"
        self.log_event("stop", reason=reason)
        self._finish_log()
        logging.warning(
            "%s: stopped at step %d; the same command continues from the "
            "newest checkpoint",
            reason,
            position.step,
        )
        return self.stop.exit_status

    def _finish(self, evaluated: bool) -> int:
        """Ends a run that has done all steps; returns the exit status."""
        for listener in self.listeners:
            listener.on_stop(self.position.step)
        last_step = self.config.training.num_train_steps
        if (
            self.evaluator
            and not evaluated
            and not self._evaluate_complete_run()
        ):
            return self._stop_early()
        self.saver.finish(CHECKPOINTS_DIR, BEST_DIR)
        self.log_event("finish")
        self._finish_log()
        logging.info(
            "finished %d steps; the run is in %s",
            last_step,
            self.config.training.output_dir,
        )
        return 0

    def _finish_log(self) -> None:
        if self.run_log:
            self.run_log.finish()

    def log_event(self, kind: str, **facts: Any) -> None:
        """Logs an event at the current step."""
        if self.run_log:
            self.run_log.write_event(kind, self.position.step, **facts)
