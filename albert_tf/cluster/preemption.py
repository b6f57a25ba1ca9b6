"""When a run is to stop: signals, and what Google Cloud announces.

A run that is to stop saves a checkpoint at its next step, in all processes at
the same one, and exits with `StopRequest.exit_status`, by which a scheduler
knows to start it again:

    130   Ctrl-C
    143   SIGTERM (Slurm, Kubernetes, a preempted machine), or a notice

On Google Cloud the metadata server of the machine tells of preemption and of
maintenance before it happens:
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

# Of a run that another worker, or a notice, has stopped.
PREEMPTED_STATUS = 128 + signal.SIGTERM

# What the metadata server is asked for, and the answer that ends the run: a
# machine that is migrated goes on.
NOTICES = {
    "instance/preempted": "TRUE",
    "instance/maintenance-event": "TERMINATE_ON_HOST_MAINTENANCE",
}
METADATA_HOST_VARIABLE = "GCE_METADATA_HOST"
METADATA_FLAVOR = {"Metadata-Flavor": "Google"}
WAIT_S = 60  # for a change of an answer, by the server
PAUSE_S = 2  # between questions, at least: a notice may come 30 s before

# A second signal so soon is the first one: `timeout` and `srun` send two.
SAME_SIGNAL_S = 2


@dataclasses.dataclass
class StopRequest:
    """Says whether a run is to stop; set by threads that listen.

    Attributes:
        flag: float32 scalar on the host: 1 once it is, for the program that
            the devices run.
        reason: Why; "" if it is not.
        exit_status: Of the process then.
    """

    flag: tf.Variable
    reason: str = ""
    exit_status: int = PREEMPTED_STATUS

    def set(self, reason: str, exit_status: int) -> None:
        """Asks for it; the first reason counts."""
        if self.reason:
            return
        self.reason, self.exit_status = reason, exit_status
        # Logged first: where a host is lost, the assignment blocks.
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

    A second signal ends the process at once. Outside the main thread, which
    alone may handle signals, nothing is listened to.
    """
    with tf.device("CPU:0"):
        request = StopRequest(tf.Variable(0.0, trainable=False, name="stop"))
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    ended = threading.Event()
    host = metadata_host()
    if host:
        for path, news in NOTICES.items():
            threading.Thread(
                target=_watch_metadata,
                args=(host, path, news, request, ended),
                daemon=True,  # it may be waiting for an answer
            ).start()
    try:
        with _watch_signals(request):
            yield request
    finally:
        ended.set()


@contextlib.contextmanager
def _watch_signals(request: StopRequest) -> Iterator[None]:
    """Turns SIGINT and SIGTERM into a request, and back at the end.

    Python's own handlers wait until the loop on the device has ended, so a
    thread listens, and answers at once.
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

    # The handlers do nothing: that they are there makes Python write the
    # number to the socket.
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
    """Where the metadata server is; "" on machines that have none.

    That which GCE_METADATA_HOST names, as for Google's own libraries, or the
    usual one on a machine of Google Cloud.
    """
    if METADATA_HOST_VARIABLE in os.environ:
        return os.environ[METADATA_HOST_VARIABLE]
    product = pathlib.Path("/sys/class/dmi/id/product_name")
    try:
        is_google = "Google" in product.read_text()
    except OSError:
        is_google = False
    return "metadata.google.internal" if is_google else ""


def _watch_metadata(
    host: str,
    path: str,
    news: str,
    request: StopRequest,
    ended: threading.Event,
) -> None:
    etag = "0"  # of no answer: the first comes at once
    failed = False
    # A proxy would not reach the server of this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while not ended.wait(PAUSE_S if failed or etag != "0" else 0):
        url = (
            f"http://{host}/computeMetadata/v1/{path}?wait_for_change=true"
            f"&timeout_sec={WAIT_S}&last_etag={etag}"
        )
        asked = urllib.request.Request(url, headers=METADATA_FLAVOR)
        try:
            with opener.open(asked, timeout=2 * WAIT_S) as answer:
                if answer.headers.get("Metadata-Flavor") != "Google":
                    raise OSError(f"{host} is no metadata server of Google")
                etag = answer.headers.get("ETag", "none")
                value = answer.read().decode().strip()
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not failed and not ended.is_set():
                logging.warning("%s does not answer: %s", url, error)
            failed = True
            continue
        failed = False
        if value == news and not ended.is_set():
            request.set(
                f"Google Cloud announces {path.removeprefix('instance/')} "
                f"{value}",
                PREEMPTED_STATUS,
            )
            return
