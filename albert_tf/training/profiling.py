"""Profiles of training steps, for TensorBoard.

On a slice of several hosts, the chips belong to the servers of the hosts. So
the servers make the profile, for a number of seconds instead of steps.
"""

import posixpath
import threading
from collections.abc import Mapping
from concurrent import futures

import tensorflow as tf
from absl import logging

from albert_tf.config import PretrainingConfig
from albert_tf.errors import first_line
from albert_tf.runs.log import TENSORBOARD_DIR
from albert_tf.training.listener import Listener, LogEvent

# How long a slice is profiled: the estimated time of the steps, within these
# limits. A longer profile would fill the memory of the hosts.
SHORTEST_S = 1.0
LONGEST_S = 20.0

# How long the hosts may take, after the profiled time, to send their profiles.
SENDING_S = 60.0


class Profiler(Listener):
    """Profiles the steps of `--profile_steps`.

    Args:
        log_event: Logs the end of the profile.
        servers: HOST:PORT of the servers of a slice; () profiles this process.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        log_event: LogEvent,
        servers: tuple[str, ...] = (),
    ) -> None:
        self._steps = config.training.profiled_steps()
        self._directory = posixpath.join(
            config.training.output_dir, TENSORBOARD_DIR
        )
        self._log_event = log_event
        self._servers = servers
        self._traced: futures.Future[None] | None = None
        self._steps_per_second = 0.0
        self._running = False

    def on_loop_begin(self, step: int) -> None:
        if self._steps is None:
            return
        first, last = self._steps
        if step == first and not self._running:
            self._start(last - first)
        elif step >= last:
            self._stop()

    def on_loop_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._steps_per_second = metrics["steps_per_second"]

    def on_rollback(self, step: int) -> None:
        self._stop()

    def on_stop(self, step: int) -> None:
        self._stop()

    def _start(self, num_steps: int) -> None:
        self._running = True
        if not self._servers:
            tf.profiler.experimental.start(self._directory)
            return
        seconds = SHORTEST_S
        if self._steps_per_second:
            seconds = max(seconds, num_steps / self._steps_per_second)
        self._traced = self._trace(min(seconds, LONGEST_S))

    def _trace(self, seconds: float) -> futures.Future[None]:
        """Requests profiles from the servers, in the background."""
        traced: futures.Future[None] = futures.Future()

        def trace() -> None:
            try:
                tf.profiler.experimental.client.trace(
                    ",".join(f"grpc://{server}" for server in self._servers),
                    self._directory,
                    int(1000 * seconds),
                )
            except Exception as error:
                traced.set_exception(error)
            else:
                traced.set_result(None)

        # A process waits at its end for all threads, except for daemons. A
        # silent host would keep the process alive.
        threading.Thread(target=trace, name="profile", daemon=True).start()
        return traced

    def _stop(self) -> None:
        if not self._running:
            return
        self._running = False
        if self._traced is None:
            tf.profiler.experimental.stop()
        else:
            try:
                self._traced.result(LONGEST_S + SENDING_S)
            except (TimeoutError, tf.errors.OpError) as error:
                logging.error("NO PROFILE of the slice: %s", first_line(error))
                return
        self._log_event("profile")
