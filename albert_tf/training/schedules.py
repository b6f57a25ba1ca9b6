"""What changes with the step: learning rate and dropout."""

import math
from typing import NamedTuple

import tensorflow as tf

from albert_tf.config import OptimizerConfig, PretrainingConfig

# The published settings, by which those of another batch are judged.
PAPER_BATCH_SIZE = 4096
PAPER_LEARNING_RATE = 0.00176
PAPER_WARMUP_STEPS = 3125

# Departures from them that are worth a warning: twice the rate is what a
# batch four times as large would have. Runs of fewer updates than this, which
# a warm-up of the published length would take up in good part, get none.
FAR_RATE, FAR_WARMUP, LONG_RUN_STEPS = 2.0, 4.0, 10_000


class DropoutRates(NamedTuple):
    """Dropout of embeddings and sublayers, and of attention probabilities."""

    hidden: float
    attention: float


def learning_rate(
    step: tf.Tensor, config: OptimizerConfig, num_train_steps: int
) -> tf.Tensor:
    """Linear warm-up, then polynomial decay to 0, as published.

    The decay counts from step 0 and not from the end of the warm-up, which
    replaces it until then. So the first update has rate 0, and the rate drops
    a little where the warm-up ends: with the published settings from the peak
    to 0.975 of it. Both are kept, to train as google-research/albert does.

    Args:
        step: int64 scalar, updates made so far.
        config: Peak rate, warm-up and power.
        num_train_steps: The step from which the rate is 0.

    Returns:
        float32 scalar.
    """
    # float32 holds whole numbers exactly up to 16.7 million.
    step = tf.cast(step, tf.float32)
    left = tf.maximum(num_train_steps - step, 0.0) / num_train_steps
    decayed = config.learning_rate * left**config.poly_power
    if config.num_warmup_steps == 0:
        return decayed
    warming = config.learning_rate * step / config.num_warmup_steps
    return tf.where(step < config.num_warmup_steps, warming, decayed)


def scaled_learning_rate(batch_size: int) -> float:
    """The published peak rate of LAMB, scaled by the root of the batch.

    The published (4096, 0.00176, 3125) is a row of the table of LAMB's
    authors, whose other rows follow from it: the rate goes with the root of
    the batch, and the warm-up stays 3125 updates from batch 512 to 32768.

    Reference:
        [You et al., 2020](https://arxiv.org/abs/1904.00962), Table 4.
    """
    return PAPER_LEARNING_RATE * math.sqrt(batch_size / PAPER_BATCH_SIZE)


def describe_learning_rate(config: PretrainingConfig) -> tuple[str, str]:
    """Peak rate and warm-up, beside those of the paper for this batch.

    Returns:
        A line, and a warning where the settings depart far from the paper's,
        or else "".
    """
    optimizer, batch_size = config.optimizer, config.data.global_batch_size
    line = (
        f"learning rate {optimizer.learning_rate:g} after "
        f"{optimizer.num_warmup_steps} updates of warm-up"
    )
    if optimizer.optimizer != "lamb":
        return line, ""
    scaled = scaled_learning_rate(batch_size)
    line += (
        f"; the paper's, for a batch of {batch_size}: {scaled:.3g} after "
        f"{PAPER_WARMUP_STEPS}"
    )
    if config.training.num_train_steps < LONG_RUN_STEPS:
        return line, ""
    warnings = [
        f"{name} is {value / published:.3g} times that of the paper"
        for name, value, published, far in (
            ("learning_rate", optimizer.learning_rate, scaled, FAR_RATE),
            (
                "num_warmup_steps",
                optimizer.num_warmup_steps,
                PAPER_WARMUP_STEPS,
                FAR_WARMUP,
            ),
        )
        if not 1 / far <= value / published <= far
    ]
    if not warnings:
        return line, ""
    return line, (
        f"{' and '.join(warnings)}, scaled by the root of the batch; larger "
        "rates and shorter warm-ups have diverged, smaller and longer ones "
        "waste updates. "
        f"--learning_rate={scaled:.3g} "
        f"--num_warmup_steps={PAPER_WARMUP_STEPS} are the paper's"
    )


def dropout_rates(step: int, config: PretrainingConfig) -> DropoutRates:
    """The rates of the update made at `step`.

    Those of `--dropout_schedule`, for hidden layers and attention alike, or
    of the architecture if there is none.

    Args:
        step: Updates made before it.
        config: Schedule and architecture.
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
    """The first step after `step` with other rates, or None.

    The trainer ends its on-device loop there: the rates are constants of the
    program, which is traced anew.
    """
    now = dropout_rates(step, config)
    for first_step, rate in config.training.dropout_phases():
        if first_step > step and rate != now.hidden:
            return first_step
    return None
