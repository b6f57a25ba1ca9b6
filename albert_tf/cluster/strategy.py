"""Strategies: which devices a run uses, and the batch of each replica."""

import contextlib
import ctypes
import faulthandler
import functools
import os
import signal
import threading

import tensorflow as tf
from absl import logging

from albert_tf.cluster import (
    devices,
    pjrt,
    servers,
    tensorflow_private,
    workers,
)
from albert_tf.cluster.runtime import LOSS_ERRORS, runtime_of
from albert_tf.cluster.watchdog import Watchdog
from albert_tf.config import DataConfig, DistributionConfig
from albert_tf.errors import RetryError, UserError, first_line

# Parameters of mallopt(3) in the GNU C library.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4
# Bytes that the heap grows at a time, besides what an allocation needs.
_GROWTH = 64 * 2**20


def make_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    """Makes the strategy that `--strategy` names.

    Call it before anything else uses a device. `auto` takes the first of these
    that exists: a TPU of this machine, the workers of TF_CONFIG, several GPUs
    or logical CPUs, one device.

    Raises:
        UserError: If the devices of the strategy do not exist, or a setting
            does not fit them.
        RetryError: If a worker or the TPU does not answer.
    """
    makers = {"tensorflow": _tensorflow_strategy, "pjrt": _pjrt_strategy}
    kind, strategy = makers[config.runtime](config)
    cluster = runtime_of(strategy).cluster
    number = len(cluster.device_names)
    if kind in ("mirrored", "pjrt") and number < config.num_logical_cpus:
        raise UserError(
            "num_logical_cpus must be set before TensorFlow or JAX starts",
            received=f"{config.num_logical_cpus}, with {number} devices in use",
        )
    if cluster.device_type == "CPU":
        keep_freed_memory()
    logging.info(
        "strategy %s: %d replicas, here on %s",
        kind,
        strategy.num_replicas_in_sync,
        ", ".join(cluster.device_names),
    )
    return strategy


def _tensorflow_strategy(
    config: DistributionConfig,
) -> tuple[str, tf.distribute.Strategy]:
    kind = config.strategy
    for gpu in tf.config.list_physical_devices("GPU"):
        # Takes memory as it is needed: an evaluation can share the GPU.
        with contextlib.suppress(RuntimeError):  # TensorFlow has started
            tf.config.experimental.set_memory_growth(gpu, True)
    if config.num_logical_cpus > 1:
        _split_cpu(config.num_logical_cpus)
    if kind == "auto":
        kind = _best_kind(config)
    if kind == "tpu":
        return kind, _tpu_strategy(config)
    if kind == "multi_worker":
        return kind, _multi_worker_strategy(config.worker_timeout_s)
    local_devices = _local_devices(config)
    if kind == "mirrored":
        return kind, _mirrored_strategy(*local_devices)
    return kind, tf.distribute.OneDeviceStrategy(local_devices[0])


def _pjrt_strategy(config: DistributionConfig) -> tuple[str, pjrt.PjrtStrategy]:
    first = None
    if os.environ.get("TF_CONFIG"):
        addresses, index = servers.read_workers()
        first = addresses[0], len(addresses), index
    return "pjrt", pjrt.make_strategy(config, first)


def per_replica_batch_size(
    data: DataConfig, num_replicas: int, name: str = "global_batch_size"
) -> int:
    """Number of rows that each replica processes of a batch.

    Args:
        name: The setting of its size; or "eval_batch_size".

    Raises:
        UserError: If the batch cannot be divided evenly.
    """
    batch_size, unit, times = getattr(data, name), num_replicas, ""
    micro_batches = data.gradient_accumulation_steps
    if name == "global_batch_size" and micro_batches > 1:
        unit *= micro_batches
        times = f" times gradient_accumulation_steps ({micro_batches})"
    if batch_size % unit:
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
    if tf.config.list_physical_devices("TPU"):
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
    with contextlib.suppress(RuntimeError):  # TensorFlow has started
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices
        )


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
    addresses, index = servers.read_workers()
    logging.info(
        "waiting for all workers of TF_CONFIG, at most worker_timeout_s=%d: %s",
        timeout_s,
        ", ".join(addresses),
    )
    if index == 0:
        # The servers of the others start without this worker. TensorFlow holds
        # Python's interpreter lock while the first worker waits for them, so
        # that this process could not name those that are missing.
        servers.wait_for_servers(
            dict(enumerate(addresses[1:], start=1)),
            timeout_s,
            "Check their logs, and that this machine reaches these addresses "
            "and ports; then start all workers again.",
        )
    tensorflow_private.detect_unresponsive_workers(len(addresses), timeout_s)
    # TensorFlow would wait for ever for a worker that is lost now. Its own
    # timeout gives a clearer error where it works, so it gets ten seconds more.
    faulthandler.dump_traceback_later(timeout_s + 10, exit=True)
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=tf.distribute.experimental.CommunicationOptions(
                timeout_seconds=timeout_s
            )
        )
    except LOSS_ERRORS as error:
        said = f"TensorFlow says: {first_line(error)[:200]}"
        raise workers.lost_worker(said) from None
    finally:
        faulthandler.cancel_dump_traceback_later()
    if threading.current_thread() is threading.main_thread():
        # TensorFlow's service installs a SIGTERM handler that does nothing.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return strategy


def _tpu_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    devices.check_tpu(config)
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
        with Watchdog(config.hang_timeout_s).limit("the start of the TPU"):
            tf.tpu.experimental.initialize_tpu_system(resolver)
            return tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        is_lost = isinstance(error, LOSS_ERRORS)
        first = (
            "Start this command again"
            if is_lost
            else "Install tensorflow-tpu (pip install 'albert-tf[tpu]')"
        )
        raise (RetryError if is_lost else UserError)(
            "strategy=tpu needs a TPU on this machine",
            received=f"TensorFlow {tf.__version__} says: "
            f"{first_line(error)[:200]}",
            remedy=f"{first}, and check whether another process uses the TPU: "
            "sudo lsof -w /dev/accel* /dev/vfio/*",
        ) from None
