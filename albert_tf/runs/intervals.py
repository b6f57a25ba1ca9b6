"""Intervals in time, converted to steps from measured step times.

`--loop_seconds` and `--save_checkpoints_minutes` ask for intervals in time, but
boundaries of loops must depend on steps alone, so that a resumed run has the
same loops and checkpoints as an uninterrupted one. Therefore a run measures its
step time, chooses intervals in steps, stores them in RUN/intervals.json, and
then uses the stored intervals.
"""

import dataclasses
import math

from albert_tf.config import TrainingConfig
from albert_tf.io.json_list import JsonList

# Intervals are chosen again if the step time changes by more than this factor,
# e.g. without dropout or on another slice.
CHANGE_FACTOR = 2.0


@dataclasses.dataclass(frozen=True)
class Interval:
    """The intervals of a part of a run.

    Attributes:
        first_step: The step from which they hold.
        steps_per_loop, save_checkpoints_steps: Upper bounds of the settings of
            these names; 0 is no bound.
        step_seconds: The measured step time.
        loop_seconds, save_checkpoints_minutes: The settings.

    Example:
        >>> config = TrainingConfig(
        ...     loop_seconds=30, save_checkpoints_minutes=5
        ... )
        >>> interval = choose(step=11, step_seconds=0.5, config=config)
        >>> interval.steps_per_loop, interval.save_checkpoints_steps
        (50, 500)
        >>> interval.fits(0.9, config), interval.fits(1.1, config)
        (True, False)
    """

    first_step: int
    steps_per_loop: int
    save_checkpoints_steps: int
    step_seconds: float
    loop_seconds: float
    save_checkpoints_minutes: float

    def fits(self, step_seconds: float, config: TrainingConfig) -> bool:
        """Whether the intervals suit a step time and the settings."""
        ratio = step_seconds / self.step_seconds
        return (
            1 / CHANGE_FACTOR <= ratio <= CHANGE_FACTOR
            and self.loop_seconds == config.loop_seconds
            and self.save_checkpoints_minutes == config.save_checkpoints_minutes
        )


class Intervals(JsonList[Interval]):
    """The intervals of a run, in order of increasing first step.

    Example:
        >>> config = TrainingConfig(
        ...     loop_seconds=30, save_checkpoints_minutes=5
        ... )
        >>> intervals = Intervals(
        ...     "intervals.json", [choose(11, 0.847, config)]
        ... )
        >>> intervals.at(0, config), intervals.at(11, config)
        ((1000, 5000), (20, 200))
        >>> intervals.next_boundary(0, config)
        20
    """

    FILE_NAME = "intervals.json"
    ITEM_TYPE = Interval
    CONTENT = "the intervals of the run"
    REMEDY = "Remove it: the run measures its speed again."

    def needs(
        self, step: int, step_seconds: float, config: TrainingConfig
    ) -> bool:
        """Whether intervals must be chosen at a step.

        They are not chosen if the file holds intervals for later steps: the
        run has passed this step before.
        """
        if any(item.first_step > step for item in self):
            return False
        return not self._items or not self._items[-1].fits(step_seconds, config)

    def at(self, step: int, config: TrainingConfig) -> tuple[int, int]:
        """Steps per loop, and steps between checkpoints, at a step."""
        loop, save = config.steps_per_loop, config.save_checkpoints_steps
        noted = [item for item in self if item.first_step <= step]
        if noted and config.loop_seconds:
            loop = min(loop, noted[-1].steps_per_loop or loop)
        if noted and config.save_checkpoints_minutes:
            save = min(save, noted[-1].save_checkpoints_steps or save)
        return loop, save

    def next_boundary(self, step: int, config: TrainingConfig) -> int:
        """The next step at which a loop ends or a checkpoint is due."""
        while True:
            boundary = min(
                (step // every + 1) * every for every in self.at(step, config)
            )
            changes = [i.first_step for i in self if i.first_step > step]
            if not changes or boundary <= min(changes):
                return boundary
            step = min(changes)


def choose(step: int, step_seconds: float, config: TrainingConfig) -> Interval:
    """Chooses intervals from a step time, for the steps from `step` on.

    Raises:
        ValueError: If `step_seconds` is not above 0. The run would keep
            intervals of a single step.
    """
    if not step_seconds > 0:
        raise ValueError(f"step_seconds must be above 0, not {step_seconds}")
    return Interval(
        first_step=step,
        steps_per_loop=_num_steps(config.loop_seconds, step_seconds),
        save_checkpoints_steps=_num_steps(
            60 * config.save_checkpoints_minutes, step_seconds
        ),
        step_seconds=step_seconds,
        loop_seconds=config.loop_seconds,
        save_checkpoints_minutes=config.save_checkpoints_minutes,
    )


def _num_steps(seconds: float, step_seconds: float) -> int:
    """The largest of 1, 2, 5, 10, 20, ... steps that takes at most `seconds`.

    These numbers divide most larger round numbers, e.g. the settings of other
    intervals, so that loops end and checkpoints are saved at common steps.

    Returns:
        At least 1; 0 for 0 seconds.
    """
    if not seconds:
        return 0
    steps = max(seconds / step_seconds, 1.0)
    power = 10 ** math.floor(math.log10(steps))
    return max(n * power for n in (1, 2, 5) if n * power <= steps)
