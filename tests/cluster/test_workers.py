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


# For both workers to start, on a machine that may be busy.
TIMEOUT_S = 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "number", "lost"),
    [
        ("tensorflow", signal.SIGKILL, 0),
        ("tensorflow", signal.SIGSTOP, 1),
        pytest.param("pjrt", signal.SIGKILL, 0, marks=pytest.mark.jax),
        pytest.param("pjrt", signal.SIGSTOP, 1, marks=pytest.mark.jax),
    ],
)
def test_a_lost_worker_ends_the_others_with_one_line(
    tiny_records, tmp_path, runtime, number, lost
):
    config = tiny_run.make_config(
        tiny_records,
        tmp_path / "run",
        runtime=runtime,
        strategy="multi_worker",
        jit_compile=runtime == "pjrt",
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
    assert "all workers of the run must answer" in line
    assert "start all workers again" in line
    assert "Traceback" not in run.log()


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
    deadline = time.monotonic() + PATIENCE_S
    try:
        for index, step in enumerate((4, 6)):
            log = tmp_path / f"log-{step}"
            while "the mean of all is" not in (said := log.read_text()):
                assert workers[index].poll() is None, said
                assert time.monotonic() < deadline, said
                time.sleep(0.02)
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
    log, acts = tmp_path / "log", ("wait", fault)
    workers = [
        ForkedProgram(failing_worker.__name__, [runtime, act], environment, log)
        for act, environment in zip(acts, worker_environments(2), strict=True)
    ]
    found = [worker.wait(PATIENCE_S) for worker in reversed(workers)]
    assert found == [status, RETRY_STATUS], log.read_text()
    said = log.read_text()
    assert said.count("error: all workers of the run must answer") == 1
    assert said.count("error: ") == (2 if fault == "error" else 1)
