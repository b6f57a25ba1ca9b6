"""Times of the steps since the last line of the log."""

import dataclasses

import numpy as np


@dataclasses.dataclass
class StepTimes:
    """Times of the steps since the last line of the log.

    A checkpoint within a device loop stores them, so that the line of the loop
    counts the steps of all processes.

    Attributes:
        seconds: Time of each step.
        input_seconds: Time that the steps waited for their batches.
        steady: Whether no program was compiled in these steps.
        cpu_seconds: CPU time of this process in the steps that compiled no
            program, in all threads, input included.

    Example:
        >>> times = StepTimes()
        >>> requested_received_finished = np.array([[0, 0.5, 2], [2, 2.5, 4]])
        >>> times.add(
        ...     requested_received_finished,
        ...     ended=4.5,
        ...     steady=True,
        ...     cpu_seconds=7.5,
        ... )
        >>> times
        StepTimes(seconds=[2.0, 2.5], input_seconds=1.0, steady=True,
                  cpu_seconds=7.5)
    """

    seconds: list[float] = dataclasses.field(default_factory=list)
    input_seconds: float = 0.0
    steady: bool = True
    cpu_seconds: float = 0.0

    def add(
        self,
        times: np.ndarray,
        ended: float,
        steady: bool,
        cpu_seconds: float,
    ) -> None:
        """Adds the times of steps.

        Args:
            times: `train_step.Steps.times`, float64, `(steps, 3)`.
            ended: When the last step ended, in seconds since the epoch.
            steady: False if the time includes compiling.
            cpu_seconds: CPU time of this process in these steps.
        """
        starts = np.append(times[:, 0], ended)
        self.seconds += np.diff(starts).round(6).tolist()
        self.input_seconds += waiting_seconds(times)
        self.steady &= steady
        if steady:
            self.cpu_seconds += cpu_seconds


def waiting_seconds(times: np.ndarray) -> float:
    """The time in which the devices had nothing to do but wait for a batch.

    A batch that arrives while the previous step is computed costs nothing.

    Args:
        times: `train_step.Steps.times`, float64, `(steps, 3)`.

    Example:
        >>> waiting_seconds(np.array([[0.0, 1.0, 4.0], [2.0, 4.5, 7.5]]))
        1.5
    """
    requested, received, finished = times.T
    previous_finished = np.append(requested[:1], finished[:-1])
    idle_since = np.maximum(requested, previous_finished)
    return float(np.maximum(received - idle_since, 0.0).sum())
