"""Damaged training records: found, named, noted, and left out.

TensorFlow's reader says that a record is damaged, not which.
`BatchStream.find_damage` therefore reads the shards again that a failed step
may have been reading, record by record. What it finds is noted in
RUN/corrupt_records.json, and from then on read as an example of weight 0: the
batch of a step is a function of the seed, the step and these notes.
"""

import contextlib
import dataclasses
import json
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import tensorflow as tf
from absl import logging
from google.protobuf.message import DecodeError

from albert_tf.config import DataConfig
from albert_tf.errors import UserError
from albert_tf.input.pipeline import shuffled_files
from albert_tf.input.record_sets import Records, features_to_read
from albert_tf.io.files import load_json_if_any, write_text
from albert_tf.io.tfrecord import read_records

CORRUPT_RECORDS_FILE = "corrupt_records.json"

# What reading raises: for a checksum, for a record of other fields or of pieces
# that are none, and for a shard of another number of records than it should be.
READING_ERRORS = (
    tf.errors.DataLossError,
    tf.errors.InvalidArgumentError,
    tf.errors.FailedPreconditionError,
)


@dataclasses.dataclass(frozen=True)
class CorruptRecord:
    """A record that cannot be trained on.

    Attributes:
        file: Its shard.
        number: Records before it there.
        reason: What is wrong.
    """

    file: str
    number: int
    reason: str

    def __str__(self) -> str:
        return f"record {self.number} of {self.file}: {self.reason}"


class CorruptRecords:
    """The damaged records that a run has met.

    Args:
        path: The file that notes them.
        records: In the order in which they were met.
    """

    def __init__(
        self, path: str, records: Sequence[CorruptRecord] = ()
    ) -> None:
        self._path = path
        self._records = list(records)

    @classmethod
    def read(cls, run_dir: str) -> Self:
        """Those of a run's directory; none if it has no such file.

        Raises:
            UserError: If the file is damaged.
        """
        path = posixpath.join(run_dir, CORRUPT_RECORDS_FILE)
        stored = load_json_if_any(path)
        try:
            return cls(
                path, [CorruptRecord(**values) for values in stored or ()]
            )
        except TypeError as error:
            raise UserError(
                f"{path} must hold the damaged records of the run",
                received=str(error),
                remedy="Remove it: they are found again.",
            ) from None

    def __len__(self) -> int:
        return len(self._records)

    @property
    def by_file(self) -> dict[str, frozenset[int]]:
        """Their numbers by file."""
        files = {record.file for record in self._records}
        return {
            file: frozenset(r.number for r in self._records if r.file == file)
            for file in files
        }

    def add(
        self,
        found: Sequence[CorruptRecord],
        config: DataConfig,
        writes: bool = True,
    ) -> None:
        """Takes note of records, so that the run goes on without them.

        Args:
            found: At least one.
            config: The policy.
            writes: Whether to write the file: a dry run does not.

        Raises:
            UserError: If the run is to stop instead.
        """
        named = "; ".join(map(str, found[:3]))
        if len(found) > 3:
            named += f"; and {len(found) - 3} more"
        remedy = (
            "Build or copy that shard again; the run goes on from its last "
            "checkpoint."
        )
        if config.on_corrupt_record == "error":
            raise UserError(
                "training records must be whole",
                received=named,
                remedy=f"{remedy} Or leave them out, by "
                "--on_corrupt_record=skip.",
            )
        if len(self) + len(found) > config.max_corrupt_records:
            raise UserError(
                "damaged records must be at most max_corrupt_records="
                f"{config.max_corrupt_records}",
                received=f"{len(self) + len(found)}, the last of them {named}",
                remedy=remedy,
            )
        self._records += found
        if writes:
            values = [dataclasses.asdict(r) for r in self._records]
            # Another worker may be writing the same, and be the first.
            with contextlib.suppress(FileNotFoundError):
                write_text(self._path, json.dumps(values, indent=2) + "\n")
        logging.error(
            "DAMAGED RECORDS left out, %d in all: %s", len(self), named
        )


def find_in(
    files: Iterable[str],
    records: Records,
    config: DataConfig,
    vocab_size: int | None,
) -> list[CorruptRecord]:
    """Finds the damaged records of some shards by reading each record.

    Args:
        files: Shards, of those in `records`.
        records: Counts and masking of the shards.
        config: Lengths.
        vocab_size: Token ids from here on are damage; None does not check.
    """
    return [
        record
        for file in files
        for record in _damaged_in(records, file, config, vocab_size)
    ]


def files_between(
    records: Records, block_size: int, seed: int, first: int, last: int
) -> list[str]:
    """Shards that hold the stream's records from `first` to `last`.

    Args:
        records: The shards.
        block_size: Records in a block that is shuffled.
        seed: Seed of the stream.
        first: Number of the first record of the stream.
        last: Number of the last one.
    """
    epoch, offset = divmod(first, records.num_examples)
    last -= epoch * records.num_examples
    # Blocks are read whole.
    begin, end = offset // block_size * block_size, last + block_size
    files = []
    while end > 0:
        of_epoch = min(end, records.num_examples)
        for names, from_, to in zip(
            records.sets,
            records.num_of_sets(begin),
            records.num_of_sets(of_epoch),
            strict=True,
        ):
            place = 0
            for name in shuffled_files(names, seed, epoch).numpy():
                file = name.decode()
                count = records.count_of(file)
                if place < to and place + count > from_:
                    files.append(file)
                place += count
        epoch, begin, end = epoch + 1, 0, end - records.num_examples
    return list(dict.fromkeys(files))


def _damaged_in(
    records: Records, file: str, config: DataConfig, vocab_size: int | None
) -> Iterator[CorruptRecord]:
    count = records.count_of(file)
    number, fault = -1, ""
    with tf.io.gfile.GFile(file, "rb") as opened:
        for number, offset, content, fault in read_records(opened):
            reason = fault or _wrong_content(
                content, config, records.masking, vocab_size
            )
            if number >= count:
                reason = f"the file must hold {count} records, and holds more"
            if reason:
                yield CorruptRecord(file, number, f"at byte {offset}, {reason}")
    for missing in range(number + 1, count):
        yield CorruptRecord(
            file, missing, fault or f"the file ends after {number + 1} records"
        )


def _wrong_content(
    content: bytes, config: DataConfig, masking: str, vocab_size: int | None
) -> str:
    example = tf.train.Example()
    try:
        example.ParseFromString(content)
    except DecodeError as error:
        return f"it must be a tf.train.Example: {error}"
    limits = {
        "input_ids": vocab_size,
        "masked_lm_ids": vocab_size,
        "masked_lm_positions": config.max_seq_length,
        "segment_ids": 2,
    }
    for feature in features_to_read(masking):
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
        limit = limits.get(feature.name)
        if limit and not 0 <= min(values) <= max(values) < limit:
            return (
                f"{feature.name} must be from 0 to below {limit}, and is "
                f"from {min(values)} to {max(values)}"
            )
    return ""
