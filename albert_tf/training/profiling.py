"""Profiles of training steps, for TensorBoard."""

import posixpath

import tensorflow as tf

from albert_tf.config import PretrainingConfig
from albert_tf.runs.log import TENSORBOARD_DIR
from albert_tf.training.listener import Listener, LogEvent


class Profiler(Listener):
    """Profiles the steps of `--profile_steps`.

    Args:
        config: Settings of the run.
        log_event: Logs the end of the profile.
    """

    def __init__(self, config: PretrainingConfig, log_event: LogEvent) -> None:
        self._steps = config.training.profiled_steps()
        self._directory = posixpath.join(
            config.training.output_dir, TENSORBOARD_DIR
        )
        self._log_event = log_event
        self._running = False

    def on_loop_begin(self, step: int) -> None:
        if self._steps is None:
            return
        first, last = self._steps
        if step == first and not self._running:
            tf.profiler.experimental.start(self._directory)
            self._running = True
        elif step >= last:
            self._stop()

    def on_rollback(self, step: int) -> None:
        self._stop()

    def on_stop(self, step: int) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._running:
            tf.profiler.experimental.stop()
            self._running = False
            self._log_event("profile")
