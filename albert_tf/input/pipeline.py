"""Records -> batches, as a function of (seed, step).

The order of the records is a pure function of the seed: an epoch reads the
shards in a shuffled order, cuts the stream into blocks and shuffles each
block. Sets of records that a run joins are each read so, and alternate in
proportion to their sizes before the stream is cut. Step s takes records
[s * B, (s + 1) * B) of the endless stream, whatever the number of replicas,
hosts or restarts, so that a position is the step alone and nothing of the
pipeline need be saved. (Saved iterators were tried and fail under strategies.)
Two things that a run notes in its directory take part: rollbacks leave batches
out, and a damaged record is replaced by one of weight 0.

Records without masks (`--masking=dynamic` when built) are masked here, in the
graph of the host, with a key of the seed and the place in that stream: each
epoch anew, and alike wherever the run starts.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf

from albert_tf.cluster.strategy import per_replica_batch_size
from albert_tf.config import DataConfig, SequenceConfig
from albert_tf.input import tensor_ops
from albert_tf.input.record_sets import Records, features_to_read
from albert_tf.io.tfrecord import read_records
from albert_tf.records import features
from albert_tf.records.keyed_random import random_bits
from albert_tf.records.masking import mask_batch

# 8 MiB reads keep a gs:// stream busy.
READ_BUFFER_BYTES = 8 << 20

CHOICES_AT_A_TIME = 1024

Batch = Mapping[str, tf.Tensor]


def training_dataset(
    records: Records,
    config: DataConfig,
    seed: int,
    first_batch: int,
    damaged: Mapping[str, frozenset[int]],
) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
    """Batches of one replica, without end, from a batch of the stream on.

    Args:
        records: The shards.
        config: Batch size and lengths.
        seed: Seed of the record order and of dynamic masks.
        first_batch: Number of batches before the first one.
        damaged: Numbers of damaged records by file. Each is read as an example
            whose `input_mask` and `masked_lm_weights` are all 0, so that no
            other record moves.

    Returns:
        The argument of `strategy.distribute_datasets_from_function`. Elements
        are dictionaries of `FEATURES` except token_boundary, int32 or
        float32, of shape `(per_replica_batch_size, length)`.
    """

    def parse(serialized: tf.Tensor, positions: tf.Tensor) -> Batch:
        batch = parse_records(serialized, config, records.masking)
        if records.masking == "static":
            return batch
        seeds = tf.fill(positions.shape, tf.constant(seed, tf.uint64))
        keys = random_bits(seeds, positions, tensor_ops)
        return _mask(batch, keys, config, records)

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        stream = _shuffled_stream(
            records,
            config,
            seed,
            first_batch * config.global_batch_size,
            damaged,
        )
        batches = stream.batch(config.global_batch_size, drop_remainder=True)
        return _parse_share(
            batches.enumerate(first_batch),
            "global_batch_size",
            config.global_batch_size,
            parse,
            context,
        )

    return make


def evaluation_dataset(
    records: Records, config: DataConfig
) -> tuple[
    Callable[[tf.distribute.InputContext], tf.data.Dataset],
    int,
]:
    """Batches of one replica, each record once, in order.

    The last batch is filled with examples whose `input_mask` and
    `masked_lm_weights` are all 0.

    Returns:
        As `training_dataset`, and the number of batches.
    """
    batch_size = config.eval_batch_size
    num_batches = -(-records.num_examples // batch_size)
    if config.max_eval_steps:
        num_batches = min(num_batches, config.max_eval_steps)
    padding = _padding_example(config)

    def fill(batch: tf.Tensor) -> tf.Tensor:
        missing = batch_size - tf.shape(batch)[0]
        filled = tf.concat([batch, tf.fill([missing], padding)], axis=0)
        return tf.ensure_shape(filled, [batch_size])

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        batches = (
            tf.data.TFRecordDataset(
                list(records.files), buffer_size=READ_BUFFER_BYTES
            )
            .batch(batch_size)
            .take(num_batches)
            .map(fill)
            .enumerate()
        )
        return _parse_share(
            batches,
            "eval_batch_size",
            batch_size,
            lambda serialized, _: parse_records(serialized, config),
            context,
        )

    return make, num_batches


def parse_records(
    serialized: tf.Tensor, shape: SequenceConfig, masking: str = "static"
) -> Batch:
    """Parses serialized examples, those of google-research/albert too.

    Args:
        serialized: string, (batch,).
        shape: The lengths.
        masking: "static", or "dynamic" for records without masks.

    Returns:
        The features of such records, each (batch, length): int64 as int32,
        since TPUs have no int64, and float32. token_boundary serves masking
        and is read for dynamic masking alone.
    """
    parsed = tf.io.parse_example(
        serialized,
        {
            feature.name: tf.io.FixedLenFeature(
                [feature.length(shape)], tf.dtypes.as_dtype(feature.dtype)
            )
            for feature in features_to_read(masking)
        },
    )
    return {
        name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
        for name, value in parsed.items()
    }


def _mask(
    batch: Batch, keys: tf.Tensor, config: DataConfig, records: Records
) -> Batch:
    """Masks records that hold no masks; the batch is as of others then."""
    assert records.metadata is not None
    masked = mask_batch(
        batch["input_ids"],
        batch["token_boundary"],
        keys,
        vocab_size=records.metadata.vocab_size,
        max_predictions_per_seq=config.max_predictions_per_seq,
        masked_lm_prob=config.masked_lm_prob,
        ngram=config.ngram,
        ops=tensor_ops,
    )
    kept = {n: v for n, v in batch.items() if n != "token_boundary"}
    return {
        **kept,
        "input_ids": masked.input_ids,
        "masked_lm_positions": masked.positions,
        "masked_lm_ids": masked.ids,
        "masked_lm_weights": masked.weights,
    }


def shuffled_files(
    files: Sequence[str], seed: int, epoch: tf.Tensor | int
) -> tf.Tensor:
    """string, `(files,)`: a set's shards, in the order that an epoch reads."""
    return tf.random.experimental.stateless_shuffle(
        tf.constant(files), seed=_epoch_key(seed, epoch)
    )


def _epoch_key(seed: int, epoch: tf.Tensor | int) -> tf.Tensor:
    return tf.stack([tf.constant(seed, tf.int64), tf.cast(epoch, tf.int64)])


def _shuffled_stream(
    records: Records,
    config: DataConfig,
    seed: int,
    position: int,
    damaged: Mapping[str, frozenset[int]],
) -> tf.data.Dataset:
    """The endless stream of serialized records from a position on."""
    block_size = config.shuffle_block_size
    first_epoch, offset = divmod(position, records.num_examples)

    def shuffle_block(
        epoch: tf.Tensor, index: tf.Tensor, block: tf.Tensor
    ) -> tf.Tensor:
        key = tf.random.experimental.stateless_fold_in(
            _epoch_key(seed, epoch), index
        )
        return tf.random.experimental.stateless_shuffle(block, seed=key)

    def epoch_from(
        epoch: tf.Tensor,
        ordered_files: Sequence[tf.Tensor],
        skips: Sequence[int],
        first_block: int,
    ) -> tf.data.Dataset:
        sets = [
            _read_files(files, records, config, damaged).skip(skip)
            for files, skip in zip(ordered_files, skips, strict=True)
        ]
        return (
            _alternating(sets, records, first_block * block_size)
            .batch(block_size)
            .enumerate(start=first_block)
            .map(lambda index, block: shuffle_block(epoch, index, block))
            .unbatch()
        )

    # The first epoch starts within: whole shards are passed over by their
    # counts, without being read.
    epoch = tf.constant(first_epoch, tf.int64)
    first_block = offset // block_size
    skips = records.num_of_sets(first_block * block_size)
    count_of = dict(zip(records.files, records.counts, strict=True))
    ordered_files = []
    for index, files in enumerate(records.sets):
        remaining = shuffled_files(files, seed, epoch).numpy().tolist()
        # Of sets with few records the last block may need none.
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
    sets: Sequence[tf.data.Dataset], records: Records, position: int
) -> tf.data.Dataset:
    """Records of all sets, from a position of an epoch on.

    Args:
        sets: What is left of each there.
        records: Theirs.
        position: Of the epoch.
    """
    if len(sets) == 1:
        return sets[0]

    def choose(positions: tf.Tensor) -> tf.Tensor:
        before = tf.stack(records.num_of_sets(positions))
        after = tf.stack(records.num_of_sets(positions + 1))
        return tf.argmax(after - before)

    choices = (
        tf.data.Dataset.range(position, records.num_examples)
        .batch(CHOICES_AT_A_TIME)
        .map(choose)
        .unbatch()
    )
    return tf.data.Dataset.choose_from_datasets(sets, choices)


@tf.autograph.experimental.do_not_convert
def _read_files(
    files: tf.Tensor,
    records: Records,
    config: DataConfig,
    damaged: Mapping[str, frozenset[int]],
) -> tf.data.Dataset:
    """Serialized records of files, one after another.

    A shard that does not hold as many as its metadata says is an error: all
    that comes after it would move.
    """
    names, counts = tf.constant(records.files), tf.constant(records.counts)
    damaged_names = tf.constant(sorted(damaged), tf.string)

    def read(file: tf.Tensor) -> tf.data.Dataset:
        index = tf.argmax(tf.cast(file == names, tf.int32))
        count = tf.cast(counts[index], tf.int64)
        assert_count = tf.data.experimental.assert_cardinality(count)
        if not damaged:
            whole = tf.data.TFRecordDataset(file, None, READ_BUFFER_BYTES)
            return whole.apply(assert_count)
        # One of the two reads the file, the other none.
        is_damaged = tf.reduce_any(file == damaged_names)[tf.newaxis]
        one = tf.boolean_mask(file[tf.newaxis], ~is_damaged)
        other = tf.boolean_mask(file[tf.newaxis], is_damaged)
        whole = tf.data.TFRecordDataset(one, None, READ_BUFFER_BYTES)
        mended = tf.data.Dataset.from_generator(
            functools.partial(_read_damaged, records, config, damaged),
            output_signature=tf.TensorSpec((), tf.string),
            args=(other,),
        )
        return whole.concatenate(mended).apply(assert_count)

    return tf.data.Dataset.from_tensor_slices(files).flat_map(read)


def _read_damaged(
    records: Records,
    config: DataConfig,
    damaged: Mapping[str, frozenset[int]],
    files: Sequence[bytes],
) -> Iterator[bytes]:
    """As many records as files should have, with padding for damaged ones.

    Raises:
        ValueError: For one that is damaged and not known to be.
    """
    padding = _padding_example(config)
    for name in (file.decode() for file in files):
        known, count = damaged[name], records.count_of(name)
        read = 0
        with tf.io.gfile.GFile(name, "rb") as file:
            for record in itertools.islice(read_records(file), count):
                if record.fault and record.number not in known:
                    raise ValueError(f"{name}: {record.fault}")
                is_bad = record.number in known
                yield padding if is_bad else record.content
                read += 1
        for number in range(read, count):
            if number not in known:
                raise ValueError(f"{name} ends after {read} records")
            yield padding


def _parse_share(
    batches: tf.data.Dataset,
    name: str,
    batch_size: int,
    parse: Callable[[tf.Tensor, tf.Tensor], Batch],
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    """Cuts whole batches into replicas' shares and parses this host's.

    Args:
        batches: Pairs of a batch's number and its serialized records.
        name: The setting that holds the batch size.
        batch_size: Records in a batch.
        parse: Makes a replica's batch of its serialized records and their
            places in the stream, both `(per_replica_batch_size,)`.
        context: Replicas and hosts.
    """
    num_replicas = context.num_replicas_in_sync
    share = per_replica_batch_size(name, batch_size, num_replicas)
    local = num_replicas // context.num_input_pipelines
    first = context.input_pipeline_id * local

    def shares_of_this_host(
        number: tf.Tensor, batch: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        positions = number * batch_size + tf.range(batch_size, dtype=tf.int64)
        return tuple(
            tf.reshape(values, [num_replicas, share])[first : first + local]
            for values in (batch, positions)
        )

    options = tf.data.Options()
    options.deterministic = True
    # Every host reads all files and keeps its share: the order must not
    # depend on their number, and reading is cheaper than parsing.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF
    )
    return (
        batches.map(shares_of_this_host)
        .unbatch()
        .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
        .with_options(options)
    )


def _padding_example(shape: SequenceConfig) -> bytes:
    """A serialized record of zeros."""
    example = tf.train.Example()
    for feature in features.FEATURES:
        values = [0] * feature.length(shape)
        target = example.features.feature[feature.name]
        if feature.dtype == "float32":
            target.float_list.value.extend(values)
        else:
            target.int64_list.value.extend(values)
    return example.SerializeToString()
