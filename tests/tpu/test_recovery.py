"""`tpu/launch.sh run` after preemptions, lost hosts and failed starts.

Runs against the substitute for gcloud and the hosts of a TPU in
`tests/helpers/fake_cloud.py`.
"""

import concurrent.futures
import os
import shutil
import signal
import subprocess
import time

import pytest

from tests.helpers.fake_cloud import TRAINING, Metadata, copy_repository

# They wait for processes.
pytestmark = pytest.mark.slow

LOST = "1 PREEMPTED"
NO_CREATES = {"failing_creates": "refused\n" * 4}
REPLACED = ["create", "delete", "create"]
NEVER_READY = "the slice is not READY: requesting a new slice"

# Settings of the cloud and of `run`; its exit status and a part of what it
# prints; the requests, and how often training was started.
CASES = {
    "a preempted slice is requested again": (
        {"plan": ["143 SUSPENDED", "143 PREEMPTED", "0"]},
        *([], 0, "done", [*REPLACED, "delete", "create"], 3),
    ),
    "a preemption may be reported late": (
        {"plan": ["1 PREEMPTED 1", "0"]},
        *(["--grace_s=30"], 0, "done", REPLACED, 2),
    ),
    "an outage after a preemption is waited for, since nothing is charged": (
        {
            "plan": ["143 PREEMPTED", "0"],
            "failing_creates": "\n" + "refused\n" * 4,
        },
        ["--max_failures=2", "--grace_s=0"],
        *(0, "the slice cannot be requested", [*REPLACED, *["create"] * 4], 2),
    ),
    "a request that is refused from the start ends run": (
        NO_CREATES,
        ["--max_failures=2"],
        *(1, "the request failed 2 times", ["create"] * 2, 0),
    ),
    "repeated failures of the request end run": (
        {"states": ["FAILED"]},
        ["--max_failures=2"],
        *(1, "the request failed 2 times", REPLACED, 0),
    ),
    # A checkpoint between two preemptions starts the count again.
    "preemptions without a new checkpoint end run": (
        {"plan": [LOST, "143 step-1", LOST, LOST, "0"]},
        ["--max_preemptions=2"],
        *(75, "preempted 2 times without a new checkpoint"),
        *(["create", "delete"] * 3, 4),
    ),
    "training restarts after a notice without preemption": (
        {"plan": ["143", "0"]},
        *([], 0, "done", ["create"], 2),
    ),
    "training that has lost a host is started again if it progresses": (
        {"plan": [*(f"75 step-{n}" for n in (1, 1, 2, 2, 3, 3)), "0"]},
        ["--max_failures=2", "--grace_s=0"],
        *(0, "done", ["create"], 7),
    ),
    # Two starts on each slice; the log, which names the checkpoints, is deleted
    # with its slice.
    "training that saves no checkpoint gets a new slice, then ends": (
        {"plan": ["75 step-5", "143", "75", "143 step-5", *["143"] * 9]},
        ["--max_failures=2", "--grace_s=0"],
        *(75, "2 times without a new checkpoint, on 2 slices", REPLACED, 5),
    ),
    # A reboot after a checkpoint does not count.
    "hosts that reboot again and again are replaced": (
        {"plan": ["reboot step-1", "reboot step-2", *["reboot"] * 2, "0"]},
        ["--max_failures=2"],
        *(0, "2 times without a new checkpoint: requesting", REPLACED, 5),
    ),
    # Two attempts on each slice; the last slice is charged.
    **{
        f"a set-up that fails on each slice ends run: {fault}": (
            {"num_hosts": 2, fault: "1\n" * 9},
            ["--max_failures=2"],
            *(75, "training cannot be started, on 2 slices", REPLACED, 0),
        )
        for fault in ("unreachable", "broken_install")
    },
    **{
        f"a slice that does not become ready is replaced: {state}": (
            {"plan": [f"75 {state}", "0"]},
            *(["--unreachable_s=1"], 0, NEVER_READY, REPLACED, 2),
        )
        for state in ("REPAIRING", "STOPPED", "unknown", "REPAIRING|STOPPED")
    },
    "any number of silent hosts is replaced if training progresses": (
        {"plan": [*(f"silent step-{n} 2" for n in (1, 2, 3)), "0"]},
        ["--unreachable_s=1", "--max_failures=2"],
        *(0, "done", [*["create", "delete"] * 3, "create"], 4),
    ),
    "silent hosts without a new checkpoint end run": (
        {"plan": ["silent step-1 2"] * 3},
        ["--unreachable_s=1", "--max_failures=2"],
        *(75, "host 0 does not answer, on 2 slices", REPLACED, 2),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_run_after(cloud, case):
    faults, settings, status, said, verbs, num_starts = CASES[case]
    faults = dict(faults)
    for name in faults.keys() - {"states", "plan", "num_hosts"}:
        (cloud.path / name).write_text(faults.pop(name))
    cloud.set_up(**faults)
    done = cloud.run(*settings)
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
    assert cloud.verbs() == verbs
    starts = cloud.trained()
    assert len(starts) == num_starts
    assert all(start == starts[0] for start in starts)
    if status == 75 and "preempted" not in said:
        assert "charged until: " in done.stdout
        assert "launch.sh delete --project=mine" in done.stdout


def test_later_slices_get_the_code_of_the_first(cloud, tmp_path):
    """Also if files have been changed or deleted since."""
    cloud.repository = tmp_path / "repository"
    copy_repository(cloud.repository)
    (cloud.repository / "tpu" / "deleted.py").touch()
    subprocess.run(
        ["git", "add", "."], cwd=cloud.repository, check=True, timeout=60
    )
    (cloud.repository / "tpu" / "deleted.py").unlink()
    cloud.set_up(plan=["143 PREEMPTED 1", "0"])
    with concurrent.futures.ThreadPoolExecutor() as pool:
        run = pool.submit(cloud.run, "--grace_s=30")
        while not (cloud.path / "trained").exists():
            assert not run.done(), run.result()
            time.sleep(0.05)
        (cloud.repository / "setup.py").unlink()
        done = run.result()
    assert done.returncode == 0, done.stdout + done.stderr
    assert cloud.verbs() == REPLACED
    assert (cloud.path / "host-0" / "albert_tf" / "setup.py").exists()


def test_a_request_that_stays_suspending_is_deleted(cloud):
    cloud.launch("create")
    (cloud.path / "states").write_text("SUSPENDING")
    cloud.set_up(plan=["0"])
    cloud.complete("--unreachable_s=1")
    assert cloud.verbs() == REPLACED


def test_training_restarts_after_a_reboot(cloud):
    cloud.set_up(plan=["wait", "0"])
    cloud.succeed("create", "setup")
    cloud.start()
    state = cloud.path / "host-0" / "albert_tf_state"
    trainer = int((state / "trainer.pid").read_text())
    os.killpg(os.getpgid(trainer), signal.SIGKILL)
    assert cloud.launch("status").stdout.splitlines()[-1] == "lost"
    cloud.complete()
    assert len(cloud.trained()) == 2


@pytest.mark.parametrize("end", ["143", "reboot"])
def test_a_slice_whose_second_host_stays_away_is_replaced(cloud, end):
    """On this slice, each start after the end of training fails."""
    cloud.set_up(plan=[f"{end} step-1", "0"])
    cloud.succeed("create", "setup", "start")
    (cloud.path / "num_hosts").write_text("2")
    (cloud.path / "unreachable").write_text("1\n")
    Metadata.addresses = ("10.0.0.2", "10.0.0.3")
    done = cloud.complete("--max_failures=2")
    assert "training cannot be started: requesting a new slice" in done.stdout
    assert cloud.verbs() == REPLACED
    assert len(cloud.trained()) == 2


def test_a_host_that_has_lost_its_files_is_set_up_again(cloud):
    cloud.set_up(plan=["143", "0"], num_hosts=2)
    cloud.succeed("create", "setup", "start")
    shutil.rmtree(cloud.path / "host-1" / "albert_tf")
    done = cloud.complete("--max_failures=2")
    assert "attempt 2 of 2" in done.stdout
    assert cloud.verbs() == ["create"]


def test_a_command_that_does_not_end_has_a_limit(cloud):
    """The host answers, but its disk does not."""
    cloud.set_up(plan=["wait", "0"])
    cloud.succeed("create", "setup")
    cloud.start()
    (cloud.path / "hanging").write_text("20")
    done = cloud.complete("--unreachable_s=1", "--query_s=5")
    assert "host 0 does not answer: requesting a new slice" in done.stdout
    assert cloud.verbs() == REPLACED


def test_a_check_of_a_host_that_hangs_ends(cloud):
    cloud.set_up(plan=["0"])
    cloud.succeed("create", "setup")
    (cloud.path / "hanging").write_text("10")
    done = cloud.launch("check", "--command_s=2", "--", *TRAINING)
    assert done.returncode == 124, done.stdout + done.stderr


def test_a_slice_that_cannot_be_deleted_counts_once(cloud):
    cloud.set_up(plan=["wait", "0"])
    cloud.succeed("create", "setup")
    cloud.start()
    (cloud.path / "unreachable").write_text("all\n")
    (cloud.path / "failing_deletes").write_text("refused\n" * 2)
    done = cloud.complete("--unreachable_s=1", "--max_failures=2")
    assert done.stdout.count("STILL CHARGED") == 2
    assert cloud.verbs() == ["create", *["delete"] * 3, "create"]
