"""Saves a run: its checkpoints, with the notes that a resumed run needs."""

import time
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf.cluster.watchdog import Watchdog
from albert_tf.cluster.workers import check_agreement
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError, first_line
from albert_tf.input.record_sets import TrainingData
from albert_tf.runs import checkpoints
from albert_tf.training import schedules
from albert_tf.training.listener import LogEvent
from albert_tf.training.trainer import Trainer


class Saver:
    """Saves the checkpoints of a run, in all processes.

    Args:
        log_event: Logs an event at the current step.
        watchdog: Ends the process if the devices hang.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        data: TrainingData,
        strategy: tf.distribute.Strategy,
        trainer: Trainer,
        log_event: LogEvent,
        watchdog: Watchdog,
    ) -> None:
        self._config = config
        self._data = data
        self._strategy = strategy
        self._trainer = trainer
        self._log_event = log_event
        self._watchdog = watchdog
        self._saved_at = time.monotonic()

    def is_late(self) -> bool:
        """Whether `--save_checkpoints_minutes` asks for a checkpoint.

        Only the process that saves acts on the answer, so processes need not
        agree.
        """
        minutes = self._config.training.save_checkpoints_minutes
        passed_s = time.monotonic() - self._saved_at
        return bool(minutes) and passed_s >= 60 * minutes

    def save(self) -> None:
        """Saves a checkpoint in the background."""
        self._saved_at = time.monotonic()
        with self._watchdog.limit("saving a checkpoint"):
            is_new = self._trainer.store.save(
                self._trainer.position.step, self._notes()
            )
        self._log(is_new, best=False)

    def save_best(self, loss: float, examples: dict[str, Any]) -> None:
        """Saves a checkpoint to `best/` in the background.

        Args:
            loss: The held-out loss; nothing is saved unless it is the lowest.
            examples: Describes the held-out examples.
        """
        with self._watchdog.limit("saving a checkpoint"):
            is_new = self._trainer.store.save_best(
                self._trainer.position.step, self._notes(), loss, examples
            )
        self._log(is_new, best=True)

    def save_before_error(self) -> None:
        """Saves the steps before an evaluation that failed.

        The next process repeats only the evaluation. If the checkpoint cannot
        be written, e.g. because a worker is lost, the log says so, and the
        error of the evaluation still ends the run.
        """
        try:
            self.save()
            with self._watchdog.limit("saving the last checkpoint"):
                self._trainer.store.wait()
        except (UserError, tf.errors.OpError) as error:
            logging.error(
                "NO CHECKPOINT SAVED at step %d, where the evaluation failed: "
                "%s",
                self._trainer.position.step,
                first_line(error),
            )

    def finish(self, *directories: str) -> None:
        """Waits for the last checkpoint, in all processes.

        Args:
            directories: `checkpoints` or `best`: the directories whose last
                checkpoint must be written.

        Raises:
            UserError: If it could not be written; a `RetryError` if the cause
                is temporary.
        """
        store = self._trainer.store
        with self._watchdog.limit("saving the last checkpoint"):
            store.wait()
        for directory in directories:
            if directory in store.save_errors:
                raise store.save_errors[directory]
        # If this worker ended before the others, they would report it as lost.
        check_agreement(self._strategy, self._trainer.position.step)

    def _notes(self) -> dict[str, Any]:
        position = self._trainer.position
        rates = schedules.dropout_rates(position.step, self._config)
        return position.to_notes(
            dropout=list(rates),
            data=self._data.at(position.step).name,
            **{checkpoints.ROLLBACKS_NOTE: len(self._trainer.rollbacks)},
        )

    def _log(self, is_new: bool, *, best: bool) -> None:
        """Logs a checkpoint, and how long training waited for it."""
        if is_new:
            stalled_s = self._trainer.store.seconds_stalled
            self._log_event("checkpoint", best=best, stalled_s=stalled_s)
