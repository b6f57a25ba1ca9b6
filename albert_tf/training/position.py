"""The position of a run: what a checkpoint holds besides the variables."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Self

from albert_tf.runs.checkpoints import Checkpoint
from albert_tf.training.step_times import StepTimes


@dataclasses.dataclass
class Position:
    """The position of a run.

    Attributes:
        step: Number of steps done.
        totals: Sums of the metrics over the steps since the last line of the
            log, by name.
        num_steps: Number of steps since the last line of the log. It is not 0
            where the run was stopped within a device loop.
        lowest_loss: The lowest mean loss in a line of the log, of the lines
            of the current phase of the records; None before the first one.
        to_evaluate: Whether the evaluation at this step was cut short, or
            failed, and must be repeated.
        learning_rate: The learning rate of the last step; 0 before the first
            one.
        times: Times of the steps since the last line of the log.

    Example:
        >>> position = Position.at_start(["loss"])
        >>> position.step, position.num_steps = 2, 2
        >>> position.totals["loss"] = 17.0
        >>> position.means()
        {'loss': 8.5}
        >>> position.to_notes()
        {'totals': {'loss': 17.0}, 'num_steps': 2, 'lowest_loss': None,
         'to_evaluate': False, 'learning_rate': 0.0,
         'times': {'seconds': [], 'compiling_seconds': [],
                   'input_seconds': 0.0, 'cpu_seconds': 0.0}}
    """

    step: int
    totals: dict[str, float]
    num_steps: int = 0
    lowest_loss: float | None = None
    to_evaluate: bool = False
    learning_rate: float = 0.0
    times: StepTimes = dataclasses.field(default_factory=StepTimes)

    @classmethod
    def at_start(cls, metric_names: Iterable[str]) -> Self:
        """The position of a new run."""
        return cls(0, dict.fromkeys(metric_names, 0.0))

    def to_notes(self, **facts: Any) -> dict[str, Any]:
        """The notes of a checkpoint, as JSON; floats are restored bit for bit.

        Args:
            facts: Further notes, by key.
        """
        notes = dataclasses.asdict(self)
        del notes["step"]  # the checkpoint stores it itself
        return {**notes, **facts}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Moves to a checkpoint; other facts in its notes are ignored."""
        notes = checkpoint.notes
        self.step = checkpoint.step
        # The checkpoint of another optimizer holds other metrics.
        stored = notes.get("totals", {})
        self.totals = {name: stored.get(name, 0.0) for name in self.totals}
        self.num_steps = notes.get("num_steps", 0)
        self.lowest_loss = notes.get("lowest_loss")
        self.to_evaluate = notes.get("to_evaluate", False)
        self.learning_rate = notes.get("learning_rate", 0.0)
        self.times = StepTimes.from_notes(notes.get("times", {}))

    def means(self) -> dict[str, float]:
        """Mean metrics of the steps since the last line of the log."""
        steps = max(self.num_steps, 1)
        return {name: total / steps for name, total in self.totals.items()}

    def clear_totals(self) -> None:
        """Clears the sums and the times, after a line of the log."""
        self.totals, self.num_steps = dict.fromkeys(self.totals, 0.0), 0
        self.times = StepTimes()
