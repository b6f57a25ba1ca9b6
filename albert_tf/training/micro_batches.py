"""Gradient accumulation: a batch is computed one micro-batch at a time."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from albert_tf.input.record_format import Batch
from albert_tf.training.objective import Scalars


def add_micro_batches(
    micro_batch_gradients: Callable[..., tuple[list[tf.Tensor], Scalars]],
    batch: Batch,
    num_micro_batches: int,
    jit_compile: bool,
) -> tuple[list[tf.Tensor], Scalars]:
    """Adds up gradients and sums over the micro-batches of a replica.

    Args:
        micro_batch_gradients: Called with a micro-batch and its number, int32,
            from 0 on; returns its gradients and the `Objective.sums`.
        batch: The batch of the replica.
        num_micro_batches: Number of parts into which the batch is divided.
        jit_compile: Whether XLA compiles `micro_batch_gradients`.

    Returns:
        The total gradients and the total sums.
    """
    compute: Any = micro_batch_gradients
    if jit_compile:
        # Compiles only the gradients, not the complete step: XLA cannot
        # compile TensorFlow's all-reduce between GPUs.
        compute = tf.function(micro_batch_gradients, jit_compile=True)
    elif num_micro_batches > 1:
        # If this function is inlined into the loop over micro-batches,
        # TensorFlow's memory optimizer stores the sums of large gradients
        # under fixed names, and the next call fails: AlreadyExistsError.
        compute = tf.function(
            micro_batch_gradients, experimental_attributes={"_noinline": True}
        )
    if num_micro_batches == 1:
        return compute(batch, 0)
    micro_batches = {
        name: tf.reshape(
            value,
            [
                num_micro_batches,
                value.shape[0] // num_micro_batches,
                *value.shape[1:],
            ],
        )
        for name, value in batch.items()
    }

    def micro_batch(index: tf.Tensor) -> Batch:
        return {name: value[index] for name, value in micro_batches.items()}

    def add(index: tf.Tensor, so_far: Any) -> tuple[tf.Tensor, Any]:
        more = compute(micro_batch(index), index)
        return index + 1, tf.nest.map_structure(tf.add, so_far, more)

    # The sums start from zeros rather than from the first micro-batch, so that
    # the program contains the computation only once.
    first = tf.constant(0)
    outputs = compute.get_concrete_function(micro_batch(first), first)
    zeros = tf.nest.map_structure(
        lambda output: tf.zeros(output.shape, output.dtype),
        outputs.structured_outputs,
    )
    _, totals = tf.while_loop(
        lambda index, _: index < num_micro_batches, add, (first, zeros)
    )
    return totals
