"""A watchdog that ends no process, but knows what it limits."""

import contextlib

from albert_tf.cluster.watchdog import Watchdog


class Limits(Watchdog):
    """A watchdog without limits.

    Attributes:
        active: The activities that it watches now.
        seen: All activities that it has watched, in order.
    """

    def __init__(self):
        super().__init__()
        self.active, self.seen = [], []

    @contextlib.contextmanager
    def limit(self, activity, usual_s=None):
        self.seen.append(activity)
        self.active.append(activity)
        try:
            yield
        finally:
            self.active.remove(activity)
