"""Gradient accumulation: a batch is computed one micro-batch at a time."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from albert_tf.input.record_format import Batch
from albert_tf.training.objective import Scalars


def add_micro_batches(
    add_gradients: Callable[..., tuple[list[tf.Tensor], Scalars]],
    zeros: Sequence[tf.Tensor],
    batch: Batch,
    num_micro_batches: int,
    jit_compile: bool,
) -> tuple[list[tf.Tensor], Scalars]:
    """Adds up gradients and sums over the micro-batches of a replica.

    Args:
        add_gradients: Called with a micro-batch, its number, int32, from 0 on,
            and the gradients of the micro-batches before it, or None for no
            gradients. Returns these plus its own gradients, and its own
            `Objective.sums`.
        zeros: The gradients before the first micro-batch.
        batch: The batch of the replica.
        num_micro_batches: Number of parts into which the batch is divided.
        jit_compile: Whether XLA compiles `add_gradients`.

    Returns:
        The total gradients and the total sums.
    """
    compute: Any = add_gradients
    if jit_compile:
        # Compiles only the gradients, not the complete step: XLA cannot
        # compile TensorFlow's all-reduce between GPUs.
        compute = tf.function(add_gradients, jit_compile=True)
    elif num_micro_batches > 1:
        # If this function is inlined into the loop over micro-batches,
        # TensorFlow's memory optimizer stores the sums of large gradients
        # under fixed names, and the next call fails: AlreadyExistsError.
        compute = tf.function(
            add_gradients, experimental_attributes={"_noinline": True}
        )
    if num_micro_batches == 1:
        return compute(batch, 0, None)
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

    def add(
        index: tf.Tensor, gradients: list[tf.Tensor], sums: Scalars
    ) -> tuple[tf.Tensor, list[tf.Tensor], Scalars]:
        gradients, more = compute(micro_batch(index), index, gradients)
        return index + 1, gradients, tf.nest.map_structure(tf.add, sums, more)

    # The loop starts from zeros rather than from the first micro-batch, so that
    # the program contains the computation only once.
    first, gradients = tf.constant(0), list(zeros)
    outputs = compute.get_concrete_function(
        micro_batch(first), first, gradients
    )
    _, sums_of_one = outputs.structured_outputs
    sums = {
        name: tf.zeros(output.shape, output.dtype)
        for name, output in sums_of_one.items()
    }
    _, gradients, sums = tf.while_loop(
        lambda index, *_: index < num_micro_batches,
        add,
        (first, gradients, sums),
    )
    return gradients, sums
