"""Schedules over the steps of a run: learning rate and dropout."""

import math
from typing import NamedTuple

import tensorflow as tf

from albert_tf.config import OptimizerConfig, PretrainingConfig

# The settings of the paper.
PAPER_BATCH_SIZE = 4096
PAPER_LEARNING_RATE = 0.00176
PAPER_WARMUP_STEPS = 3125

# Runs of at least LONG_RUN_STEPS get a warning if the rate differs from the
# paper's by more than this factor: that of four times the batch size.
FAR_RATE, LONG_RUN_STEPS = 2.0, 10_000


class DropoutRates(NamedTuple):
    """Dropout rates of one step."""

    hidden: float  # for embeddings and for the output of sublayers
    attention: float  # for attention probabilities


def learning_rate(
    step: tf.Tensor, config: OptimizerConfig, num_train_steps: int
) -> tf.Tensor:
    """Linear warm-up and polynomial decay to 0, as in google-research/albert.

    With a warm-up, the first step has rate 0. The decay counts from step 0, not
    from the end of the warm-up, so the rate drops where the warm-up ends: with
    the settings of the paper, from the peak to 0.975 of it. With
    `num_decay_steps`, the rate stays at its peak until the decay begins.

    Args:
        step: int64 scalar, training steps done.
        config: Peak rate, warm-up, length and power of the decay.
        num_train_steps: The step at which the rate reaches 0.

    Returns:
        float32 scalar.

    Reference:
        Constant rate, then decay: [Zhai et al.,
        2022](https://arxiv.org/abs/2106.04560), section 3.5; [Hägele et al.,
        2024](https://arxiv.org/abs/2405.18392).

    Example:
        >>> config = OptimizerConfig(
        ...     learning_rate=1.0, num_warmup_steps=10, poly_power=1.0
        ... )
        >>> [
        ...     round(float(learning_rate(tf.constant(step), config, 100)), 2)
        ...     for step in (0, 5, 10, 50, 100)
        ... ]
        [0.0, 0.5, 0.9, 0.5, 0.0]
    """
    # From 2^24 steps on, float32 rounds the step by less than 1e-7 of it.
    step = tf.cast(step, tf.float32)
    num_decay_steps = config.num_decay_steps or num_train_steps
    left = tf.maximum(num_train_steps - step, 0.0) / num_decay_steps
    if config.num_decay_steps:
        left = tf.minimum(left, 1.0)
    decayed = config.learning_rate * left**config.poly_power
    if config.num_warmup_steps == 0:
        return decayed
    warming = config.learning_rate * step / config.num_warmup_steps
    return tf.where(step < config.num_warmup_steps, warming, decayed)


def scaled_learning_rate(batch_size: int) -> float:
    """Peak rate of the paper, scaled by the square root of the batch size.

    Reference:
        [You et al., 2020](https://arxiv.org/abs/1904.00962), Table 4, for
        batches from 512 to 32768; all with a warm-up of 3125 steps.
    """
    return PAPER_LEARNING_RATE * math.sqrt(batch_size / PAPER_BATCH_SIZE)


def describe_learning_rate(
    config: PretrainingConfig, examples_per_row: float = 1.0
) -> tuple[str, str]:
    """Compares the peak rate with the paper's for this number of examples.

    Returns:
        A line for the log, and a warning if the rate is far from the
        paper's, or "".
    """
    optimizer = config.optimizer
    batch_size = round(config.data.global_batch_size * examples_per_row)
    line = (
        f"learning rate {optimizer.learning_rate:g} after "
        f"{optimizer.num_warmup_steps} warm-up steps"
    )
    if optimizer.num_decay_steps:
        line += f", decaying in the last {optimizer.num_decay_steps} steps"
    if optimizer.optimizer != "lamb":
        return line, ""
    scaled = scaled_learning_rate(batch_size)
    line += (
        f"; the paper's for a batch of {batch_size} examples: {scaled:.3g} "
        f"after {PAPER_WARMUP_STEPS}"
    )
    ratio = optimizer.learning_rate / scaled
    is_short = config.training.num_train_steps < LONG_RUN_STEPS
    if is_short or 1 / FAR_RATE <= ratio <= FAR_RATE:
        return line, ""
    return line, (
        f"learning_rate is {ratio:.3g} times that of the paper scaled by the "
        "square root of the batch size. Larger rates are known to diverge; "
        f"smaller ones waste steps. Set --learning_rate={scaled:.3g}"
    )


def dropout_rates(step: int, config: PretrainingConfig) -> DropoutRates:
    """Returns the dropout rates of the training step after `step` steps.

    `--dropout_schedule` sets both rates. Without it, they are those of the
    architecture.
    """
    phases = config.training.dropout_phases()
    if not phases:
        return DropoutRates(
            config.model.hidden_dropout_prob,
            config.model.attention_probs_dropout_prob,
        )
    rate = [rate for first_step, rate in phases if first_step <= step][-1]
    return DropoutRates(rate, rate)


def next_dropout_change(step: int, config: PretrainingConfig) -> int | None:
    """Returns the first step after `step` with other rates, or None.

    The device loop ends there: the rates are constants of the program, so new
    rates require a new trace.
    """
    now = dropout_rates(step, config)
    for first_step, rate in config.training.dropout_phases():
        if first_step > step and rate != now.hidden:
            return first_step
    return None
