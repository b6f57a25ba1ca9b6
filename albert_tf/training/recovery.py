"""Recovery of a run from divergence and from failed reads.

In both cases the run returns to the newest checkpoint. After divergence it
skips the batches read since that checkpoint; the run directory lists them, so
that every later process reads the same batches. After a failed read, it reads
the records again if all of them are intact, and stops otherwise.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf
from absl import logging

from albert_tf.cluster.watchdog import Watchdog
from albert_tf.cluster.workers import (
    check_agreement,
    is_chief,
    is_one_process,
)
from albert_tf.config import PretrainingConfig
from albert_tf.errors import RetryError, first_line
from albert_tf.input.damaged_records import may_be_damage
from albert_tf.runs.log import RunLog
from albert_tf.training.listener import Listener, LogEvent
from albert_tf.training.trainer import Trainer

# Largest number of consecutive returns to a checkpoint because a read failed
# although all records are intact. Progress beyond the failed step resets the
# count.
MAX_REREADS = 3


class Recovery:
    """Takes a run back to its newest checkpoint.

    Args:
        run_log: The log, which is rewound to the checkpoint; None in processes
            that do not write it.
        listeners: Notified after the return to the checkpoint.
        log_event: Logs divergence, rollbacks and failed reads.
        watchdog: Ends the process if the devices hang.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        trainer: Trainer,
        strategy: tf.distribute.Strategy,
        run_log: RunLog | None,
        listeners: Sequence[Listener],
        log_event: LogEvent,
        watchdog: Watchdog,
    ) -> None:
        self._watchdog = watchdog
        self._config = config
        self._trainer = trainer
        self._strategy = strategy
        self._run_log = run_log
        self._listeners = listeners
        self._log_event = log_event
        self._rereads = 0
        self._reread_at = -1  # the step of the last failed read

    def roll_back(self, reason: str, metrics: Mapping[str, float]) -> None:
        """Returns to the newest checkpoint, to continue with later data.

        If the previous rollback returned to the same checkpoint, this one
        returns to the checkpoint before it.

        Args:
            reason: How the run has diverged.
            metrics: The metrics of the divergence, for the log.

        Raises:
            UserError: If the settings require the run to stop instead.
        """
        position, policy = self._trainer.position, self._config.training
        rollbacks = self._trainer.rollbacks
        diverged_at = position.step
        logging.error("diverged at step %d: %s", diverged_at, reason)
        self._log_event("diverged", reason=reason, **metrics)
        rollbacks.check_allowed(diverged_at, reason, policy)
        newest = rollbacks.newest
        lost_s = self._restore(avoided=newest.resumed_from if newest else None)
        rollback = rollbacks.plan(
            diverged_at=diverged_at,
            resumed_from=position.step,
            reason=reason,
            config=policy,
        )
        # Before the log is rewound: a process that is killed here resumes from
        # this checkpoint. Without the rollback, it would resume from a later
        # one, whose log would lack the lines since this checkpoint.
        rollbacks.add(rollback, writes=is_chief(self._strategy))
        lost_s += self._rewind_log()
        self._log_event(
            "rollback", lost_s=lost_s, **dataclasses.asdict(rollback)
        )

    def read_again(self, error: tf.errors.OpError, boundary: int) -> None:
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
        ) and isinstance(self._strategy, tf.distribute.MirroredStrategy)
        if not (is_cancelled or may_be_damage(error)):
            raise error
        step, reason = self._trainer.position.step, first_line(error)
        self._trainer.stream.check_intact(step, boundary)
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
        if not is_one_process(self._strategy):
            # The other workers wait for this one in the step that failed.
            self._log_event("read_again", reason=reason, lost_s=0.0)
            raise RetryError(
                "all workers must be restarted after a failed read",
                received=f"{reason}; all records are intact",
                remedy="Start the job again.",
            )
        lost_s = self._restore() + self._rewind_log()
        self._log_event("read_again", reason=reason, lost_s=lost_s)

    def _restore(self, avoided: int | None = None) -> float:
        """Restores the newest checkpoint.

        Args:
            avoided: Step of a checkpoint to use only if there is no other.

        Returns:
            The time in seconds of the steps that no line of the log includes,
            minus that of the steps before the checkpoint, which the next line
            of the log includes.
        """
        trainer, position = self._trainer, self._trainer.position
        lost_s = position.times.total
        with self._watchdog.limit("the return to a checkpoint"):
            trainer.store.wait()
            check_agreement(self._strategy, position.step)
            restored = trainer.restore(avoided)
            assert restored, "a new run saves one before its first step"
            # The run has continued past this step before, so the evaluation
            # that was cut short at this step is not due again.
            position.to_evaluate = False
            check_agreement(self._strategy, position.step)
            trainer.close_batches()
        return lost_s - position.times.total

    def _rewind_log(self) -> float:
        """Rewinds the log to the restored step.

        Returns:
            The time in seconds of the lines that it drops.
        """
        position, lost_s = self._trainer.position, 0.0
        if self._run_log:
            self._run_log.rewind(position.step, num_unlogged=position.num_steps)
            lost_s = self._run_log.lost_seconds
        for listener in self._listeners:
            listener.on_rollback(position.step)
        return lost_s
