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


def test_a_preempted_slice_is_requested_again_and_training_continues(cloud):
    cloud.set_up(
        states=["WAITING_FOR_RESOURCES", "ACTIVE"],
        plan=["143 SUSPENDED", "143 PREEMPTED", "0"],
    )
    done = cloud.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert cloud.verbs() == ["create", "delete"] * 2 + ["create"]
    first, *others = cloud.trained()
    assert others == [first, first]


def test_a_preemption_reported_late_is_not_an_error(cloud):
    cloud.set_up(plan=["1 PREEMPTED 1", "0"])
    done = cloud.run("--grace_s=30")
    assert done.returncode == 0, done.stdout + done.stderr
    assert cloud.verbs() == ["create", "delete", "create"]


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
    assert cloud.verbs() == ["create", "delete", "create"]
    assert (cloud.path / "host-0" / "albert_tf" / "setup.py").exists()


def test_an_outage_after_a_preemption_is_waited_for(cloud):
    """Nothing is charged meanwhile."""
    cloud.set_up(plan=["143 PREEMPTED", "0"])
    (cloud.path / "failing_creates").write_text("\n" + "refused\n" * 4)
    done = cloud.run("--max_failures=2", "--grace_s=0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the slice cannot be requested") == 4
    assert cloud.verbs() == ["create", "delete", *["create"] * 5]


def test_a_request_that_is_refused_from_the_start_ends_run(cloud):
    (cloud.path / "failing_creates").write_text("refused\n" * 4)
    done = cloud.run("--max_failures=2")
    assert done.returncode == 1
    assert "the request failed 2 times" in done.stderr
    assert cloud.verbs() == ["create"] * 2


def test_a_request_that_stays_suspending_is_deleted(cloud):
    cloud.launch("create")
    (cloud.path / "states").write_text("SUSPENDING")
    cloud.set_up(plan=["0"])
    done = cloud.run("--unreachable_s=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert cloud.verbs() == ["create", "delete", "create"]


def test_preemptions_without_a_new_checkpoint_end_run(cloud):
    """A checkpoint between two preemptions starts the count again."""
    lost = "1 PREEMPTED"
    cloud.set_up(plan=[lost, "143 step-1", lost, lost, "0"])
    done = cloud.run("--max_preemptions=2")
    assert done.returncode == 75, done.stdout + done.stderr
    assert "preempted 2 times without a new checkpoint" in done.stdout
    assert cloud.verbs() == ["create", "delete"] * 3
    assert len(cloud.trained()) == 4


def test_training_restarts_after_a_notice_without_preemption(cloud):
    cloud.set_up(plan=["143", "0"])
    done = cloud.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert cloud.verbs() == ["create"]
    assert len(cloud.trained()) == 2


def test_training_restarts_after_a_reboot(cloud):
    cloud.set_up(plan=["wait", "0"])
    for command in ("create", "setup"):
        cloud.launch(command)
    cloud.start()
    state = cloud.path / "host-0" / "albert_tf_state"
    trainer = int((state / "trainer.pid").read_text())
    os.killpg(os.getpgid(trainer), signal.SIGKILL)
    assert cloud.launch("status").stdout.splitlines()[-1] == "lost"
    done = cloud.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(cloud.trained()) == 2


def test_training_that_has_lost_a_host_is_started_again(cloud):
    """Any number of times, as long as it saves checkpoints in between."""
    plan = [f"75 step-{step}" for step in (1, 1, 2, 2, 3, 3)]
    cloud.set_up(plan=[*plan, "0"])
    done = cloud.run("--max_failures=2", "--grace_s=0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert cloud.verbs() == ["create"]
    assert len(cloud.trained()) == 7


def test_training_that_saves_no_checkpoint_gets_a_new_slice_then_ends(cloud):
    """Two starts without progress on each slice, whatever the exit status.

    The log, which names the checkpoints, is deleted with its slice.
    """
    cloud.set_up(plan=["75 step-5", "143", "75", "143 step-5", *["143"] * 9])
    done = cloud.run("--max_failures=2", "--grace_s=0")
    assert done.returncode == 75
    assert "2 times without a new checkpoint, on 2 slices" in done.stdout
    assert "the last words of 143" in done.stdout
    assert "charged until: " in done.stdout
    assert "launch.sh delete --project=mine" in done.stdout
    assert cloud.verbs() == ["create", "delete", "create"]
    assert len(cloud.trained()) == 5


def test_hosts_that_reboot_again_and_again_are_replaced(cloud):
    """A reboot after a checkpoint does not count."""
    plan = ["reboot step-1", "reboot step-2", "reboot", "reboot"]
    cloud.set_up(plan=[*plan, "0"])
    done = cloud.run("--max_failures=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 times without a new checkpoint: requesting" in done.stdout
    assert cloud.verbs() == ["create", "delete", "create"]
    assert len(cloud.trained()) == 5


@pytest.mark.parametrize("end", ["143", "reboot"])
def test_a_slice_whose_second_host_stays_away_is_replaced(cloud, end):
    """On this slice, each start after the end of training fails."""
    cloud.set_up(plan=[f"{end} step-1", "0"])
    for words in (["create"], ["setup"], ["start", "--", *TRAINING]):
        assert cloud.launch(*words).returncode == 0
    (cloud.path / "num_hosts").write_text("2")
    (cloud.path / "unreachable").write_text("1\n")
    Metadata.addresses = ("10.0.0.2", "10.0.0.3")
    done = cloud.run("--max_failures=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "training cannot be started: requesting a new slice" in done.stdout
    assert cloud.verbs() == ["create", "delete", "create"]
    assert len(cloud.trained()) == 2


@pytest.mark.parametrize("fault", ["unreachable", "broken_install"])
def test_a_set_up_that_fails_on_each_slice_ends_run(cloud, fault):
    """Two attempts on each of two slices, the last of which is charged."""
    cloud.set_up(num_hosts=2)
    (cloud.path / fault).write_text("1\n" * 9)
    done = cloud.run("--max_failures=2")
    assert done.returncode == 75
    assert "training cannot be started, on 2 slices" in done.stdout
    assert "The last one still exists, and is charged until: " in done.stdout
    assert done.stdout.count("attempt 2 of 2") == 2
    assert cloud.verbs() == ["create", "delete", "create"]


def test_a_host_that_has_lost_its_files_is_set_up_again(cloud):
    cloud.set_up(plan=["143", "0"], num_hosts=2)
    Metadata.addresses = ("10.0.0.2", "10.0.0.3")
    for words in (["create"], ["setup"], ["start", "--", *TRAINING]):
        assert cloud.launch(*words).returncode == 0
    shutil.rmtree(cloud.path / "host-1" / "albert_tf")
    done = cloud.run("--max_failures=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "attempt 2 of 2" in done.stdout
    assert cloud.verbs() == ["create"]


def test_a_command_that_does_not_end_has_a_limit(cloud):
    """The host answers, but its disk does not."""
    cloud.set_up(plan=["wait", "0"])
    for command in ("create", "setup"):
        assert cloud.launch(command).returncode == 0
    cloud.start()
    (cloud.path / "hanging").write_text("20")
    done = cloud.run("--unreachable_s=1", "--query_s=5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "host 0 does not answer: requesting a new slice" in done.stdout
    assert cloud.verbs() == ["create", "delete", "create"]


def test_a_check_of_a_host_that_hangs_ends(cloud):
    cloud.set_up(plan=["0"])
    for command in ("create", "setup"):
        assert cloud.launch(command).returncode == 0
    (cloud.path / "hanging").write_text("10")
    done = cloud.launch("check", "--command_s=2", "--", *TRAINING)
    assert done.returncode == 124, done.stdout + done.stderr


def test_a_slice_whose_first_host_stays_silent_is_replaced(cloud):
    cloud.set_up(plan=["wait", "0"])
    for command in ("create", "setup"):
        assert cloud.launch(command).returncode == 0
    cloud.start()
    (cloud.path / "unreachable").write_text("all\n")
    done = cloud.run("--unreachable_s=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "host 0 does not answer: requesting a new slice" in done.stdout
    assert cloud.verbs() == ["create", "delete", "create"]


@pytest.mark.parametrize(
    "state", ["REPAIRING", "STOPPED", "unknown", "REPAIRING|STOPPED"]
)
def test_a_slice_that_does_not_become_ready_is_replaced(cloud, state):
    cloud.set_up(plan=[f"75 {state}", "0"])
    done = cloud.run("--unreachable_s=1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the slice is not READY: requesting a new slice" in done.stdout
    assert cloud.verbs() == ["create", "delete", "create"]


def test_a_slice_that_cannot_be_deleted_counts_once(cloud):
    cloud.set_up(plan=["wait", "0"])
    for command in ("create", "setup"):
        assert cloud.launch(command).returncode == 0
    cloud.start()
    (cloud.path / "unreachable").write_text("all\n")
    (cloud.path / "failing_deletes").write_text("refused\n" * 2)
    done = cloud.run("--unreachable_s=1", "--max_failures=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("STILL CHARGED") == 2
    assert cloud.verbs() == ["create", *["delete"] * 3, "create"]


@pytest.mark.slow
def test_any_number_of_silent_hosts_is_replaced_if_training_progresses(cloud):
    cloud.set_up(plan=[*(f"silent step-{n} 2" for n in (1, 2, 3)), "0"])
    done = cloud.run("--unreachable_s=1", "--max_failures=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert cloud.verbs() == ["create", "delete"] * 3 + ["create"]


@pytest.mark.slow
def test_silent_hosts_without_a_new_checkpoint_end_run(cloud):
    cloud.set_up(plan=["silent step-1 2"] * 3)
    done = cloud.run("--unreachable_s=1", "--max_failures=2")
    assert done.returncode == 75
    assert "host 0 does not answer, on 2 slices" in done.stdout
    assert cloud.verbs() == ["create", "delete", "create"]


def test_repeated_failures_of_the_request_end_run(cloud):
    cloud.set_up(states=["FAILED"])
    done = cloud.run("--max_failures=2")
    assert done.returncode == 1
    assert "the request failed 2 times" in done.stderr
    assert cloud.verbs() == ["create", "delete", "create"]
