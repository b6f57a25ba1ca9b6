"""Profiles of a slice; `test_train_paths` and `test_slice` make real ones."""

import pathlib
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).parents[2]

# A run of steps 2 to 4, in which the profiled hosts send nothing.
SILENT_HOSTS = """
import time
import tensorflow as tf
from albert_tf.config import PretrainingConfig
from albert_tf.training import profiling

def trace(servers, directory, milliseconds):
    print(f"profiles {servers}", flush=True)
    time.sleep(1000)

tf.profiler.experimental.client.trace = trace
profiling.LONGEST_S = profiling.SENDING_S = 0.1
config = PretrainingConfig.from_dict(
    {"training": {"output_dir": "run", "profile_steps": "2:4"}}
)
profiler = profiling.Profiler(
    config, lambda kind: print("event", kind), ("one:8466", "two:8466")
)
profiler.on_loop_begin(2)
profiler.on_stop(4)
print("ends", flush=True)
"""


@pytest.mark.slow
def test_a_silent_host_does_not_keep_a_finished_process_alive():
    done = subprocess.run(
        [sys.executable, "-c", SILENT_HOSTS],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "profiles grpc://one:8466,grpc://two:8466\nends\n"
    assert "NO PROFILE of the slice: TimeoutError" in done.stderr
