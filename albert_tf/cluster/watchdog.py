"""Ends a process that hangs, so that a scheduler starts it again.

If a host of a TPU slice stops answering, TensorFlow waits for it for ever, and
logs nothing. The same happens after a deadlock on the devices. The watchdog
logs the stack of each thread and exits with `errors.RETRY_STATUS`.
"""

import contextlib
import faulthandler
import os
import threading
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

from albert_tf.cluster.workers import is_one_process
from albert_tf.config import DistributionConfig
from albert_tf.errors import RETRY_STATUS

# An activity counts as hung after this many times its usual time, but not
# before SHORTEST_LIMIT_S: the client of gs:// retries failed requests for
# minutes.
USUAL_TIMES = 10
SHORTEST_LIMIT_S = 300.0


class Watchdog:
    """Limits the time of activities that wait for devices or other hosts.

    Args:
        timeout_s: Limit for activities whose usual time is not known, e.g.
            because they compile; 0 sets no limits at all.
        setting: The setting that holds `timeout_s`, for the log.
    """

    def __init__(
        self, timeout_s: float = 0, setting: str = "hang_timeout_s"
    ) -> None:
        self._timeout_s = timeout_s
        self._setting = setting

    def limit_s(self, usual_s: float | None = None) -> float:
        """The longest time in seconds that an activity may take.

        Args:
            usual_s: Its usual time in seconds; None if it is not known.
        """
        if usual_s is None:
            return self._timeout_s
        return max(
            min(SHORTEST_LIMIT_S, self._timeout_s), USUAL_TIMES * usual_s
        )

    @contextlib.contextmanager
    def limit(
        self, activity: str, usual_s: float | None = None
    ) -> Iterator[None]:
        """Ends the process if the block takes longer than `limit_s`.

        The timer is a Python thread, so the block must release the global
        interpreter lock, as TensorFlow does while it waits.

        Args:
            activity: What the block does, for the log.
            usual_s: Its usual time in seconds; None if it is not known.
        """
        if not self._timeout_s:
            yield
            return
        limit_s = self.limit_s(usual_s)
        setting = self._setting if limit_s == self._timeout_s else ""
        timer = threading.Timer(
            limit_s, _end_process, (activity, limit_s, setting)
        )
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def watch(
    config: DistributionConfig, strategy: tf.distribute.Strategy
) -> Watchdog:
    """The watchdog of a run: active on TPUs and with several processes.

    A single process on a CPU or GPU waits for no one else, and its first step
    may take any time.
    """
    on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    can_hang = on_tpu or not is_one_process(strategy)
    return Watchdog(config.hang_timeout_s if can_hang else 0)


def _end_process(activity: str, limit_s: float, setting: str) -> None:
    """Logs why, and exits; `setting` names the limit, or is ""."""
    hint = ""
    if setting:
        hint = " If it only needs more time, e.g. to compile, raise "
        hint += f"--{setting}."
    logging.error(
        "THE RUN HANGS: %s has taken longer than %.0f s. A host or device "
        "does not answer. The process exits with status %d: start the same "
        "command again.%s The stacks of all threads follow",
        activity,
        limit_s,
        RETRY_STATUS,
        hint,
    )
    faulthandler.dump_traceback(all_threads=True)
    os._exit(RETRY_STATUS)
