"""What a training step costs: operations and memory.

Reference:
    [Chowdhery et al., 2022](https://arxiv.org/abs/2204.02311), appendix B,
    defines model FLOPs utilisation (MFU). It counts the matrix products of the
    model, attention included, but not the second computation of activations
    by rematerialisation.
"""

import contextlib
import math
import pathlib
import resource
import sys

import tensorflow as tf

from albert_tf.cluster import devices
from albert_tf.cluster.strategy import device_type, devices_per_host
from albert_tf.config import (
    DataConfig,
    DistributionConfig,
    ModelConfig,
    PretrainingConfig,
)
from albert_tf.interop.weight_names import list_weights
from albert_tf.records.features import SENTENCE_LABEL, stored_features
from albert_tf.training.optimizers import BLOCK_KERNELS

PROCESS_STATUS = pathlib.Path("/proc/self/status")


def flops_per_step(
    model: ModelConfig, data: DataConfig, sentence_objective: str
) -> int:
    """Operations of one training step.

    The backward pass counts as twice the forward pass. Only matrix products
    are counted: layer norms, softmax and the optimizer add a few per cent.
    Padding counts, since the devices compute it. The last block computes keys
    and values at all positions, and everything else only at the positions that
    a head reads; TPUs compute a few more positions, which do not count.

    Args:
        data: Batch size, lengths and packing.
        sentence_objective: "none" has neither pooler nor sentence head.
    """
    hidden, embedding = model.hidden_size, model.embedding_size
    predictions = num_predictions(data)
    # Slots for sentence labels in a row; empty slots are computed, too.
    sentences = 0
    if sentence_objective != "none":
        sentences = _length_of(SENTENCE_LABEL, data)
    row = encoder_flops(model, data.max_seq_length, predictions + sentences)
    row += predictions * (
        2 * hidden * embedding + 2 * embedding * model.vocab_size
    )
    row += sentences * (2 * hidden**2 + 4 * hidden)
    return 3 * row * data.global_batch_size


def encoder_flops(model: ModelConfig, length: int, reads: int) -> int:
    """Operations of the forward pass of the encoder, for one row.

    Args:
        length: Number of tokens in a row.
        reads: Number of positions that the heads read.
    """
    hidden, embedding = model.hidden_size, model.embedding_size
    # A product of (a, b) and (b, c) takes 2 a b c operations. For each token:
    key_value = 4 * hidden**2
    others = (
        4 * hidden**2  # query and output
        + 4 * length * hidden  # scores and context
        + 4 * hidden * model.intermediate_size  # feed-forward
    )
    blocks = model.num_hidden_layers * model.inner_group_num
    row = blocks * length * key_value
    row += ((blocks - 1) * length + reads) * others
    if embedding != hidden:
        row += length * 2 * embedding * hidden
    return row


def num_predictions(data: DataConfig) -> int:
    """Number of slots for masked tokens in a row."""
    return _length_of("masked_lm_ids", data)


def _length_of(name: str, data: DataConfig) -> int:
    """Number of values of a feature in a row."""
    features = stored_features("static", data.packing)
    return next(f for f in features if f.name == name).length(data)


def peak_flops(
    strategy: tf.distribute.Strategy, config: DistributionConfig
) -> float | None:
    """Peak of all devices together in FLOP/s; None if it is unknown.

    `peak_tflops` overrides the table of known devices.
    """
    replicas = strategy.num_replicas_in_sync
    if config.peak_tflops:
        return config.peak_tflops * 1e12 * replicas
    kind, peak = device_type(strategy), None
    if kind == "TPU":
        chip = devices.chip_of_this_machine(devices_per_host(strategy))
        peak = chip.peak_flops if chip else None
    elif kind == "GPU":
        gpu = tf.config.list_physical_devices("GPU")[0]
        details = tf.config.experimental.get_device_details(gpu)
        peak = devices.gpu_peak_flops(details.get("device_name", ""))
    return peak * replicas if peak else None


def num_parameters(model: ModelConfig, sentence_objective: str) -> int:
    """Trainable parameters of the model and its pretraining heads."""
    weights = list_weights(model, sentence_objective)
    return sum(math.prod(weight.shape) for weight in weights)


def estimate_memory(
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
    moments = 2 * weights
    if config.optimizer.optimizer == "muon":  # one moment of each kernel
        moments -= 4 * sum(
            math.prod(weight.shape)
            for weight in list_weights(model)
            if BLOCK_KERNELS.search(weight.path)
        )
    return {
        "weights": weights,
        "gradients": weights,
        "moments": moments,
        "activations": kept,
        "logits": 3 * logits,
    }


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
