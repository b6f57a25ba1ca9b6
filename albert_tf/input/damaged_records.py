"""Names the damaged records behind a failed read.

TensorFlow's reader reports that a record is damaged, but not which one.
Therefore, the shards that the failed step may have used are read a second time,
in Python.
"""

import itertools
from collections.abc import Sequence
from concurrent import futures

import tensorflow as tf
from absl import logging

from albert_tf.cluster.watchdog import Watchdog
from albert_tf.config import DataConfig
from albert_tf.errors import UserError, name_faults
from albert_tf.input.record_format import RecordFormat, as_batch, parse_stored
from albert_tf.input.record_sets import RecordSet
from albert_tf.io import faults
from albert_tf.io.files import log_long_waits
from albert_tf.io.tfrecord import read_records

# TensorFlow's errors for a wrong checksum; for a record with other features,
# token ids out of range or other faults; and for a wrong number of records.
READING_ERRORS = (
    tf.errors.DataLossError,
    tf.errors.InvalidArgumentError,
    tf.errors.FailedPreconditionError,
)

# Errors that training handles. InternalError is among them because TensorFlow
# raises it when gs:// returns too few bytes; see `may_be_damage`. The other
# one, because a replica that cannot read cancels the sums of the others.
TRAINING_ERRORS = (
    *READING_ERRORS,
    tf.errors.InternalError,
    tf.errors.CancelledError,
)

REMEDY = (
    "Copy the shard again, or delete it and run the same build_tfrecords "
    "command again, which builds only missing shards. Training continues from "
    "its last checkpoint."
)

# One stream from gs:// does not use the bandwidth of a host.
_PARALLEL_SHARDS = 16
_BLOCK_RECORDS = 256
_LONG_WAIT_S = 30.0


def may_be_damage(error: tf.errors.OpError) -> bool:
    """Whether a damaged record or an incomplete read may be the cause."""
    return isinstance(error, READING_ERRORS) or faults.is_incomplete_read(error)


def check_intact(
    files: Sequence[str],
    records: RecordSet,
    config: DataConfig,
    record_format: RecordFormat,
    watchdog: Watchdog | None = None,
) -> None:
    """Checks shards, after an error from reading them.

    Args:
        files: Shards of `records`.
        config: Sequence lengths, which are the lengths of the features.
        record_format: The features that each record must hold.
        watchdog: Limits the time until the next shard is done; None sets no
            limit.

    Raises:
        UserError: It names the first damaged record of each shard.
    """
    watchdog = watchdog or Watchdog()
    logging.warning(
        "reading failed: searching %d shards for damaged records", len(files)
    )

    def find_fault(file: str) -> str:
        # A network may return wrong bytes once, so two reads must agree.
        previous = ""
        while previous != (
            fault := _first_fault(file, records, config, record_format)
        ):
            previous = fault
        return fault

    found = []
    with futures.ThreadPoolExecutor(_PARALLEL_SHARDS) as pool:
        searches = pool.map(find_fault, files)
        activity = "the search of a shard for damaged records"
        causes = "the shards are large, or cannot be read"
        for _ in files:
            with (
                watchdog.limit(activity),
                log_long_waits(activity, causes, _LONG_WAIT_S),
            ):
                found.append(next(searches))
    damaged = list(filter(None, found))
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
    number, count = 0, records.counts[file]
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
    if number != count:
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
    if record_format.find_faults is not None:
        batch = as_batch(stored)
        for fault, found in record_format.find_faults(batch).items():
            if tf.reduce_any(found):
                return fault
    return ""
