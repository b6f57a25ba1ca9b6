"""Waits until all workers of a run are there, and names those that are not.

TensorFlow's first worker waits for the others with Python's lock held, so
that nothing could be said meanwhile. This waits before TensorFlow begins, at
the same addresses: each process listens at its own, until it has reached all
others.
"""

import json
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent import futures

from absl import logging

from albert_tf.errors import UserError

_SECONDS_BETWEEN_TRIES = 0.5
_SECONDS_BETWEEN_NEWS = 30.0


def wait_for_workers(
    cluster: Mapping[str, Sequence[str]],
    job: str,
    index: int,
    timeout_s: float,
) -> None:
    """Returns when every process of the cluster was reached once.

    Args:
        cluster: Addresses, `host:port`, by job, as `TF_CONFIG` has them.
        job: That of this process.
        index: Its place there.
        timeout_s: Seconds to wait at most.

    Raises:
        UserError: If this process' port is taken, or others do not come up,
            which are named.
    """
    missing = {
        f"{name} {place} at {address}": address
        for name, addresses in cluster.items()
        for place, address in enumerate(addresses)
        if (name, place) != (job, index)
    }
    deadline = time.monotonic() + timeout_s
    news_due = time.monotonic() + _SECONDS_BETWEEN_NEWS
    with (
        _listen(cluster[job][index]),
        # All at once: one that a firewall hides takes seconds.
        futures.ThreadPoolExecutor(max(1, len(missing))) as pool,
    ):
        while True:
            answers = list(pool.map(_answers, missing.values()))
            missing = {
                name: address
                for (name, address), answered in zip(
                    missing.items(), answers, strict=True
                )
                if not answered
            }
            if not missing:
                return
            if time.monotonic() > deadline:
                raise UserError(
                    "all workers of TF_CONFIG must come up, within "
                    f"worker_timeout_s={timeout_s:g}",
                    received=f"no answer of {', '.join(missing)}",
                    remedy="See their logs, and whether those addresses and "
                    "ports can be reached from here; start all workers again. "
                    f"TF_CONFIG's cluster is {json.dumps(cluster)}.",
                )
            if time.monotonic() > news_due:
                logging.info("waiting for %s", ", ".join(missing))
                news_due += _SECONDS_BETWEEN_NEWS
            time.sleep(_SECONDS_BETWEEN_TRIES)


def _listen(address: str) -> socket.socket:
    """Takes connections at a port, on all interfaces, and lets them lie."""
    port = int(address.rpartition(":")[2])
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        return socket.create_server(
            ("", port),
            family=family,
            # They lie until all have come: Python's own 128 are too few.
            backlog=socket.SOMAXCONN,
            dualstack_ipv6=family == socket.AF_INET6,
        )
    except OSError as error:
        raise UserError(
            f"the port of {address}, this worker's address in TF_CONFIG, must "
            "be free",
            received=str(error),
            remedy="Is an earlier run still there? End it, or take another "
            "port.",
        ) from None


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        # gRPC writes addresses of IPv6 with brackets, sockets without.
        socket.create_connection((host.strip("[]"), int(port)), 5).close()
    except (OSError, UnicodeError):  # the latter for a name that can be none
        return False
    return True
