"""The batches of a run by step.

The batch of a step is a function of the seed, the step, and `rollbacks.json` in
the run directory, which lists the batches to skip:

    number of the batch = step + skipped batches
"""

import functools
from collections.abc import Callable
from typing import Any

from albert_tf.config import DataConfig
from albert_tf.input import pipeline
from albert_tf.input.record_format import RecordFormat, pretraining_format
from albert_tf.input.record_sets import RecordSet
from albert_tf.records.features import features_to_read


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
        records: RecordSet,
        config: DataConfig,
        seed: int,
        skipped: Any = None,
        format_of: Callable[[RecordSet], RecordFormat] | None = None,
    ) -> None:
        self._records = records
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
        if self._config.synthetic_input:
            return pipeline.synthetic_dataset(
                self._config,
                features_to_read("static", self._config.packing),
                self._format_of(self._records).limits,
            )
        return pipeline.training_dataset(
            self._records,
            self._config,
            self._seed,
            self.locate(step),
            self._format_of(self._records),
        )

    def locate(self, step: int) -> int:
        """The number of the batch of a step."""
        if self._skipped is None:
            return step
        return step + self._skipped.skipped_steps(step)

    def next_change(self, step: int) -> int | None:
        """First step after `step` with another stream; None if there is none.

        Or, after a rollback, with another scale of the learning rate.
        """
        if self._skipped is None:
            return None
        return self._skipped.next_change(step)
