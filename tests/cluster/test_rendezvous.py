"""Real processes of a cluster, on ports of this machine."""

import contextlib
import socket
import subprocess
import sys
import threading
import time

import pytest

from albert_tf.cluster.rendezvous import (
    find_connection_faults,
    wait_for_workers,
)
from albert_tf.errors import UserError
from tests.helpers.run_processes import PATIENCE_S, free_ports

# Like TensorFlow, a worker listens at its port afterwards.
WORKER = """
import socket, sys, time
from albert_tf.cluster.rendezvous import wait_for_workers
index, *ports = map(int, sys.argv[1:])
chief, *workers = [f"localhost:{port}" for port in ports]
cluster = {"chief": [chief], "worker": workers}
job, place = ("worker", index - 1) if index else ("chief", 0)
wait_for_workers(cluster, job, place, 600)
with socket.create_server(("", ports[index])):
    print(time.time(), flush=True)
    sys.stdin.read()
"""


def test_all_workers_return_once_the_last_has_started():
    ports = [str(port) for port in free_ports(3)]

    def start(index):
        return subprocess.Popen(
            [sys.executable, "-c", WORKER, str(index), *ports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    early = [start(index) for index in (0, 2)]
    for port in (ports[0], ports[2]):
        while socket.socket().connect_ex(("localhost", int(port))):
            time.sleep(0.1)
    time.sleep(1.2)  # time for two more tries to reach the last
    begun = time.time()
    processes = [*early, start(1)]
    told = [float(process.stdout.readline()) for process in processes]
    assert min(told) > begun
    for process in processes:
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


def test_more_than_128_workers_can_connect_to_one():
    """The queue of pending connections has room for one of each worker."""
    mine, away = free_ports(2)
    cluster = {"worker": [f"localhost:{port}" for port in (mine, away)]}
    waiting = threading.Thread(
        target=wait_for_workers,
        args=(cluster, "worker", 0, PATIENCE_S),
        daemon=True,
    )
    waiting.start()
    number = 0
    while number < 300:
        try:
            socket.create_connection(("localhost", mine), timeout=3).close()
        except ConnectionRefusedError:  # it has not begun to listen
            assert not number
            time.sleep(0.01)
        else:
            number += 1
    assert waiting.is_alive()
    with socket.create_server(("localhost", away)):
        waiting.join()


@pytest.mark.slow
def test_unreachable_workers_are_tried_in_parallel():
    """Each try takes 5 s; in sequence they would take 20."""
    (mine,) = free_ports(1)
    with contextlib.ExitStack() as stack:
        hidden = []
        for _ in range(4):
            # Its queue is full, so that it answers nothing.
            server = stack.enter_context(socket.socket())
            server.bind(("127.0.0.1", 0))
            server.listen(0)
            hidden.append(server.getsockname())
            for _ in range(4):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(hidden[-1])
        addresses = [f"{host}:{port}" for host, port in hidden]
        began = time.monotonic()
        with pytest.raises(UserError, match=f"worker 4 at {addresses[-1]}"):
            wait_for_workers(
                {"worker": [f"127.0.0.1:{mine}", *addresses]}, "worker", 0, 2
            )
    assert time.monotonic() - began < 18


def test_ipv6_addresses_have_brackets():
    if not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6")
    mine, there = free_ports(2)
    with socket.create_server(("::1", there), family=socket.AF_INET6):
        wait_for_workers(
            {"worker": [f"[::1]:{mine}", f"[::1]:{there}"]}, "worker", 0, 2
        )


def test_an_invalid_host_name_counts_as_a_missing_worker():
    (mine,) = free_ports(1)
    with pytest.raises(UserError, match=r"answer from worker 1 at a\.\.b:22"):
        wait_for_workers(
            {"worker": [f"localhost:{mine}", "a..b:2222"]}, "worker", 0, 0
        )


def test_missing_workers_are_named_with_their_addresses():
    mine, there, away = free_ports(3)
    with socket.create_server(("localhost", there)):
        began = time.monotonic()
        with pytest.raises(UserError) as error:
            wait_for_workers(
                {"worker": [f"localhost:{p}" for p in (mine, there, away)]},
                "worker",
                0,
                timeout_s=2,
            )
    assert 2 <= time.monotonic() - began < 10
    assert f"Received: no answer from worker 2 at localhost:{away}" in str(
        error.value
    )


def test_a_port_in_use_is_refused_at_once():
    (mine,) = free_ports(1)
    with (
        socket.create_server(("", mine)),
        pytest.raises(UserError, match=f"localhost:{mine}.* must be free"),
    ):
        wait_for_workers({"worker": [f"localhost:{mine}"]}, "worker", 0, 5)


def test_faults_of_connections_are_returned_by_address():
    """Also for an invalid host name, which is not an OSError."""
    with socket.create_server(("", 0)) as there, socket.socket() as silent:
        silent.bind(("", 0))  # so that no other process listens there
        addresses = [
            f"localhost:{server.getsockname()[1]}" for server in (there, silent)
        ]
        invalid = f"{'a' * 70}:1"
        faults = find_connection_faults([*addresses, invalid], 5)
    assert list(faults) == [addresses[1], invalid]
    assert "refused" in faults[addresses[1]]
    assert not find_connection_faults([], 5)


def test_a_server_at_an_ipv6_address_has_no_fault():
    if not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6")
    (there,) = free_ports(1)
    with socket.create_server(("::1", there), family=socket.AF_INET6):
        assert not find_connection_faults([f"[::1]:{there}"], 5)
