"""The watchdog ends processes that hang, and only those."""

import signal
import time

import pytest

from albert_tf.cluster import watchdog as watchdog_module
from albert_tf.cluster.watchdog import Watchdog
from albert_tf.errors import RETRY_STATUS
from tests.helpers.forked_program import ForkedCode
from tests.helpers.remote_host import run_on_hosts

# A loop on the device that never ends, as if a host did not answer.
HANGS = """
import tensorflow as tf
from albert_tf.cluster.watchdog import Watchdog

@tf.function
def loop_for_ever():
    return tf.while_loop(lambda n: n >= 0, lambda n: (n * 1,), (0,))

def wait_for_devices():
    return int(loop_for_ever()[0])

with Watchdog(timeout_s=1).limit("the device loop"):
    wait_for_devices()
"""


# On a slice, the loop is an operation that runs on another host.
WAITS_FOR_HOST = """
import sys
from albert_tf.cluster import workers
from albert_tf.cluster.watchdog import Watchdog
from albert_tf.errors import RETRY_STATUS

@tf.function
def loop_for_ever():
    return tf.while_loop(lambda n: n >= 0, lambda n: (n * 1,), (0,))

print("begins", flush=True)
try:
    with Watchdog(timeout_s=8).limit("the device loop"):
        int(loop_for_ever()[0])
except workers.LOSS_ERRORS:
    sys.exit(RETRY_STATUS)
"""


@pytest.fixture
def ended(monkeypatch):
    """The activities that would have ended the process, and their settings."""
    activities = []
    monkeypatch.setattr(
        watchdog_module,
        "_end_process",
        lambda activity, _, setting: activities.append((activity, setting)),
    )
    return activities


def test_an_activity_may_take_ten_times_its_usual_time():
    """At least 5 minutes, and the timeout if the usual time is unknown."""
    watchdog = Watchdog(1800)
    assert watchdog.limit_s() == 1800
    assert watchdog.limit_s(44.0) == 440.0
    assert watchdog.limit_s(847.0) == 8470.0
    assert watchdog.limit_s(1.0) == 300.0
    assert Watchdog(60).limit_s(1.0) == 60.0


def wait_until(ended, number):
    deadline = time.monotonic() + 60
    while len(ended) < number and time.monotonic() < deadline:
        time.sleep(0.01)


def test_only_an_activity_that_takes_too_long_ends_the_process(ended):
    watchdog = Watchdog(0.05)
    with watchdog.limit("a short one"):
        pass
    with Watchdog(0).limit("an unlimited one"):
        time.sleep(0.1)
    with watchdog.limit("a long one"):
        wait_until(ended, 1)
    with Watchdog(0.05, "worker_timeout_s").limit("connecting"):
        wait_until(ended, 2)
    # No setting is named if the limit follows from the usual time.
    with Watchdog(0.01).limit("a loop", usual_s=0.005):
        wait_until(ended, 3)
    assert ended == [
        ("a long one", "hang_timeout_s"),
        ("connecting", "worker_timeout_s"),
        ("a loop", ""),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_or_silent_host_ends_the_program_with_the_status_for_retry(
    number,
):
    """A host that is killed is an error; one that is silent is a hang."""
    with run_on_hosts(WAITS_FOR_HOST) as (program, host):
        time.sleep(2)  # nothing logs the loop's first step
        host.send_signal(number)
        assert program.wait(60) == RETRY_STATUS
        is_silent = number == signal.SIGSTOP
        assert ("THE RUN HANGS" in program.stderr.read()) == is_silent


@pytest.mark.slow
def test_a_hanging_process_logs_its_stacks_and_ends():
    with ForkedCode(HANGS) as process:
        assert process.wait(120) == RETRY_STATUS
        log = process.stderr.read()
    message, _, stacks = log.partition("THE RUN HANGS: the device loop")
    assert "in wait_for_devices" in stacks, message + stacks
    assert "raise --hang_timeout_s. The stacks" in stacks
