"""Requests to stop a run: signals, and notices of Google Cloud.

A run that is asked to stop saves a checkpoint at its next step, the same one in
all processes, and exits with `StopRequest.exit_status`, so that a scheduler
starts it again:

    130   Ctrl-C
    143   SIGTERM (Slurm, Kubernetes, a preempted machine), or a notice

On Google Cloud the metadata server of the machine announces preemption and
maintenance:
https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys
"""

import contextlib
import dataclasses
import http.client
import os
import pathlib
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

# There is no public name for a stream of remote operations.
from tensorflow.python.eager import context, executor

# Exit status of a run that another worker or a notice has stopped.
PREEMPTED_STATUS = 128 + signal.SIGTERM

# Paths on the metadata server, and the value of each that stops the run. A
# machine that is migrated keeps running.
NOTICES = {
    "instance/preempted": "TRUE",
    "instance/maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE",
}
# Planned maintenance, as JSON; announced up to weeks in advance.
PLANNED_MAINTENANCE = "instance/upcoming-maintenance"
PLANS_PAUSE_S = 600  # between requests
METADATA_HOST_VARIABLE = "GCE_METADATA_HOST"
METADATA_FLAVOR = {"Metadata-Flavor": "Google"}
WAIT_S = 60  # longest time that the server waits for a change
PAUSE_S = 2  # between requests; a notice may come only 30 s before the end

# A second signal within this many seconds is ignored: `timeout` and `srun`
# send every signal twice.
SAME_SIGNAL_S = 2


@dataclasses.dataclass
class StopRequest:
    """Whether a run should stop; set by listening threads.

    Attributes:
        flag: float32 scalar on the host: 1 if the run should stop. The program
            on the devices reads it.
        reason: Why the run should stop; "" if it should not.
        exit_status: Exit status of the process after the stop.

    Example:
        >>> request = StopRequest(tf.Variable(0.0))
        >>> request.set("SIGTERM", PREEMPTED_STATUS)
        >>> request.reason, float(request.flag)
        ('SIGTERM', 1.0)
    """

    flag: tf.Variable
    reason: str = ""
    exit_status: int = PREEMPTED_STATUS

    def set(self, reason: str, exit_status: int) -> None:
        """Requests a stop; later requests are ignored."""
        if self.reason:
            return
        self.reason, self.exit_status = reason, exit_status
        # Logged first: if a host is lost, the assignment blocks.
        logging.warning(
            "%s: stopping, with a checkpoint, at the next step", reason
        )
        # On a slice the flag is on host 0, and the training loop is one
        # remote operation on that host. In the loop's stream the assignment
        # would wait for the end of the loop, so it gets its own stream.
        stream = executor.new_executor(
            enable_async=False, enable_streaming_enqueue=False
        )
        with context.executor_scope(stream):
            self.flag.assign(1.0)


@contextlib.contextmanager
def watch_for_stop() -> Iterator[StopRequest]:
    """Listens to signals and notices while the block runs.

    A second signal ends the process at once. Only the main thread may handle
    signals; in other threads this function listens to nothing.
    """
    with tf.device("CPU:0"):
        request = StopRequest(tf.Variable(0.0, trainable=False, name="stop"))
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    ended = threading.Event()
    host = metadata_host()
    if host:
        for path, stop_value in NOTICES.items():
            threading.Thread(
                target=_watch_metadata,
                args=(host, path, stop_value, request, ended),
                daemon=True,  # it may be waiting for a response
            ).start()
        threading.Thread(
            target=_report_planned_maintenance, args=(host, ended), daemon=True
        ).start()
    try:
        with _watch_signals(request):
            yield request
    finally:
        ended.set()


@contextlib.contextmanager
def _watch_signals(request: StopRequest) -> Iterator[None]:
    """Turns SIGINT and SIGTERM into a stop request while the block runs.

    Python calls its signal handlers only after the device loop has returned. A
    thread that listens for signals reacts at once.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def listen() -> None:
        first_at: float | None = None
        while received := receiver.recv(1):
            number = received[0]
            if number not in numbers:
                continue
            if first_at is None:
                first_at = time.monotonic()
            elif time.monotonic() - first_at > SAME_SIGNAL_S:
                os._exit(128 + number)
            name = signal.Signals(number).name
            request.set(f"signal {number} ({name})", 128 + number)

    # The handlers do nothing, but Python writes the numbers of handled signals
    # to the socket.
    previous = {n: signal.signal(n, lambda *_: None) for n in numbers}
    previous_descriptor = signal.set_wakeup_fd(sender.fileno())
    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous_descriptor)
        for number, handler in previous.items():
            signal.signal(number, handler)
        sender.close()
        listener.join()
        receiver.close()


def metadata_host() -> str:
    """Host name of the metadata server; "" on machines without one.

    Returns GCE_METADATA_HOST if it is set, as Google's libraries do, or the
    default host name on a machine of Google Cloud.
    """
    if METADATA_HOST_VARIABLE in os.environ:
        return os.environ[METADATA_HOST_VARIABLE]
    product = pathlib.Path("/sys/class/dmi/id/product_name")
    try:
        is_google = "Google" in product.read_text()
    except OSError:
        is_google = False
    return "metadata.google.internal" if is_google else ""


def _report_planned_maintenance(host: str, ended: threading.Event) -> None:
    """Logs each plan to maintain this machine. It does not stop the run."""
    url = f"http://{host}/computeMetadata/v1/{PLANNED_MAINTENANCE}?alt=json"
    reported = ""
    while True:
        try:
            value, _ = _ask(url)
        except (OSError, ValueError, http.client.HTTPException):
            value = ""  # there is no plan, or no answer
        if value not in ("", "NONE", "{}", reported):
            reported = value
            logging.warning(
                "Google Cloud has planned maintenance of this machine: %s. "
                "When it begins, the run saves a checkpoint and stops",
                " ".join(value.split()),
            )
        if ended.wait(PLANS_PAUSE_S):
            return


def _ask(url: str) -> tuple[str, str]:
    """The answer of the metadata server, and its ETag.

    Raises:
        OSError, ValueError, HTTPException: If there is no answer from Google.
    """
    # A proxy would not reach the server of this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    query = urllib.request.Request(url, headers=METADATA_FLAVOR)
    with opener.open(query, timeout=2 * WAIT_S) as response:
        if response.headers.get("Metadata-Flavor") != "Google":
            raise OSError(f"{url} is not a Google metadata server")
        etag = response.headers.get("ETag", "none")
        return response.read().decode().strip(), etag


def _watch_metadata(
    host: str,
    path: str,
    stop_value: str,
    request: StopRequest,
    ended: threading.Event,
) -> None:
    etag = "0"  # matches no state, so that the server responds at once
    failed = False
    while not ended.wait(PAUSE_S if failed or etag != "0" else 0):
        url = (
            f"http://{host}/computeMetadata/v1/{path}?wait_for_change=true"
            f"&timeout_sec={WAIT_S}&last_etag={etag}"
        )
        try:
            value, etag = _ask(url)
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not failed and not ended.is_set():
                logging.warning("%s does not answer: %s", url, error)
            failed = True
            continue
        failed = False
        if value == stop_value and not ended.is_set():
            request.set(
                f"Google Cloud announces {path.removeprefix('instance/')} "
                f"{value}",
                PREEMPTED_STATUS,
            )
            return
