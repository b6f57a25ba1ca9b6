"""Builds with Dask workers, one of which is killed."""

import dataclasses
import os
import pathlib
import sys
import threading
import time

import pytest

from albert_tf.errors import RetryError, UserError
from data_prep import build_tfrecords
from data_prep.builder import build as builder
from data_prep.builder import local_runner
from tests.helpers import tiny_run
from tests.helpers.small_builds import VOCABULARY, make_config, read_files


@pytest.mark.parametrize(
    "settings",
    [
        {"runner": "dask"},
        {"dask_scheduler": "tcp://a:1"},
        {
            "runner": "dask",
            "dask_scheduler": "tcp://a:1",
            "output_dir": "gs://bucket/records",
        },
    ],
)
def test_settings_of_dask_need_each_other(settings, tmp_path):
    with pytest.raises(UserError, match="runner=dask"):
        make_config(**{"output_dir": tmp_path, **settings})


def test_workers_of_other_directories_get_absolute_paths(
    text_file, tmp_path, monkeypatch
):
    received = []

    def receive(scheduler, make_state, config, vocabulary, scratch):
        received.extend([config.output_dir, config.scratch_dir, vocabulary])
        received.append(scratch)
        raise KeyboardInterrupt

    config = make_config(
        "out",
        text_file,
        scratch_dir="scratch",
        spm_model_file=os.path.abspath(VOCABULARY),
        runner="dask",
        dask_scheduler="tcp://a:1",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_runner, "DaskProcesses", receive)
    with pytest.raises(KeyboardInterrupt):
        build_tfrecords.main(config)
    assert len(received) == 4
    assert all(path.startswith(str(tmp_path)) for path in received)
    remote = dataclasses.replace(config, output_dir="gs://bucket/out")
    made = builder._make_paths_absolute(remote)
    assert made.output_dir == "gs://bucket/out"
    assert made.scratch_dir == str(tmp_path / "scratch")


def test_a_missing_dask_is_named(monkeypatch):
    from data_prep.dask_processes import DaskProcesses

    monkeypatch.setitem(sys.modules, "distributed", None)
    message = r"no module named distributed.*-e '\.\[dask\]'"
    with pytest.raises(UserError, match=message):
        DaskProcesses("tcp://127.0.0.1:9", str)


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    distributed = pytest.importorskip("distributed")
    from data_prep.dask_processes import DaskProcesses

    def refuse(address, **_options):
        raise OSError(f"Timed out trying to connect to {address}")

    monkeypatch.setattr(distributed, "Client", refuse)
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
    distributed = pytest.importorskip("distributed")
    from data_prep.dask_processes import DaskProcesses

    with (
        distributed.LocalCluster(
            n_workers=1, processes=False, dashboard_address=None
        ) as cluster,
        DaskProcesses(cluster.scheduler_address, str, "done") as processes,
    ):
        tasks = processes.map(fail_three_times, [tmp_path / "tries"])
        assert [task.result for task in tasks] == ["done"]


def kill_one_worker(cluster, units):
    """Kills a worker once the build has written a file."""
    deadline = time.monotonic() + 300
    while not list(units.glob("*/units/*.rows")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    cluster.workers[0].process.process._process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "num_workers"), [("disk", 1), ("disk", 3), ("gs", 2)]
)
def test_dask_builds_the_same_bytes_though_a_worker_is_killed(
    place, num_workers, tiny_records, tmp_path, monkeypatch, request
):
    distributed = pytest.importorskip("distributed")
    # The workers import the packages of this checkout.
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[2]))
    output_dir = str(tmp_path / "records")
    if place == "gs":
        storage = request.getfixturevalue("storage")
        output_dir = "gs://bucket/records"
    with distributed.LocalCluster(
        n_workers=num_workers, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        assert len(cluster.workers) == num_workers
        scratch = tmp_path / "scratch"
        killer = threading.Thread(
            target=kill_one_worker, args=(cluster, scratch), daemon=True
        )
        killer.start()
        build_tfrecords.main(
            dataclasses.replace(
                tiny_run.records_config(tiny_records.parent),
                output_dir=output_dir,
                scratch_dir=str(scratch),
                runner="dask",
                dask_scheduler=cluster.scheduler_address,
            )
        )
        killer.join()
    built = (
        storage.read("records/")
        if place == "gs"
        else read_files(tmp_path / "records")
    )
    assert built == read_files(tiny_records)
