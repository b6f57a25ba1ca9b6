"""Signals to real processes.

`tests/training/test_slice.py` stops a loop that runs on the hosts of a slice,
`tests/training/test_train.py` two workers.
"""

import signal
import subprocess
import time

import pytest

from albert_tf.cluster import preemption
from tests.helpers.forked_program import ForkedCode
from tests.helpers.remote_host import run_on_hosts
from tests.helpers.run_processes import PATIENCE_S

# A loop on the device, like the trainer's; only the stop flag ends it.
LOOP = """
import sys
import tensorflow as tf
from albert_tf.cluster.preemption import watch_for_stop

with watch_for_stop() as stop:
    @tf.function
    def loop():
        return tf.while_loop(
            lambda steps: tf.identity(stop.flag) == 0.0,
            lambda steps: (steps + 1,),
            (tf.constant(0),),
        )

    print("begins", flush=True)
    int(loop()[0])  # a call on another host returns before the loop ends
    print(stop.reason, flush=True)
sys.exit(stop.exit_status)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGTERM, "signal 15 (SIGTERM)"), (signal.SIGINT, "SIGINT")],
)
def test_a_signal_ends_the_loop_on_the_device(number, reason):
    with ForkedCode(LOOP, environment={"PATH": "/usr/bin:/bin"}) as loop:
        assert loop.stdout.readline() == "begins\n"
        time.sleep(1)  # in the loop, where Python's own handlers would wait
        assert loop.poll() is None
        loop.send_signal(number)
        assert reason in loop.stdout.readline()
        assert loop.wait(PATIENCE_S) == 128 + number


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_a_silent_host():
    """The first one waits for the host, which holds the stop flag.

    GNU timeout sends two signals, to the process and to its group; they count
    as one.
    """
    with run_on_hosts(LOOP) as (program, server):
        time.sleep(2)  # nothing logs the loop's first step
        server.send_signal(signal.SIGSTOP)
        program.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        program.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(preemption.SAME_SIGNAL_S + 1)
        program.send_signal(signal.SIGINT)
        assert program.wait(PATIENCE_S) == 128 + signal.SIGINT
