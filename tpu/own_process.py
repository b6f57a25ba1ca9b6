"""Runs a function in a process of its own, which may crash."""

import concurrent.futures
import multiprocessing
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class NoResultError(Exception):
    """The process has ended without a result."""


def run_apart(
    function: Callable[..., ResultT],
    *arguments: Any,
    environment: Mapping[str, str] | None = None,
) -> ResultT:
    """Calls a function in a new process, and returns its result.

    Args:
        function: Its module, result and exceptions must be picklable.
        environment: Environment variables that are set before the call. The
            module of the function is imported before they are set.

    Raises:
        NoResultError: If the process was killed, or has crashed.
        Exception: As raised by the function.
    """
    with concurrent.futures.ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        try:
            return pool.submit(
                _call, function, arguments, environment or {}
            ).result()
        except concurrent.futures.process.BrokenProcessPool:
            raise NoResultError("it has crashed, or was killed") from None


def _call(
    function: Callable[..., ResultT],
    arguments: tuple[Any, ...],
    environment: Mapping[str, str],
) -> ResultT:
    os.environ.update(environment)
    return function(*arguments)
