"""Records -> batches, as a function of (seed, step).

The order of the records is a pure function of the seed: an epoch reads the
shards in a shuffled order, cuts the stream into blocks and shuffles each
block. Step s takes records [s * B, (s + 1) * B) of the endless stream,
whatever the number of replicas, hosts or restarts, so that a position is
the step alone and nothing of the pipeline need be saved. (Saved iterators
were tried and fail under strategies.)
"""

import dataclasses
import posixpath
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from absl import logging

from albert_tf import features
from albert_tf.config import DataConfig, PretrainingConfig, SequenceConfig
from albert_tf.distribution import per_replica_batch_size
from albert_tf.errors import UserError

# 8 MiB reads keep a gs:// stream busy.
READ_BUFFER_BYTES = 8 << 20

Batch = Mapping[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Records:
    """Shards and what is known of them.

    Attributes:
        files: Paths, sorted.
        counts: Records in each file.
        metadata: Of the first directory; None for records that
            google-research/albert made.
        directory: Where `metadata` was read.
    """

    files: tuple[str, ...]
    counts: tuple[int, ...]
    metadata: features.RecordsMetadata | None
    directory: str

    @property
    def num_examples(self) -> int:
        """Records in all files."""
        return sum(self.counts)


def find_records(
    name: str, patterns: Sequence[str], config: PretrainingConfig
) -> Records:
    """Finds shards, reads their metadata and checks it against the run.

    Args:
        name: The setting that holds the patterns.
        patterns: Files or globs.
        config: The run.

    Raises:
        UserError: If no file matches, a file is not in its metadata, or
            lengths, vocabulary or sentence objective differ.
    """
    files = []
    for pattern in patterns:
        matches = tf.io.gfile.glob(pattern)
        if not matches:
            raise UserError(
                f"{name} must match files",
                received=f"no file at {pattern}",
                remedy="Build records with python -m "
                "data_prep.build_tfrecords.",
            )
        files += matches
    files = sorted(set(files))
    metadata_of = {
        directory: _metadata_of(directory)
        for directory in sorted({posixpath.dirname(file) for file in files})
    }
    for directory, metadata in metadata_of.items():
        if metadata is not None:
            _check_metadata(directory, metadata, config)
    hashes = {m.vocabulary_sha256 for m in metadata_of.values() if m}
    if len(hashes) > 1:
        raise UserError(
            f"{name} must hold records of one vocabulary",
            received=f"vocabularies with sha256 {', '.join(sorted(hashes))}",
        )
    counts = tuple(
        _count_records(file, metadata_of[posixpath.dirname(file)], config.data)
        for file in files
    )
    if not sum(counts):
        raise UserError(f"{name} must hold records", received="none at all")
    directory, metadata = next(iter(metadata_of.items()))
    return Records(tuple(files), counts, metadata, directory)


def check_same_vocabulary(train: Records, held_out: Records) -> None:
    """Refuses held-out records of another vocabulary.

    Raises:
        UserError: With both digests.
    """
    if train.metadata and held_out.metadata:
        features.check_agreement(
            held_out.directory,
            dataclasses.asdict(held_out.metadata),
            {"vocabulary_sha256": train.metadata.vocabulary_sha256},
        )


def training_dataset(
    records: Records, config: DataConfig, seed: int, start_step: int
) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
    """Batches of one replica, from a step on, without end.

    Returns:
        What `strategy.distribute_datasets_from_function` takes. Elements
        are dictionaries of `FEATURES` but token_boundary, int32 or
        float32, of shape (per_replica_batch_size, length).
    """

    def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
        stream = _shuffled_stream(
            records,
            config.shuffle_block_size,
            seed,
            start_step * config.global_batch_size,
        )
        batches = stream.batch(config.global_batch_size, drop_remainder=True)
        return _parse_share(
            batches,
            "global_batch_size",
            config.global_batch_size,
            config,
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
        )
        return _parse_share(
            batches, "eval_batch_size", batch_size, config, context
        )

    return make, num_batches


def parse_records(serialized: tf.Tensor, shape: SequenceConfig) -> Batch:
    """Parses serialized examples, those of google-research/albert too.

    Args:
        serialized: string, (batch,).
        shape: The lengths.

    Returns:
        `FEATURES` but token_boundary, each (batch, length): int64 as
        int32, since TPUs have no int64, and float32.
    """
    parsed = tf.io.parse_example(
        serialized,
        {
            feature.name: tf.io.FixedLenFeature(
                [feature.length(shape)], tf.dtypes.as_dtype(feature.dtype)
            )
            for feature in features.FEATURES
            if feature.name != "token_boundary"
        },
    )
    return {
        name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
        for name, value in parsed.items()
    }


def _metadata_of(directory: str) -> features.RecordsMetadata | None:
    path = posixpath.join(directory, features.METADATA_FILE)
    if not tf.io.gfile.exists(path):
        logging.warning(
            "%s has no %s: its records are taken for those of "
            "google-research/albert, and their vocabulary is not checked",
            directory or ".",
            features.METADATA_FILE,
        )
        return None
    return features.read_metadata(directory)


def _check_metadata(
    directory: str,
    metadata: features.RecordsMetadata,
    config: PretrainingConfig,
) -> None:
    wanted: dict[str, object] = {
        "max_seq_length": config.data.max_seq_length,
        "max_predictions_per_seq": config.data.max_predictions_per_seq,
        "vocab_size": config.model.vocab_size,
    }
    if config.training.sentence_objective != "none":
        wanted["sentence_objective"] = config.training.sentence_objective
    features.check_agreement(
        posixpath.join(directory, features.METADATA_FILE),
        dataclasses.asdict(metadata),
        wanted,
    )


def _count_records(
    file: str,
    metadata: features.RecordsMetadata | None,
    config: DataConfig,
) -> int:
    if metadata is not None:
        try:
            return metadata.shards[posixpath.basename(file)]
        except KeyError:
            raise UserError(
                f"{features.METADATA_FILE} beside {file} must list it",
                received=", ".join(metadata.shards),
                remedy="Narrow the glob to the shards of one build.",
            ) from None
    dataset = tf.data.TFRecordDataset(file, buffer_size=READ_BUFFER_BYTES)
    for first in dataset.batch(1).take(1):
        try:
            parse_records(first, config)
        except tf.errors.InvalidArgumentError as error:
            raise UserError(
                f"{file} must hold records of max_seq_length "
                f"{config.max_seq_length} and max_predictions_per_seq "
                f"{config.max_predictions_per_seq}",
                received=str(error.message).splitlines()[0],
                remedy="Set both flags to the lengths of the records.",
            ) from None
    return int(dataset.reduce(0, lambda count, _: count + 1))


def _shuffled_stream(
    records: Records, block_size: int, seed: int, position: int
) -> tf.data.Dataset:
    """The endless stream of serialized records from a position on."""
    files = tf.constant(records.files)
    first_epoch, offset = divmod(position, records.num_examples)

    def shuffled_files(epoch: tf.Tensor) -> tf.Tensor:
        return tf.random.experimental.stateless_shuffle(
            files, seed=tf.stack([tf.cast(seed, tf.int64), epoch])
        )

    def shuffle_block(
        epoch: tf.Tensor, index: tf.Tensor, block: tf.Tensor
    ) -> tf.Tensor:
        key = tf.random.experimental.stateless_fold_in(
            tf.stack([tf.cast(seed, tf.int64), epoch]), index
        )
        return tf.random.experimental.stateless_shuffle(block, seed=key)

    def epoch_from(
        epoch: tf.Tensor,
        ordered_files: tf.Tensor,
        skip: int,
        first_block: int,
    ) -> tf.data.Dataset:
        return (
            tf.data.TFRecordDataset(
                ordered_files, buffer_size=READ_BUFFER_BYTES
            )
            .skip(skip)
            .batch(block_size)
            .enumerate(start=first_block)
            .map(lambda index, block: shuffle_block(epoch, index, block))
            .unbatch()
        )

    # The first epoch starts within: whole shards are passed over by their
    # counts, without being read.
    epoch = tf.constant(first_epoch, tf.int64)
    first_block = offset // block_size
    to_skip = first_block * block_size
    count_of = dict(zip(records.files, records.counts, strict=True))
    remaining = [name.decode() for name in shuffled_files(epoch).numpy()]
    while to_skip >= count_of[remaining[0]]:
        to_skip -= count_of[remaining.pop(0)]
    rest_of_epoch = epoch_from(epoch, remaining, to_skip, first_block).skip(
        offset % block_size
    )
    later_epochs = tf.data.Dataset.range(
        first_epoch + 1, tf.int64.max
    ).flat_map(lambda epoch: epoch_from(epoch, shuffled_files(epoch), 0, 0))
    return rest_of_epoch.concatenate(later_epochs)


def _parse_share(
    batches: tf.data.Dataset,
    name: str,
    batch_size: int,
    config: DataConfig,
    context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    """Cuts whole batches into replicas' shares and parses this host's."""
    num_replicas = context.num_replicas_in_sync
    share = per_replica_batch_size(name, batch_size, num_replicas)
    local = num_replicas // context.num_input_pipelines
    first = context.input_pipeline_id * local

    def shares_of_this_host(batch: tf.Tensor) -> tf.Tensor:
        shares = tf.reshape(batch, [num_replicas, share])
        return shares[first : first + local]

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
        .map(
            lambda serialized: parse_records(serialized, config),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
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
