"""The batches of a run by step.

The batch of step s is batch s of an endless stream, which is a function of the
seed.
"""

import functools
from collections.abc import Callable

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
        format_of: Returns the format of a set of records; by default the
            format of pretraining.
    """

    def __init__(
        self,
        records: RecordSet,
        config: DataConfig,
        seed: int,
        format_of: Callable[[RecordSet], RecordFormat] | None = None,
    ) -> None:
        self._records = records
        self._config = config
        self._seed = seed
        self._format_of = format_of or functools.partial(
            pretraining_format, config=config
        )

    def open(self, step: int) -> pipeline.MakeDataset:
        """The stream from a step on, as a function that opens it."""
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
            step,
            self._format_of(self._records),
        )
