r"""Runs tasks in the workers of a Dask cluster.

    dask scheduler --port=8786                                 # on one machine
    dask worker tcp://HOST:8786 --nworkers=8 --nthreads=1      # on each machine
    python -m data_prep.build_tfrecords --runner=dask \
      --dask_scheduler=tcp://HOST:8786 --output_dir=/shared/records ...

All machines must see the directories of the build under the same paths, and
have this package installed.
"""

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from albert_tf.errors import RetryError, UserError
from data_prep.processes import Done, Task, run_task, start_state

CONNECT_TIMEOUT_S = 30

# Retries of a task that fails. The scheduler's setting allowed-failures limits
# how often a task may lose its worker.
RETRIES = 3

# The arguments with which this worker made its state.
_made_with: list[str] = []


class DaskProcesses:
    """Runs functions in the workers of a Dask cluster; see `Processes`.

    A task that loses its worker is run again by another one, so a task must
    write its files completely or not at all.

    Args:
        make_state: Called with `arguments` in each worker before its first
            task, and again after a build with other arguments.
        arguments: Arguments of `make_state`.

    Raises:
        UserError: If Dask is not installed.
        RetryError: If the scheduler does not answer.

    Example:
        >>> from distributed import LocalCluster
        >>> with LocalCluster(
        ...     n_workers=1, processes=False, dashboard_address=None
        ... ) as cluster:
        ...     address = cluster.scheduler_address
        ...     with DaskProcesses(address, str.upper, "ab") as processes:
        ...         tasks = processes.map(lambda state, n: state * n, [1, 2])
        ...         [done.result for done in tasks]
        ['AB', 'ABAB']
    """

    def __init__(
        self,
        scheduler: str,
        make_state: Callable[..., Any],
        *arguments: Any,
    ) -> None:
        try:
            import distributed
        except ImportError:
            raise UserError(
                "--runner=dask needs Dask",
                received="no module named distributed",
                remedy="Install it here and on all workers: pip install -e "
                "'.[dask]'.",
            ) from None
        self._scheduler = scheduler
        self._state = make_state, arguments
        try:
            self._client = distributed.Client(
                scheduler, timeout=CONNECT_TIMEOUT_S, set_as_default=False
            )
        except (OSError, TimeoutError, ValueError) as error:
            raise RetryError(
                f"the Dask scheduler {scheduler} must answer within "
                f"{CONNECT_TIMEOUT_S} s",
                received=str(error),
                remedy="Start it with `dask scheduler`, and check "
                "--dask_scheduler.",
            ) from None

    def __enter__(self) -> "DaskProcesses":
        return self

    def __exit__(self, *_error: Any) -> None:
        self._client.close()

    def map(
        self, function: Callable[[Any, Task], Any], tasks: Iterable[Task]
    ) -> Iterator[Done]:
        """Yields the result of `function(state, task)` for each task, in order.

        At most `2 * number of workers + 3` tasks are pending at a time.

        Raises:
            RetryError: If a task loses its worker too often.
        """
        from distributed import KilledWorker

        pending: collections.deque[Any] = collections.deque()
        try:
            for task in tasks:
                pending.append(
                    self._client.submit(
                        _run_on_worker,
                        self._state,
                        function,
                        task,
                        pure=False,
                        retries=RETRIES,
                    )
                )
                # Some versions of `scheduler_info` list five workers at most.
                num_workers = len(self._client.nthreads())
                if len(pending) > 2 * num_workers + 2:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except KilledWorker as error:
            raise RetryError(
                "the workers of Dask must survive their tasks",
                received=f"{error}, probably because memory ran out",
                remedy="Start workers with more memory, and run the same "
                "command again: finished work is kept.",
            ) from None


def _run_on_worker(
    state: tuple[Callable[..., Any], tuple[Any, ...]],
    function: Callable[[Any, Any], Any],
    task: Any,
) -> Done:
    make_state, arguments = state
    if _made_with != [repr(arguments)]:
        start_state(make_state, arguments)
        _made_with[:] = [repr(arguments)]
    return run_task(function, task)
