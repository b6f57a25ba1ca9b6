"""Builds with Dask workers, which are killed."""

import dataclasses
import pathlib
import threading
import time

import pytest

from albert_tf.errors import RetryError, UserError
from data_prep import build_tfrecords
from tests.helpers import tiny_run
from tests.helpers.small_builds import make_config, read_files


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


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    distributed = pytest.importorskip("distributed")
    from data_prep.dask_processes import DaskProcesses

    def refuse(address, **_options):
        raise OSError(f"Timed out trying to connect to {address}")

    monkeypatch.setattr(distributed, "Client", refuse)
    with pytest.raises(RetryError, match=r"tcp://127\.0\.0\.1:9 must answer"):
        DaskProcesses("tcp://127.0.0.1:9", str)


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
    distributed = pytest.importorskip("distributed")
    # The workers import the packages of this checkout.
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parents[2]))
    with distributed.LocalCluster(
        2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        scratch = tmp_path / "scratch"
        killer = threading.Thread(
            target=kill_one_worker, args=(cluster, scratch), daemon=True
        )
        killer.start()
        build_tfrecords.main(
            dataclasses.replace(
                tiny_run.records_config(tiny_records.parent),
                output_dir=str(tmp_path / "records"),
                scratch_dir=str(scratch),
                runner="dask",
                dask_scheduler=cluster.scheduler_address,
            )
        )
        killer.join()
    assert read_files(tmp_path / "records") == read_files(tiny_records)
