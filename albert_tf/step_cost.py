"""What a step costs: floating-point operations, memory, share of the peak.

Reference:
    [Chowdhery et al., 2022](https://arxiv.org/abs/2204.02311), appendix B, for
    the share of a device's peak that a model uses (MFU): operations of the
    model's matrix products, those of attention included, none of which is
    counted twice for being computed a second time.
"""

import contextlib
import os
import pathlib
import resource
import sys

import tensorflow as tf

from albert_tf.config import DataConfig, DistributionConfig, ModelConfig

# Dense bfloat16 peak of one device of tf.distribute, in FLOP/s. TPUs by the
# start of their accelerator type, from https://cloud.google.com/tpu/docs: of v2
# and v3 a device is one of a chip's two cores. (Of v4 it was not established
# whether TensorFlow takes chip or core for one.)
TPU_PEAKS = {
    "v2": 22.5e12,
    "v3": 61.5e12,
    "v5litepod": 197e12,
    "v5p": 459e12,
    "v6e": 918e12,
}
# NVIDIA's GPUs by what their names hold, tensor cores, from their data sheets.
GPU_PEAKS = {
    "V100": 125e12,
    "T4": 65e12,
    "A100": 312e12,
    "L4": 121e12,
    "H100": 989e12,
    "H200": 989e12,
}
PROCESS_STATUS = pathlib.Path("/proc/self/status")
TPU_TYPE_VARIABLE = "TPU_ACCELERATOR_TYPE"  # set on TPU VMs


def flops_per_step(
    model: ModelConfig, data: DataConfig, sentence_objective: str
) -> int:
    """Operations of one update: forward, and twice that backward.

    Padding is counted, since it is computed. Matrix products alone: layer
    norms, softmax and the optimizer are a few per cent.

    Args:
        model: The architecture.
        data: Batch and lengths.
        sentence_objective: "none" has neither pooler nor head.
    """
    length, hidden = data.max_seq_length, model.hidden_size
    embedding = model.embedding_size
    # A product of (a, b) and (b, c) is 2 a b c operations. For each piece:
    # query, key, value, output; feed-forward; scores and their sums.
    block = (
        8 * hidden**2
        + 4 * hidden * model.intermediate_size
        + 4 * length * hidden
    )
    blocks = model.num_hidden_layers * model.inner_group_num
    example = length * blocks * block
    if embedding != hidden:
        example += length * 2 * embedding * hidden
    example += data.max_predictions_per_seq * (
        2 * hidden * embedding + 2 * embedding * model.vocab_size
    )
    if sentence_objective != "none":
        example += 2 * hidden**2 + 4 * hidden
    return 3 * example * data.global_batch_size


def peak_flops(
    strategy: tf.distribute.Strategy, config: DistributionConfig
) -> float | None:
    """Peak of all devices together in FLOP/s; None if it is not known.

    `peak_tflops`, or that of a known kind of device.
    """
    replicas = strategy.num_replicas_in_sync
    if config.peak_tflops:
        return config.peak_tflops * 1e12 * replicas
    if tf.config.list_physical_devices("TPU"):
        kind = os.environ.get(TPU_TYPE_VARIABLE, "").split("-")[0]
        peak = TPU_PEAKS.get(kind)
    elif gpus := tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpus[0])
        name = details.get("device_name", "")
        peak = next((p for k, p in GPU_PEAKS.items() if k in name), None)
    else:
        peak = None
    return peak * replicas if peak else None


def peak_memory_bytes() -> int:
    """Most memory in use since `reset_peak_memory`.

    That of the first GPU, or else of this process, as far as the system tells.
    """
    if tf.config.list_physical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    if PROCESS_STATUS.exists():
        lines = PROCESS_STATUS.read_text().splitlines()
        (peak,) = (line for line in lines if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak_memory() -> None:
    """Begins to measure `peak_memory_bytes` anew, where the system can."""
    if tf.config.list_physical_devices("GPU"):
        tf.config.experimental.reset_memory_stats("GPU:0")
        return
    with contextlib.suppress(OSError):
        # Linux: 5 resets the peak of the resident set; see proc(5).
        PROCESS_STATUS.with_name("clear_refs").write_text("5")
