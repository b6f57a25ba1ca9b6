"""What a training step costs, in floating-point operations.

Reference:
    [Chowdhery et al., 2022](https://arxiv.org/abs/2204.02311), appendix B,
    defines model FLOPs utilisation (MFU). It counts the matrix products of the
    model, attention included, but not the second computation of activations
    by rematerialisation.
"""

from typing import Any

import tensorflow as tf

from albert_tf.cluster import devices
from albert_tf.cluster.runtime import runtime_of
from albert_tf.config import DataConfig, ModelConfig
from albert_tf.records.features import SENTENCE_LABEL, stored_features


def flops_per_step(
    model: ModelConfig,
    data: DataConfig,
    sentence_objective: str,
    num_token_labels: int = 0,
) -> int:
    """Operations of one training step.

    The backward pass counts as twice the forward pass. Only matrix products
    are counted: layer norms, softmax and the optimizer add a few per cent.
    Padding counts, since the devices compute it. The last block computes keys
    and values at all positions, and everything else only at the positions that
    a head reads; TPUs compute a few more positions, which do not count.
    """
    hidden, embedding = model.hidden_size, model.embedding_size
    predictions = _length_of("masked_lm_ids", data)
    # Slots for sentence labels in a row; empty slots are computed, too.
    sentences = 0
    if sentence_objective != "none":
        sentences = _length_of(SENTENCE_LABEL, data)
    labelled = data.max_seq_length if num_token_labels else 0
    reads = labelled or predictions + sentences
    row = encoder_flops(model, data.max_seq_length, reads)
    row += labelled * 2 * hidden * num_token_labels
    row += predictions * (
        2 * hidden * embedding + 2 * embedding * model.vocab_size
    )
    row += sentences * (2 * hidden**2 + 4 * hidden)
    return 3 * row * data.global_batch_size


def encoder_flops(model: ModelConfig, length: int, reads: int) -> int:
    """Operations of the forward pass of the encoder, for a row of `length`.

    The heads read `reads` positions.
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


def _length_of(name: str, data: DataConfig) -> int:
    """Number of values of a feature in a row."""
    features = stored_features("static", data.packing)
    return next(f for f in features if f.name == name).length(data)


def peak_flops(strategy: tf.distribute.Strategy) -> float | None:
    """Peak of all devices together in FLOP/s; None if it is unknown."""
    peak = describe_devices(strategy)[1]
    return peak * strategy.num_replicas_in_sync if peak else None


def describe_devices(
    strategy: tf.distribute.Strategy,
) -> tuple[dict[str, Any], float | None]:
    """The devices of a run as users pay for them, and the peak of a replica.

    Returns:
        For the event of a start: kind, number of TPU chips, of GPUs or of
        machines, number of hosts. And the peak in FLOP/s, if it is known.
    """
    cluster = runtime_of(strategy).cluster
    number = strategy.num_replicas_in_sync
    kind, hosts = cluster.device_type, cluster.num_processes
    peak: float | None = None
    if kind == "TPU":
        if chip := devices.chip_of_this_machine():
            peak = chip.peak_flops
            number = max(1, number // chip.cores)
    elif kind == "GPU":
        card = devices.find_card(cluster.gpu_name)
        peak = card.peak if card else None
    else:
        number = hosts
    return {"kind": kind, "number": number, "hosts": hosts}, peak
