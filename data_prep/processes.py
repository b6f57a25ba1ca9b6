"""Work done by processes, a bounded part of it at a time."""

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
    """The result of a task.

    Attributes:
        result: What the function returned.
        peak_memory: Largest resident memory of its process so far, bytes.
    """

    result: Any
    peak_memory: int


class Processes:
    """Runs functions, in this process or in several, results in order.

    Args:
        num_workers: Processes; 0 is one a core, 1 is this one.
        make_state: Called once in each process, with `arguments`; what it
            returns is the first argument of every task.
        arguments: Those of `make_state`.
    """

    def __init__(
        self,
        num_workers: int,
        make_state: Callable[..., Any],
        *arguments: Any,
    ) -> None:
        self.num_workers = num_workers or os.cpu_count() or 1
        if self.num_workers == 1:
            _start(make_state, arguments)
            return
        self._pool = concurrent.futures.ProcessPoolExecutor(
            self.num_workers,
            # A forked process would lack this one's threads.
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
        """Results of `function(state, task)`, in the order of the tasks.

        A few tasks more than processes are under way at a time, so that
        memory is bounded however many there are.

        Raises:
            UserError: If a process was killed.
        """
        if self.num_workers == 1:
            for task in tasks:
                yield _work(function, task)
            return
        waiting: collections.deque[concurrent.futures.Future[Done]] = (
            collections.deque()
        )
        with _without_broken_pools():
            for task in tasks:
                waiting.append(self._pool.submit(_work, function, task))
                if len(waiting) > self.num_workers + 2:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()


@contextlib.contextmanager
def _without_broken_pools() -> Iterator[None]:
    try:
        yield
    except concurrent.futures.process.BrokenProcessPool:
        raise UserError(
            "all processes must live to the end",
            received="one that was killed, most likely for want of memory",
            remedy="Run again with fewer --num_workers; finished work is kept.",
        ) from None


def _start(make_state: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    _worker["state"] = make_state(*arguments)


def _start_process(
    make_state: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    # Ctrl-C reaches all processes; the parent alone answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _start(make_state, arguments)


def _end_with_parent() -> None:
    """Ends this process when the one that started it was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(function: Callable[[Any, Any], Any], task: Any) -> Done:
    result = function(_worker["state"], task)
    # Linux counts in KiB.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Done(result, peak)
