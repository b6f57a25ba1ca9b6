"""A sweep on gs://; see tests/helpers/fake_gcs.py."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from albert_tf.sweeps import plan as plans
from albert_tf.sweeps.directory import claim_directory

REPOSITORY = pathlib.Path(__file__).parents[2]
PATIENCE_S = 600

# The command `python -m albert_tf.sweep`. The program of its first argument
# takes the place of the Python interpreter that trains a run.
SWEEP = """
import runpy, sys
sys.executable = sys.argv.pop(1)
runpy.run_module("albert_tf.sweep", run_name="__main__", alter_sys=True)
"""

# Ends as soon as the test has written the log of the run.
TRAINER = """#!/bin/sh
cd {directory}
printenv > environment
touch started
while [ ! -e ended ]; do sleep 0.05; done
"""


def write_log(storage, events, num_lines):
    """Writes the log of a run of 50 steps, with 2 s of training in a line."""
    line = {"split": "train", "step": 50, "masked_lm_loss": 5.0}
    files = {
        "events": [{"time": 0.0, "event": e, "step": 50} for e in events],
        "metrics": [line | {"loop_seconds": 2.0}] * num_lines,
    }
    for name, lines in files.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        storage.put(f"sweep/runs/resumed/{name}.jsonl", text.encode())


@pytest.mark.slow
def test_the_table_has_what_a_run_wrote_last(storage, base, tmp_path):
    """Less than 5 s before, the sweep has read the log of the stopped run.

    For these 5 s, TensorFlow caches the size of an object by default.
    """
    flags = "--synthetic_input"
    plan = plans.make_plan(
        base(base_flags=(flags,), variant=("resumed:",), metrics=())
    )
    claim_directory(str(tmp_path / "sweep"), plan)
    storage.put_files(tmp_path / "sweep", "sweep")
    write_log(storage, ["start", "stop"], num_lines=1)
    trainer = tmp_path / "trainer"
    trainer.write_text(TRAINER.format(directory=tmp_path))
    trainer.chmod(0o700)
    log_file = tmp_path / "log"
    with open(log_file, "w") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", SWEEP, trainer),
                f"--base_flagfile={tmp_path}/base.flags",
                f"--base_flags={flags}",
                "--variant=resumed:",
                "--metrics=training_seconds",
                "--output_dir=gs://bucket/sweep",
            ],
            env={
                **os.environ,
                "PYTHONPATH": str(REPOSITORY),
                "TMPDIR": str(tmp_path),
            },
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    deadline = time.monotonic() + PATIENCE_S
    while not (tmp_path / "started").exists():
        assert process.poll() is None, log_file.read_text()
        assert time.monotonic() < deadline, log_file.read_text()
        time.sleep(0.02)
    write_log(storage, ["start", "stop", "resume", "finish"], num_lines=3)
    (tmp_path / "ended").touch()
    assert process.wait(PATIENCE_S) == 0, log_file.read_text()
    table = storage.read("sweep/")["table.md"].decode()
    assert "| resumed | 1 | 6 s |" in table
    # A run keeps the cache, which saves requests.
    assert "GCS_STAT" not in (tmp_path / "environment").read_text()
