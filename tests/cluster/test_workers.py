"""Workers that start, are lost, or are at different steps: real processes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from albert_tf.cluster.workers import (
    find_connection_faults,
    wait_for_workers,
)
from albert_tf.errors import RETRY_STATUS, UserError
from tests.helpers import disagreeing_worker, tiny_run
from tests.helpers.forked_program import ForkedProgram
from tests.helpers.run_processes import PATIENCE_S, RunProcesses, free_ports

# Like TensorFlow, a worker listens at its port afterwards.
WORKER = """
import socket, sys, time
from albert_tf.cluster.workers import wait_for_workers
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


TIMEOUT_S = 10
# For both workers to start, on a machine that may be busy.
TIMEOUT_OF_TWO_S = 20


def start(tiny_records, tmp_path, timeout_s):
    config = tiny_run.make_config(
        tiny_records,
        tmp_path / "run",
        strategy="multi_worker",
        num_train_steps=10**6,
        steps_per_loop=5,
        save_checkpoints_steps=10,
        eval_input_file=(),
        worker_timeout_s=timeout_s,
    )
    return RunProcesses(config, tmp_path, workers=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "lost"),
    [(signal.SIGKILL, 0), (signal.SIGSTOP, 1)],
)
def test_a_lost_worker_ends_the_others_with_one_line(
    tiny_records, tmp_path, number, lost
):
    run = start(tiny_records, tmp_path, TIMEOUT_OF_TWO_S)
    run.wait_for_step(20)
    run.signal(number, worker=lost)
    lost_at = time.monotonic()
    other = run.processes[1 - lost]
    assert other.wait(PATIENCE_S) == RETRY_STATUS
    # A hang is detected after the timeout, plus some time on a busy machine.
    assert time.monotonic() - lost_at < TIMEOUT_OF_TWO_S + 60
    run.kill()
    errors = [line for line in run.log().splitlines() if "error: " in line]
    (line,) = (text for text in errors if text.startswith("error: "))
    assert "all workers of TF_CONFIG must answer" in line
    if number == signal.SIGKILL:
        assert f"no answer from worker {lost} at localhost" in line
    assert "start all workers again" in line
    assert "Traceback" not in run.log()


@pytest.mark.slow
def test_a_waiting_worker_names_the_one_that_does_not_start(
    tiny_records, tmp_path
):
    run = start(tiny_records, tmp_path, TIMEOUT_S)
    run.signal(signal.SIGKILL, worker=0)  # before it has begun
    assert run.processes[1].wait(PATIENCE_S) == RETRY_STATUS
    log = run.log()
    assert "no answer from worker 0 at localhost:" in log
    assert "must start within worker_timeout_s=10" in log
    assert "Traceback" not in log


@pytest.mark.slow
def test_different_steps_are_errors(tmp_path):
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    workers = []
    for index, arguments in enumerate((["4"], ["6"])):
        task = {"type": "worker", "index": index}
        variable = json.dumps({"cluster": cluster, "task": task})
        worker = ForkedProgram(
            disagreeing_worker.__name__,
            arguments,
            {**os.environ, "TF_CONFIG": variable},
            tmp_path / f"log-{index}",
        )
        workers.append(worker)
    deadline = time.monotonic() + PATIENCE_S
    try:
        for index, step in enumerate((4, 6)):
            log = tmp_path / f"log-{index}"
            while "the mean of all is" not in (said := log.read_text()):
                assert workers[index].poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.02)
            assert "all workers must read the same --output_dir" in said
            assert f"is at step {step}, the mean of all is 5" in said
    finally:
        for worker in workers:
            worker.kill()
