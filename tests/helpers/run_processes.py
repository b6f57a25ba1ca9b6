"""Runs as processes of their own: started, watched, killed, compared."""

import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import time

import numpy as np

from albert_tf.config import PretrainingConfig
from albert_tf.runs.checkpoints import list_checkpoints, read_values
from albert_tf.runs.log import read_metrics
from albert_tf.training.progress import TIMING_METRICS
from tests.helpers import tiny_run
from tests.helpers.forked_program import ForkedProgram

REPOSITORY = pathlib.Path(__file__).parents[2]
PATIENCE_S = 600


class RunProcesses:
    """The processes of a run: one, or one for each worker.

    Args:
        config: The run.
        directory: Where the common log of the processes is.
        workers: Processes that find each other by TF_CONFIG.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        directory: pathlib.Path,
        workers: int = 1,
    ) -> None:
        self.run_dir = config.training.output_dir
        self.log_file = directory / "log"
        flags = tiny_run.as_flags(config, directory / "model.json")
        self.processes = [
            ForkedProgram(
                "albert_tf.run_pretraining",
                flags,
                {**environment, "PYTHONPATH": str(REPOSITORY)},
                self.log_file,
            )
            for environment in worker_environments(workers)
        ]

    def log(self) -> str:
        """What the processes have logged."""
        return self.log_file.read_text()

    def wait(self, timeout_s: float = PATIENCE_S) -> list[int]:
        """The exit statuses, once all have ended."""
        return [process.wait(timeout_s) for process in self.processes]

    def signal(self, number: int, worker: int | None = None) -> None:
        """Sends a signal to one worker, or to all."""
        for index, process in enumerate(self.processes):
            if worker in (None, index):
                process.send_signal(number)

    def kill(self) -> None:
        """Kills all at once, as if their machine were lost."""
        self.signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def wait_for_step(self, step: int) -> None:
        """Returns when the run has logged a step."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            # First: the run may end between the two checks.
            is_running = all(one.poll() is None for one in self.processes)
            if any(line["step"] >= step for line in read_metrics(self.run_dir)):
                return
            assert is_running, f"ended before step {step}: {self.log()}"
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)


def worker_environments(number: int) -> list[dict[str, str]]:
    """The variables of this process, with the TF_CONFIG of each worker.

    A single worker has none.
    """
    if number == 1:
        return [{n: v for n, v in os.environ.items() if n != "TF_CONFIG"}]
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(number)]}
    tasks = [{"type": "worker", "index": index} for index in range(number)]
    return [
        {**os.environ, "TF_CONFIG": json.dumps({"cluster": cluster, "task": t})}
        for t in tasks
    ]


def free_ports(number: int) -> list[int]:
    """Ports of this machine that nobody listens on.

    They are below those that Linux gives to the clients of connections, from
    32768: a client could take one before it is used.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(range(20_000, 32_000), 1000):
        if len(found) == number:
            break
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("localhost", port))
            found.append(port)
    return found


def check_same_run(
    run_dir: pathlib.Path | str, expected: pathlib.Path | str
) -> None:
    """Checks that two runs have the same log, last step and weights."""
    assert lines_without_timing(run_dir) == lines_without_timing(expected)
    found, wanted = (
        list_checkpoints(f"{d}/checkpoints")[-1] for d in (run_dir, expected)
    )
    assert found.step == wanted.step
    check_same_weights(run_dir, expected, found.step)


def check_same_weights(
    run_dir: pathlib.Path | str, expected: pathlib.Path | str, step: int
) -> None:
    """Checks that the checkpoints of two runs at a step are equal."""
    found, wanted = (read_variables(d, step) for d in (run_dir, expected))
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, wanted[name], err_msg=name)


def read_variables(
    run_dir: pathlib.Path | str, step: int | None = None
) -> dict[str, np.ndarray]:
    """Everything that a checkpoint, by default the newest, holds, by path."""
    *_, checkpoint = (
        one
        for one in list_checkpoints(f"{run_dir}/checkpoints")
        if step in (None, one.step)
    )
    return {n: v.numpy() for n, v in read_values(checkpoint).items()}


def lines_without_timing(run_dir: pathlib.Path | str) -> list[dict]:
    """The lines of a run's log, without what depends on the clock."""
    return [
        {n: value for n, value in line.items() if n not in TIMING_METRICS}
        for line in read_metrics(str(run_dir))
    ]
