"""Strategies: which devices a run uses, and the batch of each replica."""

import contextlib
import ctypes
import functools
import json
import os
import signal
import threading

import tensorflow as tf
from absl import logging

from albert_tf.cluster import devices, workers
from albert_tf.cluster.watchdog import Watchdog
from albert_tf.config import DistributionConfig
from albert_tf.errors import RetryError, UserError, first_line

# Seconds that a host of a TPU slice has to accept a connection.
SERVER_TIMEOUT_S = 10

# Parameters of mallopt(3) in the GNU C library.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4
# Bytes that the heap grows at a time, besides what an allocation needs.
_GROWTH = 64 * 2**20

# Hosts that gRPC connects to without a proxy, comma-separated.
_DIRECT = "no_grpc_proxy"


def make_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    """Makes the strategy that `--strategy` names.

    Call it before anything else uses a device. `auto` takes the first of these
    that exists: a TPU (local, or that of `--tpu_name`), the workers of
    TF_CONFIG, several GPUs or logical CPUs, one device.

    Raises:
        UserError: If the devices of the strategy do not exist, or a setting
            does not fit them.
        RetryError: If a worker, or a host of a TPU slice, does not answer.
    """
    kind = config.strategy
    for gpu in tf.config.list_physical_devices("GPU"):
        # Takes memory as it is needed: an evaluation can share the GPU.
        with contextlib.suppress(RuntimeError):  # TensorFlow has started
            tf.config.experimental.set_memory_growth(gpu, True)
    if config.num_logical_cpus > 1:
        _split_cpu(config.num_logical_cpus)
    if kind == "auto":
        kind = _best_kind(config)
    strategy: tf.distribute.Strategy
    if kind == "tpu":
        strategy = _tpu_strategy(config)
    elif kind == "multi_worker":
        strategy = _multi_worker_strategy(config.worker_timeout_s)
    elif kind == "mirrored":
        strategy = _mirrored_strategy(*_local_devices(config))
    else:
        strategy = tf.distribute.OneDeviceStrategy(_local_devices(config)[0])
    if device_type(strategy) == "CPU":
        keep_freed_memory()
    logging.info(
        "strategy %s: %d replicas, on %s",
        kind,
        strategy.num_replicas_in_sync,
        ", ".join(strategy.extended.worker_devices),
    )
    return strategy


def device_type(strategy: tf.distribute.Strategy) -> str:
    """The type of the replicas' devices: "TPU", "GPU" or "CPU"."""
    device = tf.DeviceSpec.from_string(strategy.extended.worker_devices[0])
    return device.device_type


def devices_per_host(strategy: tf.distribute.Strategy) -> int:
    """Number of the replicas' devices on the first host."""
    hosts = [
        tf.DeviceSpec.from_string(name).replace(
            device_type=None, device_index=None
        )
        for name in strategy.extended.worker_devices
    ]
    return hosts.count(hosts[0])


def per_replica_batch_size(
    name: str, batch_size: int, num_replicas: int, num_micro_batches: int = 1
) -> int:
    """Number of rows of a batch that each replica processes.

    Args:
        name: The setting that holds `batch_size`, for the error.
        batch_size: Number of rows over all replicas.
        num_micro_batches: Number of micro-batches per replica.

    Raises:
        UserError: If the batch cannot be divided evenly.
    """
    unit = num_replicas * num_micro_batches
    if batch_size % unit:
        times = (
            f" times gradient_accumulation_steps ({num_micro_batches})"
            if num_micro_batches > 1
            else ""
        )
        lower = batch_size // unit * unit
        nearest = [str(size) for size in (lower, lower + unit) if size]
        raise UserError(
            f"{name} must be divisible by the number of replicas "
            f"({num_replicas}){times}",
            received=batch_size,
            remedy=f"Nearest: {' and '.join(nearest)}.",
        )
    return batch_size // num_replicas


def _best_kind(config: DistributionConfig) -> str:
    if tf.config.list_physical_devices("TPU") or config.tpu_name != "local":
        return "tpu"
    if os.environ.get("TF_CONFIG"):
        return "multi_worker"
    if len(tf.config.list_physical_devices("GPU")) > 1:
        return "mirrored"
    return "mirrored" if config.num_logical_cpus > 1 else "one_device"


def keep_freed_memory() -> None:
    """Makes the allocator keep freed memory, where it is that of glibc.

    By default, glibc returns large freed blocks to the kernel. TensorFlow
    allocates the activations of a step on a CPU that way, and each step then
    waits for the kernel to fill the same pages with zeros: about half of the
    time of a step of a small model. In exchange, the process holds its peak of
    memory until it ends. docs/log.md has measurements.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return
    libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
    libc.mallopt(_M_TOP_PAD, _GROWTH)
    libc.mallopt(_M_MMAP_MAX, 0)


def _split_cpu(num_devices: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices
        )
    except RuntimeError:  # TensorFlow has started: the CPU may be split
        present = len(tf.config.list_logical_devices("CPU"))
        if present < num_devices:
            raise UserError(
                "num_logical_cpus must be set before TensorFlow starts",
                received=f"{num_devices}, with {present} devices in use",
            ) from None


def _local_devices(config: DistributionConfig) -> list[str]:
    gpus = tf.config.list_logical_devices("GPU")
    if gpus and config.num_logical_cpus == 1:
        return [device.name for device in gpus]
    cpus = tf.config.list_logical_devices("CPU")
    return [device.name for device in cpus[: config.num_logical_cpus]]


@functools.cache
def _mirrored_strategy(*devices: str) -> tf.distribute.Strategy:
    # One per process: a second strategy on the same devices would number its
    # collectives from the start again, and they fail if shapes differ.
    return tf.distribute.MirroredStrategy(devices)


def _multi_worker_strategy(timeout_s: int) -> tf.distribute.Strategy:
    cluster, job, index = workers.read_cluster()
    logging.info(
        "waiting for all workers of TF_CONFIG, at most worker_timeout_s=%d: %s",
        timeout_s,
        json.dumps(cluster),
    )
    workers.wait_for_workers(cluster, job, index, timeout_s)
    workers.detect_unresponsive_workers(cluster, timeout_s)
    with (
        workers.name_lost_workers(timeout_s),
        workers.exit_if_stuck(timeout_s),
    ):
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=tf.distribute.experimental.CommunicationOptions(
                timeout_seconds=timeout_s
            )
        )
    if threading.current_thread() is threading.main_thread():
        # TensorFlow's service installs a SIGTERM handler that does nothing.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return strategy


def _tpu_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    devices.check_tpu(config)
    is_local = config.tpu_name == "local"
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=config.tpu_name
        )
        watchdog = Watchdog(config.hang_timeout_s)
        activity = "the start of the TPU"
        if not is_local:
            hosts = resolver.cluster_spec().as_dict()["worker"]
            _check_servers(hosts)
            # gRPC obeys https_proxy, and waits without a message for a proxy
            # that does not know the hosts of a slice.
            direct = os.environ.get(_DIRECT, os.environ.get("no_proxy", ""))
            names = [address.rsplit(":", 1)[0] for address in hosts]
            os.environ[_DIRECT] = ",".join([*filter(None, [direct]), *names])
            logging.info(
                "connecting to the servers of the TPU slice, at most "
                "worker_timeout_s=%d seconds: %s",
                config.worker_timeout_s,
                ", ".join(hosts),
            )
            watchdog = Watchdog(config.worker_timeout_s, "worker_timeout_s")
            activity = "connecting to the servers"
        with watchdog.limit(activity):
            if not is_local:
                tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
            return tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        place = "on this machine" if is_local else f"at {config.tpu_name}"
        is_lost = isinstance(error, workers.LOSS_ERRORS)
        first = (
            "Start this command again"
            if is_lost
            else "Install tensorflow-tpu (pip install 'albert-tf[tpu]')"
        )
        remedy = (
            f"{first}, and check whether another process uses the TPU: sudo "
            "lsof -w /dev/accel* /dev/vfio/*"
        )
        if not is_local:
            remedy = (
                "Give the servers of the slice, --tpu_name=grpc://HOST:8470,"
                "... (see docs/tpu.md)."
            )
        raise (RetryError if is_lost else UserError)(
            f"strategy=tpu needs a TPU {place}",
            received=f"TensorFlow {tf.__version__} says: "
            f"{first_line(error)[:200]}",
            remedy=remedy,
        ) from None


def _check_servers(addresses: list[str]) -> None:
    """Names unreachable hosts, for which TensorFlow would wait in silence."""
    faults = workers.find_connection_faults(addresses, SERVER_TIMEOUT_S)
    silent = [f"{address} ({fault})" for address, fault in faults.items()]
    if silent:
        raise RetryError(
            "all hosts of the TPU slice must answer within "
            f"{SERVER_TIMEOUT_S} s",
            received=f"no answer from {', '.join(silent)}",
            remedy="Start start_grpc_tpu_worker on each host (tpu.launch "
            "start does so). If it is running there, check its log and the "
            "firewall.",
        )
