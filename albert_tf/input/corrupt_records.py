"""Stores the numbers of damaged training records.

`damage_search` finds them. RUN/corrupt_records.json lists them. From then on,
each is replaced with an example of weight 0, so the batch of a step is a
function of the seed, the step and this file.
"""

import contextlib
import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import tensorflow as tf
from absl import logging

from albert_tf.config import DataConfig
from albert_tf.errors import UserError, name_faults
from albert_tf.io import faults
from albert_tf.io.json_list import JsonList

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


@dataclasses.dataclass(frozen=True)
class CorruptRecord:
    """A damaged record.

    Attributes:
        file: The shard.
        number: Number of records before it in the shard.
        reason: Description of the damage.
        checksum: SHA-256 of the intact shard; "" if it is not known.

    Example:
        >>> print(CorruptRecord("train-00.tfrecord", 17, "wrong checksum"))
        record 17 of train-00.tfrecord: wrong checksum
    """

    file: str
    number: int
    reason: str
    checksum: str = ""

    def __str__(self) -> str:
        return f"record {self.number} of {self.file}: {self.reason}"


class CorruptRecords(JsonList[CorruptRecord]):
    """The damaged records of a run, in the order in which it found them.

    Example:
        >>> record = CorruptRecord("train-00.tfrecord", 17, "wrong checksum")
        >>> records = CorruptRecords("corrupt_records.json", [record])
        >>> records.in_files({"train-00.tfrecord": ""})
        {'train-00.tfrecord': frozenset({17})}
        >>> [str(record) for record in records]
        ['record 17 of train-00.tfrecord: wrong checksum']
    """

    FILE_NAME = "corrupt_records.json"
    ITEM_TYPE = CorruptRecord
    CONTENT = "the damaged records of the run"
    REMEDY = "Remove the file: the run finds the records a second time."

    def in_files(
        self, checksums: Mapping[str, str]
    ) -> dict[str, frozenset[int]]:
        """Returns the numbers of the damaged records by file of the run.

        The records of a run may move to another directory. A noted path that
        is not a file of the run stands for the file of the same name and, if
        it was noted, checksum. If there are several, it is the one whose path
        shares the most last parts with the noted path.

        Args:
            checksums: SHA-256 of each file of the run, or "".
        """
        numbers: dict[str, set[int]] = {}
        for record in self._items:
            file = _find_file(record, checksums)
            if file:
                numbers.setdefault(file, set()).add(record.number)
        return {file: frozenset(found) for file, found in numbers.items()}

    def add(
        self,
        found: Sequence[CorruptRecord],
        config: DataConfig,
        writes: bool = True,
    ) -> None:
        """Adds records, which are replaced from then on.

        Args:
            found: At least one.
            config: `on_corrupt_record` and `max_corrupt_records`.
            writes: Whether to write the file; a dry run does not.

        Raises:
            UserError: If the run must stop instead.
        """
        named = name_faults([str(record) for record in found])
        remedy = (
            "Build or copy that shard again; the run continues from its last "
            "checkpoint."
        )
        if config.on_corrupt_record == "error":
            raise UserError(
                "training records must be intact",
                received=named,
                remedy=f"{remedy} Or skip them with --on_corrupt_record=skip.",
            )
        if len(self) + len(found) > config.max_corrupt_records:
            raise UserError(
                "damaged records must be at most max_corrupt_records="
                f"{config.max_corrupt_records}",
                received=f"{len(self) + len(found)}, the newest: {named}",
                remedy=remedy,
            )
        # Two workers may write this file at the same time. After one of them
        # has renamed the partial file, the other does not find it.
        with contextlib.suppress(FileNotFoundError):
            self.extend(found, writes)
        logging.error(
            "DAMAGED RECORDS: skipping %d more (%d so far, "
            "max_corrupt_records=%d): %s",
            len(found),
            len(self),
            config.max_corrupt_records,
            named,
        )


def _find_file(record: CorruptRecord, checksums: Mapping[str, str]) -> str:
    """Finds the file of a damaged record; "" if there is none, or no best."""
    if record.file in checksums:
        return record.file
    shared = {
        file: _num_shared_parts(file, record.file)
        for file, checksum in checksums.items()
        if not record.checksum or record.checksum == checksum
    }
    most = max(shared.values(), default=0)
    best = [file for file, number in shared.items() if number == most]
    return best[0] if most and len(best) == 1 else ""


def _num_shared_parts(path: str, other: str) -> int:
    """Number of last parts of two paths that are equal."""
    parts = zip(
        reversed(path.split("/")), reversed(other.split("/")), strict=False
    )
    equal = itertools.takewhile(lambda pair: pair[0] == pair[1], parts)
    return sum(1 for _ in equal)


def may_be_damage(error: tf.errors.OpError) -> bool:
    """Whether a damaged record or an incomplete read may be the cause."""
    return isinstance(error, READING_ERRORS) or faults.is_incomplete_read(error)
