"""Other processes of a run: addresses, lost workers, equal steps.

If a worker is killed or unreachable, TensorFlow lets the others wait for ever.
These functions end the run instead, within `--worker_timeout_s`:

1. `wait_for_servers` names the servers that never start;
2. `tensorflow_private.detect_unresponsive_workers` makes TensorFlow's
   coordination service watch the heartbeats of all workers;
3. `name_lost_workers` turns TensorFlow's errors into a `RetryError`.
"""

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent import futures

import tensorflow as tf
from absl import logging

from albert_tf.cluster import tensorflow_private
from albert_tf.cluster.runtime import runtime_of
from albert_tf.errors import RETRY_STATUS, RetryError, UserError, first_line

# Longest time for one connection, and between two tries.
TRY_S = 5.0
_SECONDS_BETWEEN_TRIES = 0.5

# TensorFlow's errors if another process does not answer.
LOSS_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.FailedPreconditionError,
)

_LOSS_REMEDY = (
    "Find the worker that failed first in the logs of all workers. Then start "
    "all workers again: the run continues from its last checkpoint."
)


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
def name_lost_workers(
    strategy: tf.distribute.Strategy | None = None,
) -> Iterator[None]:
    """Turns TensorFlow's errors for a lost worker or TPU into a `RetryError`.

    Args:
        strategy: None while the workers of TF_CONFIG connect. With one process
            on CPUs or GPUs, no worker can be lost, and errors pass unchanged.

    Raises:
        RetryError: If the block failed because another process, or a TPU, did
            not answer.
    """
    on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    runtime = runtime_of(strategy) if strategy else None
    errors = LOSS_ERRORS + (runtime.loss_errors if runtime else ())
    try:
        yield
    except errors as error:
        who = "TensorFlow" if isinstance(error, LOSS_ERRORS) else "JAX"
        said = f"{who} says: {first_line(error)[:200]}"
        if on_tpu:
            logging.exception("an operation on the TPU failed")
            raise RetryError(
                "the TPU of this machine must answer",
                received=said,
                remedy="If this happens again, use another machine. Start this "
                "command again: the run continues from its last checkpoint.",
            ) from None
        if runtime is not None and runtime.num_processes == 1:
            raise
        raise RetryError(
            "all workers of the run must answer",
            # A failure within this process may look the same, so quote it.
            received=said,
            remedy=_LOSS_REMEDY,
        ) from None
    finally:
        if on_tpu:
            tensorflow_private.leave_tpu_at_exit()


# Handlers of signals in C, which must not be deleted.
_HANDLERS: list[object] = []


def retry_after_abort() -> None:
    """Makes an abort of this process end it as `name_lost_workers` does.

    JAX aborts a process as soon as it knows that another one is lost, which
    Python cannot prevent.
    """

    def end(_: int) -> None:
        time.sleep(TRY_S)  # the main thread may be about to report the loss
        text = f"error: all workers of the run must answer. {_LOSS_REMEDY}"
        print(text, file=sys.stderr, flush=True)
        os._exit(RETRY_STATUS)

    # The process ends after a handler of Python's own.
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(end)
    _HANDLERS.append(handler)
    ctypes.CDLL(None).signal(signal.SIGABRT, handler)


def wait_for_all(strategy: tf.distribute.Strategy, step: int) -> None:
    """Waits for all processes and checks that they are at the same step.

    Raises:
        UserError: If their steps differ.
    """
    runtime = runtime_of(strategy)
    if runtime.num_processes == 1:
        return
    total, squares = runtime.sum_over_replicas([step, step**2])
    replicas = strategy.num_replicas_in_sync
    if total != step * replicas or squares != step**2 * replicas:
        raise UserError(
            "all workers must read the same --output_dir",
            received=f"this worker is at step {step}, the mean of all is "
            f"{total / replicas:g}",
            remedy="Use a directory that all workers share, e.g. on gs://.",
        )
