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
from albert_tf.errors import RETRY_STATUS, RetryError, UserError
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
        with pytest.raises(RetryError) as error:
            wait_for_workers(
                {"worker": [f"localhost:{p}" for p in (mine, there, away)]},
                "worker",
                0,
                timeout_s=2,
            )
    assert 2 <= time.monotonic() - began < 10
    said = str(error.value)
    assert "must start within worker_timeout_s=2" in said
    assert f"no answer from worker 2 at localhost:{away}. Check" in said


def test_a_port_in_use_is_refused_at_once():
    (mine,) = free_ports(1)
    with (
        socket.create_server(("", mine)),
        pytest.raises(UserError, match=f"localhost:{mine}.* must be free"),
    ):
        wait_for_workers({"worker": [f"localhost:{mine}"]}, "worker", 0, 5)


def test_faults_of_connections_are_returned_by_address():
    """Also for an invalid host name, which is not an OSError.

    Servers that answer nothing are tried in parallel.
    """
    with contextlib.ExitStack() as stack:
        there = stack.enter_context(socket.create_server(("localhost", 0)))
        silent = stack.enter_context(socket.socket())
        silent.bind(("localhost", 0))  # so that no other process listens there
        servers = [there, silent]
        for _ in range(4):
            full = stack.enter_context(socket.socket())
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            servers.append(full)
            for _ in range(4):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(full.getsockname())
        addresses = [f"localhost:{s.getsockname()[1]}" for s in servers]
        invalid = f"{'a' * 70}:1"
        began = time.monotonic()
        faults = find_connection_faults([*addresses, invalid], 2)
        assert time.monotonic() - began < 6
    assert list(faults) == [*addresses[1:], invalid]
    assert "refused" in faults[addresses[1]]
    assert not find_connection_faults([], 5)


# For both workers to start, on a machine that may be busy.
TIMEOUT_S = 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "lost"),
    [(signal.SIGKILL, 0), (signal.SIGSTOP, 1)],
)
def test_a_lost_worker_ends_the_others_with_one_line(
    tiny_records, tmp_path, number, lost
):
    config = tiny_run.make_config(
        tiny_records,
        tmp_path / "run",
        strategy="multi_worker",
        num_train_steps=10**6,
        steps_per_loop=5,
        save_checkpoints_steps=10,
        eval_input_file=(),
        worker_timeout_s=TIMEOUT_S,
    )
    run = RunProcesses(config, tmp_path, workers=2)
    run.wait_for_step(20)
    run.signal(number, worker=lost)
    lost_at = time.monotonic()
    other = run.processes[1 - lost]
    assert other.wait(PATIENCE_S) == RETRY_STATUS
    # A hang is detected after the timeout, plus some time on a busy machine.
    assert time.monotonic() - lost_at < TIMEOUT_S + 60
    run.kill()
    errors = [line for line in run.log().splitlines() if "error: " in line]
    (line,) = (text for text in errors if text.startswith("error: "))
    assert "all workers of TF_CONFIG must answer" in line
    if number == signal.SIGKILL:
        assert f"no answer from worker {lost} at localhost" in line
    assert "start all workers again" in line
    assert "Traceback" not in run.log()


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
