"""Batches of records, as a function of a seed and the number of the batch.

The seed, the shards, `--shuffle_block_size` and `--input_lanes` determine the
order of the records. An epoch reads the shards in a shuffled order, divides the
stream into blocks, and shuffles each block. If the shards are in several
directories, those of each are shuffled, and their records alternate, in
proportion to the sizes of the directories, before the stream is divided into
blocks.

With global batches of B records, batch n holds records [n * B, (n + 1) * B) of
the endless stream. With `--input_lanes` above 1, there are several such streams
over separate shards, the lanes; lane k of W fills rows [k * B / W, (k + 1) * B
/ W) of each batch, and a host reads only the lanes whose rows its replicas use.
The batch does not depend on the number of replicas, hosts or restarts. So a
checkpoint needs no state of the pipeline. (Iterators cannot be saved under
strategies.)
"""

import os
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from albert_tf.config import DataConfig, PretrainingConfig
from albert_tf.input.record_format import (
    Batch,
    RecordFormat,
    padding_example,
    parse_records,
)
from albert_tf.input.record_sets import RecordSet
from albert_tf.records.features import TOKEN_LABELS, features_to_read

# 8 MiB reads keep a gs:// stream busy. A host that reads many lanes at the same
# time uses smaller buffers.
READ_BUFFER_BYTES = 8 << 20
SMALLEST_BUFFER_BYTES = 1 << 20

# Per-replica batches parsed at the same time.
PARALLEL_PARSE_CALLS = min(16, os.cpu_count() or 1)

# Difference between the seeds of consecutive lanes.
_LANE_KEY = 0xD1B54A32D192ED03

CHOICES_AT_A_TIME = 1024

# So many synthetic records that no run reaches the end of an epoch.
SYNTHETIC_RECORDS = RecordSet({"synthetic_input": 2**40})

# The argument of `strategy.distribute_datasets_from_function`. An element of
# the dataset is one replica's batch.
MakeDataset: TypeAlias = Callable[[tf.distribute.InputContext], tf.data.Dataset]


def training_dataset(
    records: RecordSet,
    config: PretrainingConfig,
    record_format: RecordFormat,
    first_batch: int = 0,
) -> MakeDataset:
    """Returns the endless training batches, from those of a step on.

    Elements are dictionaries of features, int32 or float32, of shape
    `(per_replica_batch_size, length)`. With `synthetic_input`, they are all the
    same batch of random numbers.

    Args:
        config: Batch size, lengths, and the seed of the record order and of
            dynamic masks.
        record_format: That of `records`.
        first_batch: Number of the batch with which the dataset begins.
    """
    data, seed = config.data, config.training.seed
    if data.synthetic_input:
        return _synthetic_dataset(config)

    @tf.autograph.experimental.do_not_convert
    def parse(serialized: tf.Tensor, positions: tf.Tensor) -> Batch:
        batch = parse_records(serialized, record_format.features, data)
        if record_format.finish is None:
            return batch
        return record_format.finish(batch, positions, seed)

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        batch_size = data.global_batch_size
        rows = _rows_of_host(batch_size, context)
        width = batch_size // data.input_lanes
        lanes = range(rows.start // width, -(-rows.stop // width))
        buffer_bytes = max(
            READ_BUFFER_BYTES // len(lanes), SMALLEST_BUFFER_BYTES
        )
        # In threads of their own: one thread reads about 100,000 records/s.
        parts = [
            shuffled_stream(
                records, data, seed, lane, first_batch * width, buffer_bytes
            )
            .batch(width, drop_remainder=True)
            .prefetch(1)
            for lane in lanes
        ]
        batches = tf.data.Dataset.zip(*parts).map(
            lambda *parts: tf.concat(parts, axis=0)
        )
        batches = batches.enumerate(first_batch)
        first_row = lanes.start * width
        return _parse_per_replica(
            batches, batch_size, parse, context, first_row
        )

    return make


def evaluation_dataset(
    records: RecordSet, config: DataConfig, record_format: RecordFormat
) -> tuple[MakeDataset, int]:
    """Returns the evaluation batches, and the number of global batches.

    Each record of the first `max_eval_steps` batches, or of all batches if it
    is 0, occurs once, in the order of the files. Records of zeros fill the last
    batch.
    """
    batch_size = config.eval_batch_size
    num_batches = -(-records.num_records // batch_size)
    if config.max_eval_steps:
        num_batches = min(num_batches, config.max_eval_steps)
    padding = padding_example(record_format.features, config)

    @tf.autograph.experimental.do_not_convert
    def fill(batch: tf.Tensor) -> tf.Tensor:
        missing = batch_size - tf.shape(batch)[0]
        filled = tf.concat([batch, tf.fill([missing], padding)], axis=0)
        return tf.ensure_shape(filled, [batch_size])

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        batches = (
            _read_files(records, READ_BUFFER_BYTES, tf.constant(records.files))
            .batch(batch_size)
            .take(num_batches)
            .map(fill)
            .enumerate()
        )
        return _parse_per_replica(
            batches,
            batch_size,
            lambda serialized, _: parse_records(
                serialized, record_format.features, config
            ),
            context,
        )

    return make, num_batches


def _synthetic_dataset(config: PretrainingConfig) -> MakeDataset:
    """Returns one batch of random numbers, again and again.

    The devices do the same work as on real records, and never wait for input.
    """
    data, num_labels = config.data, config.num_token_labels
    limits = {
        "input_ids": config.model.vocab_size,
        "masked_lm_positions": data.max_seq_length,
        "masked_lm_ids": config.model.vocab_size,
        TOKEN_LABELS: num_labels,
    }

    def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        rows = context.get_per_replica_batch_size(data.global_batch_size)
        random = np.random.default_rng(0)
        batch = {}
        for feature in features_to_read("static", data.packing, num_labels > 0):
            shape = rows, feature.length(data)
            if feature.dtype == "float32" or feature.name == "input_mask":
                # Every position holds a token, and every slot counts.
                values = np.ones(shape)
            else:
                limit = limits.get(feature.name, 2)
                values = random.integers(limit, size=shape)
            dtype = np.float32 if feature.dtype == "float32" else np.int32
            batch[feature.name] = values.astype(dtype)
        batches = tf.data.Dataset.from_tensors(batch).repeat()
        return _without_autotuning(batches)

    return dataset


def _shards_from(
    shards: Sequence[tuple[str, int]], position: int, key: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The shards of a directory that an epoch reads, from a record on.

    Returns:
        Their paths in shuffled order, string, and the number of records of the
        first one to skip, int64.
    """
    files = tf.constant([file for file, _ in shards], tf.string)
    sizes = tf.constant([size for _, size in shards], tf.int64)
    order = tf.random.experimental.stateless_shuffle(tf.range(len(shards)), key)
    files, sizes = tf.gather(files, order), tf.gather(sizes, order)
    # Shards that end before the position are not read.
    is_left = tf.cumsum(sizes) > position
    skipped = tf.reduce_sum(tf.where(is_left, tf.zeros_like(sizes), sizes))
    return tf.boolean_mask(files, is_left), position - skipped


def shuffled_stream(
    records: RecordSet,
    config: DataConfig,
    seed: int,
    lane: int,
    position: int,
    buffer_bytes: int = READ_BUFFER_BYTES,
) -> tf.data.Dataset:
    """Returns the endless stream of serialized records of a lane.

    Args:
        lane: Its number, from 0; one of `config.input_lanes`.
        position: Number of the record of the lane to begin with.
    """
    records = records.lane(lane, config.input_lanes)
    block_size = max(config.shuffle_block_size // config.input_lanes, 1)
    seed = (seed + lane * _LANE_KEY) % 2**63 if lane else seed
    first_epoch, offset = divmod(position, records.num_records)

    @tf.autograph.experimental.do_not_convert
    def epoch_from(epoch: tf.Tensor, first_block: int = 0) -> tf.data.Dataset:
        epoch_key = tf.stack([tf.constant(seed, tf.int64), epoch])

        def shuffle(index: tf.Tensor, block: tf.Tensor) -> tf.Tensor:
            key = tf.random.experimental.stateless_fold_in(epoch_key, index)
            return tf.random.experimental.stateless_shuffle(block, seed=key)

        begin = first_block * block_size
        sets = []
        for paths, number in zip(
            records.files_by_directory,
            records.num_by_directory(begin),
            strict=True,
        ):
            shards = [(path, records.counts[path]) for path in paths]
            left, skipped = _shards_from(shards, number, epoch_key)
            sets.append(_read_files(records, buffer_bytes, left).skip(skipped))
        return (
            _alternating(sets, records, begin)
            .batch(block_size)
            .enumerate(start=first_block)
            .map(shuffle)
            .unbatch()
        )

    # The first epoch begins at `offset`.
    first_block, skip = divmod(offset, block_size)
    rest_of_epoch = epoch_from(tf.constant(first_epoch, tf.int64), first_block)
    later_epochs = tf.data.Dataset.range(
        first_epoch + 1, tf.int64.max
    ).flat_map(epoch_from)
    return rest_of_epoch.skip(skip).concatenate(later_epochs)


def _alternating(
    sets: Sequence[tf.data.Dataset], records: RecordSet, position: int
) -> tf.data.Dataset:
    """Alternates between the records of all sets, from `position` on."""
    if len(sets) == 1:
        return sets[0]

    def choose(positions: tf.Tensor) -> tf.Tensor:
        before = tf.stack(records.num_by_directory(positions))
        after = tf.stack(records.num_by_directory(positions + 1))
        return tf.argmax(after - before)

    choices = (
        tf.data.Dataset.range(position, records.num_records)
        .batch(CHOICES_AT_A_TIME)
        .map(choose)
        .unbatch()
    )
    return tf.data.Dataset.choose_from_datasets(sets, choices)


@tf.autograph.experimental.do_not_convert
def _read_files(
    records: RecordSet, buffer_bytes: int, files: tf.Tensor
) -> tf.data.Dataset:
    """Reads the serialized records of files, one file after another.

    It is an error if the number of records in a shard differs from its
    metadata: all later records of the stream would change positions, and an
    evaluation would count other records.
    """
    names = tf.constant(records.files)
    counts = tf.constant(list(records.counts.values()))

    def read(file: tf.Tensor) -> tf.data.Dataset:
        index = tf.argmax(tf.cast(file == names, tf.int32))
        count = tf.cast(counts[index], tf.int64)
        return tf.data.TFRecordDataset(file, None, buffer_bytes).apply(
            tf.data.experimental.assert_cardinality(count)
        )

    return tf.data.Dataset.from_tensor_slices(files).flat_map(read)


def _parse_per_replica(
    batches: tf.data.Dataset,
    batch_size: int,
    parse: Callable[[tf.Tensor, tf.Tensor], Batch],
    context: tf.distribute.InputContext,
    first_row: int = 0,
) -> tf.data.Dataset:
    """Splits global batches among replicas and parses those of this host.

    Args:
        batches: Pairs of the number of a batch and its serialized records, from
            `first_row` on.
        parse: Parses serialized records with their numbers, batch number *
            batch_size + row, both `(per_replica_batch_size,)`.
    """
    rows = _rows_of_host(batch_size, context)
    per_replica = batch_size // context.num_replicas_in_sync
    records_of_host = slice(rows.start - first_row, rows.stop - first_row)

    @tf.autograph.experimental.do_not_convert
    def replicas_of_this_host(
        number: tf.Tensor, batch: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        positions = number * batch_size + tf.range(
            rows.start, rows.stop, dtype=tf.int64
        )
        return tuple(
            tf.reshape(values, [-1, per_replica])
            for values in (batch[records_of_host], positions)
        )

    options = tf.data.Options()
    options.deterministic = True
    # Each host selects the shards that it reads and keeps the batches of its
    # replicas, so the order does not depend on the number of hosts.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    # Without autotuning, the number of parallel calls is fixed; `prefetch`
    # still enlarges an empty buffer.
    return _without_autotuning(
        batches.map(replicas_of_this_host)
        .unbatch()
        .map(parse, num_parallel_calls=PARALLEL_PARSE_CALLS)
        .prefetch(tf.data.AUTOTUNE)
        .with_options(options)
    )


def _rows_of_host(
    batch_size: int, context: tf.distribute.InputContext
) -> range:
    """The rows of a global batch that the replicas of this host use."""
    per_host = batch_size // context.num_input_pipelines
    first = context.input_pipeline_id * per_host
    return range(first, first + per_host)


def _without_autotuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Turns off the tuning thread of the dataset's iterators.

    The thread sleeps for up to a minute at a time. When an iterator is
    destroyed, TensorFlow wakes the thread before it marks the iterator as
    cancelled (`CancellationManager::StartCancel` and `Model::OptimizeLoop`), so
    in about a third of all cases the thread goes back to sleep. The destructor,
    which blocks all of Python, then waits for the rest of the minute.
    tf.distribute adds iterators of its own, which keep their threads.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


# Settings, beside the seed, that change the order of the records.
_ORDER_SETTINGS = ("shuffle_block_size", "input_lanes")


def describe_reread(
    before: DataConfig, after: DataConfig, *, same_seed: bool, step: int
) -> str:
    """What a run reads again or leaves out with other settings; "" if nothing.

    The position of a run in its records is a function of the step and of the
    settings of now: record `step * global_batch_size` of their order.

    Args:
        before: Settings until now.
        after: Settings from `step` on.
        same_seed: Whether the seed of the record order is the same.
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
    if not has_same_order:
        return (
            f"{moved}, in another order: some records of this epoch are left "
            "out, and some are read again"
        )
    left_out, again = max(position - read, 0), max(read - position, 0)
    return f"{moved}: {left_out:,} are left out, {again:,} are read again"
