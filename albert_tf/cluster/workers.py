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

from albert_tf.config import DistributionConfig
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


def is_one_process(strategy: tf.distribute.Strategy) -> bool:
    """Whether no other process takes part in the run."""
    return not isinstance(
        strategy, tf.distribute.MultiWorkerMirroredStrategy
    ) or not os.environ.get("TF_CONFIG")


def num_hosts(strategy: tf.distribute.Strategy) -> int:
    """Number of hosts of a TPU slice, or of processes that train."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return strategy.extended.num_hosts
    if is_one_process(strategy):
        return 1
    cluster, _, _ = read_cluster()
    return sum(map(len, cluster.values()))


def slice_servers(strategy: tf.distribute.Strategy) -> tuple[str, ...]:
    """HOST:PORT of the servers of a TPU slice; () without servers."""
    if not isinstance(strategy, tf.distribute.TPUStrategy):
        return ()
    cluster = strategy.cluster_resolver.cluster_spec()
    return tuple(cluster.as_dict().get("worker", ())) if cluster else ()


def read_cluster() -> tuple[dict[str, list[str]], str, int]:
    """Reads TF_CONFIG.

    Returns:
        The addresses of the workers by job, first the job of the coordination
        service; the job of this process; its index in that job.

    Raises:
        UserError: If TF_CONFIG is missing or malformed.
    """
    form = (
        "TF_CONFIG must be a JSON object with cluster and task, each address "
        "of the form HOST:PORT and used once, e.g. "
        '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
        '"task": {"type": "worker", "index": 0}}'
    )
    text = os.environ.get("TF_CONFIG", "")
    try:
        value = json.loads(text)
        job, index = value["task"]["type"], int(value["task"]["index"])
        cluster = {
            job: value["cluster"][job]
            for job in WORKER_JOBS
            if job in value["cluster"]
        }
        addresses = [a for hosts in cluster.values() for a in hosts]
        complete = (
            index in range(len(cluster[job]))
            and all(isinstance(hosts, list) for hosts in cluster.values())
            and all(_is_address(address) for address in addresses)
            and len(set(addresses)) == len(addresses)
        )
    except (ValueError, TypeError, LookupError):
        complete = False
    if not complete:
        raise UserError(form, received=repr(text))
    return cluster, job, index


def _is_address(text: str) -> bool:
    found = re.fullmatch(r".+:(\d+)", text)
    return found is not None and 0 < int(found[1]) < 2**16


def wait_for_workers(
    cluster: Mapping[str, Sequence[str]],
    job: str,
    index: int,
    timeout_s: float,
) -> None:
    """Waits until this process has connected once to each other process.

    Args:
        cluster: Addresses, `host:port`, by job, as in `TF_CONFIG`.
        job: The job of this process.
        index: The index of this process in its job.
        timeout_s: Longest time to wait, in seconds.

    Raises:
        UserError: If the port of this process is in use.
        RetryError: If workers do not start in time; the error names them.
    """
    missing = {
        f"{name} {number} at {address}": address
        for name, addresses in cluster.items()
        for number, address in enumerate(addresses)
        if (name, number) != (job, index)
    }
    deadline = time.monotonic() + timeout_s
    log_due = time.monotonic() + _SECONDS_BETWEEN_LOG_LINES
    with _listen(cluster[job][index]):
        while True:
            faults = find_connection_faults(list(missing.values()), TRY_S)
            missing = {
                name: address
                for name, address in missing.items()
                if address in faults
            }
            if not missing:
                return
            if time.monotonic() > deadline:
                raise RetryError(
                    "all workers of TF_CONFIG must start within "
                    f"worker_timeout_s={timeout_s:g}",
                    received=f"no answer from {', '.join(missing)}",
                    remedy="Check their logs, and that this machine reaches "
                    "these addresses and ports; then start all workers again. "
                    f"The cluster of TF_CONFIG is {json.dumps(cluster)}.",
                )
            if time.monotonic() > log_due:
                logging.info("waiting for %s", ", ".join(missing))
                log_due += _SECONDS_BETWEEN_LOG_LINES
            time.sleep(_SECONDS_BETWEEN_TRIES)


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
            remedy="If an earlier run still uses it, end that run; or choose "
            "another port.",
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
        try:
            socket.create_connection(
                (host.strip("[]"), int(port)), timeout_s
            ).close()
        except (OSError, UnicodeError) as error:  # or a bad host name
            return str(error) or type(error).__name__
        return ""

    # In parallel: an address behind a firewall takes seconds.
    with futures.ThreadPoolExecutor(len(addresses) or 1) as pool:
        faults = zip(addresses, pool.map(find_fault, addresses), strict=True)
        return {address: fault for address, fault in faults if fault}


def detect_unresponsive_workers(
    cluster: dict[str, list[str]], timeout_s: int
) -> None:
    """Makes TensorFlow detect unresponsive workers within `timeout_s`."""
    jobs = list(cluster)
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{jobs[0]}/replica:0/task:0",
        cluster_register_timeout_in_ms=timeout_s * 1000,
        heartbeat_timeout_in_ms=timeout_s * 1000,
        shutdown_barrier_timeout_in_ms=timeout_s * 1000,
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(
                name=job, num_tasks=len(cluster[job])
            )
            for job in jobs
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
    config: DistributionConfig, strategy: tf.distribute.Strategy | None = None
) -> Iterator[None]:
    """Turns TensorFlow's errors for a lost worker or TPU into a `RetryError`.

    Args:
        config: The error names its `worker_timeout_s`.
        strategy: None while the strategy is being made. With one host of CPUs
            or GPUs, no worker can be lost, and errors pass unchanged.

    Raises:
        RetryError: If the block failed because another process, or a TPU, did
            not answer.
    """
    on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    is_one_host = strategy is not None and num_hosts(strategy) == 1
    continues = "the run continues from its last checkpoint."
    try:
        yield
    except LOSS_ERRORS as error:
        if is_one_host and not on_tpu:
            raise
        # A failure within this process may look the same, so quote it.
        received = f"TensorFlow says: {first_line(error)[:200]}"
        if is_one_host:
            logging.exception("an operation on the TPU failed")
            wanted = "the TPU of this machine must answer"
            remedy = (
                f"Start this command again: {continues} If it fails again, use "
                "another machine."
            )
        elif strategy is not None and on_tpu:
            cluster = strategy.cluster_resolver.cluster_spec().as_dict()
            lost = _describe_loss(error, cluster, "a host")
            received = f"{lost}; {received}"
            wanted = "all hosts of the TPU slice must answer"
            remedy = (
                "Start the servers on all hosts and this command again: "
                f"{continues}"
            )
        else:
            cluster, job, index = read_cluster()
            lost = _describe_loss(error, cluster, "a worker", (job, index))
            received = f"{lost}; {received}"
            wanted = (
                "all workers of TF_CONFIG must answer within "
                f"worker_timeout_s={config.worker_timeout_s}"
            )
            remedy = (
                "Find the worker that failed first in the logs of all workers. "
                f"Then start all workers again: {continues}"
            )
        raise RetryError(wanted, received=received, remedy=remedy) from None
    finally:
        if on_tpu:
            # At exit, TPUStrategy waits for all hosts. If one has been lost,
            # e.g. after a notice, the process would never end, or would report
            # the loss a second time, with a traceback.
            atexit.unregister(context.async_wait)


def _describe_loss(
    error: tf.errors.OpError,
    cluster: dict[str, list[str]],
    unnamed: str,
    own_task: tuple[str, int] | None = None,
) -> str:
    """Says which processes are lost.

    A process that accepts no connection counts as lost. If the error names such
    a process, or if all processes accept connections, only the named process
    counts. Otherwise the name is ignored: the named process may have failed
    because another process is lost.

    Args:
        cluster: Addresses, HOST:PORT, by job.
        unnamed: Stands for the lost process if none is found.
        own_task: Job and index of this process, which is not lost; None if
            it is not in the cluster.

    Returns:
        "no answer from", and the processes with their addresses.
    """
    names = {
        address: f"{job} {index} at {address}"
        for job, hosts in cluster.items()
        for index, address in enumerate(hosts)
        if (job, index) != own_task
    }
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
