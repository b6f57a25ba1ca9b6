"""A run that diverges: how that is seen, and the way back.

A rollback goes back to the newest checkpoint and on from there with the data
that comes after the place of divergence, as PaLM was trained. What was decided
is noted in RUN/rollbacks.json, and read by each process at its start: the
batch and the learning rate of a step are functions of the step and of these
notes.

Reference:
    [Chowdhery et al., 2022](https://arxiv.org/abs/2204.02311), section 5.1.
"""

import dataclasses
import json
import math
import posixpath
from collections.abc import Sequence
from typing import Self

from albert_tf.config import TrainingConfig
from albert_tf.errors import UserError
from albert_tf.io.files import load_json_if_any, write_text

ROLLBACKS_FILE = "rollbacks.json"


@dataclasses.dataclass(frozen=True)
class Rollback:
    """One way back.

    Attributes:
        diverged_at: Updates made when it was seen.
        resumed_from: Updates of the checkpoint that the run went back to.
        skipped_steps: Batches left out from there on: those read since.
        learning_rate_scale: Factor of the learning rate from there on.
        reason: What was seen.
    """

    diverged_at: int
    resumed_from: int
    skipped_steps: int
    learning_rate_scale: float
    reason: str


class Rollbacks:
    """The rollbacks of a run so far.

    Args:
        path: The file that notes them.
        rollbacks: In the order in which they happened.
    """

    def __init__(self, path: str, rollbacks: Sequence[Rollback] = ()) -> None:
        self._path = path
        self._rollbacks = list(rollbacks)

    @classmethod
    def read(cls, run_dir: str) -> Self:
        """Those of a run's directory; none if it has no such file.

        Raises:
            UserError: If the file is damaged.
        """
        path = posixpath.join(run_dir, ROLLBACKS_FILE)
        stored = load_json_if_any(path)
        if stored is None:
            return cls(path)
        try:
            return cls(path, [Rollback(**values) for values in stored])
        except TypeError as error:
            raise UserError(
                f"{path} must hold the rollbacks of the run",
                received=str(error),
                remedy="Restore the file: the data of each step depends on it.",
            ) from None

    def __len__(self) -> int:
        return len(self._rollbacks)

    @property
    def newest(self) -> Rollback | None:
        """The last one, or None."""
        return self._rollbacks[-1] if self._rollbacks else None

    def have_undone(self, step: int, count: int) -> bool:
        """Whether what was made of a step is no more.

        Args:
            step: Updates made.
            count: Rollbacks that there had been then.
        """
        later = self._rollbacks[count:]
        return any(rollback.resumed_from < step for rollback in later)

    def add(self, rollback: Rollback, writes: bool = True) -> None:
        """Takes note of one.

        Args:
            rollback: What was decided.
            writes: Whether this process writes the file.
        """
        self._rollbacks.append(rollback)
        if writes:
            values = [dataclasses.asdict(r) for r in self._rollbacks]
            write_text(self._path, json.dumps(values, indent=2) + "\n")

    def skipped_steps(self, step: int, phase_start: int = 0) -> int:
        """Batches left out before the update made at `step`.

        Args:
            step: Updates made.
            phase_start: Where the phase of the data began. What diverged
                before it has no batches in it.
        """
        return sum(
            r.skipped_steps
            for r in self._rollbacks
            if r.resumed_from <= step and r.diverged_at > phase_start
        )

    def learning_rate_scale(self, step: int) -> float:
        """Factor of the learning rate of the update made at `step`."""
        return math.prod(
            r.learning_rate_scale
            for r in self._rollbacks
            if r.resumed_from <= step
        )

    def next_change(self, step: int) -> int | None:
        """The first step after `step` from which either is another.

        A run that goes on from a checkpoint older than a rollback's passes
        it again.
        """
        later = [
            r.resumed_from for r in self._rollbacks if r.resumed_from > step
        ]
        return min(later, default=None)

    def check_allowed(
        self, diverged_at: int, reason: str, config: TrainingConfig
    ) -> None:
        """Says whether there is to be a rollback.

        Args:
            diverged_at: Updates made when divergence was seen.
            reason: What was seen.
            config: The policy.

        Raises:
            UserError: If the run is to stop instead.
        """
        seen = f"{reason}, at step {diverged_at}"
        remedy = (
            "Lower --learning_rate (the paper's 0.00176 is for a batch of "
            "4096; scale it by the root of the batch) and start anew, or go "
            "on from the last checkpoint with --on_divergence=rollback."
        )
        if config.on_divergence == "stop":
            raise UserError(
                "the loss must stay finite and near its lowest",
                received=seen,
                remedy=remedy,
            )
        if len(self) >= config.max_rollbacks:
            earlier = "; ".join(
                f"{r.diverged_at} back to {r.resumed_from} ({r.reason})"
                for r in self._rollbacks
            )
            raise UserError(
                f"a run must diverge at most max_rollbacks="
                f"{config.max_rollbacks} times",
                received=f"{seen}, after rollbacks from {earlier}",
                remedy="Lower --learning_rate, start anew, or raise "
                "--max_rollbacks if that is what you want.",
            )

    def plan(
        self,
        diverged_at: int,
        resumed_from: int,
        reason: str,
        config: TrainingConfig,
    ) -> Rollback:
        """The way back to a checkpoint.

        Args:
            diverged_at: Updates made when divergence was seen.
            resumed_from: Updates of the checkpoint to go back to.
            reason: What was seen.
            config: The policy.
        """
        # An earlier rollback may lie between the two, with its own skip.
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
    loss: float,
    gradient_norm: float,
    lowest_loss: float | None,
    config: TrainingConfig,
) -> str:
    """Says why a run has diverged, or nothing if it has not.

    Args:
        loss: Mean over the steps since the last look, in nats. It is that of
            the weights before the last update.
        gradient_norm: Mean likewise: what the last update was made of.
        lowest_loss: The lowest such mean so far; None at first.
        config: Where divergence begins.
    """
    if not math.isfinite(loss + gradient_norm):
        return f"loss {loss} and gradient norm {gradient_norm}"
    allowed = config.divergence_loss_increase
    if lowest_loss is not None and allowed and loss > lowest_loss + allowed:
        return (
            f"loss {loss:.3f}, more than divergence_loss_increase="
            f"{allowed:g} above the lowest, {lowest_loss:.3f}"
        )
    return ""
