"""Workers that start, are lost, or are at different steps: real processes."""

import signal
import socket
import time
import types

import pytest

from albert_tf.cluster.servers import wait_for_servers
from albert_tf.cluster.workers import wait_for_all
from albert_tf.errors import RETRY_STATUS, RetryError, UserError
from tests.helpers import disagreeing_worker, failing_worker, tiny_run
from tests.helpers.forked_program import ForkedProgram
from tests.helpers.run_processes import (
    PATIENCE_S,
    RunProcesses,
    free_ports,
    worker_environments,
)


def test_servers_that_accept_no_connection_are_named():
    """Also an invalid host name, which is not an OSError."""
    mine, away = (f"localhost:{port}" for port in free_ports(2))
    invalid = f"{'a' * 70}:1"
    servers = {3: mine, 5: away, 6: invalid}
    began = time.monotonic()
    with (
        socket.create_server(("localhost", int(mine.partition(":")[2]))),
        pytest.raises(RetryError) as error,
    ):
        wait_for_servers({3: mine}, 2, "Look there.")
        wait_for_servers(servers, 2, "Look there.")
    assert 2 <= time.monotonic() - began < 10
    assert str(error.value) == (
        "all workers must start within worker_timeout_s=2. Received: no answer "
        f"from worker 5 at {away}, worker 6 at {invalid}. Look there."
    )


def start_workers(log, runtime, acts):
    """Workers that exchange sums until they act; see `failing_worker`."""
    return [
        ForkedProgram(failing_worker.__name__, [runtime, act], environment, log)
        for act, environment in zip(acts, worker_environments(2), strict=True)
    ]


def wait_for_lines(log, line, number, workers):
    """Returns when a line is in the log so often."""
    deadline = time.monotonic() + PATIENCE_S
    while (said := log.read_text()).count(line) < number:
        assert all(worker.poll() is None for worker in workers), said
        assert time.monotonic() < deadline, said
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "number", "lost", "trains"),
    [
        ("tensorflow", signal.SIGKILL, 0, False),
        ("tensorflow", signal.SIGSTOP, 1, True),
        pytest.param("pjrt", signal.SIGKILL, 0, True, marks=pytest.mark.jax),
        pytest.param("pjrt", signal.SIGSTOP, 1, False, marks=pytest.mark.jax),
    ],
)
def test_a_lost_worker_ends_the_others_with_one_line(
    tiny_records, tmp_path, runtime, number, lost, trains
):
    """In a training; or in sums over the workers, which need no compilation."""
    log = tmp_path / "log"
    if trains:
        config = tiny_run.make_config(
            tiny_records,
            tmp_path / "run",
            runtime=runtime,
            strategy="multi_worker",
            jit_compile=runtime == "pjrt",
            optimizer="adamw",
            sentence_objective="none",
            num_train_steps=10**6,
            steps_per_loop=5,
            save_checkpoints_steps=10,
            eval_input_file=(),
            worker_timeout_s=failing_worker.TIMEOUT_S,
        )
        run = RunProcesses(config, tmp_path, workers=2)
        run.wait_for_step(20)
        workers = run.processes
    else:
        workers = start_workers(log, runtime, ("wait", "wait"))
        wait_for_lines(log, "both have started", 2, workers)
    workers[lost].send_signal(number)
    lost_at = time.monotonic()
    assert workers[1 - lost].wait(PATIENCE_S) == RETRY_STATUS
    # A hang is detected after the timeout, plus some time on a busy machine.
    assert time.monotonic() - lost_at < failing_worker.TIMEOUT_S + 60
    workers[lost].kill()
    said = log.read_text()
    errors = [line for line in said.splitlines() if "error: " in line]
    (line,) = (text for text in errors if text.startswith("error: "))
    assert "all workers of the run must answer" in line
    assert "start all workers again" in line
    assert "Traceback" not in said


@pytest.mark.parametrize(("step", "others"), [(2**31 - 1, 0), (2**27, 2**20)])
def test_steps_are_compared_exactly(step, others):
    """Also where the square of a step has more digits than a float64."""

    def add(values):
        return [float(v) + float(v) for v in values]

    runtime = types.SimpleNamespace(
        cluster=types.SimpleNamespace(num_processes=2), sum_over_replicas=add
    )
    strategy = types.SimpleNamespace(runtime=runtime, num_replicas_in_sync=2)
    wait_for_all(strategy, step)
    runtime.sum_over_replicas = lambda values: [
        values[0] + float(step + others),
        values[1] * 2.0,
    ]
    if others:
        with pytest.raises(UserError, match="same --output_dir"):
            wait_for_all(strategy, step)


@pytest.mark.slow
def test_different_steps_are_errors(tmp_path):
    workers = [
        ForkedProgram(
            disagreeing_worker.__name__,
            [step],
            environment,
            tmp_path / f"log-{step}",
        )
        for step, environment in zip("46", worker_environments(2), strict=True)
    ]
    try:
        for step in (4, 6):
            log = tmp_path / f"log-{step}"
            wait_for_lines(log, "the mean of all is", 1, workers)
            said = log.read_text()
            assert "all workers must read the same --output_dir" in said
            assert f"is at step {step}, the mean of all is 5" in said
    finally:
        for worker in workers:
            worker.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "fault", "status"),
    [
        ("tensorflow", "internal", 1),
        pytest.param("pjrt", "abort", -signal.SIGABRT, marks=pytest.mark.jax),
        pytest.param("pjrt", "error", 1, marks=pytest.mark.jax),
    ],
)
def test_a_worker_that_fails_by_itself_keeps_its_status(
    tmp_path, runtime, fault, status
):
    """The other one loses a worker, and may be started again."""
    log = tmp_path / "log"
    workers = start_workers(log, runtime, ("wait", fault))
    found = [worker.wait(PATIENCE_S) for worker in reversed(workers)]
    assert found == [status, RETRY_STATUS], log.read_text()
    said = log.read_text()
    assert said.count("error: all workers of the run must answer") == 1
    assert said.count("error: ") == (2 if fault == "error" else 1)
