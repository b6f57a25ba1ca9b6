"""Signals to real processes; `test_train.py` of training stops two workers."""

import signal
import time

import pytest

from tests.helpers.forked_program import ForkedCode
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
    loop()
    print(stop.reason, flush=True)
sys.exit(stop.exit_status)
"""

# A program that does not stop when it is asked to.
WAITING = """
import time
from albert_tf.cluster.preemption import watch_for_stop

with watch_for_stop():
    print("begins", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_loop_on_the_device():
    with ForkedCode(LOOP, environment={"PATH": "/usr/bin:/bin"}) as loop:
        assert loop.stdout.readline() == "begins\n"
        time.sleep(1)  # in the loop, where Python's own handlers would wait
        assert loop.poll() is None
        loop.send_signal(signal.SIGINT)
        assert "SIGINT" in loop.stdout.readline()
        assert loop.wait(PATIENCE_S) == 128 + signal.SIGINT


@pytest.mark.slow
def test_a_second_ctrl_c_ends_the_process_at_once():
    """GNU timeout sends SIGTERM twice, which is one request."""
    with ForkedCode(WAITING, environment={"PATH": "/usr/bin:/bin"}) as program:
        assert program.stdout.readline() == "begins\n"
        for number in (signal.SIGTERM, signal.SIGTERM):
            program.send_signal(number)
            time.sleep(0.2)
        assert program.poll() is None
        program.send_signal(signal.SIGINT)
        assert program.wait(PATIENCE_S) == 128 + signal.SIGINT
