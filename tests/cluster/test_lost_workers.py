"""Two real workers, of which one is lost: the other must say so, and end."""

import signal
import time

import pytest

from albert_tf.errors import RETRY_STATUS
from tests.helpers import tiny_run
from tests.helpers.run_processes import PATIENCE_S, RunProcesses

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
    [(signal.SIGKILL, 1), (signal.SIGKILL, 0), (signal.SIGSTOP, 1)],
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
@pytest.mark.parametrize("lost", [0, 1])
def test_a_waiting_worker_names_the_one_that_does_not_start(
    tiny_records, tmp_path, lost
):
    run = start(tiny_records, tmp_path, TIMEOUT_S)
    run.signal(signal.SIGKILL, worker=lost)  # before it has begun
    assert run.processes[1 - lost].wait(PATIENCE_S) == RETRY_STATUS
    log = run.log()
    assert f"no answer from worker {lost} at localhost:" in log
    assert "must start within worker_timeout_s=10" in log
    assert "Traceback" not in log
