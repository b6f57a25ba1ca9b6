"""Builds as processes with few resources or an unusual environment."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.run_processes import REPOSITORY
from tests.helpers.small_builds import read_files

pytestmark = pytest.mark.slow

# Shell commands before the build, its output directory, and words of its error
# message. Without words, the build succeeds.
ROWS = {
    "largest file": ("ulimit -f 1;", "{}/out", ["File too large"]),
    "few open files": ("ulimit -n 14;", "{}/out", []),
    "ASCII locale": (
        "export LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0;",
        "{}/büro, 2. OG",
        [],
    ),
}


def command_line(records, output_dir):
    return [
        sys.executable,
        "-m",
        "data_prep.build_tfrecords",
        f"--input_file={records.parent / 'text.txt'}",
        f"--spm_model_file={records.parent / 'spm.model'}",
        f"--output_dir={output_dir}",
        "--holdout_fraction=0.2",
        "--dupe_factor=2",
        "--num_shards=3",
        "--max_seq_length=32",
        "--max_predictions_per_seq=6",
        "--num_workers=1",
    ]


def start(command, before=""):
    return subprocess.Popen(
        ["bash", "-c", before + 'exec "$0" "$@"', *command],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # `nohup` and a shell's `&` ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize("name", ROWS)
def test_a_build_succeeds_or_says_what_to_do(name, tiny_records, tmp_path):
    before, output_dir, words = ROWS[name]
    output_dir = output_dir.format(tmp_path)
    command = command_line(tiny_records, output_dir)
    process = start(command, before.format(tmp_path))
    _, stderr = process.communicate(timeout=120)
    assert "Traceback" not in stderr
    if words:
        assert process.returncode == 1
        message = stderr.splitlines()[-1]
        assert message.startswith("error: ")
        assert all(word in message for word in words), message
    else:
        assert process.returncode == 0, stderr
        assert read_files(output_dir) == read_files(tiny_records)


def test_a_stopped_build_refuses_a_second_one_and_continues(
    tiny_records, tmp_path
):
    """Stopped by SIGSTOP, ended by Ctrl-C, run again."""
    output_dir = tmp_path / "out"
    command = command_line(tiny_records, output_dir)
    first = start(command)
    while not list(output_dir.glob(".build*/*/spiece.model")):
        assert first.poll() is None
        time.sleep(0.001)
    os.kill(first.pid, signal.SIGSTOP)
    second = start(command)
    _, stderr = second.communicate(timeout=120)
    assert second.returncode == 1
    assert "one command at a time" in stderr.splitlines()[-1]
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGCONT):
        os.kill(first.pid, number)
    _, stderr = first.communicate(timeout=120)
    assert first.returncode in (-signal.SIGINT, 130)
    third = start(command)
    third.communicate(timeout=120)
    assert third.returncode == 0
    assert read_files(output_dir) == read_files(tiny_records)
