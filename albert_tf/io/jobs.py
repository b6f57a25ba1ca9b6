"""Runs a command in a process of its own, and starts it again if that helps."""

import ctypes
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

from absl import logging

from albert_tf.errors import RETRY_STATUS, describe_end

POLL_SECONDS = 0.5
# A command that ends with RETRY_STATUS this often has failed.
MAX_STARTS = 3
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
_PACKAGES = str(pathlib.Path(__file__).parents[2])
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # of Linux


def run(
    name: str,
    command: Sequence[str],
    log: str,
    output: str,
    is_over: Callable[[], bool] = lambda: False,
    has_progress: Callable[[], bool] = lambda: True,
) -> int:
    """Runs a command; one that ends with status 75 is started again.

    Its Python imports these packages, whatever the present directory holds. On
    Linux, it gets SIGTERM when this process ends.

    Args:
        name: What it does, for the log of this process.
        log: File to which its standard error is appended.
        output: File for the standard output of its last start.
        is_over: Called at short intervals. When it returns true, the command is
            asked to stop, which then is a success.
        has_progress: Whether the command has something to save. Until then, an
            interruption kills it: its first step may take minutes.

    Returns:
        Its exit status; -N if signal N ended it.

    Raises:
        SystemExit: After Ctrl-C or SIGTERM, to this process or to the command,
            which has been asked to stop: 130 or 143.
    """
    for number in range(1, MAX_STARTS + 1):
        logging.info("%s: started; its output is in %s", name, log)
        status = _run_once(command, log, output, is_over, has_progress)
        if status == 0:
            logging.info("%s: finished", name)
            return 0
        with open(log, errors="replace") as file:
            tail = "".join(file.readlines()[-5:]).rstrip()
        end = f"{describe_end(status)}; the end of {log}:\n{tail}"
        if status != RETRY_STATUS or number == MAX_STARTS:
            break
        logging.warning("%s is started again after %s", name, end)
    logging.error("%s failed with %s", name, end)
    return status


def _run_once(
    command: Sequence[str],
    log: str,
    output: str,
    is_over: Callable[[], bool],
    has_progress: Callable[[], bool],
) -> int:
    requests: list[int] = []  # signals that this process has received
    before = {
        number: signal.signal(number, lambda n, _: requests.append(n))
        for number in _INTERRUPTS
    }
    try:
        process = _start(command, log, output)
        num_forwarded, was_over = 0, False
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            if num_forwarded < len(requests):
                # Ctrl-C after SIGTERM ends a run at once.
                number = signal.SIGINT if num_forwarded else signal.SIGTERM
                process.send_signal(
                    number if has_progress() else signal.SIGKILL
                )
                num_forwarded += 1
            elif not was_over and is_over():
                was_over = True
                process.send_signal(
                    signal.SIGTERM if has_progress() else signal.SIGKILL
                )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    status = process.returncode
    for number in _INTERRUPTS:
        if status in (128 + number, -number) and not (was_over or requests):
            requests.append(number)
    if requests:
        logging.warning("interrupted; the same command continues")
        raise SystemExit(128 + requests[0])
    return 0 if was_over and status in (143, -15, -9) else status


def environment() -> dict[str, str]:
    """Environment in which Python imports these packages, from anywhere."""
    paths = [_PACKAGES, os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def _start(
    command: Sequence[str], log: str, output: str
) -> subprocess.Popen[bytes]:
    with open(log, "ab") as log_file, open(output, "wb") as output_file:
        return subprocess.Popen(
            command,
            stdout=output_file,
            stderr=log_file,
            stdin=subprocess.DEVNULL,
            env=environment(),
            # Ctrl-C reaches only this process, which asks the command to stop.
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )


def _end_with_parent() -> None:
    if _PRCTL is not None:
        _PRCTL(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
