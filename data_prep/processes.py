"""Runs tasks in worker processes, with a bounded number of pending tasks.

The commands show their progress by `show_progress`.
"""

# TensorFlow is not imported here: each worker process imports this module.

import collections
import concurrent.futures
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, TypeVar

from tqdm import tqdm

from albert_tf.errors import RetryError, UserError, describe_end
from albert_tf.io import cpu

Task = TypeVar("Task")

_DASK_TIMEOUT_S = 30


def show_progress(description: str, total: int, unit: str = "B") -> Any:
    """Returns a bar over bytes, or items of a `unit`, e.g. "example"."""
    return tqdm(
        desc=description,
        total=total,
        unit=unit,
        unit_scale=unit == "B" or total >= 10_000,
        mininterval=1,
    )


def count_workers(num_workers: int) -> int:
    """Returns the number of processes that a setting asks for.

    0 asks for one for each core that this process may use.
    """
    return num_workers or cpu.count_cores()


class Processes:
    """Runs functions in this process, in worker processes, or in Dask.

    A task that loses its Dask worker is run again by another one, so a task
    must write its files completely or not at all.

    Args:
        num_workers: Number of processes, see `count_workers`; 1 runs all tasks
            in this process.
        make_state: Called with `arguments`, which are hashable, in each
            process before its first task. Every task gets the returned state
            as its first argument.
        dask_scheduler: Address of a Dask scheduler, whose workers then run the
            tasks.

    Example:
        >>> with Processes(1, str.upper, "ab") as processes:
        ...     tasks = processes.map(lambda state, n: state * n, [1, 2, 3])
        ...     list(tasks)
        ['AB', 'ABAB', 'ABABAB']
    """

    def __init__(
        self,
        num_workers: int,
        make_state: Callable[..., Any],
        *arguments: Any,
        dask_scheduler: str = "",
    ) -> None:
        self.num_workers = count_workers(num_workers)
        self._state_maker = (make_state, arguments)
        self._pool: Any = None
        self._client = None
        if dask_scheduler:
            self._client = _connect(dask_scheduler)
            self._pool = self._client.get_executor(pure=False)
        elif self.num_workers > 1:
            self._pool = concurrent.futures.ProcessPoolExecutor(
                self.num_workers,
                # A forked process would lack the threads of this one.
                multiprocessing.get_context("spawn"),
                _start_process,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: Any) -> None:
        if self._client is not None:
            self._client.close()
        elif self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    @property
    def state(self) -> Any:
        """The state of this process."""
        return _make_state(*self._state_maker)

    def map(
        self, function: Callable[[Any, Task], Any], tasks: Iterable[Task]
    ) -> Iterator[Any]:
        """Yields the result of `function(state, task)` for each task, in order.

        The number of pending tasks, and so memory, is bounded.

        Raises:
            UserError: If a worker process was killed or has aborted.
        """
        if self._pool is None:
            yield from map(functools.partial(function, self.state), tasks)
            return
        run = functools.partial(_run_task, self._state_maker, function)
        pending: collections.deque[concurrent.futures.Future[Any]] = (
            collections.deque()
        )
        children: set[multiprocessing.process.BaseProcess] = set()
        try:
            for task in tasks:
                pending.append(self._pool.submit(run, task))
                children.update(multiprocessing.active_children())
                if len(pending) > self._max_pending():
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except concurrent.futures.process.BrokenProcessPool:
            self._pool.shutdown()
            ends = {child.exitcode or 0 for child in children}
            # The pool ends the other workers by SIGTERM.
            end = min(ends - {0, -signal.SIGTERM}, default=-signal.SIGTERM)
            cause = "its last lines are above"
            if end == -signal.SIGKILL:
                cause = "probably because memory ran out"
            raise UserError(
                "worker processes must not end before their tasks",
                received=f"{describe_end(end)}, {cause}",
                remedy="Run the command again; build_tfrecords continues from "
                "its finished work. A smaller --num_workers needs less memory.",
            ) from None

    def _max_pending(self) -> int:
        if self._client is None:
            return self.num_workers + 2
        # Some versions of `scheduler_info` list five workers at most.
        return 2 * len(self._client.nthreads()) + 2


def _connect(scheduler: str) -> Any:
    import distributed

    try:
        return distributed.Client(
            scheduler, timeout=_DASK_TIMEOUT_S, set_as_default=False
        )
    except (OSError, TimeoutError, ValueError) as error:
        raise RetryError(
            f"the Dask scheduler {scheduler} must answer within "
            f"{_DASK_TIMEOUT_S} s",
            received=str(error),
            remedy="Start it with `dask scheduler`, and check "
            "--dask_scheduler.",
        ) from None


def _start_process() -> None:
    # Ctrl-C reaches all processes; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Ends this process when its parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_task(
    state_maker: tuple[Callable[..., Any], tuple[Any, ...]],
    function: Callable[[Any, Any], Any],
    task: Any,
) -> Any:
    return function(_make_state(*state_maker), task)


# A worker of Dask outlives a build.
@functools.lru_cache(maxsize=1)
def _make_state(
    make_state: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    return make_state(*arguments)
