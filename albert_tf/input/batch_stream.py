"""The batches of a run by step.

The batch of step s is batch s of an endless stream, which is a function of the
seed.
"""

from albert_tf.config import DataConfig
from albert_tf.input import pipeline
from albert_tf.input.record_format import RecordFormat
from albert_tf.input.record_sets import RecordSet
from albert_tf.records.features import TOKEN_LABELS, features_to_read


class BatchStream:
    """The batches of a run by step.

    Args:
        config: Batch size and lengths.
        seed: Seed of the record order and of dynamic masks.
        record_format: That of `records`.
    """

    def __init__(
        self,
        records: RecordSet,
        config: DataConfig,
        seed: int,
        record_format: RecordFormat,
    ) -> None:
        self._records = records
        self._config = config
        self._seed = seed
        self._format = record_format

    def open(self, step: int) -> pipeline.MakeDataset:
        """The stream from a step on, as a function that opens it."""
        if self._config.synthetic_input:
            limits = self._format.limits
            has_labels = TOKEN_LABELS in limits
            return pipeline.synthetic_dataset(
                self._config,
                features_to_read("static", self._config.packing, has_labels),
                limits,
            )
        return pipeline.training_dataset(
            self._records, self._config, self._seed, step, self._format
        )


# Settings, beside the seed, that change the order of the records.
_ORDER_SETTINGS = ("shuffle_block_size", "input_lanes")


def describe_reread(
    before: DataConfig,
    after: DataConfig,
    *,
    same_seed: bool,
    step: int,
    num_records: int,
) -> str:
    """What a run reads again or leaves out with other settings; "" if nothing.

    The position of a run in its records is a function of the step and of the
    settings of now: record `step * global_batch_size` of their order.

    Args:
        before: Settings until now.
        after: Settings from `step` on.
        same_seed: Whether the seed of the record order is the same.
        num_records: Number of records of an epoch.
    """
    read = step * before.global_batch_size
    position = step * after.global_batch_size
    has_same_order = same_seed and all(
        getattr(before, name) == getattr(after, name)
        for name in _ORDER_SETTINGS
    )
    if has_same_order and read == position:
        return ""
    moved = (
        f"reading goes on at record {position:,}, after {read:,} records have "
        "been read"
    )
    if has_same_order:
        left_out, again = max(position - read, 0), max(read - position, 0)
        return f"{moved}: {left_out:,} are left out, {again:,} are read again"
    # In another order, each record has been read with the same probability.
    read_share = (read % num_records) / num_records
    position_share = (position % num_records) / num_records
    again = round(num_records * (1 - position_share) * read_share)
    left_out = round(num_records * position_share * (1 - read_share))
    return (
        f"{moved}, in another order: of this epoch, about {left_out:,} are "
        f"left out, about {again:,} are read again"
    )
