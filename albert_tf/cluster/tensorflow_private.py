"""What the repository needs of TensorFlow's private names.

This module holds all of them, seen in TensorFlow 2.20, 2.21 and 2.22.0rc0.
tf.config has no public function for the first two, nor tf.Variable for the
third.
"""

import atexit
import importlib
from typing import Any

import tensorflow as tf


def detect_unresponsive_workers(num_workers: int, timeout_s: int) -> None:
    """Makes TensorFlow detect unresponsive workers within `timeout_s`."""
    context = _context()
    with_tasks = context.coordination_config_pb2.CoordinatedJob
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=timeout_s * 1000,
        heartbeat_timeout_in_ms=timeout_s * 1000,
        shutdown_barrier_timeout_in_ms=timeout_s * 1000,
        coordinated_jobs=[with_tasks(name="worker", num_tasks=num_workers)],
    )


def leave_tpu_at_exit() -> None:
    """Does not wait for a TPU when the process ends.

    If it has been lost, the process would never end, or would report the loss a
    second time, with a traceback.
    """
    atexit.unregister(_context().async_wait)


def strategy_of(variable: tf.Variable) -> Any:
    """The strategy in whose scope a variable was made, or None."""
    return getattr(variable, "_distribute_strategy", None)


def _context() -> Any:
    return importlib.import_module("tensorflow.python.eager.context")
