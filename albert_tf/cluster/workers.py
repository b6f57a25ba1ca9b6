"""Other processes of a run: addresses, lost workers, equal steps.

If a worker is killed or unreachable, TensorFlow lets the others wait for ever.
These functions end the run instead, within `--worker_timeout_s`:

1. `wait_for_servers` names the servers that never start;
2. `tensorflow_private.detect_unresponsive_workers` makes TensorFlow's
   coordination service watch the heartbeats of all workers;
3. `name_lost_workers` turns TensorFlow's errors into a `RetryError`;
4. `end_with_lost_worker` ends the process when JAX says that one is lost.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures

import tensorflow as tf
from absl import logging

from albert_tf.cluster import tensorflow_private
from albert_tf.cluster.runtime import runtime_of
from albert_tf.errors import RetryError, UserError, first_line

# Longest time for one connection.
TRY_S = 5.0
_SECONDS_BETWEEN_TRIES = 0.5


def read_workers() -> tuple[list[str], int]:
    """Reads TF_CONFIG: HOST:PORT of all workers, and the index of this one.

    Raises:
        UserError: If TF_CONFIG is missing or malformed.
    """
    text = os.environ.get("TF_CONFIG", "")
    try:
        value = json.loads(text)
        ((job, addresses),) = value["cluster"].items()
        index = int(value["task"]["index"])
        valid = (
            job == value["task"]["type"] == "worker"
            and index in range(len(addresses))
            and all(re.fullmatch(r".+:\d+", address) for address in addresses)
        )
    except (ValueError, TypeError, LookupError, AttributeError):
        valid = False
    if not valid:
        raise UserError(
            "TF_CONFIG must be a JSON object with task, and with a cluster of "
            "workers only, each with an address HOST:PORT, e.g. "
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
            '"task": {"type": "worker", "index": 0}}',
            received=repr(text),
        )
    return addresses, index


def wait_for_servers(
    addresses: Mapping[int, str], timeout_s: float, remedy: str
) -> None:
    """Waits until servers, HOST:PORT by index of the worker, are connectable.

    Raises:
        RetryError: If some are not; it names them and has this remedy.
    """
    deadline = time.monotonic() + timeout_s
    while silent := _name_silent(addresses):
        if time.monotonic() > deadline:
            raise RetryError(
                f"all workers must start within worker_timeout_s={timeout_s:g}",
                received=f"no answer from {silent}",
                remedy=remedy,
            )
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _name_silent(addresses: Mapping[int, str]) -> str:
    """Names the servers that accept no connection: "worker 1 at a:2"."""

    def describe(index: int) -> str:
        host, _, port = addresses[index].rpartition(":")
        try:  # an IPv6 address has brackets, as in gRPC
            server = host.strip("[]"), int(port)
            socket.create_connection(server, TRY_S).close()
        except (OSError, UnicodeError):  # or a bad host name
            return f"worker {index} at {addresses[index]}"
        return ""

    # In parallel: an address behind a firewall takes seconds.
    with futures.ThreadPoolExecutor(len(addresses) or 1) as pool:
        return ", ".join(filter(None, pool.map(describe, addresses)))


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
