"""Strategies: which devices a run uses, and what each of them gets."""

import functools
import json
import os

import tensorflow as tf
from absl import logging

from albert_tf.config import DistributionConfig
from albert_tf.errors import UserError


def make_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    """The strategy that `--strategy` names, or, for auto, that fits best.

    Call it before anything else touches a device.

    Raises:
        UserError: If the devices that it needs are not there.
    """
    kind = config.strategy
    if config.num_logical_cpus > 1:
        _split_cpu(config.num_logical_cpus)
    if kind == "auto":
        kind = _best_kind(config)
    strategy = {
        "tpu": _tpu_strategy,
        "mirrored": _mirrored_strategy,
        "multi_worker": _multi_worker_strategy,
        "one_device": _one_device_strategy,
    }[kind](config)
    logging.info(
        "strategy %s: %d replicas, on %s",
        kind,
        strategy.num_replicas_in_sync,
        ", ".join(strategy.extended.worker_devices),
    )
    return strategy


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process is the one that writes logs and results."""
    resolver = strategy.cluster_resolver
    if resolver is None or resolver.task_type is None:
        return True
    # Where no task is named chief, worker 0 is.
    jobs = resolver.cluster_spec().jobs
    chief = "chief" if "chief" in jobs else "worker"
    return resolver.task_type == chief and resolver.task_id == 0


def is_one_process(strategy: tf.distribute.Strategy) -> bool:
    """Whether no other process takes part in the run."""
    return not isinstance(
        strategy, tf.distribute.MultiWorkerMirroredStrategy
    ) or not os.environ.get("TF_CONFIG")


def per_replica_batch_size(
    name: str, batch_size: int, num_replicas: int, num_parts: int = 1
) -> int:
    """A replica's share of a batch.

    Args:
        name: The setting that holds `batch_size`.
        batch_size: Examples over all replicas.
        num_replicas: Replicas.
        num_parts: Parts in which a replica works through its share.

    Raises:
        UserError: If the examples cannot be shared evenly.
    """
    unit = num_replicas * num_parts
    if batch_size % unit:
        parts = (
            f" times {num_parts} gradient_accumulation_steps"
            if num_parts > 1
            else ""
        )
        lower = batch_size // unit * unit
        nearest = [str(size) for size in (lower, lower + unit) if size]
        raise UserError(
            f"{name} must be divisible by num_replicas{parts}",
            received=f"{batch_size} and {num_replicas}",
            remedy=f"Nearest: {', '.join(nearest)}.",
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


def _split_cpu(num_devices: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices
        )
    except RuntimeError:  # TensorFlow has started: see what there is
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


def _one_device_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    return tf.distribute.OneDeviceStrategy(_local_devices(config)[0])


def _mirrored_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    return _mirrored_over(tuple(_local_devices(config)))


@functools.cache
def _mirrored_over(devices: tuple[str, ...]) -> tf.distribute.Strategy:
    # One for a process: a second one on the same devices would number its
    # collectives from the start again, and they fail where shapes differ.
    return tf.distribute.MirroredStrategy(devices)


def _multi_worker_strategy(
    config: DistributionConfig,
) -> tf.distribute.Strategy:
    del config
    form = (
        "TF_CONFIG must hold a JSON object with cluster and task, e.g. "
        '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
        '"task": {"type": "worker", "index": 0}}'
    )
    text = os.environ.get("TF_CONFIG", "")
    try:
        value = json.loads(text)
        complete = "cluster" in value and "task" in value
    except (json.JSONDecodeError, TypeError):
        complete = False
    if not complete:
        raise UserError(form, received=repr(text))
    return tf.distribute.MultiWorkerMirroredStrategy()


def _tpu_strategy(config: DistributionConfig) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(
            tpu=config.tpu_name,
            zone=config.tpu_zone or None,
            project=config.gcp_project or None,
        )
        if config.tpu_name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        place = (
            "on this machine"
            if config.tpu_name == "local"
            else f"under the name {config.tpu_name}"
        )
        reason = str(error).strip().splitlines()[0][:200]
        raise UserError(
            f"strategy=tpu needs a TPU {place}",
            received=f"TensorFlow {tf.__version__} says: {reason}",
            remedy="Run on a TPU VM with tensorflow-tpu installed "
            "(pip install -e '.[tpu]'), or use --strategy=auto.",
        ) from None
    return tf.distribute.TPUStrategy(resolver)
