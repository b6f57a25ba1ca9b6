"""What changes with the step: learning rate and dropout."""

from typing import NamedTuple

import tensorflow as tf

from albert_tf.config import OptimizerConfig, PretrainingConfig


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
