"""Formats of records: how they become a batch, and which are damaged.

Each objective has a record format. `pretraining_format` is the format of
google-research/albert or of packed rows, with or without masks. Records without
masks are masked here, in the `tf.data` graph, with keys derived from the seed,
the position in the stream and, in a packed row, the number of the example. So
each epoch masks different tokens, and a run that is resumed masks the same
tokens.

TensorFlow's reader reports that a record is damaged, but not which one.
Therefore, the shards that the failed step may have used are read a second time,
in Python, by `check_intact`.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from typing import Any, NoReturn

import tensorflow as tf
from absl import logging

from albert_tf.config import DataConfig, SequenceConfig
from albert_tf.errors import RetryError, UserError, first_line, name_faults
from albert_tf.input import tensor_ops
from albert_tf.input.record_sets import RecordSet
from albert_tf.io import faults
from albert_tf.io.tfrecord import read_records
from albert_tf.records.array_ops import random_bits
from albert_tf.records.features import (
    SENTENCE_LABEL,
    SENTENCE_WEIGHTS,
    features_to_read,
)
from albert_tf.records.masking import mask_rows

Batch = Mapping[str, tf.Tensor]


# A feature with `name`, `dtype` and `length(shape)`, e.g. `features.Feature`.
StoredFeature = Any

# TensorFlow's errors for a wrong checksum; for a record with other features,
# token ids out of range or other faults; and for a wrong number of records.
READING_ERRORS = (
    tf.errors.DataLossError,
    tf.errors.InvalidArgumentError,
    tf.errors.FailedPreconditionError,
)

# Errors for `explain_failed_read`. TensorFlow raises an InternalError if gs://
# returns too few bytes. A replica that cannot read cancels the sums of the
# others.
TRAINING_ERRORS = (
    *READING_ERRORS,
    tf.errors.InternalError,
    tf.errors.CancelledError,
)

REMEDY = (
    "Copy the shard again, or delete it and run the same build_tfrecords "
    "command with --overwrite. Training continues from its last checkpoint."
)

# One stream from gs:// does not use the bandwidth of a host.
_PARALLEL_SHARDS = 16
_BLOCK_RECORDS = 256


@dataclasses.dataclass(frozen=True)
class RecordFormat:
    """How the records of an objective are read.

    Attributes:
        features: The features to read. A record of zeros must be an example
            of weight 0: such records fill the last batch of an evaluation.
        limits: Exclusive upper bounds of integer features, from 0 on. A value
            out of range is an error of the model on CPUs, and `check_intact`
            names its record. GPUs and TPUs report none, so find such records
            with `data_prep.inspect_records`.
        finish: `(batch, positions, seed) -> batch`, applied to each parsed
            batch of training. `positions`, int64 `(batch,)`, are the numbers
            of its records, batch number * global batch size + row. None leaves
            batches as they are.
    """

    features: Sequence[StoredFeature]
    limits: Mapping[str, int] = dataclasses.field(default_factory=dict)
    finish: Callable[[Batch, tf.Tensor, int], Batch] | None = None


def pretraining_format(
    records: RecordSet, config: DataConfig, vocab_size: int | None = None
) -> RecordFormat:
    """Returns the format of pretraining records.

    Args:
        records: Records with or without masks.
        config: Lengths and masking.
        vocab_size: Number of pieces in the vocabulary; None for no limit of
            token ids.
    """
    is_packed = records.packing != "none"

    def mask(batch: Batch, positions: tf.Tensor, seed: int) -> Batch:
        assert records.metadata is not None
        seeds = tf.fill(positions.shape, tf.constant(seed, tf.uint64))
        keys = random_bits(seeds, positions, tensor_ops)[:, tf.newaxis]
        if is_packed:
            size = config.max_examples_per_row
            keys = random_bits(keys, tf.range(size), tensor_ops)
            # Single segments may be among pairs, which have a second one.
            second = batch["input_mask"] * batch["segment_ids"]
            limits = {"minlength": size + 1, "maxlength": size + 1}
            are_pairs = tf.math.bincount(
                second, **limits, dtype=tf.float32, axis=-1, binary_output=True
            )
            weights = tf.reshape(are_pairs[:, 1:], keys.shape)
            batch = {**batch, SENTENCE_WEIGHTS: weights}
        vocab_size = records.metadata.vocab_size
        masked = mask_rows(batch, keys, vocab_size, config, tensor_ops)
        kept = {n: v for n, v in batch.items() if n != "token_boundary"}
        return kept | masked

    limits = {
        "masked_lm_positions": config.max_seq_length,
        "segment_ids": 2,
        SENTENCE_LABEL: 2,
    }
    if vocab_size is not None:
        limits |= {"input_ids": vocab_size, "masked_lm_ids": vocab_size}
    return RecordFormat(
        features_to_read(records.masking, records.packing),
        limits,
        mask if records.masking == "dynamic" else None,
    )


def parse_stored(
    serialized: tf.Tensor,
    features: Sequence[StoredFeature],
    shape: SequenceConfig,
) -> Batch:
    """As `parse_records`, but integers are int64, as they are stored."""
    return tf.io.parse_example(
        serialized,
        {
            feature.name: tf.io.FixedLenFeature(
                [feature.length(shape)], tf.dtypes.as_dtype(feature.dtype)
            )
            for feature in features
        },
    )


def parse_records(
    serialized: tf.Tensor,
    features: Sequence[StoredFeature],
    shape: SequenceConfig,
) -> Batch:
    """Parses serialized examples, string, `(batch,)`.

    Features are `(batch, length)`, int32 or float32: TPUs have no int64.
    """
    return {
        name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
        for name, value in parse_stored(serialized, features, shape).items()
    }


def serialize(
    features: Sequence[StoredFeature], values: Mapping[str, Iterable[float]]
) -> bytes:
    """Returns a serialized record; equal values give equal bytes."""
    example = tf.train.Example()
    for feature in features:
        stored = example.features.feature[feature.name]
        is_float = feature.dtype == "float32"
        numbers = stored.float_list if is_float else stored.int64_list
        numbers.value.extend(values[feature.name])
    # Otherwise the order of the features differs from process to process.
    return example.SerializeToString(deterministic=True)


def padding_example(
    features: Sequence[StoredFeature], shape: SequenceConfig
) -> bytes:
    """Returns a serialized record of zeros, which is an example of weight 0."""
    zeros = {feature.name: [0] * feature.length(shape) for feature in features}
    return serialize(features, zeros)


# --- damaged records ---------------------------------------------------------


def explain_failed_read(
    error: tf.errors.OpError,
    strategy: tf.distribute.Strategy,
    check: Callable[[], None],
) -> NoReturn:
    """Raises an error that says what to do after one of `TRAINING_ERRORS`.

    Args:
        check: Raises an error that names the damaged records, if there are any.

    Raises:
        RetryError: If the records are intact.
        tf.errors.OpError: `error` itself, if it cannot come from reading.
    """
    # Between processes or hosts, it means that one of them is lost.
    is_cancelled = isinstance(error, tf.errors.CancelledError) and isinstance(
        strategy, tf.distribute.MirroredStrategy
    )
    if not (
        is_cancelled
        or isinstance(error, READING_ERRORS)
        or faults.is_incomplete_read(error)
    ):
        raise error
    logging.error("reading failed", exc_info=error)
    check()
    raise RetryError(
        "records must be readable",
        received=f"{first_line(error)}, although all records are intact",
        remedy="Start the same command again: the run continues from its "
        "newest checkpoint.",
    )


def check_intact(
    files: Sequence[str],
    records: RecordSet,
    config: DataConfig,
    record_format: RecordFormat,
) -> None:
    """Checks shards of `records`, after an error from reading them.

    Raises:
        UserError: It names the first damaged record of each shard.
    """
    logging.warning("searching %d shards for damaged records", len(files))

    def find_fault(file: str) -> str:
        return _first_fault(file, records, config, record_format)

    with futures.ThreadPoolExecutor(_PARALLEL_SHARDS) as pool:
        damaged = list(filter(None, pool.map(find_fault, files)))
    if damaged:
        raise UserError(
            "records must be intact",
            received=name_faults(damaged),
            remedy=REMEDY,
        )


def _first_fault(
    file: str,
    records: RecordSet,
    config: DataConfig,
    record_format: RecordFormat,
) -> str:
    """Describes the first damaged record of a shard; "" if all are intact."""
    number = 0
    with tf.io.gfile.GFile(file, "rb") as opened:
        stored = read_records(opened)
        while block := list(itertools.islice(stored, _BLOCK_RECORDS)):
            # Parsing the records one by one takes several times as long. The
            # content of a record with a fault is empty, and so is wrong.
            contents = [record.content for record in block]
            if _wrong_content(contents, config, record_format):
                for record in block:
                    fault = record.fault or _wrong_content(
                        [record.content], config, record_format
                    )
                    if fault:
                        return (
                            f"record {record.number} of {file}, at byte "
                            f"{record.offset}: {fault}"
                        )
            number += len(block)
    if number != (count := records.counts[file]):
        return f"{number} records in {file}, which must hold {count}"
    return ""


def _wrong_content(
    serialized: Sequence[bytes], config: DataConfig, record_format: RecordFormat
) -> str:
    """Describes what is wrong in some records; "" if they are intact."""
    try:
        stored = parse_stored(
            tf.constant(serialized, tf.string), record_format.features, config
        )
    except UnicodeDecodeError:  # TensorFlow quotes bytes that are no Example
        return "it must be a tf.train.Example"
    except tf.errors.InvalidArgumentError as error:
        return error.message.split("<unknown>, ")[-1].split(" [Op:")[0]
    for name, limit in record_format.limits.items():
        if name in stored:
            values = stored[name].numpy()
            if values.min() < 0 or values.max() >= limit:
                return (
                    f"{name} must be from 0 to below {limit}, and is from "
                    f"{values.min()} to {values.max()}"
                )
    return ""
