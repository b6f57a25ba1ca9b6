"""Runs tasks in worker processes, with a bounded number of pending tasks."""

# TensorFlow is not imported here: each worker process imports this module.

import collections
import concurrent.futures
import contextlib
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from albert_tf.errors import UserError

Task = TypeVar("Task")

_worker: dict[str, Any] = {}


class Done(NamedTuple):
    """A completed task.

    Attributes:
        peak_memory: Largest resident memory, in bytes, that the process of
            the task has used so far.
    """

    result: Any
    peak_memory: int


def count_workers(num_workers: int) -> int:
    """Returns the number of processes that a setting asks for.

    Args:
        num_workers: 0 asks for one for each core that this process may use,
            which Slurm or taskset may limit.

    Example:
        >>> count_workers(3)
        3
    """
    if num_workers:
        return num_workers
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


class Processes:
    """Runs functions in this process or in a pool of worker processes.

    Args:
        num_workers: Number of processes, see `count_workers`; 1 runs all tasks
            in this process.
        make_state: Called with `arguments` once in each process. The function
            of every task gets the returned state as its first argument.
        arguments: Arguments of `make_state`.

    Example:
        >>> with Processes(1, str.upper, "ab") as processes:
        ...     tasks = processes.map(lambda state, n: state * n, [1, 2, 3])
        ...     [done.result for done in tasks]
        ['AB', 'ABAB', 'ABABAB']
    """

    def __init__(
        self,
        num_workers: int,
        make_state: Callable[..., Any],
        *arguments: Any,
    ) -> None:
        self.num_workers = count_workers(num_workers)
        if self.num_workers == 1:
            start_state(make_state, arguments)
            return
        self._pool = concurrent.futures.ProcessPoolExecutor(
            self.num_workers,
            # A forked process would lack the threads of this one.
            multiprocessing.get_context("spawn"),
            _start_process,
            (make_state, arguments),
        )

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_error: Any) -> None:
        if self.num_workers > 1:
            self._pool.shutdown(cancel_futures=True)

    def map(
        self, function: Callable[[Any, Task], Any], tasks: Iterable[Task]
    ) -> Iterator[Done]:
        """Yields the result of `function(state, task)` for each task, in order.

        At most `num_workers + 3` tasks are pending at a time, which bounds
        memory.

        Raises:
            UserError: If a worker process was killed.
        """
        if self.num_workers == 1:
            for task in tasks:
                yield run_task(function, task)
            return
        pending: collections.deque[concurrent.futures.Future[Done]] = (
            collections.deque()
        )
        with _explain_broken_pool():
            for task in tasks:
                pending.append(self._pool.submit(run_task, function, task))
                if len(pending) > self.num_workers + 2:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()


@contextlib.contextmanager
def _explain_broken_pool() -> Iterator[None]:
    try:
        yield
    except concurrent.futures.process.BrokenProcessPool:
        raise UserError(
            "a worker process was killed, probably because memory ran out",
            remedy="Run the command again with a smaller --num_workers; "
            "build_tfrecords continues from its finished work.",
        ) from None


def start_state(
    make_state: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    """Makes the state of this process."""
    _worker["state"] = make_state(*arguments)


def _start_process(
    make_state: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    # Ctrl-C reaches all processes; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    start_state(make_state, arguments)


def _exit_with_parent() -> None:
    """Ends this process when its parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def run_task(function: Callable[[Any, Any], Any], task: Any) -> Done:
    """Runs a task in this process."""
    result = function(_worker["state"], task)
    # Linux reports KiB.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Done(result, peak)
