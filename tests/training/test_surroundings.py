"""Trainers with few resources or without permission.

Each ends with one line that says what to do.
"""

import dataclasses
import json
import re

import pytest

from tests.helpers import tiny_run
from tests.helpers.run_processes import RunProcesses, check_same_run

pytestmark = pytest.mark.slow


def run_under(limits, config, directory):
    """Runs a trainer that must fail; returns its message."""
    run = RunProcesses(
        config,
        directory,
        command=(
            "tests.helpers.limited_program",
            json.dumps(limits),
            "albert_tf.run_pretraining",
        ),
        # A limit of file sizes must not damage the programs of other tests.
        environments=[{"TF_XLA_FLAGS": ""}],
    )
    assert run.wait() == [1], run.log()
    assert "Traceback" not in run.log()
    [message] = re.findall(r"^error: .*", run.log(), re.MULTILINE)
    return message


def test_a_checkpoint_above_the_limit_of_file_sizes_is_named(
    tiny_records, tmp_path
):
    """The limit is above all files but the variables of the checkpoint."""
    model = dataclasses.replace(tiny_run.MODEL, intermediate_size=4_000)
    config = tiny_run.make_config(tiny_records, tmp_path / "run")
    config = dataclasses.replace(config, model=model)
    # The vocabulary, which the run copies, has 240 kB.
    message = run_under({"file_bytes": 300_000}, config, tmp_path)
    assert "must be written" in message
    assert "variables.data" in message and "ulimit -f" in message
    assert not list((tmp_path / "run").rglob("checkpoint.json"))


def test_a_file_system_without_inodes_is_named(
    source, tiny_records, make_disk, tmp_path
):
    """Its inodes end while the first checkpoint is written.

    With more inodes, the same command ends like an undisturbed run.
    """
    disk = make_disk("nr_inodes=14")
    config = tiny_run.make_config(tiny_records, disk / "run")
    message = run_under({}, config, tmp_path)
    assert "the disk is full" in message and "inodes (df -i)" in message
    assert not list((disk / "run").rglob("checkpoint.json"))
    disk.change("nr_inodes=1000")
    again = RunProcesses(config, tmp_path)
    assert again.wait() == [0], again.log()
    check_same_run(config.training.output_dir, source)


def test_a_directory_without_permission_is_named(tiny_records, tmp_path):
    parent = tmp_path / "parent"
    parent.mkdir(mode=0o500)
    config = tiny_run.make_config(tiny_records, parent / "run")
    message = run_under({"is_root": False}, config, tmp_path)
    parent.chmod(0o700)  # for pytest, which removes it
    assert f"{parent}/run must be accessible" in message
    assert "Change its permissions" in message
