"""Detects the divergence of a run; plans and stores rollbacks.

With `--on_divergence=rollback`, a run that diverges returns to its newest
checkpoint and continues from there with the data that follows the point of
divergence, as in the training of PaLM. Rollbacks are stored in
RUN/rollbacks.json, which each process reads at its start. The batch and the
learning rate of a step are functions of the step and of this file.

Reference:
    [Chowdhery et al., 2022](https://arxiv.org/abs/2204.02311), section 5.1.
"""

import dataclasses
import math
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from albert_tf.config import TrainingConfig
from albert_tf.errors import UserError
from albert_tf.io.files import load_json_if_any, write_json


@dataclasses.dataclass(frozen=True)
class Rollback:
    """One rollback."""

    diverged_at: int  # step at which divergence was detected
    resumed_from: int  # step of the checkpoint that the run returned to
    skipped_steps: int  # batches read between checkpoint and divergence
    learning_rate_scale: float  # of all steps after the checkpoint
    reason: str  # how the run diverged


class Rollbacks:
    """The rollbacks of a run so far, in the order in which they happened.

    `path` is the file that `add` writes.

    Example:
        >>> rollback = Rollback(
        ...     diverged_at=1200, resumed_from=1000, skipped_steps=200,
        ...     learning_rate_scale=0.5, reason="loss nan",
        ... )
        >>> rollbacks = Rollbacks("rollbacks.json", [rollback])
        >>> [rollbacks.learning_rate_scale(step) for step in (999, 1000)]
        [1, 0.5]
        >>> rollbacks.skipped_steps(1000)
        200
    """

    FILE_NAME = "rollbacks.json"

    def __init__(self, path: str, items: Iterable[Rollback] = ()) -> None:
        self._path = path
        self._items = list(items)

    @classmethod
    def read(cls, run_dir: str) -> Self:
        """Reads the rollbacks of a run; none if it has no such file."""
        path = posixpath.join(run_dir, cls.FILE_NAME)
        try:
            items = [Rollback(**item) for item in load_json_if_any(path) or ()]
        except TypeError as error:
            raise UserError(
                f"{path} must hold the rollbacks of the run",
                received=str(error),
                remedy="Restore the file: the data of each step depends on it.",
            ) from None
        return cls(path, items)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Rollback]:
        return iter(self._items)

    @property
    def newest(self) -> Rollback | None:
        """The last rollback; None if there is none."""
        return self._items[-1] if self._items else None

    def have_discarded(self, step: int, count: int) -> bool:
        """Whether a later rollback discarded a step.

        Args:
            count: Number of rollbacks before the step was trained.
        """
        later = self._items[count:]
        return any(rollback.resumed_from < step for rollback in later)

    def add(self, rollback: Rollback, writes: bool = True) -> None:
        """Adds a rollback, and writes the file if this process `writes`."""
        self._items.append(rollback)
        if writes:
            write_json(self._path, list(map(dataclasses.asdict, self._items)))

    def skipped_steps(self, step: int) -> int:
        """Number of batches skipped before `step`."""
        return sum(
            r.skipped_steps for r in self._items if r.resumed_from <= step
        )

    def learning_rate_scale(self, step: int) -> float:
        """Factor of the learning rate of a step."""
        return math.prod(
            r.learning_rate_scale for r in self._items if r.resumed_from <= step
        )

    def next_change(self, step: int) -> int | None:
        """First later step at which batches or learning rate change.

        A run that resumes from a checkpoint before `resumed_from` of a rollback
        reaches that step a second time.
        """
        later = [r.resumed_from for r in self._items if r.resumed_from > step]
        return min(later, default=None)

    def check_allowed(
        self, diverged_at: int, reason: str, config: TrainingConfig
    ) -> None:
        """Checks that the settings allow another rollback; see `Rollback`.

        Raises:
            UserError: If the run must stop instead.
        """
        seen = f"{reason}, at step {diverged_at}"
        if config.on_divergence == "stop":
            raise UserError(
                "loss and gradient norm must stay finite, and the loss at most "
                f"divergence_loss_increase={config.divergence_loss_increase:g} "
                "(0: any) above its lowest value",
                received=seen,
                remedy="Lower --learning_rate and start a new run, or continue "
                "from the last checkpoint with --on_divergence=rollback.",
            )
        if len(self) >= config.max_rollbacks:
            raise UserError(
                f"a run must diverge at most max_rollbacks="
                f"{config.max_rollbacks} times",
                received=seen,
                remedy="Lower --learning_rate and start a new run, or raise "
                "--max_rollbacks.",
            )

    def plan(
        self,
        diverged_at: int,
        resumed_from: int,
        reason: str,
        config: TrainingConfig,
    ) -> Rollback:
        """Plans the rollback to a checkpoint; see `Rollback`."""
        # An earlier rollback between the two steps may have skipped batches.
        last = diverged_at - 1
        batches_read = (last + self.skipped_steps(last) + 1) - (
            resumed_from + self.skipped_steps(resumed_from)
        )
        return Rollback(
            diverged_at,
            resumed_from,
            batches_read,
            config.rollback_learning_rate_scale,
            reason,
        )


def find_divergence(
    means: Mapping[str, float],
    lowest_loss: float | None,
    config: TrainingConfig,
) -> str:
    """Describes why a run has diverged; "" if it has not.

    Args:
        means: `loss` and `gradient_norm` of the steps since the last check.
            The norm may be NaN while the loss, which is computed before it, is
            still finite.
        lowest_loss: The lowest mean loss so far;
            None at the first check.
    """
    loss, gradient_norm = means["loss"], means["gradient_norm"]
    if not math.isfinite(loss + gradient_norm):
        return f"loss {loss} and gradient norm {gradient_norm}"
    allowed = config.divergence_loss_increase
    if lowest_loss is not None and allowed and loss > lowest_loss + allowed:
        return (
            f"loss {loss:.3f}, more than divergence_loss_increase="
            f"{allowed:g} above the lowest loss, {lowest_loss:.3f}"
        )
    return ""
