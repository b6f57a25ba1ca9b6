"""Real signals to real processes, and a server that speaks as Google's does."""

import contextlib
import http.server
import pathlib
import signal
import subprocess
import sys
import threading
import time
import urllib.parse

import pytest

from albert_tf.cluster import preemption
from albert_tf.runs.checkpoint_files import list_checkpoints
from albert_tf.runs.log import read_events
from tests.helpers import tiny_run
from tests.helpers.remote_host import run_on_host
from tests.helpers.run_processes import PATIENCE_S, RunProcesses

REPOSITORY = pathlib.Path(__file__).parents[2]

# A loop on the device, as the trainer's, which ends by the flag alone.
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


class MetadataServer(http.server.ThreadingHTTPServer):
    """Answers as https://cloud.google.com/compute/docs/metadata tells.

    Attributes:
        values: What the keys below `instance/` hold.
        flavor: What the answers' header Metadata-Flavor is.
        asked: Paths that were asked for.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("localhost", 0), MetadataHandler)
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self.flavor = "Google"
        self.asked = []
        self.changed = threading.Condition()

    @property
    def host(self):
        return f"localhost:{self.server_port}"

    def wait_until_asked(self):
        paths = {f"/computeMetadata/v1/{path}" for path in preemption.NOTICES}
        deadline = time.monotonic() + PATIENCE_S
        while not paths <= set(self.asked) and time.monotonic() < deadline:
            time.sleep(0.05)
        planned = f"/computeMetadata/v1/{preemption.PLANNED_MAINTENANCE}"
        assert paths == set(self.asked) - {planned}

    def set(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()


class MetadataHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.headers.get("Metadata-Flavor") != "Google":
            self.send_error(403)
            return
        url = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        self.server.asked.append(url.path)
        key = url.path.removeprefix("/computeMetadata/v1/instance/")

        if key not in self.server.values:
            self.send_error(404)
            return
        with self.server.changed:
            if query.get("wait_for_change") == "true":
                self.server.changed.wait_for(
                    lambda: (
                        etag_of(self.server.values[key])
                        != query.get("last_etag")
                    ),
                    float(query["timeout_sec"]),
                )
            value = self.server.values[key]
        self.send_response(200)
        self.send_header("Metadata-Flavor", self.server.flavor)
        self.send_header("ETag", etag_of(value))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(value.encode())

    def log_message(self, *arguments):
        pass


def etag_of(value):
    return value.encode().hex()


@pytest.fixture
def metadata_server():
    with MetadataServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def loop(metadata_server):
    """A process in its loop, on a machine of Google Cloud."""
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=REPOSITORY,
        env={
            "PATH": "/usr/bin:/bin",
            preemption.METADATA_HOST_VARIABLE: metadata_server.host,
        },
    )
    assert process.stdout.readline() == "begins\n"
    yield process
    process.kill()
    process.wait()


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
def test_a_notice_of_preemption_ends_the_loop(loop, metadata_server):
    metadata_server.wait_until_asked()
    assert loop.poll() is None
    metadata_server.set("preempted", "TRUE")
    assert "preempted TRUE" in loop.stdout.readline()
    assert loop.wait(PATIENCE_S) == 143


@pytest.mark.slow
def test_termination_ends_the_loop_and_migration_does_not(
    loop, metadata_server
):
    metadata_server.wait_until_asked()
    metadata_server.set("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")
    with pytest.raises(subprocess.TimeoutExpired):
        loop.wait(6)
    notice = "TERMINATE_ON_HOST_MAINTENANCE"
    metadata_server.set("maintenance-event", notice)
    assert f"maintenance-event {notice}" in loop.stdout.readline()
    assert loop.wait(PATIENCE_S) == 143


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_the_devices():
    """The devices are in a step that does not end, as after a lost worker."""
    for_ever = LOOP.replace("tf.identity(stop.flag) == 0.0", "True")
    assert for_ever != LOOP
    process = subprocess.Popen(
        [sys.executable, "-c", for_ever],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=REPOSITORY,
    )
    assert process.stdout.readline() == "begins\n"
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    # As GNU timeout sends them, to the process and to its group: one signal.
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(preemption.SAME_SIGNAL_S + 1)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 128 + signal.SIGINT


@pytest.mark.slow
def test_sigterm_stops_a_loop_that_runs_on_another_host():
    """The flag is set while the loop, a remote operation, is running."""
    with run_on_host(LOOP) as (_, program):
        time.sleep(2)  # the loop's first step is not announced
        program.send_signal(signal.SIGTERM)
        assert program.wait(30) == 143
        assert "SIGTERM" in program.stdout.read()


def test_planned_maintenance_is_logged_once_and_stops_nothing(
    metadata_server, monkeypatch
):
    warnings = []
    monkeypatch.setattr(
        preemption.logging,
        "warning",
        lambda form, *values: warnings.append(form % values),
    )
    monkeypatch.setattr(preemption, "PLANS_PAUSE_S", 0.01)
    monkeypatch.setenv(preemption.METADATA_HOST_VARIABLE, metadata_server.host)
    path = f"/computeMetadata/v1/{preemption.PLANNED_MAINTENANCE}"

    def wait_for_requests(number):
        wanted = metadata_server.asked.count(path) + number
        deadline = time.monotonic() + PATIENCE_S
        while metadata_server.asked.count(path) < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    with preemption.watch_for_stop() as stop:
        wait_for_requests(3)
        assert warnings == []  # 404: there is no plan
        plan = '{"type": "SCHEDULED",\n "windowStartTime": "2026-12-01"}'
        metadata_server.set("upcoming-maintenance", plan)
        wait_for_requests(5)
    (warning,) = warnings
    assert '"SCHEDULED", "windowStartTime": "2026-12-01"' in warning
    assert not stop.reason


@pytest.mark.slow
def test_a_server_that_is_not_googles_is_ignored(loop, metadata_server):
    metadata_server.wait_until_asked()
    metadata_server.flavor = "Other"
    metadata_server.set("preempted", "TRUE")
    with pytest.raises(subprocess.TimeoutExpired):
        loop.wait(6)


def test_the_product_name_tells_google_cloud_machines(monkeypatch):
    monkeypatch.setenv(preemption.METADATA_HOST_VARIABLE, "here:80")
    assert preemption.metadata_host() == "here:80"
    monkeypatch.delenv(preemption.METADATA_HOST_VARIABLE)
    product = pathlib.Path("/sys/class/dmi/id/product_name")
    is_google = product.exists() and "Google" in product.read_text()
    expected = "metadata.google.internal" if is_google else ""
    assert preemption.metadata_host() == expected


@pytest.mark.slow
def test_a_notice_leads_to_a_checkpoint_at_the_next_step(
    tiny_records, tmp_path, metadata_server, monkeypatch
):
    monkeypatch.setenv(preemption.METADATA_HOST_VARIABLE, metadata_server.host)
    run = RunProcesses(
        tiny_run.make_config(
            tiny_records,
            tmp_path / "run",
            num_train_steps=10**6,
            steps_per_loop=10**6,
            save_checkpoints_steps=10**6,
            dropout_schedule="0:0.1,5:0.0",
        ),
        tmp_path,
    )
    run.wait_for_step(5)  # and then nothing for 10^6
    metadata_server.set("preempted", "TRUE")
    assert run.wait() == [143], run.log()
    newest = list_checkpoints(str(tmp_path / "run" / "checkpoints"))[-1]
    assert newest.step >= 5
    stop = read_events(str(tmp_path / "run"))[-1]
    assert stop["event"] == "stop"
    assert "preempted TRUE" in stop["reason"]
    assert stop["step"] == newest.step
