"""Signals to real processes, and notices of a local metadata server."""

import re
import signal
import subprocess
import time

import pytest

from albert_tf.cluster import notices, preemption
from albert_tf.runs.log import read_events
from tests.helpers import tiny_run
from tests.helpers.forked_program import ForkedCode
from tests.helpers.metadata_server import MetadataServer
from tests.helpers.remote_host import run_on_hosts
from tests.helpers.run_processes import PATIENCE_S, RunProcesses

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
ON_SLICE = LOOP.replace("watch_for_stop()", "watch_for_stop(sys.argv[1:])")


@pytest.fixture
def metadata_server():
    with MetadataServer.serve() as server:
        yield server


@pytest.fixture
def loop(metadata_server):
    """A process that runs `LOOP` and reads the notices of the server."""
    environment = {
        "PATH": "/usr/bin:/bin",
        notices.METADATA_HOST_VARIABLE: metadata_server.host,
    }
    with ForkedCode(LOOP, environment=environment) as process:
        assert process.stdout.readline() == "begins\n"
        yield process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGTERM, "signal 15 (SIGTERM)"), (signal.SIGINT, "SIGINT")],
)
def test_a_signal_ends_the_loop_on_the_device(loop, number, reason):
    time.sleep(1)  # in the loop, where Python's own handlers would wait
    assert loop.poll() is None
    loop.send_signal(number)
    assert reason in loop.stdout.readline()
    assert loop.wait(PATIENCE_S) == 128 + number


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "flavor", "ignored", "notice"),
    [
        ("preempted", "Other", "TRUE", "TRUE"),
        (
            *("maintenance-event", "Google"),
            *("MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE"),
        ),
    ],
)
def test_only_a_notice_of_google_that_the_machine_stops_ends_the_loop(
    loop, metadata_server, key, flavor, ignored, notice
):
    """Other servers may give the same answers, and migration stops nothing."""
    metadata_server.wait_until_asked()
    metadata_server.flavor = flavor
    metadata_server.set(key, ignored)
    with pytest.raises(subprocess.TimeoutExpired):
        loop.wait(6)
    metadata_server.flavor = "Google"
    metadata_server.set(key, notice)
    assert f"{key} {notice}" in loop.stdout.readline()
    assert loop.wait(PATIENCE_S) == 143


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_the_devices():
    """The devices are in a step that does not end, as after a lost worker."""
    for_ever = LOOP.replace("tf.identity(stop.flag) == 0.0", "True")
    assert for_ever != LOOP
    with ForkedCode(for_ever) as process:
        assert process.stdout.readline() == "begins\n"
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        # GNU timeout sends two, to the process and to its group; they count as
        # one.
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(preemption.SAME_SIGNAL_S + 1)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGINT


@pytest.mark.slow
def test_sigterm_stops_a_loop_that_runs_on_another_host():
    """The flag is set while the loop, a remote operation, is running."""
    with run_on_hosts(LOOP) as (program, *_):
        time.sleep(2)  # nothing logs the loop's first step
        program.send_signal(signal.SIGTERM)
        assert program.wait(30) == 143
        assert "SIGTERM" in program.stdout.read()


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_a_silent_host():
    """The first one waits for the host, which holds the stop flag."""
    with run_on_hosts(LOOP) as (program, server):
        time.sleep(2)
        server.send_signal(signal.SIGSTOP)
        program.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(preemption.SAME_SIGNAL_S + 1)
        program.send_signal(signal.SIGTERM)
        assert program.wait(PATIENCE_S) == 143


@pytest.mark.slow
def test_sigterm_to_the_server_of_any_host_stops_the_loop():
    """As when its machine is shut down without a notice."""
    with run_on_hosts(ON_SLICE, num_hosts=2) as (program, _, server):
        time.sleep(2)
        server.send_signal(signal.SIGTERM)
        assert program.wait(30) == 143
        assert "worker 1 at localhost:" in program.stdout.read()


@pytest.mark.slow
def test_a_notice_to_one_worker_stops_all(tiny_records, tmp_path):
    with MetadataServer.serve() as server:
        run = RunProcesses(
            tiny_run.make_config(
                tiny_records,
                tmp_path / "run",
                strategy="multi_worker",
                num_train_steps=10**6,
                steps_per_loop=10**6,
                save_checkpoints_steps=10**6,
                dropout_schedule="0:0.1,5:0.0",
            ),
            tmp_path,
            workers=2,
            environments=(
                {notices.METADATA_HOST_VARIABLE: ""},
                {notices.METADATA_HOST_VARIABLE: server.host},
            ),
        )
        run.wait_for_step(5)
        server.set("preempted", "TRUE")
        assert run.wait() == [143, 143], run.log()
    assert "announces preempted TRUE" in run.log()
    (newest,) = {
        int(step) for step in re.findall(r": stopped at step (\d+);", run.log())
    }
    assert newest >= 5
    stop = read_events(str(tmp_path / "run"))[-1]
    assert stop["reason"] == "another worker was asked to stop"
