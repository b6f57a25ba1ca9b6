"""Trains and times a few real steps of a run, without saving anything."""

import time
from typing import NamedTuple

from albert_tf.input.damaged_records import READING_ERRORS
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
    trainer: Trainer,
) -> tuple[Timed, Timed]:
    """Trains a few steps from the trainer's position.

    Returns:
        The first step, compiling included; and the steps timed after it.
    """
    first = _train(trainer, 1)
    number = int(TIMED_SECONDS / _train(trainer, 1).seconds)
    return first, _train(trainer, min(max(number, 2), TIMED_STEPS))


def _train(trainer: Trainer, number: int) -> Timed:
    """Trains some steps.

    Raises:
        UserError: If a record is damaged; the error names it.
    """
    position = trainer.position
    position.clear_totals()
    started = time.monotonic()
    try:
        trainer.advance(position.step + number)
    except READING_ERRORS:
        trainer.stream.check_intact(position.step, position.step + number)
        raise
    seconds = time.monotonic() - started
    waited = position.times.input_seconds
    return Timed(position.means(), seconds / number, waited / seconds)
