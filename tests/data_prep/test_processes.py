import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import pytest

from albert_tf.errors import UserError
from data_prep.processes import Processes, count_workers


def make_state(text):
    return text


def repeat(state, count):
    if count > 90:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02 * (count % 3))
    return state * count


def fail(state, task):
    raise ValueError(f"{state} {task}")


@pytest.mark.parametrize("num_workers", [1, 3])
def test_results_have_the_order_of_the_tasks(num_workers):
    with Processes(num_workers, make_state, "ab") as processes:
        found = list(processes.map(repeat, range(20)))
    assert [done.result for done in found] == ["ab" * i for i in range(20)]
    # In bytes. This process has run other tests, so its peak is the largest.
    largest = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for done in found:
        assert 5e6 < done.peak_memory <= largest


def test_by_default_a_process_runs_on_each_core_that_may_be_used():
    """Slurm and taskset limit the cores of a process."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert Processes(0, make_state, "a").num_workers == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert count_workers(0) == len(allowed)
    assert count_workers(7) == 7


def test_number_of_pending_tasks_is_bounded():
    taken = []

    def tasks():
        for i in range(50):
            taken.append(i)
            yield i

    with Processes(2, make_state, "a") as processes:
        results = processes.map(repeat, tasks())
        next(results)
        assert len(taken) <= 6


@pytest.mark.parametrize("num_workers", [1, 2])
def test_errors_reach_the_caller(num_workers):
    with (
        Processes(num_workers, make_state, "state") as processes,
        pytest.raises(ValueError, match="state 7"),
    ):
        list(processes.map(fail, [7]))


def test_killed_worker_process_is_reported():
    with (
        Processes(2, make_state, "a") as processes,
        pytest.raises(UserError, match=r"memory.*smaller --num_workers"),
    ):
        list(processes.map(repeat, [1, 99, 2]))


def test_worker_processes_end_with_their_parent(tmp_path):
    script = (
        "import multiprocessing, os, signal\n"
        "from data_prep.processes import Processes\n"
        "from tests.data_prep import test_processes as t\n"
        "if __name__ == '__main__':\n"
        "    processes = Processes(2, t.make_state, 'a')\n"
        "    next(processes.map(t.repeat, [2] * 99))\n"
        "    for p in multiprocessing.active_children():\n"
        "        print(p.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "script.py"
    path.write_text(script)
    # Not a pipe, which surviving workers would keep open.
    with open(tmp_path / "pids", "w") as pids:
        subprocess.run(
            [sys.executable, str(path)],
            env={**os.environ, "PYTHONPATH": os.getcwd()},
            stdout=pids,
        )
    workers = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 120
    while left := [pid for pid in workers if is_running(pid)]:
        if time.monotonic() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            pytest.fail("worker processes survived their parent")
        time.sleep(0.05)


def is_running(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
