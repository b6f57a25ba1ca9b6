"""Records -> batches, as a function of (seed, step).

The order of the records is a pure function of the seed: an epoch reads the
shards in a shuffled order, cuts the stream into blocks and shuffles each
block. Step s takes records [s * B, (s + 1) * B) of the endless stream,
whatever the number of replicas, hosts or restarts, so that a position is
the step alone and nothing of the pipeline need be saved. (Saved iterators
were tried and fail under strategies.)

Records without masks (`--masking=dynamic` when built) are masked here, in the
graph of the host, with a key of the seed and the place in that stream: each
epoch anew, and alike wherever the run starts.
"""

import dataclasses
import posixpath
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from absl import logging
from tqdm import tqdm

from albert_tf import features, tensor_ops
from albert_tf.config import DataConfig, PretrainingConfig, SequenceConfig
from albert_tf.distribution import per_replica_batch_size
from albert_tf.errors import UserError
from albert_tf.keyed_random import random_bits
from albert_tf.masking import mask_batch

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
    def masking(self) -> str:
        """Either "static", or "dynamic" for records without masks."""
        return self.metadata.masking if self.metadata else "static"

    @property
    def num_examples(self) -> int:
        """Records in all files."""
        return sum(self.counts)

    def text_settings(self) -> dict[str, object]:
        """What other records must share for pieces to mean the same.

        Nothing is known, and nothing asked, of records without metadata.
        """
        if self.metadata is None:
            return {}
        return {
            "vocabulary_sha256": self.metadata.vocabulary_sha256,
            "do_lower_case": self.metadata.do_lower_case,
        }


def find_records(
    name: str, patterns: Sequence[str], config: PretrainingConfig
) -> Records:
    """Finds shards, reads their metadata and checks it against the run.

    No device is touched, so that it may come before a strategy is made.

    Args:
        name: The setting that holds the patterns.
        patterns: Files or globs.
        config: The run.

    Raises:
        UserError: If no file matches, a build has not ended, a file is not
            in its metadata, lengths, vocabulary, lower-casing or sentence
            objective differ, or some hold masks and others none.
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
    unlisted = [f for f in files if metadata_of[posixpath.dirname(f)] is None]
    counts = tuple(
        _count_records(file, config.data)
        if metadata is None
        else _listed_count(file, metadata)
        for file, metadata in (
            (file, metadata_of[posixpath.dirname(file)])
            for file in tqdm(
                files, desc="counting records", disable=not unlisted
            )
        )
    )
    if not sum(counts):
        raise UserError(f"{name} must hold records", received="none at all")
    directory, first = next(iter(metadata_of.items()))
    records = Records(tuple(files), counts, first, directory)
    without_masks = [
        other
        for other, metadata in metadata_of.items()
        if metadata is not None and metadata.masking == "dynamic"
    ]
    if 0 < len(without_masks) < len(metadata_of):
        raise UserError(
            f"{name} must hold records of one masking, static or dynamic",
            received=f"dynamic in {', '.join(without_masks)} alone",
            remedy="Build all of them with the same --masking.",
        )
    for other, metadata in metadata_of.items():
        if metadata is not None:
            features.check_agreement(
                other, dataclasses.asdict(metadata), records.text_settings()
            )
    return records


def find_held_out(config: PretrainingConfig) -> Records:
    """Finds the records of `eval_input_file`, see `find_records`.

    Raises:
        UserError: If they hold no masks, too: each evaluation must ask for
            the same pieces.
    """
    held_out = find_records(
        "eval_input_file", config.data.eval_input_file, config
    )
    if held_out.masking == "dynamic":
        raise UserError(
            "eval_input_file must hold records of static masking",
            received=f"records without masks in {held_out.directory}",
            remedy="Take eval/ of a build with --holdout_fraction, whose "
            "masking is always static.",
        )
    return held_out


def check_held_out(train: Records, held_out: Records) -> None:
    """Refuses held-out records that are trained on, or made of other pieces.

    Raises:
        UserError: Naming the files in both, or what differs.
    """
    in_both = sorted(set(train.files) & set(held_out.files))
    if in_both:
        raise UserError(
            "eval_input_file must hold no file of input_file",
            received=", ".join(in_both[:3]),
        )
    if train.metadata is None or held_out.metadata is None:
        return
    features.check_agreement(
        held_out.directory,
        dataclasses.asdict(held_out.metadata),
        train.text_settings(),
    )
    if train.metadata.inputs_sha256 != held_out.metadata.inputs_sha256:
        logging.warning(
            "%s and %s are of two builds: documents of one may be in the other",
            train.directory,
            held_out.directory,
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
            config.shuffle_block_size,
            seed,
            start_step * config.global_batch_size,
        )
        batches = stream.batch(config.global_batch_size, drop_remainder=True)
        return _parse_share(
            batches.enumerate(start_step),
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
            for feature in _features_to_read(masking)
        },
    )
    return {
        name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
        for name, value in parsed.items()
    }


def _features_to_read(masking: str) -> tuple[features.Feature, ...]:
    return tuple(
        feature
        for feature in features.stored_features(masking)
        if masking == "dynamic" or feature.name != "token_boundary"
    )


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


def _metadata_of(directory: str) -> features.RecordsMetadata | None:
    """None for records of google-research/albert.

    Raises:
        UserError: For a build of our own that has not ended.
    """
    path = posixpath.join(directory, features.METADATA_FILE)
    if tf.io.gfile.exists(path):
        return features.read_metadata(directory)
    unfinished = posixpath.join(
        posixpath.dirname(directory), features.UNFINISHED_FILE
    )
    if tf.io.gfile.exists(unfinished):
        raise UserError(
            f"the records of {directory} must be complete",
            received=f"{unfinished} of a build that has not ended",
            remedy="Run python -m data_prep.build_tfrecords again.",
        )
    logging.warning(
        "%s has no %s: its records are taken for those of "
        "google-research/albert, and their vocabulary is not checked",
        directory or ".",
        features.METADATA_FILE,
    )
    return None


def _check_metadata(
    directory: str,
    metadata: features.RecordsMetadata,
    config: PretrainingConfig,
) -> None:
    wanted: dict[str, object] = {
        "max_seq_length": config.data.max_seq_length,
        "vocab_size": config.model.vocab_size,
    }
    if metadata.masking == "static":
        wanted["max_predictions_per_seq"] = config.data.max_predictions_per_seq
    if config.training.sentence_objective != "none":
        wanted["sentence_objective"] = config.training.sentence_objective
    features.check_agreement(
        posixpath.join(directory, features.METADATA_FILE),
        dataclasses.asdict(metadata),
        wanted,
    )


def _listed_count(file: str, metadata: features.RecordsMetadata) -> int:
    try:
        return metadata.shards[posixpath.basename(file)]
    except KeyError:
        raise UserError(
            f"{features.METADATA_FILE} beside {file} must list it",
            received=", ".join(metadata.shards),
            remedy="Narrow the glob to the shards of one build.",
        ) from None


def _count_records(file: str, config: DataConfig) -> int:
    """Records of a file, read without touching a device.

    Raises:
        UserError: If the first record has other lengths, or one is damaged.
    """
    count = 0
    try:
        for serialized in tf.compat.v1.io.tf_record_iterator(file):
            if not count:
                _check_lengths(file, serialized, config)
            count += 1
    except tf.errors.DataLossError as error:
        raise UserError(
            f"{file} must be a whole TFRecord file", received=error.message
        ) from None
    return count


def _check_lengths(file: str, serialized: bytes, config: DataConfig) -> None:
    example = tf.train.Example.FromString(serialized)
    stored = {}
    for feature in features.FEATURES:
        values = example.features.feature[feature.name]
        stored[feature.name] = len(
            values.float_list.value
            if feature.dtype == "float32"
            else values.int64_list.value
        )
    features.check_agreement(
        f"the lengths of the features in {file}",
        stored,
        {
            feature.name: feature.length(config)
            for feature in _features_to_read("static")
        },
        remedy="Set --max_seq_length and --max_predictions_per_seq to the "
        "lengths of the records.",
    )


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
