"""The memory of a training step: an estimate, and the use of the devices."""

import contextlib
import os
import pathlib
import resource
import subprocess
import sys

import tensorflow as tf

from albert_tf.cluster import tpu_chips
from albert_tf.cluster.strategy import device_type, devices_per_host
from albert_tf.config import PretrainingConfig
from albert_tf.training.step_cost import num_parameters, num_predictions

PROCESS_STATUS = pathlib.Path("/proc/self/status")


def estimate_memory(
    config: PretrainingConfig, num_replicas: int
) -> dict[str, int]:
    """Estimates the bytes that a step of pretraining needs on one device."""
    return estimate_step_memory(
        config,
        num_replicas,
        num_parameters(config.model, config.training.sentence_objective),
        num_logits=num_predictions(config.data) * config.model.vocab_size,
    )


def estimate_step_memory(
    config: PretrainingConfig,
    num_replicas: int,
    num_parameters: int,
    num_sequences: int = 1,
    num_logits: int = 0,
) -> dict[str, int]:
    """Estimates the bytes that a training step needs on one device, by purpose.

    The formula of Korthikanti et al. counts the activations that are kept for
    the backward pass. It is accurate to a factor of about 1.5: compilers fuse
    operations, and frameworks keep more tensors. The estimate counts the last
    block at all positions.

    Args:
        num_sequences: Number of sequences in an example.
        num_logits: Number of logits for an example.

    Reference:
        [Korthikanti et al., 2022](https://arxiv.org/abs/2205.05198), section 4.
    """
    model, data = config.model, config.data
    weights = 4 * num_parameters
    rows = (
        num_sequences
        * data.global_batch_size
        // num_replicas
        // data.gradient_accumulation_steps
    )
    length, hidden = data.max_seq_length, model.hidden_size
    width = 2 if config.distribution.precision == "mixed_bfloat16" else 4
    # Bytes per entry of the hidden states, if numbers have 2 bytes.
    per_entry = 34 + 5 * model.num_attention_heads * length / hidden
    block = int(rows * length * hidden * per_entry * width / 2)
    blocks = model.num_hidden_layers * model.inner_group_num
    if config.distribution.remat:
        kept = blocks * rows * length * hidden * width + block
    else:
        kept = blocks * block
    logits = 4 * rows * num_logits
    return {
        "weights": weights,
        "gradients": weights,
        "moments": 2 * weights,
        "activations": kept,
        "logits": 3 * logits,
    }


def device_memory_bytes(strategy: tf.distribute.Strategy) -> int | None:
    """Memory of the device of one replica; None if it is unknown."""
    kind = device_type(strategy)
    if kind == "TPU":
        chip = tpu_chips.chip_of_this_machine(devices_per_host(strategy))
        return chip.memory_bytes if chip else None
    if kind == "GPU":
        return _gpu_memory_bytes()
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return pages * size // strategy.num_replicas_in_sync


def _gpu_memory_bytes() -> int | None:
    """Memory of the smallest GPU; None if nvidia-smi is missing or fails.

    TensorFlow reports only the memory in use.
    """
    query = ["nvidia-smi", "--query-gpu=memory.total"]
    query.append("--format=csv,noheader,nounits")
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, check=True, timeout=60
        )
        return min(int(line) for line in done.stdout.split()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def memory_owner() -> str:
    """Names the owner of the memory that `peak_memory_bytes` measures.

    It is the first TPU or GPU of this process, e.g. "TPU:0", or else the
    process itself. The TPUs of a slice of several hosts belong to other
    processes.
    """
    return _accelerator() or "this process"


def _accelerator() -> str:
    """The first local device whose memory TensorFlow reports; "" for none."""
    for kind in ("TPU", "GPU"):
        if tf.config.list_physical_devices(kind):
            with contextlib.suppress(ValueError, tf.errors.OpError):
                tf.config.experimental.get_memory_info(f"{kind}:0")
                return f"{kind}:0"
    return ""


def peak_memory_bytes() -> int:
    """Peak memory use of `memory_owner` since `reset_peak_memory`."""
    device = _accelerator()
    if device:
        return tf.config.experimental.get_memory_info(device)["peak"]
    if PROCESS_STATUS.exists():
        for line in PROCESS_STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak_memory() -> bool:
    """Resets `peak_memory_bytes`; returns whether the system supports it.

    By TensorFlow's sources, a TPU reports its peak, but cannot reset it.
    """
    device = _accelerator()
    if device:
        with contextlib.suppress(ValueError, tf.errors.OpError):
            tf.config.experimental.reset_memory_stats(device)
            return True
        return False
    with contextlib.suppress(OSError):
        # Linux: 5 resets the peak of the resident set; see proc(5).
        PROCESS_STATUS.with_name("clear_refs").write_text("5")
        return True
    return False
