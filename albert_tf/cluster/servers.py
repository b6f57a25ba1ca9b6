"""The servers of the workers: addresses, and whether they can be reached."""

import json
import os
import re
import socket
import time
from collections.abc import Mapping
from concurrent import futures

from albert_tf.errors import RetryError, UserError

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
    while silent := name_silent(addresses):
        if time.monotonic() > deadline:
            raise RetryError(
                f"all workers must start within worker_timeout_s={timeout_s:g}",
                received=f"no answer from {silent}",
                remedy=remedy,
            )
        time.sleep(_SECONDS_BETWEEN_TRIES)


def name_silent(addresses: Mapping[int, str]) -> str:
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
