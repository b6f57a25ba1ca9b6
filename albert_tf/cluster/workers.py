"""Other processes of a run: lost workers, equal steps.

If a worker is killed or unreachable, TensorFlow lets the others wait for ever.
These functions end the run instead, within `--worker_timeout_s`:

1. `servers.wait_for_servers` names the servers that never start;
2. `tensorflow_private.detect_unresponsive_workers` makes TensorFlow's
   coordination service watch the heartbeats of all workers;
3. `name_lost_workers` turns TensorFlow's errors into a `RetryError`;
4. `end_with_lost_worker` ends the process when JAX says that one is lost.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import tensorflow as tf
from absl import logging

from albert_tf.cluster import tensorflow_private
from albert_tf.cluster.runtime import runtime_of
from albert_tf.errors import RetryError, UserError, first_line


@contextlib.contextmanager
def name_lost_workers(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turns TensorFlow's errors for a lost worker or TPU into a `RetryError`.

    With one process on CPUs or GPUs, no worker can be lost, and errors pass
    unchanged.

    Raises:
        RetryError: If the block failed because another process, or a TPU, did
            not answer.
    """
    runtime = runtime_of(strategy)
    on_tpu = runtime.cluster.device_type == "TPU"
    try:
        yield
    except Exception as error:
        if not runtime.is_lost(error):
            runtime.leave_at_exit(error)
            raise
        said = f"TensorFlow says: {first_line(error)[:200]}"
        if on_tpu:
            logging.exception("an operation on the TPU failed")
            raise RetryError(
                "the TPU of this machine must answer",
                received=said,
                remedy="If this happens again, use another machine. Start this "
                "command again: the run continues from its last checkpoint.",
            ) from None
        raise lost_worker(said) from None
    finally:
        if on_tpu:
            tensorflow_private.leave_tpu_at_exit()


def lost_worker(said: str) -> RetryError:
    """The error for a lost worker.

    It quotes what TensorFlow or JAX said, since a failure within this process
    may look the same.
    """
    return RetryError(
        "all workers of the run must answer",
        received=said,
        remedy="Find the worker that failed first in the logs of all workers. "
        "Then start all workers again: the run continues from its last "
        "checkpoint.",
    )


def end_with_lost_worker(wait_for_loss: Callable[[], str]) -> threading.Thread:
    """Ends this process, in a thread, when JAX says that a worker is lost.

    JAX aborts the process then. Other aborts, e.g. of an assertion, keep their
    status.

    Args:
        wait_for_loss: Returns what JAX says of the loss; "" at the end of the
            run.
    """

    def watch() -> None:
        if said := wait_for_loss():
            error = lost_worker(f"JAX says: {said[:200]}")
            print(f"error: {error}", file=sys.stderr, flush=True)
            os._exit(error.exit_status)

    # The thread needs some time before the abort. A handler in Python might
    # wait for locks of the thread that aborts; the C function `sleep` needs
    # none, and takes the number of the signal, 6, for seconds.
    libc = ctypes.CDLL(None)
    libc.signal(signal.SIGABRT, libc.sleep)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def wait_for_all(strategy: tf.distribute.Strategy, step: int) -> None:
    """Waits for all processes and checks that they are at the same step.

    Raises:
        UserError: If their steps differ.
    """
    runtime = runtime_of(strategy)
    if runtime.cluster.num_processes == 1:
        return
    # The square of the last digits, since float64 has 53 bits.
    square = (step % 2**20) ** 2
    total, squares = runtime.sum_over_replicas([step, square])
    replicas = strategy.num_replicas_in_sync
    if total != step * replicas or squares != square * replicas:
        raise UserError(
            "all workers must read the same --output_dir",
            received=f"this worker is at step {step}, the mean of all is "
            f"{total / replicas:g}",
            remedy="Use a directory that all workers share, e.g. on gs://.",
        )
