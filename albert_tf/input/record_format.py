"""Formats of records: how they become a batch; errors of a failed read.

Each objective has a record format. `pretraining_format` is the format of
google-research/albert or of packed rows, with or without masks. Records without
masks are masked here, in the `tf.data` graph, with keys derived from the seed,
the position in the stream and, in a packed row, the number of the example. So
each epoch masks different tokens, and a run that is resumed masks the same
tokens.

TensorFlow's reader reports that a record is damaged, but not in which file. So
after a failed read, `explained_reads` compares the shards with their
checksums; `data_prep.inspect_records` finds the record.
"""

import contextlib
import dataclasses
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NoReturn

import tensorflow as tf
from absl import logging

from albert_tf.cluster.host import Host
from albert_tf.config import DataConfig, SequenceConfig
from albert_tf.errors import RetryError, UserError, first_line, name_faults
from albert_tf.input import tensor_ops
from albert_tf.input.record_sets import RecordSet
from albert_tf.io import faults
from albert_tf.io.files import digest
from albert_tf.records.array_ops import random_bits
from albert_tf.records.features import SENTENCE_WEIGHTS, features_to_read
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

# One stream from gs:// does not use the bandwidth of a host.
_PARALLEL_SHARDS = 16


@dataclasses.dataclass(frozen=True)
class RecordFormat:
    """How the records of an objective are read.

    Attributes:
        features: The features to read. A record of zeros must be an example
            of weight 0: such records fill the last batch of an evaluation.
        finish: `(batch, positions, seed) -> batch`, applied to each parsed
            batch of training. `positions`, int64 `(batch,)`, are the numbers
            of its records, batch number * global batch size + row. None leaves
            batches as they are.
    """

    features: Sequence[StoredFeature]
    finish: Callable[[Batch, tf.Tensor, int], Batch] | None = None


def pretraining_format(
    records: RecordSet, config: DataConfig, has_labels: bool = False
) -> RecordFormat:
    """Returns the format of pretraining records.

    Args:
        records: Records with or without masks.
        config: Lengths and masking.
        has_labels: Whether to read labels of tokens.
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
            are_pairs = tf.math.bincount(
                second,
                minlength=size + 1,
                maxlength=size + 1,
                dtype=tf.float32,
                axis=-1,
                binary_output=True,
            )
            weights = tf.reshape(are_pairs[:, 1:], keys.shape)
            batch = {**batch, SENTENCE_WEIGHTS: weights}
        vocab_size = records.metadata.vocab_size
        masked = mask_rows(batch, keys, vocab_size, config, tensor_ops)
        kept = {n: v for n, v in batch.items() if n != "token_boundary"}
        return kept | masked

    return RecordFormat(
        features_to_read(records.masking, records.packing, has_labels),
        mask if records.masking == "dynamic" else None,
    )


def parse_records(
    serialized: tf.Tensor,
    features: Sequence[StoredFeature],
    shape: SequenceConfig,
) -> Batch:
    """Parses serialized examples, string, `(batch,)`.

    Features are `(batch, length)`, int32 or float32: TPUs have no int64.
    """
    parsed = tf.io.parse_example(
        serialized,
        {
            feature.name: tf.io.FixedLenFeature(
                [feature.length(shape)], tf.dtypes.as_dtype(feature.dtype)
            )
            for feature in features
        },
    )
    return {
        name: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value
        for name, value in parsed.items()
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


# --- failed reads ------------------------------------------------------------


@contextlib.contextmanager
def explained_reads(host: Host, records: RecordSet) -> Iterator[None]:
    """Says what to do after an error of TensorFlow for a failed read.

    Args:
        records: The records that the step or the evaluation reads.

    Raises:
        UserError: If shards are damaged, or if the read would fail again.
        RetryError: If all shards are as they were written.
    """
    try:
        yield
    except tf.errors.OpError as error:
        # A replica that cannot read cancels the sums of the others. Between
        # processes or hosts, it means that one of them is lost.
        is_cancelled = isinstance(
            error, tf.errors.CancelledError
        ) and isinstance(host.strategy, tf.distribute.MirroredStrategy)
        is_refused = isinstance(error, READING_ERRORS)
        if not (is_cancelled or is_refused or faults.is_incomplete_read(error)):
            raise
        with host.watchdog.limit("the search for damaged shards"):
            _explain_failed_read(error, records)


def _explain_failed_read(
    error: tf.errors.OpError, records: RecordSet
) -> NoReturn:
    logging.error("reading failed", exc_info=error)
    damaged = _find_damaged(records)
    # The content of an intact shard is refused again. Without checksums, a
    # refused shard counts as damaged.
    is_refused_again = isinstance(error, tf.errors.InvalidArgumentError) or (
        isinstance(error, READING_ERRORS) and not records.checksums
    )
    if damaged or is_refused_again:
        named = [f"{path} has another SHA-256" for path in damaged]
        suspects = damaged or records.files
        directories = sorted({*map(posixpath.dirname, suspects)})
        raise UserError(
            "records must be intact",
            received=f"{name_faults(named)}: {first_line(error)}"
            if named
            else f"{first_line(error)}, in {name_faults(directories)}",
            remedy="`python -m data_prep.inspect_records --input_file="
            f"{','.join(directories)}` names the records. Copy the shard "
            "again, or delete it and run the same build_tfrecords command with "
            "--overwrite. Training continues from its last checkpoint.",
        )
    raise RetryError(
        "records must be readable",
        received=f"{first_line(error)}, although all records are intact",
        remedy="Start the same command again: the run continues from its "
        "newest checkpoint.",
    )


def _find_damaged(records: RecordSet) -> list[str]:
    """The shards whose SHA-256 is not that of the metadata."""

    def is_damaged(path: str) -> bool:
        return digest(path) != records.checksums[path]

    paths = [path for path in records.files if path in records.checksums]
    with futures.ThreadPoolExecutor(_PARALLEL_SHARDS) as pool:
        are_damaged = list(pool.map(is_damaged, paths))
    return [p for p, bad in zip(paths, are_damaged, strict=True) if bad]
