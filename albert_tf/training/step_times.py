"""Times of the steps since the last line of the log."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import numpy as np


@dataclasses.dataclass
class StepTimes:
    """Times of the steps since the last line of the log.

    A checkpoint within a device loop stores them, so that the line of the loop
    counts the steps of all processes.

    Attributes:
        seconds: Time of each step that compiled no program.
        compiling_seconds: Time of each step that compiled a program, tracing
            included. The other attributes leave these steps out.
        input_seconds: Time that the steps waited for their batches.
        cpu_seconds: CPU time of this process in the steps, in all threads,
            input included.

    Example:
        >>> times = StepTimes()
        >>> times.add_compiling(20.0)
        >>> of_steps = np.array([[0, 0.5, 0.5], [2, 2.5, 2]])
        >>> times.add(of_steps, ended=4.5, cpu_seconds=7.5)
        >>> times
        StepTimes(seconds=[2.0, 2.5], compiling_seconds=[20.0],
                  input_seconds=1.0, cpu_seconds=7.5)
        >>> times.total
        24.5
    """

    seconds: list[float] = dataclasses.field(default_factory=list)
    compiling_seconds: list[float] = dataclasses.field(default_factory=list)
    input_seconds: float = 0.0
    cpu_seconds: float = 0.0

    @classmethod
    def from_notes(cls, notes: Mapping[str, Any]) -> Self:
        """Restores the times from the notes of a checkpoint.

        Older versions noted no times, or did not separate the steps that
        compiled a program.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{n: value for n, value in notes.items() if n in names})

    @property
    def total(self) -> float:
        """The time of all steps."""
        return sum(self.seconds) + sum(self.compiling_seconds)

    def add_compiling(self, seconds: float) -> None:
        """Adds a step that compiled a program."""
        self.compiling_seconds.append(round(seconds, 6))

    def add(self, times: np.ndarray, ended: float, cpu_seconds: float) -> None:
        """Adds the times of steps that compiled no program.

        Args:
            times: `train_step.Steps.times`, float64, `(steps, 3)`.
            ended: When the last step ended, in seconds since the epoch.
            cpu_seconds: CPU time of this process in these steps.
        """
        starts = np.append(times[:, 0], ended)
        self.seconds += np.diff(starts).round(6).tolist()
        self.input_seconds += waiting_seconds(times)
        self.cpu_seconds += cpu_seconds


def waiting_seconds(times: np.ndarray) -> float:
    """The time in which the devices had nothing to do but wait for a batch.

    A batch that arrives while the previous step is computed costs nothing.

    Args:
        times: `train_step.Steps.times`, float64, `(steps, 3)`.

    Example:
        >>> waiting_seconds(np.array([[0.0, 1.0, 1.0], [2.0, 4.5, 4.0]]))
        1.5
    """
    requested, received, previous_finished = times.T
    idle_since = np.maximum(requested, previous_finished)
    idle_since[:1] = requested[:1]  # no previous step
    return float(np.maximum(received - idle_since, 0.0).sum())
