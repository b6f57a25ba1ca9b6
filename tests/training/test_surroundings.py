"""Trainers with few resources or without permission.

Each ends with one line that says what to do.
"""

import re

import pytest

from albert_tf.io import faults
from albert_tf.training.train import train
from tests.helpers import rights, tiny_run
from tests.helpers.run_processes import RunProcesses, check_same_run


@pytest.mark.slow
def test_a_checkpoint_above_the_limit_of_file_sizes_is_named(
    tiny_records, tmp_path
):
    """The limit is above all files but the variables of the checkpoint."""
    config = tiny_run.make_config(
        tiny_records, tmp_path / "run", intermediate_size=4_000
    )
    # The vocabulary, which the run copies, has 240 kB.
    limited = ("tests.helpers.limited_program", "300000")
    run = RunProcesses(
        config,
        tmp_path,
        command=(*limited, "albert_tf.run_pretraining"),
        # The limit must not damage the programs of other tests.
        environments=[{"TF_XLA_FLAGS": ""}],
    )
    assert run.wait() == [1], run.log()
    assert "Traceback" not in run.log()
    [message] = re.findall(r"^error: .*", run.log(), re.MULTILINE)
    assert "must be written" in message
    assert "variables.data" in message and "ulimit -f" in message
    assert not list((tmp_path / "run").rglob("checkpoint.json"))


@pytest.mark.slow
def test_a_file_system_without_inodes_is_named(source, tiny_records, make_disk):
    """Its inodes end while the first checkpoint is written.

    With more inodes, the same command ends like an undisturbed run.
    """
    disk = make_disk("nr_inodes=12")
    config = tiny_run.make_config(tiny_records, disk / "run")
    message = error_of(config)
    assert "the disk is full" in message and "inodes (df -i)" in message
    assert not list((disk / "run").rglob("checkpoint.json"))
    disk.change("nr_inodes=1000")
    assert train(config) == 0
    check_same_run(config.training.output_dir, source)


def test_a_directory_without_permission_is_named(tiny_records, tmp_path):
    parent = tmp_path / "parent"
    parent.mkdir(mode=0o500)
    with rights.without_root():
        message = error_of(tiny_run.make_config(tiny_records, parent / "run"))
    parent.chmod(0o700)  # for pytest, which removes it
    assert f"{parent}/run must be accessible" in message
    assert "Change its permissions" in message


def error_of(config):
    """The message of a trainer that must fail."""
    with pytest.raises(Exception) as raised:
        train(config)
    return str(faults.explain(raised.value))
