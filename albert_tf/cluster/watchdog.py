"""Ends a process that hangs, so that a scheduler starts it again.

If a TPU stops answering, TensorFlow waits for it for ever and logs nothing. The
same happens after a deadlock on the devices. The watchdog logs the stack of
each thread and exits with `errors.RETRY_STATUS`.
"""

import contextlib
import dataclasses
import faulthandler
import os
import threading
from collections.abc import Iterator

from absl import logging

from albert_tf.errors import RETRY_STATUS

# An activity counts as hung after this many times its usual time, but not
# before SHORTEST_LIMIT_S: the client of gs:// retries failed requests for
# minutes.
USUAL_TIMES = 10
SHORTEST_LIMIT_S = 300.0


@dataclasses.dataclass
class Watchdog:
    """Limits the time of activities that wait for devices or other hosts."""

    # Limit for activities whose usual time is not known, e.g. because they
    # compile; 0 sets no limits at all.
    timeout_s: float = 0

    def limit_s(self, usual_s: float | None = None) -> float:
        """The longest time that an activity may take, by its usual time."""
        if usual_s is None:
            return self.timeout_s
        return max(min(SHORTEST_LIMIT_S, self.timeout_s), USUAL_TIMES * usual_s)

    @contextlib.contextmanager
    def limit(
        self, activity: str, usual_s: float | None = None
    ) -> Iterator[None]:
        """Ends the process if the block takes longer than `limit_s`.

        The timer is a Python thread, so the block must release the global
        interpreter lock, as TensorFlow does while it waits.

        Args:
            activity: What the block does, for the log.
        """
        if not self.timeout_s:
            yield
            return
        limit_s = self.limit_s(usual_s)
        timer = threading.Timer(limit_s, _end_process, (activity, limit_s))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _end_process(activity: str, limit_s: float) -> None:
    logging.error(
        "THE RUN HANGS: %s has taken longer than %.0f s. A host or device "
        "does not answer. The process exits with status %d: start the same "
        "command again. If it only needs more time, e.g. to compile, raise "
        "--hang_timeout_s. The stacks of all threads follow",
        activity,
        limit_s,
        RETRY_STATUS,
    )
    faulthandler.dump_traceback(all_threads=True)
    os._exit(RETRY_STATUS)
