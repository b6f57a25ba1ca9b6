"""Warnings while something takes long, such as a request to Cloud Storage."""

import contextlib
import threading
import time
from collections.abc import Iterator

from absl import logging


@contextlib.contextmanager
def log_long_waits(
    activity: str, causes: str, interval_s: float
) -> Iterator[None]:
    """Logs a warning every `interval_s` during the block.

    Args:
        activity: What the block does, for the log.
        causes: Why that may take long.
        interval_s: Seconds between two warnings.
    """
    ended = threading.Event()

    def log() -> None:
        began = time.monotonic()
        while not ended.wait(interval_s):
            logging.warning(
                "%s has taken %.0f s so far: %s",
                activity,
                time.monotonic() - began,
                causes,
            )

    threading.Thread(target=log, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
