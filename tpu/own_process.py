"""Runs a function in a process of its own, which may crash or take too long."""

import concurrent.futures
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class NoResultError(Exception):
    """The process has ended without a result."""


def run_apart(
    function: Callable[..., ResultT],
    *arguments: Any,
    environment: Mapping[str, str] | None = None,
    timeout_s: int = 0,
) -> ResultT:
    """Calls a function in a new process, and returns its result.

    Args:
        function: Its module, result and exceptions must be picklable.
        environment: Environment variables that are set before the call. The
            module of the function is imported before they are set.
        timeout_s: Seconds after which the process is killed, from the import of
            the module on; 0: no limit.

    Raises:
        NoResultError: If the process was killed, crashed, or took too long.
        Exception: As raised by the function.
    """
    began = time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        try:
            return pool.submit(
                _call, function, arguments, environment or {}, timeout_s
            ).result()
        except concurrent.futures.process.BrokenProcessPool:
            if timeout_s and time.monotonic() - began >= timeout_s:
                reason = f"it was killed after {timeout_s} s"
            else:
                reason = "it has crashed, or was killed"
            raise NoResultError(reason) from None


def _call(
    function: Callable[..., ResultT],
    arguments: tuple[Any, ...],
    environment: Mapping[str, str],
    timeout_s: int,
) -> ResultT:
    os.environ.update(environment)
    # By default, SIGALRM ends the process, also within the compiler.
    signal.alarm(timeout_s)
    return function(*arguments)
