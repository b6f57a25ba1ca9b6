"""Recovery of a run from divergence and from damaged records.

Both return to the newest checkpoint. A rollback then skips the batches since;
a damaged record is replaced by padding. Both are noted in the run directory,
so that every later process reads the same batches.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf
from absl import logging

from albert_tf.cluster.workers import (
    check_agreement,
    is_chief,
    is_one_process,
)
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.runs.log import RunLog
from albert_tf.training.listener import Listener, LogEvent
from albert_tf.training.trainer import Trainer


class Recovery:
    """Takes a run back to its newest checkpoint.

    Args:
        config: Settings of the run.
        trainer: State of the run.
        strategy: Devices.
        run_log: Rewound to the checkpoint; None in processes without a log.
        listeners: Called when the run is back.
        log_event: Logs what happened.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        trainer: Trainer,
        strategy: tf.distribute.Strategy,
        run_log: RunLog | None,
        listeners: Sequence[Listener],
        log_event: LogEvent,
    ) -> None:
        self._config = config
        self._trainer = trainer
        self._strategy = strategy
        self._run_log = run_log
        self._listeners = listeners
        self._log_event = log_event

    def roll_back(self, reason: str, metrics: Mapping[str, float]) -> None:
        """Returns to the newest checkpoint, to continue with later data.

        If the last rollback returned to that checkpoint, too, the one before
        it is used.

        Args:
            reason: The divergence.
            metrics: The metrics that show it, for the log.

        Raises:
            UserError: If the run is to stop instead.
        """
        position, policy = self._trainer.position, self._config.training
        rollbacks = self._trainer.rollbacks
        diverged_at = position.step
        logging.error("diverged at step %d: %s", diverged_at, reason)
        self._log_event("diverged", reason=reason, **metrics)
        rollbacks.check_allowed(diverged_at, reason, policy)
        newest = rollbacks.newest
        self._go_back(avoided=newest.resumed_from if newest else None)
        rollback = rollbacks.plan(
            diverged_at=diverged_at,
            resumed_from=position.step,
            reason=reason,
            config=policy,
        )
        rollbacks.add(rollback, writes=is_chief(self._strategy))
        self._log_event("rollback", **dataclasses.asdict(rollback))

    def skip_damaged(self, error: tf.errors.OpError, boundary: int) -> None:
        """Finds the damaged records behind an error, and goes back.

        Args:
            error: Of reading.
            boundary: The step up to which batches were asked for.

        Raises:
            UserError: If the run is to stop instead.
            tf.errors.OpError: If no record is damaged: `error` itself.
        """
        trainer = self._trainer
        found = trainer.stream.find_damage(trainer.position.step, boundary)
        if not found:
            raise error
        # Every worker that meets them notes them: the others do not know.
        trainer.corrupt_records.add(found, self._config.data)
        self._log_event("corrupt_records", records=[str(r) for r in found])
        if not is_one_process(self._strategy):
            # The others wait in the step that failed here.
            raise UserError(
                "the workers must be restarted after damaged records",
                received=f"{len(found)}, now noted",
                remedy="Start the job again: it continues without them.",
            )
        self._go_back()

    def _go_back(self, avoided: int | None = None) -> None:
        """Restores the newest checkpoint; `avoided` only without another."""
        trainer, position = self._trainer, self._trainer.position
        trainer.store.wait()
        check_agreement(self._strategy, position.step)
        restored = trainer.restore(avoided)
        assert restored, "a run begins with a checkpoint"
        # The run has evaluated that step, or has been continued without.
        position.to_evaluate = False
        check_agreement(self._strategy, position.step)
        trainer.close_batches()
        if self._run_log:
            self._run_log.rewind(position.step)
        for listener in self._listeners:
            listener.on_rollback(position.step)
