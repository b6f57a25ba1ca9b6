"""Lanes: endless streams of shuffled records; each fills a part of the batch.

`pipeline` describes the order of the records.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from albert_tf.config import DataConfig
from albert_tf.input.record_sets import RecordSet

# Difference between the seeds of consecutive lanes.
_LANE_KEY = 0xD1B54A32D192ED03

CHOICES_AT_A_TIME = 1024


class Lane(NamedTuple):
    """A stream of records that fills a part of each batch.

    Attributes:
        records: Its shards.
        seed: Seed of its order.
        block_size: Number of consecutive records that are shuffled together.
        width: Number of records that the lane adds to each batch.
    """

    records: RecordSet
    seed: int
    block_size: int
    width: int

    @classmethod
    def of(
        cls, lane: int, records: RecordSet, config: DataConfig, seed: int
    ) -> "Lane":
        """Lane number `lane`, from 0, of `config.input_lanes`."""
        number = config.input_lanes
        return cls(
            records.lane(lane, number),
            (seed + lane * _LANE_KEY) % 2**63 if lane else seed,
            max(config.shuffle_block_size // number, 1),
            config.global_batch_size // number,
        )

    def shards_between(self, first: int, last: int) -> Iterator[str]:
        """Yields the shards of the lane's records number `first` to `last`.

        The stream reads complete blocks.
        """
        records, seed, block_size, _ = self
        size = records.num_records
        for epoch in range(first // size, last // size + 1):
            begin = max(first - epoch * size, 0) // block_size * block_size
            end = min(last - epoch * size + block_size, size)
            for files, skipped, read in zip(
                records.sets,
                records.num_of_sets(begin),
                records.num_of_sets(end),
                strict=True,
            ):
                position = 0
                for name in shuffled_files(files, seed, epoch).numpy():
                    file = name.decode()
                    start = position
                    position += records.count_of(file)
                    if position > skipped and start < read:
                        yield file


def shuffled_files(
    files: Sequence[str], seed: int, epoch: tf.Tensor | int
) -> tf.Tensor:
    """Returns the shards of a set in the order of an epoch; string."""
    return tf.random.experimental.stateless_shuffle(
        tf.constant(files), seed=_epoch_key(seed, epoch)
    )


def shuffled_stream(
    lane: Lane,
    position: int,
    read_files: Callable[[tf.Tensor], tf.data.Dataset],
) -> tf.data.Dataset:
    """Returns the endless stream of serialized records from `position` on."""
    records, seed, block_size, _ = lane
    first_epoch, offset = divmod(position, records.num_records)

    def shuffle_block(
        epoch: tf.Tensor, index: tf.Tensor, block: tf.Tensor
    ) -> tf.Tensor:
        key = tf.random.experimental.stateless_fold_in(
            _epoch_key(seed, epoch), index
        )
        return tf.random.experimental.stateless_shuffle(block, seed=key)

    @tf.autograph.experimental.do_not_convert
    def epoch_from(
        epoch: tf.Tensor,
        ordered_files: Sequence[tf.Tensor],
        skips: Sequence[int],
        first_block: int,
    ) -> tf.data.Dataset:
        sets = [
            read_files(files).skip(skip)
            for files, skip in zip(ordered_files, skips, strict=True)
        ]
        return (
            _alternating(sets, records, first_block * block_size)
            .batch(block_size)
            .enumerate(start=first_block)
            .map(lambda index, block: shuffle_block(epoch, index, block))
            .unbatch()
        )

    # The first epoch begins at `offset`. Shards that end before it are skipped
    # by their counts, without reading them.
    epoch = tf.constant(first_epoch, tf.int64)
    first_block = offset // block_size
    skips = records.num_of_sets(first_block * block_size)
    count_of = dict(zip(records.files, records.counts, strict=True))
    ordered_files = []
    for index, files in enumerate(records.sets):
        remaining = shuffled_files(files, seed, epoch).numpy().tolist()
        # A small set may have no records left for the last block.
        while remaining and skips[index] >= count_of[remaining[0].decode()]:
            skips[index] -= count_of[remaining.pop(0).decode()]
        ordered_files.append(tf.constant(remaining, tf.string))
    rest_of_epoch = epoch_from(epoch, ordered_files, skips, first_block).skip(
        offset % block_size
    )
    later_epochs = tf.data.Dataset.range(
        first_epoch + 1, tf.int64.max
    ).flat_map(
        lambda epoch: epoch_from(
            epoch,
            [shuffled_files(files, seed, epoch) for files in records.sets],
            [0] * len(records.sets),
            0,
        )
    )
    return rest_of_epoch.concatenate(later_epochs)


def _alternating(
    sets: Sequence[tf.data.Dataset], records: RecordSet, position: int
) -> tf.data.Dataset:
    """Alternates between the records of all sets, from a position on.

    Args:
        sets: The records of each set from this position on.
        position: Number of records of the epoch before this position.
    """
    if len(sets) == 1:
        return sets[0]

    def choose(positions: tf.Tensor) -> tf.Tensor:
        before = tf.stack(records.num_of_sets(positions))
        after = tf.stack(records.num_of_sets(positions + 1))
        return tf.argmax(after - before)

    choices = (
        tf.data.Dataset.range(position, records.num_records)
        .batch(CHOICES_AT_A_TIME)
        .map(choose)
        .unbatch()
    )
    return tf.data.Dataset.choose_from_datasets(sets, choices)


def _epoch_key(seed: int, epoch: tf.Tensor | int) -> tf.Tensor:
    return tf.stack([tf.constant(seed, tf.int64), tf.cast(epoch, tf.int64)])
