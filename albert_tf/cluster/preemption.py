"""Requests to stop a run: SIGTERM and Ctrl-C.

A run that is asked to stop saves a checkpoint at most two steps later, at the
same step in all processes, and exits with `StopRequest.exit_status`, so that a
scheduler starts it again:

    130   Ctrl-C
    143   SIGTERM (Slurm, Kubernetes, the shutdown of a preempted machine)

With several workers, each one listens; the training step adds up their
requests. On a TPU slice one process trains. The servers of the hosts pass their
SIGTERM on to it, through TensorFlow's coordination service. A later run on the
same servers would stop at once, so each start of a run needs new servers.
"""

import contextlib
import dataclasses
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import tensorflow as tf
from absl import logging

# There is no public name for a stream of remote operations.
from tensorflow.python.eager import context, executor

from albert_tf.errors import first_line

# Exit status of a run that another worker has stopped.
PREEMPTED_STATUS = 128 + signal.SIGTERM

# TensorFlow's coordination service, which runs in the first server of a slice,
# stores under this key which server has received SIGTERM.
SERVER_KEY = "TF_DEFAULT_PREEMPTION_NOTICE_KEY"

# A second signal within this many seconds is ignored: `timeout` and `srun`
# send every signal twice.
SAME_SIGNAL_S = 2


@dataclasses.dataclass
class StopRequest:
    """Whether a run should stop; set by listening threads."""

    # float32 scalar on the host: 1 if the run should stop. The program on the
    # devices reads it.
    flag: tf.Variable
    reason: str = ""  # of the stop
    exit_status: int = PREEMPTED_STATUS  # of the process after the stop

    def __post_init__(self) -> None:
        # TensorFlow holds Python's interpreter lock while it sends a constant
        # to another host, so send it while that host answers.
        with tf.device(self.flag.device):
            self._one = tf.constant(1.0)
        self._lock = threading.Lock()

    def set(self, reason: str, exit_status: int = PREEMPTED_STATUS) -> None:
        """Requests a stop, and sets the flag; later requests are ignored.

        On a slice the flag is on host 0: if that host is lost, this never ends.
        """
        with self._lock:
            if self.reason:
                return
            self.reason, self.exit_status = reason, exit_status
        logging.warning(
            "%s: the run saves a checkpoint and stops at most two steps later",
            reason,
        )
        # The training loop is one remote operation on the same host. In the
        # loop's stream the assignment would wait for the end of the loop.
        stream = executor.new_executor(
            enable_async=False, enable_streaming_enqueue=False
        )
        with context.executor_scope(stream):
            self.flag.assign(self._one)


@contextlib.contextmanager
def watch_for_stop(servers: Sequence[str] = ()) -> Iterator[StopRequest]:
    """Listens to signals while the block runs.

    A second signal ends the process at once. Only the main thread may handle
    signals; in other threads this function listens to nothing.

    Args:
        servers: HOST:PORT of each host of a TPU slice to which this process is
            connected. SIGTERM to one of them is a request, too.
    """
    with tf.device("CPU:0"):
        request = StopRequest(tf.Variable(0.0, trainable=False, name="stop"))
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    ended = threading.Event()
    if servers:
        threading.Thread(
            target=_watch_servers,
            args=(servers, request, ended),
            daemon=True,  # it waits for ever
        ).start()
    try:
        with _watch_signals(request):
            yield request
    finally:
        ended.set()


def _watch_servers(
    servers: Sequence[str], request: StopRequest, ended: threading.Event
) -> None:
    """Waits until a server of a slice has received SIGTERM."""
    try:
        worker = context.context().get_config_key_value(SERVER_KEY)
    except tf.errors.OpError as error:
        if not ended.is_set():
            logging.warning(
                "cannot receive the signals of the other hosts of the "
                "slice: %s. If one of them is preempted, the run loses the "
                "steps since its last checkpoint",
                first_line(error),
            )
        return
    if not ended.is_set():
        index = int(worker.rpartition(":")[2])  # /job:worker/task:1
        request.set(f"worker {index} at {servers[index]} received SIGTERM")


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
            reason = f"signal {number} ({signal.Signals(number).name})"
            # In a thread, so that this one hears a second signal.
            threading.Thread(
                target=request.set, args=(reason, 128 + number), daemon=True
            ).start()

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
