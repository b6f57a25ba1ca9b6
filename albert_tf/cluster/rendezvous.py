"""Waits until all workers of a run have started, and names missing workers.

TensorFlow's first worker waits for the others while it holds Python's global
interpreter lock, so the process cannot log. This module waits before TensorFlow
starts, at the same addresses: each process listens at its own address until it
has connected to all others.
"""

import json
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent import futures

from absl import logging

from albert_tf.errors import RetryError, UserError

# Longest time for one connection.
TRY_S = 5.0
_SECONDS_BETWEEN_TRIES = 0.5
_SECONDS_BETWEEN_LOG_LINES = 30.0


def wait_for_workers(
    cluster: Mapping[str, Sequence[str]],
    job: str,
    index: int,
    timeout_s: float,
) -> None:
    """Waits until this process has connected once to each other process.

    Args:
        cluster: Addresses, `host:port`, by job, as in `TF_CONFIG`.
        job: The job of this process.
        index: The index of this process in its job.
        timeout_s: Longest time to wait, in seconds.

    Raises:
        UserError: If the port of this process is in use.
        RetryError: If workers do not start in time; the error names them.
    """
    missing = {
        f"{name} {number} at {address}": address
        for name, addresses in cluster.items()
        for number, address in enumerate(addresses)
        if (name, number) != (job, index)
    }
    deadline = time.monotonic() + timeout_s
    log_due = time.monotonic() + _SECONDS_BETWEEN_LOG_LINES
    with _listen(cluster[job][index]):
        while True:
            faults = find_connection_faults(list(missing.values()), TRY_S)
            missing = {
                name: address
                for name, address in missing.items()
                if address in faults
            }
            if not missing:
                return
            if time.monotonic() > deadline:
                raise RetryError(
                    "all workers of TF_CONFIG must start within "
                    f"worker_timeout_s={timeout_s:g}",
                    received=f"no answer from {', '.join(missing)}",
                    remedy="Check their logs, and that this machine reaches "
                    "these addresses and ports; then start all workers again. "
                    f"The cluster of TF_CONFIG is {json.dumps(cluster)}.",
                )
            if time.monotonic() > log_due:
                logging.info("waiting for %s", ", ".join(missing))
                log_due += _SECONDS_BETWEEN_LOG_LINES
            time.sleep(_SECONDS_BETWEEN_TRIES)


def _listen(address: str) -> socket.socket:
    """Accepts connections at a port, on all interfaces; reads no data."""
    port = int(address.rpartition(":")[2])
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        return socket.create_server(
            ("", port),
            family=family,
            # The queue holds a connection from every worker, and Python's
            # default length, 128, is too small for large clusters.
            backlog=socket.SOMAXCONN,
            dualstack_ipv6=family == socket.AF_INET6,
        )
    except OSError as error:
        raise UserError(
            f"the port of {address}, this worker's address in TF_CONFIG, must "
            "be free",
            received=str(error),
            remedy="If an earlier run still uses it, end that run; or choose "
            "another port.",
        ) from None


def find_connection_faults(
    addresses: Sequence[str], timeout_s: float
) -> dict[str, str]:
    """Finds the servers that accept no connection.

    Args:
        addresses: HOST:PORT of each server; an IPv6 host has brackets, as in
            gRPC.
        timeout_s: Longest time to wait, in seconds.

    Returns:
        The fault of each of these servers, by address.
    """
    if not addresses:
        return {}
    # In parallel: an address behind a firewall takes seconds.
    with futures.ThreadPoolExecutor(len(addresses)) as pool:
        faults = pool.map(
            lambda address: _find_connection_fault(address, timeout_s),
            addresses,
        )
        return {
            address: fault
            for address, fault in zip(addresses, faults, strict=True)
            if fault
        }


def _find_connection_fault(address: str, timeout_s: float) -> str:
    """Why a server accepts no connection; "" if it does."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection(
            (host.strip("[]"), int(port)), timeout_s
        ).close()
    except (OSError, UnicodeError) as error:  # UnicodeError: a bad host name
        return str(error) or type(error).__name__
    return ""
