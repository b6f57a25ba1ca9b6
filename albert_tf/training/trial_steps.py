"""Trains and times a few real steps of a run, without saving anything."""

import time
from typing import NamedTuple

from albert_tf.config import PretrainingConfig
from albert_tf.input.corrupt_records import READING_ERRORS
from albert_tf.training.trainer import Trainer

# Steps are timed for about TIMED_SECONDS, but at most TIMED_STEPS steps.
TIMED_SECONDS, TIMED_STEPS = 10.0, 20


class Timed(NamedTuple):
    """Result of some steps.

    Attributes:
        means: Mean metrics.
        seconds: Mean time of a step, by the clock of the host.
        waiting_fraction: Fraction of that time spent waiting for batches.
    """

    means: dict[str, float]
    seconds: float
    waiting_fraction: float


def try_steps(
    trainer: Trainer, config: PretrainingConfig
) -> tuple[Timed, Timed]:
    """Trains a few steps from the trainer's position.

    Returns:
        The first step, compiling included; and the steps timed after it.
    """
    first = _train(trainer, config, 1)
    number = int(TIMED_SECONDS / _train(trainer, config, 1).seconds)
    return first, _train(trainer, config, min(max(number, 2), TIMED_STEPS))


def _train(trainer: Trainer, config: PretrainingConfig, number: int) -> Timed:
    """Trains some steps; skips a damaged record, as the run would.

    Raises:
        UserError: If the run would stop for a damaged record.
    """
    try:
        return _train_once(trainer, number)
    except READING_ERRORS:
        step = trainer.position.step
        found = trainer.stream.find_damage(step, step + TIMED_STEPS + 2)
        if not found:
            raise
    trainer.corrupt_records.add(found, config.data, writes=False)
    trainer.close_batches()
    return _train_once(trainer, number)


def _train_once(trainer: Trainer, number: int) -> Timed:
    position = trainer.position
    position.clear_totals()
    started = time.monotonic()
    trainer.advance(position.step + number)
    seconds = time.monotonic() - started
    waited = position.times.input_seconds
    return Timed(position.means(), seconds / number, waited / seconds)
