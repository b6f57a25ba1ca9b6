"""The batches of a run by step.

The batch of a step is a function of the seed, the step, and `rollbacks.json` in
the run directory, which lists the batches to skip. Each phase of a run reads a
separate stream, from the beginning:

    number of the batch = step - first step of the phase + skipped batches
"""

import functools
from collections.abc import Callable
from typing import Any

from albert_tf.config import DataConfig
from albert_tf.input import pipeline
from albert_tf.input.record_format import RecordFormat, pretraining_format
from albert_tf.input.record_sets import Phase, RecordSet, TrainingData
from albert_tf.records.features import features_to_read

# Difference between the seeds of consecutive phases: 2^64 / golden ratio. It is
# also the step of the keyed random numbers, so phase p + 2 has the mask keys of
# phase p two positions later; their examples differ. Kept, since runs resume.
_GOLDEN = 0x9E3779B97F4A7C15


class BatchStream:
    """The batches of a run by step.

    Args:
        config: Batch size and lengths.
        seed: Seed of the record order and of dynamic masks.
        skipped: The `runs.rollback.Rollbacks` of the run; None skips no batch.
        format_of: Returns the format of a set of records; by default the
            format of pretraining.
    """

    def __init__(
        self,
        data: TrainingData,
        config: DataConfig,
        seed: int,
        skipped: Any = None,
        format_of: Callable[[RecordSet], RecordFormat] | None = None,
    ) -> None:
        self._data = data
        self._config = config
        self._seed = seed
        self._skipped = skipped
        self._format_of = format_of or functools.partial(
            pretraining_format, config=config
        )

    def open(self, step: int) -> pipeline.MakeDataset:
        """The stream from a step to `next_change(step)`.

        As a function that tf.distribute calls, which opens it.
        """
        phase, batch = self.locate(step)
        if self._config.synthetic_input:
            return pipeline.synthetic_dataset(
                self._config,
                features_to_read("static", self._config.packing),
                self._format_of(phase.records).limits,
            )
        return pipeline.training_dataset(
            phase.records,
            self._config,
            self._phase_seed(phase),
            batch,
            self._format_of(phase.records),
        )

    def locate(self, step: int) -> tuple[Phase, int]:
        """The records of a step, and the number of its batch in the phase."""
        phase = self._data.at(step)
        batch = step - phase.first_step
        if self._skipped is not None:
            batch += self._skipped.skipped_steps(step, phase.first_step)
        return phase, batch

    def next_change(self, step: int) -> int | None:
        """First step after `step` with another stream; None if there is none.

        Or, after a rollback, with another scale of the learning rate.
        """
        changes = [self._data.next_change(step)]
        if self._skipped is not None:
            changes.append(self._skipped.next_change(step))
        return min((c for c in changes if c is not None), default=None)

    def _phase_seed(self, phase: Phase) -> int:
        """The seed of a phase's stream; the first phase has the run's seed."""
        index = self._data.phases.index(phase)
        return (self._seed + index * _GOLDEN) % 2**63
