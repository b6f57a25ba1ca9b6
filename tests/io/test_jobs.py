"""Jobs of shell scripts: retries, interruptions, and the packages they see."""

import os
import pathlib
import signal
import sys

import pytest

from albert_tf.io import jobs


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function: runs a shell script that knows the number N of its start."""
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.01)
    monkeypatch.chdir(tmp_path)

    def run(script, **options):
        count = "N=$(($(cat starts 2>/dev/null || echo 0) + 1)); echo $N>starts"
        command = ["sh", "-c", f"{count}\n{script}"]
        return jobs.run("job", command, "log", "out", **options)

    return run


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("exit 143", 143),
        ("exit 130", 130),
        ("kill -TERM $$", 143),
        ("trap 'exit 0' TERM; kill -TERM $PPID; while :; do :; done", 143),
        ("trap 'exit 143' TERM; kill -INT $PPID; while :; do :; done", 130),
    ],
)
def test_an_interruption_of_a_job_or_of_this_process_ends_both(
    run, end, status
):
    """The machine may be about to stop: the job is asked to stop, too."""
    with pytest.raises(SystemExit) as interrupted:
        run(end)
    assert interrupted.value.code == status


def test_a_second_ctrl_c_ends_a_job_at_once(run):
    with pytest.raises(SystemExit) as interrupted:
        run(
            "trap 'kill -INT $PPID' TERM; trap 'exit 130' INT; "
            "kill -TERM $PPID; while :; do :; done"
        )
    assert interrupted.value.code == 143


@pytest.mark.parametrize(
    ("script", "status", "starts"),
    [
        ("[ $N = 3 ] || exit 75", 0, 3),
        ("exit 75", 75, 3),
        ("[ $N = 2 ] && exit 1; exit 75", 1, 2),
    ],
)
def test_temporary_faults_are_retried_twice(run, script, status, starts):
    assert run(script) == status
    assert pathlib.Path("starts").read_text() == f"{starts}\n"


def test_a_job_that_is_over_is_asked_to_stop_and_succeeds(run):
    wait = "trap 'exit 143' TERM; touch ready; while :; do :; done"
    assert run(wait, is_over=lambda: os.path.exists("ready")) == 0


def test_a_job_that_aborts_is_logged_with_its_signal_and_last_lines(
    run, caplog
):
    """E.g. a library that calls abort()."""
    assert run("echo 'bad table' >&2; kill -ABRT $$") == -signal.SIGABRT
    assert "job failed with signal SIGABRT; the end of" in caplog.text
    assert "bad table" in caplog.text


def test_a_folder_of_the_user_does_not_hide_a_package(run):
    for name in ("data_prep", "json"):
        pathlib.Path(name).mkdir()
        pathlib.Path(name, "__init__.py").write_text("raise SystemExit(9)")
    code = "import json, data_prep; print(data_prep.__path__[0])"
    assert run(f"{sys.executable} -c '{code}'") == 0
    root = pathlib.Path(__file__).parents[2]
    assert pathlib.Path("out").read_text() == f"{root}/data_prep\n"


def test_an_interruption_kills_a_job_that_has_nothing_to_save(run):
    """The first step of a training may take minutes, and answers no signal."""
    ignores = "trap '' TERM; kill -TERM $PPID; while :; do :; done"
    with pytest.raises(SystemExit):
        run(ignores, has_progress=lambda: False)
