"""Requests to stop a run: SIGTERM and Ctrl-C.

A run that is asked to stop saves a checkpoint at most two steps later, at the
same step in all processes, and exits with `StopRequest.exit_status`, so that a
scheduler starts it again:

    130   Ctrl-C
    143   SIGTERM (Slurm, Kubernetes, the shutdown of a preempted machine)

With several workers, each one listens; the training step adds up their
requests.
"""

import contextlib
import dataclasses
import os
import signal
import socket
import threading
from collections.abc import Iterator

import tensorflow as tf
from absl import logging

# Exit status of a run that another worker has stopped.
PREEMPTED_STATUS = 128 + signal.SIGTERM


@dataclasses.dataclass
class StopRequest:
    """Whether a run should stop; set by listening threads."""

    # float32 scalar on the host: 1 if the run should stop. The program on the
    # devices reads it.
    flag: tf.Variable
    reason: str = ""  # of the stop
    exit_status: int = PREEMPTED_STATUS  # of the process after the stop

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def set(self, reason: str, exit_status: int = PREEMPTED_STATUS) -> None:
        """Requests a stop, and sets the flag; later requests are ignored."""
        with self._lock:
            if self.reason:
                return
            self.reason, self.exit_status = reason, exit_status
        logging.warning(
            "%s: the run saves a checkpoint and stops at most two steps later",
            reason,
        )
        self.flag.assign(1.0)


@contextlib.contextmanager
def watch_for_stop() -> Iterator[StopRequest]:
    """Listens to signals while the block runs.

    Ctrl-C after another request ends the process at once. Only the main thread
    may handle signals; in other threads this function listens to nothing.
    """
    with tf.device("CPU:0"):
        request = StopRequest(tf.Variable(0.0, trainable=False, name="stop"))
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    with _watch_signals(request):
        yield request


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
        while received := receiver.recv(1):
            number = received[0]
            if number not in numbers:
                continue
            # Not after SIGTERM, which `timeout` and `srun` send twice.
            if request.reason and number == signal.SIGINT:
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
