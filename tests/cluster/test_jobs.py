"""Jobs of shell scripts: retries, interruptions, and what outlives a kill."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from albert_tf.cluster import jobs
from albert_tf.cluster.jobs import Job, Jobs
from albert_tf.errors import UserError
from albert_tf.io.artifact import lock


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function: runs jobs in tmp_path, two at a time; Jobs, and all started.

    Its arguments are jobs, with a shell script for each of their processes.
    "save" is one that saves a checkpoint and exits with status 75.
    """
    monkeypatch.setattr(jobs, "_POLL_SECONDS", 0.01)
    monkeypatch.chdir(tmp_path)
    started = tmp_path / "started"
    started.touch()

    def count(text):
        return started.read_text().split().count(text)

    def run(**scripts):
        made = {}
        for name, ends in scripts.items():
            cases = " ".join(f"{n}) {end};;" for n, end in enumerate(ends, 1))
            code = f"""
                echo {name} >> started
                save() {{ echo saved-{name} >> started; exit 75; }}
                case $(grep -cx {name} started) in {cases} esac"""
            made[name] = Job(
                name,
                ["sh", "-c", code],
                log=f"{tmp_path}/{name}.log",
                output=f"{tmp_path}/{name}.out",
                needs=made.get(name.partition("_after_")[2]),
                last_saved=lambda name=name: count(f"saved-{name}"),
            )
        all_jobs = Jobs(2)
        all_jobs.run(list(made.values()))
        names = [n for n in started.read_text().split() if "saved" not in n]
        statuses = {name: job.status for name, job in made.items()}
        return all_jobs.interrupted, names, statuses

    return run


@pytest.mark.parametrize(
    ("end", "number"),
    [
        ("exit 143", 15),
        ("exit 130", 2),
        ("kill -TERM $$", 15),
        ("kill -TERM $PPID; exec sleep 60", 15),
        ("kill -INT $PPID; exec sleep 60", 2),
    ],
)
def test_an_interruption_of_one_process_interrupts_all(
    run, tmp_path, end, number
):
    """The machine may be about to stop: the second job is asked to stop, too.

    It waits for this, but for no more than a minute, so that jobs that are not
    asked fail the test. The third job is never started.
    """
    wait = "for _ in $(seq 1000); do sleep 0.05; done"
    interrupted, started, statuses = run(
        first=[f"while [ ! -e ready ]; do sleep 0.05; done; {end}"],
        second=[f"trap 'touch asked; exit 143' TERM; touch ready; {wait}"],
        third=["exit 0"],
    )
    assert (interrupted, sorted(started)) == (number, ["first", "second"])
    assert set(statuses.values()) == {None}
    assert (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        # Twice without a new checkpoint, and then again twice.
        (["exit 75", "exit 75", "save", "exit 75", "exit 0"], 0),
        (["exit 75", "save", "exit 75", "exit 75"], 75),
        (["exit 75", "exit 1"], 1),
    ],
)
def test_temporary_faults_are_retried_up_to_three_in_a_row(run, ends, status):
    """Jobs that need a failed one fail with its status."""
    _, started, statuses = run(
        first=ends, then_after_first=["exit 0"], other=["exit 0"]
    )
    assert started.count("first") == len(ends)
    assert started.count("then_after_first") == (status == 0)
    assert statuses == {"first": status, "then_after_first": status, "other": 0}


def test_a_job_that_aborts_is_logged_with_its_signal_and_last_lines(
    run, caplog
):
    """E.g. a library that calls abort()."""
    abort = "echo 'bad table' >&2; kill -ABRT $$"
    assert run(first=[abort])[2] == {"first": -signal.SIGABRT}
    assert "first failed with signal SIGABRT; the end of" in caplog.text
    assert "bad table" in caplog.text


def test_a_job_that_outlives_a_kill_keeps_the_lock(tmp_path):
    code = """if True:
        import sys
        from albert_tf.cluster.jobs import Job, Jobs
        from albert_tf.io.artifact import lock
        with lock(sys.argv[1]) as open_files:
            command = ["sh", "-c", "echo $$; exec sleep 60"]
            job = Job("job", command, "log", "out")
            Jobs(open_files=open_files).run([job])
    """
    output = tmp_path / "out"
    root = pathlib.Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    while not (output.exists() and output.read_text()):
        assert parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    orphan = int(output.read_text())
    locked = pytest.raises(UserError, match="one command at a time")
    with locked, lock(str(tmp_path)):
        pass
    subprocess.run(
        ["kill", f"-{signal.SIGKILL.value}", str(orphan)], check=True
    )
    while pathlib.Path(f"/proc/{orphan}").exists():
        time.sleep(0.01)
    with lock(str(tmp_path)):
        pass


def test_an_interruption_kills_a_job_that_has_nothing_to_save(tmp_path):
    """The first step of a training may take minutes, and answers no signal."""
    code = "trap '' TERM; kill -TERM $PPID; exec sleep 60"
    job = Job(
        "first",
        ["sh", "-c", code],
        log=f"{tmp_path}/log",
        output=f"{tmp_path}/output",
        has_progress=lambda: False,
    )
    jobs_ = Jobs()
    before = time.monotonic()
    jobs_.run([job])
    assert jobs_.interrupted == signal.SIGTERM
    assert time.monotonic() - before < 30
