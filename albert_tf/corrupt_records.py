"""Damaged training records: found, named, noted, and left out.

TensorFlow's reader says that a record is damaged, not which. `find` reads the
shards again that a failed step may have been reading, record by record. What
it finds is noted in RUN/corrupt_records.json, and from then on read as an
example of weight 0 in its place: the batch of a step is a function of the seed,
the step and these notes.
"""

import dataclasses
import json
import posixpath
from collections.abc import Iterator, Sequence
from typing import Self

import tensorflow as tf
from absl import logging
from google.protobuf.message import DecodeError

from albert_tf.config import DataConfig
from albert_tf.errors import UserError
from albert_tf.files import load_json_if_any, write_text
from albert_tf.input_pipeline import phase_seed, shuffled_files
from albert_tf.rollback import Rollbacks
from albert_tf.tfrecord_files import read_records
from albert_tf.training_records import (
    Records,
    TrainingData,
    features_to_read,
)

CORRUPT_RECORDS_FILE = "corrupt_records.json"

# What reading raises: for a checksum, and for a record of other fields.
READING_ERRORS = (tf.errors.DataLossError, tf.errors.InvalidArgumentError)

# Batches that the pipeline may have read ahead of the step that failed.
READ_AHEAD_BATCHES = 64


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
        stored = load_json_if_any(path) or []
        try:
            return cls(path, [CorruptRecord(**values) for values in stored])
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
            writes: Whether this process writes the file.

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
            write_text(self._path, json.dumps(values, indent=2) + "\n")
        logging.error(
            "DAMAGED RECORDS left out, %d in all: %s", len(self), named
        )


def find(
    data: TrainingData,
    config: DataConfig,
    seed: int,
    first_step: int,
    last_step: int,
    rollbacks: Rollbacks,
    known: CorruptRecords,
) -> list[CorruptRecord]:
    """Finds what a failed step may have met.

    Args:
        data: The phases of the run.
        config: Batch and lengths.
        seed: Of the run.
        first_step: The step from which batches were being read.
        last_step: The last one that was asked for.
        rollbacks: Of the run.
        known: Those that are left out already.

    Returns:
        The damaged records of the shards read since, but for `known`.
    """
    phase = data.at(first_step)
    skipped = rollbacks.skipped_steps(first_step, phase.first_step)
    first_batch = first_step - phase.first_step + skipped
    last_batch = first_batch + (last_step - first_step) + READ_AHEAD_BATCHES
    records = phase.records
    files = _files_between(
        records,
        config.shuffle_block_size,
        phase_seed(data, phase, seed),
        first_batch * config.global_batch_size,
        last_batch * config.global_batch_size,
    )
    expected = dict(zip(records.files, records.counts, strict=True))
    return [
        record
        for file in files
        for record in _damaged_in(file, expected[file], config, records.masking)
        if record.number not in known.by_file.get(file, ())
    ]


def _files_between(
    records: Records, block_size: int, seed: int, first: int, last: int
) -> list[str]:
    """Shards that hold the stream's records from `first` to `last`."""
    count_of = dict(zip(records.files, records.counts, strict=True))
    epoch, offset = divmod(first, records.num_examples)
    end = epoch * records.num_examples
    # Blocks are read whole.
    first = end + offset // block_size * block_size
    files = []
    while end <= last + block_size:
        for name in shuffled_files(records, seed, epoch).numpy():
            file = name.decode()
            begin, end = end, end + count_of[file]
            if end > first and begin <= last + block_size:
                files.append(file)
        epoch += 1
    return list(dict.fromkeys(files))


def _damaged_in(
    file: str, count: int, config: DataConfig, masking: str
) -> Iterator[CorruptRecord]:
    lengths = {
        feature.name: (feature.length(config), feature.dtype)
        for feature in features_to_read(masking)
    }
    number = -1
    fault = ""
    with tf.io.gfile.GFile(file, "rb") as opened:
        for number, offset, content, fault in read_records(opened):
            reason = fault or _wrong_content(content, lengths)
            if reason:
                yield CorruptRecord(file, number, f"at byte {offset}, {reason}")
    for missing in range(number + 1, count):
        yield CorruptRecord(
            file, missing, fault or f"the file ends after {number + 1} records"
        )


def _wrong_content(content: bytes, lengths: dict[str, tuple[int, str]]) -> str:
    example = tf.train.Example()
    try:
        example.ParseFromString(content)
    except DecodeError as error:
        return f"it must be a tf.train.Example: {error}"
    for name, (length, dtype) in lengths.items():
        feature = example.features.feature[name]
        values = (
            feature.float_list.value
            if dtype == "float32"
            else feature.int64_list.value
        )
        if len(values) != length:
            return f"{name} must have {length} values and has {len(values)}"
    return ""
