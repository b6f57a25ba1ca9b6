"""Builds with Dask workers, one of which is killed."""

import dataclasses
import pathlib
import sys
import threading
import time

import pytest

from albert_tf.errors import RetryError, UserError
from data_prep import build_tfrecords, processes
from data_prep.processes import DaskProcesses
from tests.helpers import tiny_run
from tests.helpers.small_builds import make_config, read_files

distributed = pytest.importorskip("distributed")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"runner": "dask"}, "must be set together"),
        ({"dask_scheduler": "tcp://a:1"}, "must be set together"),
        (
            {
                "runner": "dask",
                "dask_scheduler": "tcp://a:1",
                "output_dir": "gs://bucket/records",
            },
            "needs --scratch_dir",
        ),
        ({"runner": "DirectRunner"}, "must be local or dask.*--runner=dask"),
    ],
)
def test_runners_that_cannot_work_are_refused(settings, message, tmp_path):
    with pytest.raises(UserError, match=message):
        make_config(**{"output_dir": tmp_path, **settings})


def test_a_missing_dask_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    message = r"no module named distributed.*-e '\.\[dask\]'"
    with pytest.raises(UserError, match=message):
        DaskProcesses("tcp://127.0.0.1:9", str)


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr(processes, "_DASK_TIMEOUT_S", 0.1)
    with pytest.raises(RetryError, match=r"tcp://127\.0\.0\.1:9 must answer"):
        DaskProcesses("tcp://127.0.0.1:9", str)


def fail_three_times(name, path):
    """A task that meets a transient fault of a shared file system."""
    with path.open("a") as file:
        file.write("tried\n")
    if len(path.read_text().split()) <= 3:
        raise OSError("stale file handle")
    return name


@pytest.mark.slow
def test_a_task_that_fails_is_tried_again(tmp_path):
    with (
        distributed.LocalCluster(
            n_workers=1, processes=False, dashboard_address=None
        ) as cluster,
        DaskProcesses(cluster.scheduler_address, str, "done") as workers,
    ):
        tasks = workers.map(fail_three_times, [tmp_path / "tries"])
        assert [task.result for task in tasks] == ["done"]


def kill_one_worker(cluster, units):
    """Kills a worker once the build has written a file."""
    deadline = time.monotonic() + 300
    while not list(units.glob("*/units/*.rows")):
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
        # The workers do not follow, so they need absolute paths.
        monkeypatch.chdir(tmp_path)
        killer = threading.Thread(
            target=kill_one_worker,
            args=(cluster, tmp_path / "scratch"),
            daemon=True,
        )
        killer.start()
        build_tfrecords.main(
            dataclasses.replace(
                config,
                output_dir="records",
                scratch_dir="scratch",
                runner="dask",
                dask_scheduler=cluster.scheduler_address,
            )
        )
        killer.join()
    assert read_files(tmp_path / "records") == read_files(tiny_records)
