"""Tasks in processes of this machine, and in real workers of Dask."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from albert_tf.errors import RetryError, UserError
from data_prep import build_tfrecords, processes
from data_prep.processes import Processes, count_workers
from tests.helpers import tiny_run
from tests.helpers.small_builds import read_files


def make_state(text):
    return text


def repeat(state, count):
    time.sleep(0.02 * (count % 3))
    return state * count


def fail(state, task):
    raise ValueError(f"{state} {task}")


@pytest.mark.parametrize("num_workers", [1, 2])
def test_results_have_the_order_of_the_tasks(num_workers):
    """The number of pending tasks is bounded. Errors reach the caller."""
    taken = []

    def tasks():
        for i in range(50):
            taken.append(i)
            yield i

    with Processes(num_workers, make_state, "ab") as processes:
        results = processes.map(repeat, tasks())
        found = [next(results)]
        assert len(taken) <= 6
        assert found + list(results) == ["ab" * i for i in range(50)]
        with pytest.raises(ValueError, match="ab 7"):
            list(processes.map(fail, [7]))


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


def end_by(state, number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, "SIGKILL, probably because memory ran out"),
        (signal.SIGSEGV, "SIGSEGV, its last lines are above"),
        (signal.SIGTERM, "SIGTERM, its last lines are above"),
    ],
)
def test_a_killed_worker_process_is_reported_with_its_signal(number, said):
    """Memory is only suspected where the kernel may have ended it."""
    with (
        Processes(2, make_state, "a") as processes,
        pytest.raises(UserError, match=said),
    ):
        list(processes.map(end_by, [number] * 3))


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


distributed = pytest.importorskip("distributed")


def test_without_a_scheduler_workers_are_refused(monkeypatch):
    monkeypatch.setattr(processes, "_DASK_TIMEOUT_S", 0.1)
    with pytest.raises(RetryError, match=r"tcp://127\.0\.0\.1:9 must answer"):
        Processes(1, str, dask_scheduler="tcp://127.0.0.1:9")


def kill_one_worker(cluster, units):
    """Kills a worker once the build has written a file."""
    deadline = time.monotonic() + 300
    while not list(units.glob("*/units/*.spill")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    cluster.workers[0].process.process._process.kill()


@pytest.mark.slow
def test_dask_builds_the_same_bytes_though_a_worker_is_killed(
    tiny_records, tmp_path, monkeypatch
):
    # The workers import the packages of this checkout.
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[2]))
    config = tiny_run.records_config(tiny_records.parent)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        assert len(cluster.workers) == 2
        killer = threading.Thread(
            target=kill_one_worker,
            args=(cluster, tmp_path / "scratch"),
            daemon=True,
        )
        killer.start()
        build_tfrecords.main(
            dataclasses.replace(
                config,
                output_dir=str(tmp_path / "records"),
                scratch_dir=str(tmp_path / "scratch"),
                dask_scheduler=cluster.scheduler_address,
            )
        )
        killer.join()
    assert read_files(tmp_path / "records") == read_files(tiny_records)
