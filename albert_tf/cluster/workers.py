"""Other processes of a run: addresses, lost workers, equal steps.

If a worker is killed or unreachable, TensorFlow lets the others wait for ever.
Four guards end the run instead, within `--worker_timeout_s`:

1. `wait_for_workers` names the workers that never start. It waits before
   TensorFlow starts, whose first worker would wait for the others while it
   holds Python's interpreter lock, so that the process could not log;
2. `exit_if_stuck` ends this process if another one is lost while TensorFlow
   connects the workers;
3. `detect_unresponsive_workers` makes TensorFlow's coordination service watch
   the heartbeats of all workers; it uses private functions of TensorFlow, since
   the service has no public settings;
4. `name_lost_workers` turns TensorFlow's errors into a `RetryError` that names
   the lost worker, or the lost host of a TPU slice.

`watchdog` detects unresponsive hosts of a slice, which TensorFlow does not.
"""

import atexit
import contextlib
import faulthandler
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures

import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context
from tensorflow.python.eager.context import coordination_config_pb2

from albert_tf.errors import RetryError, UserError, first_line

# Jobs of TF_CONFIG whose processes train. The first process of the first job
# runs the coordination service.
WORKER_JOBS = ("chief", "worker")

# Longest time for one connection, and between tries and lines of the log.
TRY_S = 5.0
_SECONDS_BETWEEN_TRIES = 0.5
_SECONDS_BETWEEN_LOG_LINES = 30.0

# TensorFlow's errors if another process does not answer.
LOSS_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.FailedPreconditionError,
)

# Addresses of servers, HOST:PORT, by job.
Cluster = Mapping[str, Sequence[str]]


def is_one_process(strategy: tf.distribute.Strategy) -> bool:
    """Whether no other process takes part in the run."""
    return not isinstance(
        strategy, tf.distribute.MultiWorkerMirroredStrategy
    ) or not os.environ.get("TF_CONFIG")


def slice_servers(strategy: tf.distribute.Strategy) -> tuple[str, ...]:
    """HOST:PORT of the servers of a TPU slice; () without servers."""
    if not isinstance(strategy, tf.distribute.TPUStrategy):
        return ()
    cluster = strategy.cluster_resolver.cluster_spec()
    return tuple(cluster.as_dict().get("worker", ())) if cluster else ()


def read_cluster() -> tuple[Cluster, str, int]:
    """Reads TF_CONFIG.

    Returns:
        The cluster, first the job of the coordination service; the job of this
        process; its index in that job.

    Raises:
        UserError: If TF_CONFIG is missing or malformed.
    """
    text = os.environ.get("TF_CONFIG", "")
    try:
        value = json.loads(text)
        job, index = value["task"]["type"], int(value["task"]["index"])
        cluster = {
            name: value["cluster"][name]
            for name in WORKER_JOBS
            if name in value["cluster"]
        }
        addresses = [a for hosts in cluster.values() for a in hosts]
        ports = [re.fullmatch(r".+:(\d{1,5})", a) for a in addresses]
        complete = (
            index in range(len(cluster[job]))
            and all(isinstance(hosts, list) for hosts in cluster.values())
            and all(port and 0 < int(port[1]) < 2**16 for port in ports)
            and len(set(addresses)) == len(addresses)
        )
    except (ValueError, TypeError, LookupError):
        complete = False
    if not complete:
        raise UserError(
            "TF_CONFIG must be a JSON object with cluster and task, each "
            "address of the form HOST:PORT and used once, e.g. "
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
            '"task": {"type": "worker", "index": 0}}',
            received=repr(text),
        )
    return cluster, job, index


def wait_for_workers(
    cluster: Cluster, job: str, index: int, timeout_s: float
) -> None:
    """Waits until this process has connected once to each other process.

    Args:
        job: The job of this process.
        index: The index of this process in its job.
        timeout_s: Longest time to wait, in seconds.

    Raises:
        UserError: If the port of this process is in use.
        RetryError: If workers do not start in time; the error names them.
    """
    missing = _names(cluster, job, index)
    deadline = time.monotonic() + timeout_s
    log_due = time.monotonic() + _SECONDS_BETWEEN_LOG_LINES
    with _listen(cluster[job][index]):
        while missing := {
            address: missing[address]
            for address in find_connection_faults(list(missing), TRY_S)
        }:
            names = ", ".join(missing.values())
            if time.monotonic() > deadline:
                raise RetryError(
                    "all workers of TF_CONFIG must start within "
                    f"worker_timeout_s={timeout_s:g}",
                    received=f"no answer from {names}",
                    remedy="Check their logs, and that this machine reaches "
                    "these addresses and ports; then start all workers again. "
                    f"The cluster of TF_CONFIG is {json.dumps(cluster)}.",
                )
            if time.monotonic() > log_due:
                logging.info("waiting for %s", names)
                log_due += _SECONDS_BETWEEN_LOG_LINES
            time.sleep(_SECONDS_BETWEEN_TRIES)


def _names(
    cluster: Cluster, own_job: str = "", own_index: int = 0
) -> dict[str, str]:
    """Names of all processes but this one by address: "worker 1 at a:2"."""
    return {
        address: f"{job} {index} at {address}"
        for job, hosts in cluster.items()
        for index, address in enumerate(hosts)
        if (job, index) != (own_job, own_index)
    }


def _listen(address: str) -> socket.socket:
    """Accepts connections at a port, on all interfaces; reads no data."""
    port = int(address.rpartition(":")[2])
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        return socket.create_server(
            ("", port),
            family=family,
            # The queue holds a connection from every worker, and Python's
            # default length, 128, is too small for large clusters.
            backlog=socket.SOMAXCONN,
            dualstack_ipv6=family == socket.AF_INET6,
        )
    except OSError as error:
        raise UserError(
            f"the port of {address}, this worker's address in TF_CONFIG, must "
            "be free",
            received=str(error),
            remedy="End the run that uses it, or choose another port.",
        ) from None


def find_connection_faults(
    addresses: Sequence[str], timeout_s: float
) -> dict[str, str]:
    """Finds the servers that accept no connection.

    Args:
        addresses: HOST:PORT of each server; an IPv6 host has brackets, as in
            gRPC.
        timeout_s: Longest time to wait, in seconds.

    Returns:
        The fault of each of these servers, by address.
    """

    def find_fault(address: str) -> str:
        host, _, port = address.rpartition(":")
        server = host.strip("[]"), int(port)
        try:
            socket.create_connection(server, timeout_s).close()
        except (OSError, UnicodeError) as error:  # or a bad host name
            return str(error) or type(error).__name__
        return ""

    # In parallel: an address behind a firewall takes seconds.
    with futures.ThreadPoolExecutor(len(addresses) or 1) as pool:
        faults = zip(addresses, pool.map(find_fault, addresses), strict=True)
        return {address: fault for address, fault in faults if fault}


def detect_unresponsive_workers(cluster: Cluster, timeout_s: int) -> None:
    """Makes TensorFlow detect unresponsive workers within `timeout_s`."""
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{next(iter(cluster))}/replica:0/task:0",
        cluster_register_timeout_in_ms=timeout_s * 1000,
        heartbeat_timeout_in_ms=timeout_s * 1000,
        shutdown_barrier_timeout_in_ms=timeout_s * 1000,
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(
                name=job, num_tasks=len(hosts)
            )
            for job, hosts in cluster.items()
        ],
    )


@contextlib.contextmanager
def exit_if_stuck(timeout_s: int) -> Iterator[None]:
    """Ends the process, with status 1, if the block takes too long.

    While TensorFlow connects the workers, the first one waits for ever for a
    worker that is lost at that moment. It holds Python's global interpreter
    lock, so a Python thread could not end it; faulthandler's watchdog can.
    """
    # TensorFlow's own timeout gives a clearer error where it works, so it gets
    # ten seconds more.
    faulthandler.dump_traceback_later(timeout_s + 10, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def name_lost_workers(
    timeout_s: int, strategy: tf.distribute.Strategy | None = None
) -> Iterator[None]:
    """Turns TensorFlow's errors for a lost worker or TPU into a `RetryError`.

    Args:
        timeout_s: `worker_timeout_s`, for the error.
        strategy: None while the strategy is being made. With one host of CPUs
            or GPUs, no worker can be lost, and errors pass unchanged.

    Raises:
        RetryError: If the block failed because another process, or a TPU, did
            not answer.
    """
    on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    try:
        yield
    except LOSS_ERRORS as error:
        if on_tpu:
            others = _names({"worker": slice_servers(strategy)})
        elif strategy is not None and is_one_process(strategy):
            raise
        else:
            others = _names(*read_cluster())
        if on_tpu and len(others) < 2:
            logging.exception("an operation on the TPU failed")
            received, wanted = "", "the TPU of this machine must answer"
            start = (
                "If this happens again, use another machine. Start this "
                "command again"
            )
        elif on_tpu:
            received = f"{_describe_loss(error, others, 'a host')}; "
            wanted = "all hosts of the TPU slice must answer"
            start = "Start the servers on all hosts and this command again"
        elif not others and strategy is not None:
            raise  # a cluster of one worker
        else:
            received = f"{_describe_loss(error, others, 'a worker')}; "
            wanted = (
                "all workers of TF_CONFIG must answer within "
                f"worker_timeout_s={timeout_s}"
            )
            start = (
                "Find the worker that failed first in the logs of all workers. "
                "Then start all workers again"
            )
        # A failure within this process may look the same, so quote it.
        received += f"TensorFlow says: {first_line(error)[:200]}"
        remedy = f"{start}: the run continues from its last checkpoint."
        raise RetryError(wanted, received=received, remedy=remedy) from None
    finally:
        if on_tpu:
            # At exit, TPUStrategy waits for all hosts. If one has been lost,
            # e.g. after SIGTERM, the process would never end, or would report
            # the loss a second time, with a traceback.
            atexit.unregister(context.async_wait)


def _describe_loss(
    error: tf.errors.OpError, names: Mapping[str, str], unnamed: str
) -> str:
    """Says which processes are lost.

    A process that accepts no connection counts as lost. If the error names such
    a process, or if all processes accept connections, only the named process
    counts. Otherwise the name is ignored: the named process may have failed
    because another process is lost.
    """
    faults = find_connection_faults(list(names), TRY_S)
    lost = [names[address] for address in faults]
    found = re.search(
        r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)", str(error.message)
    )
    if found is not None:
        task = f"{found[1]} {found[2]} at "
        named = [name for name in names.values() if name.startswith(task)]
        if not lost or set(named) <= set(lost):
            lost = named or lost
    return f"no answer from {', '.join(lost or [unnamed])}"


def wait_for_all(strategy: tf.distribute.Strategy, step: int) -> None:
    """Waits for all processes and checks that they are at the same step.

    Raises:
        UserError: If their steps differ.
    """
    if is_one_process(strategy):
        return

    total, squares = sum_over_replicas(strategy, [step, step**2])
    replicas = strategy.num_replicas_in_sync
    if total != step * replicas or squares != step**2 * replicas:
        raise UserError(
            "all workers must read the same --output_dir",
            received=f"this worker is at step {step}, the mean of all is "
            f"{total / replicas:g}",
            remedy="Use a directory that all workers share, e.g. on gs://.",
        )


def sum_over_replicas(
    strategy: tf.distribute.Strategy, values: list[float]
) -> list[float]:
    """Sums values of each process over all replicas, in float64."""

    def sums() -> tf.Tensor:
        replica = tf.distribute.get_replica_context()
        return replica.all_reduce(
            tf.distribute.ReduceOp.SUM, tf.constant(values, tf.float64)
        )

    summed = tf.function(strategy.run)(sums)
    return strategy.experimental_local_results(summed)[0].numpy().tolist()
