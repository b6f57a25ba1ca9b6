"""Searches shards for damaged records.

TensorFlow's reader reports that a record is damaged, but not which one. The
search covers the parts of the shards that the failed step may have used:

1. TensorFlow reads and checks each part, several shards at a time. If Python
   parsed each record, this would take about eight times the CPU time.
2. Python reads the parts that failed, and names their damaged records. A
   network may return wrong bytes once, so such a part is read up to three
   times, and a record counts as damaged only if every complete read finds the
   same damage.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import NamedTuple

import tensorflow as tf
from absl import logging
from google.protobuf.message import DecodeError

from albert_tf.cluster.watchdog import Watchdog
from albert_tf.config import DataConfig
from albert_tf.input.corrupt_records import CorruptRecord, may_be_damage
from albert_tf.input.lanes import Lane, shuffled_files
from albert_tf.input.pipeline import READ_BUFFER_BYTES
from albert_tf.input.record_format import (
    RecordFormat,
    as_batch,
    parse_records,
    parse_stored,
)
from albert_tf.input.record_sets import RecordSet
from albert_tf.io import faults
from albert_tf.io.files import READ_ATTEMPTS
from albert_tf.io.long_waits import log_long_waits
from albert_tf.io.tfrecord import read_records

# Shards that are searched at the same time: one stream from gs:// does not use
# the bandwidth of a host.
PARALLEL_SHARDS = 16

# Records that are checked at a time.
BLOCK_RECORDS = 256

# Time between two lines of progress in the log, and time without one after
# which a warning says that the search waits.
PROGRESS_S = 15.0
LONG_WAIT_S = 30.0


class ShardPart(NamedTuple):
    """Consecutive records of a shard.

    Attributes:
        file: The shard.
        first: Number of the first record.
        end: Number after the last record.
    """

    file: str
    first: int
    end: int


def parts_between(lane: Lane, first: int, last: int) -> list[ShardPart]:
    """Parts of shards with a stream's records from `first` to `last`.

    Args:
        first: Number of the first record in the stream.
        last: Number of the last record in the stream.

    Returns:
        One part of each of these shards.
    """
    records, seed, block_size, _ = lane
    epoch, offset = divmod(first, records.num_records)
    last -= epoch * records.num_records
    # The stream reads complete blocks.
    begin, end = offset // block_size * block_size, last + block_size
    parts: dict[str, ShardPart] = {}
    while end > 0:
        of_epoch = min(end, records.num_records)
        for names, from_, to in zip(
            records.sets,
            records.num_of_sets(begin),
            records.num_of_sets(of_epoch),
            strict=True,
        ):
            position = 0
            for name in shuffled_files(names, seed, epoch).numpy():
                file = name.decode()
                count = records.count_of(file)
                if position < to and position + count > from_:
                    part = ShardPart(
                        file,
                        max(from_ - position, 0),
                        min(to - position, count),
                    )
                    # Two epochs may read different parts.
                    other = parts.get(file, part)
                    parts[file] = ShardPart(
                        file,
                        min(part.first, other.first),
                        max(part.end, other.end),
                    )
                position += count
        epoch, begin, end = epoch + 1, 0, end - records.num_records
    return list(parts.values())


def complete_shards(records: RecordSet) -> list[ShardPart]:
    """All records of a set."""
    return [
        ShardPart(file, 0, count)
        for file, count in zip(records.files, records.counts, strict=True)
    ]


def find_in(
    parts: Sequence[ShardPart],
    records: RecordSet,
    config: DataConfig,
    record_format: RecordFormat,
    watchdog: Watchdog | None = None,
) -> list[CorruptRecord]:
    """Finds the damaged records of some shards.

    The records before a part are searched for wrong checksums only: a stream
    that begins within a shard reads them, but does not use them.

    Args:
        parts: Parts of shards of `records`, one of each shard.
        records: The set of records, with the number of records by shard.
        config: Sequence lengths, which are the lengths of the features.
        record_format: The features that each record must hold.
        watchdog: Limits the time until the next shard is done; None sets no
            limit.
    """
    is_suspect = _make_check(records, config, record_format)

    def search(part: ShardPart) -> list[CorruptRecord]:
        if not is_suspect(part):
            return []
        return _damaged_in_all_reads(records, part, config, record_format)

    with futures.ThreadPoolExecutor(PARALLEL_SHARDS) as pool:
        searches = [pool.submit(search, part) for part in parts]
        try:
            _wait(searches, watchdog or Watchdog())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    checksums = dict(zip(records.files, records.checksums, strict=True))
    return [
        dataclasses.replace(record, checksum=checksums[record.file])
        for each in searches
        for record in each.result()
    ]


def _wait(
    searches: Sequence[futures.Future[list[CorruptRecord]]],
    watchdog: Watchdog,
) -> None:
    """Waits for all searches, and logs progress; raises their first error."""
    began = logged = time.monotonic()
    num_found = 0
    ended = futures.as_completed(searches)
    for number in range(1, len(searches) + 1):
        activity = "the search of a shard for damaged records"
        causes = "the shards are large, or cannot be read"
        with (
            watchdog.limit(activity),
            log_long_waits(activity, causes, LONG_WAIT_S),
        ):
            search = next(ended)
        num_found += len(search.result())
        now = time.monotonic()
        if now - logged >= PROGRESS_S or number == len(searches):
            logging.warning(
                "searched %d of %d shards in %.0f s, found %d damaged records",
                number,
                len(searches),
                now - began,
                num_found,
            )
            logged = now


def _make_check(
    records: RecordSet, config: DataConfig, record_format: RecordFormat
) -> Callable[[ShardPart], bool]:
    """Returns a function that checks a part by TensorFlow.

    It returns whether the part may have damaged records. Threads may call it at
    the same time.
    """

    @tf.autograph.experimental.do_not_convert
    def check_block(
        first: tf.Tensor, numbers: tf.Tensor, serialized: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        used = tf.boolean_mask(serialized, numbers >= first)
        wrong = _has_wrong_content(used, config, record_format)
        return tf.size(numbers, tf.int64), wrong

    # One program for all shards: tracing takes longer than reading a small one.
    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec((), tf.string),
            tf.TensorSpec((), tf.int64),
            tf.TensorSpec((), tf.int64),
        ],
    )
    def check(
        file: tf.Tensor, first: tf.Tensor, end: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the number of records, and whether one is damaged."""
        return (
            tf.data.TFRecordDataset(file, None, READ_BUFFER_BYTES)
            .take(end)
            .enumerate()
            .batch(BLOCK_RECORDS)
            .map(lambda *block: check_block(first, *block))
            .reduce(
                (tf.constant(0, tf.int64), tf.constant(False)),
                lambda total, block: (total[0] + block[0], total[1] | block[1]),
            )
        )

    # Before threads call it: each of them would trace the function.
    program = check.get_concrete_function()

    def is_suspect(part: ShardPart) -> bool:
        # A shard that is read to its end must not have more records.
        is_rest = part.end >= records.count_of(part.file)
        try:
            count, wrong = program(
                tf.constant(part.file),
                tf.constant(part.first, tf.int64),
                tf.constant(-1 if is_rest else part.end, tf.int64),
            )
        except tf.errors.OpError as error:
            if not may_be_damage(error):
                raise
            return True
        return bool(wrong) or int(count) != part.end

    return is_suspect


def _has_wrong_content(
    serialized: tf.Tensor, config: DataConfig, record_format: RecordFormat
) -> tf.Tensor:
    """Whether one of some serialized records has wrong content; bool scalar.

    Raises:
        tf.errors.InvalidArgumentError: If one of them has other features.
    """
    stored = parse_stored(serialized, record_format.features, config)
    wrong = [
        (stored[name] < 0) | (stored[name] >= limit)
        for name, limit in record_format.limits.items()
        if name in stored
    ]
    if record_format.find_faults is not None:
        wrong += record_format.find_faults(as_batch(stored)).values()
    return tf.reduce_any([tf.reduce_any(found) for found in [False, *wrong]])


def _damaged_in_all_reads(
    records: RecordSet,
    part: ShardPart,
    config: DataConfig,
    record_format: RecordFormat,
) -> list[CorruptRecord]:
    damaged: list[CorruptRecord] | None = None
    for _ in range(READ_ATTEMPTS):
        try:
            found = list(_damaged_in(records, part, config, record_format))
        except tf.errors.InternalError as error:
            if not faults.is_incomplete_read(error):
                raise
            continue
        again = set(found)
        damaged = found if damaged is None else damaged
        damaged = [record for record in damaged if record in again]
        if not damaged:
            return []
    return damaged or []


def _damaged_in(
    records: RecordSet,
    part: ShardPart,
    config: DataConfig,
    record_format: RecordFormat,
) -> Iterator[CorruptRecord]:
    file, count = part.file, records.count_of(part.file)
    number, fault = -1, ""
    with tf.io.gfile.GFile(file, "rb") as opened:
        stored = read_records(opened)
        if part.end < count:
            stored = itertools.islice(stored, part.end)
        while block := list(itertools.islice(stored, BLOCK_RECORDS)):
            contents = {
                r.number: r.content
                for r in block
                if r.number >= part.first and not r.fault
            }
            if _are_intact(contents.values(), config, record_format):
                contents.clear()
            for number, offset, _, fault in block:
                reason = fault
                if number in contents:
                    reason = _wrong_content(
                        contents[number], config, record_format
                    )
                if number >= count:
                    reason = f"the file must hold {count} records, and holds "
                    reason += "more"
                if reason:
                    reason = f"at byte {offset}, {reason}"
                    yield CorruptRecord(file, number, reason)
    if number + 1 < part.end:
        fault = fault or f"the file ends after {number + 1} records"
        for missing in range(number + 1, count):
            yield CorruptRecord(file, missing, fault)


def _are_intact(
    contents: Iterable[bytes], config: DataConfig, record_format: RecordFormat
) -> bool:
    """Whether all of some records have the right content.

    It checks them together, which takes a fraction of the time of
    `_wrong_content`.
    """
    serialized = tf.constant([*contents], tf.string)
    try:
        return not _has_wrong_content(serialized, config, record_format)
    except tf.errors.InvalidArgumentError:
        return False


def _wrong_content(
    content: bytes, config: DataConfig, record_format: RecordFormat
) -> str:
    example = tf.train.Example()
    try:
        example.ParseFromString(content)
    except DecodeError as error:
        return f"it must be a tf.train.Example: {error}"
    for feature in record_format.features:
        stored = example.features.feature[feature.name]
        values = (
            stored.float_list.value
            if feature.dtype == "float32"
            else stored.int64_list.value
        )
        length = feature.length(config)
        if len(values) != length:
            return (
                f"{feature.name} must have {length} values and has "
                f"{len(values)}"
            )
        limit = record_format.limits.get(feature.name)
        if limit and not 0 <= min(values) <= max(values) < limit:
            return (
                f"{feature.name} must be from 0 to below {limit}, and is "
                f"from {min(values)} to {max(values)}"
            )
    if record_format.find_faults is not None:
        batch = parse_records(
            tf.constant([content]), record_format.features, config
        )
        for fault, found in record_format.find_faults(batch).items():
            if found[0]:
                return fault
    return ""
