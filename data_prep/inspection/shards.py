"""Reads and checks one shard of records, in a worker process."""

import dataclasses
import hashlib
from typing import Any, NamedTuple

import numpy as np

from albert_tf.io.files import READ_ATTEMPTS, is_remote, open_existing
from albert_tf.io.tfrecord import StoredRecord, read_records
from albert_tf.records.features import SENTENCE_LABEL
from data_prep.inspection.rows import (
    CheckedRows,
    RecordRules,
    check_rows,
)
from data_prep.inspection.statistics import (
    Statistics,
    count_rows,
    empty_statistics,
)

# Tokens of a batch; an array of this size fits the caches of the processor.
_TOKENS_PER_BATCH = 1 << 17


class Fault(NamedTuple):
    """A fault of a file or of one of its records.

    Attributes:
        what: What must hold and, if known, what was received.
        record: Number of records before the record; -1 for the file itself.
        offset: Number of bytes before the record.
    """

    path: str
    what: str
    record: int = -1
    offset: int = 0

    def __str__(self) -> str:
        if self.record < 0:
            return f"{self.path}: {self.what}"
        where = f"record {self.record} at byte {self.offset}"
        return f"{self.path}, {where}: {self.what}"


class ShardTask(NamedTuple):
    """A shard to inspect.

    Attributes:
        max_faults: Number of faults to describe; all are counted.
        num_examples: Number of examples to return.
    """

    path: str
    rules: RecordRules
    max_faults: int
    num_examples: int


class Example(NamedTuple):
    """An example to print.

    Attributes:
        restored: int64, `(tokens,)`, before masking, without padding.
        shown: int64, `(tokens,)`, as in the record.
        is_masked: bool, `(tokens,)`.
        record: Number of records before its record.
        number: Its number in the record, from 1.
    """

    restored: np.ndarray
    shown: np.ndarray
    is_masked: np.ndarray
    label: int
    record: int = 0
    number: int = 1


@dataclasses.dataclass
class ShardReport:
    """The result of the inspection of a shard.

    Attributes:
        statistics: Statistics of the rows without faults.
        faults: The first faults, sorted by record.
        num_faults: Number of all faults.
        num_records: Number of records, damaged ones included.
        sha256: Digest of the file.
        examples: The first examples without faults.
    """

    path: str
    statistics: Statistics
    faults: list[Fault] = dataclasses.field(default_factory=list)
    num_faults: int = 0
    num_records: int = 0
    sha256: str = ""
    examples: list[Example] = dataclasses.field(default_factory=list)


def inspect_shard(_state: Any, task: ShardTask) -> ShardReport:
    """Reads and checks a shard; the tasks share no state.

    On gs://, a shard with faults is read again, since a network may return
    wrong bytes once.
    """
    report = _inspect_once(task)
    for _ in range(1, READ_ATTEMPTS if is_remote(task.path) else 1):
        if report.num_faults:
            report = _inspect_once(task)
    return report


def _inspect_once(task: ShardTask) -> ShardReport:
    report = ShardReport(task.path, empty_statistics(task.rules))
    batch_size = max(16, _TOKENS_PER_BATCH // task.rules.max_seq_length)
    batch: list[StoredRecord] = []
    with open_existing(task.path, "rb") as stored:
        file = _DigestedFile(stored)
        for record in read_records(file):
            report.num_records += 1
            if record.fault:
                _add_faults(report, task, {record: record.fault})
                continue
            batch.append(record)
            if len(batch) == batch_size:
                _inspect_batch(report, task, batch)
                batch = []
        if batch:
            _inspect_batch(report, task, batch)
        report.sha256 = file.sha256_to_end()
    return report


def _inspect_batch(
    report: ShardReport, task: ShardTask, batch: list[StoredRecord]
) -> None:
    rows = check_rows([record.content for record in batch], task.rules)
    _add_faults(
        report, task, {batch[i]: what for i, what in rows.faults.items()}
    )
    report.statistics = report.statistics.plus(count_rows(rows, task.rules))
    for row, i in enumerate(rows.records.tolist()):
        if len(report.examples) >= task.num_examples:
            break
        report.examples += _examples_of(rows, row, batch[i].number)
    del report.examples[task.num_examples :]


def _examples_of(rows: CheckedRows, row: int, record: int) -> list[Example]:
    numbers = rows.features["input_mask"][row]
    examples = []
    for number in range(1, numbers.max() + 1):
        tokens = numbers == number
        examples.append(
            Example(
                rows.restored[row, tokens],
                rows.features["input_ids"][row, tokens],
                rows.is_masked[row, tokens],
                int(rows.features[SENTENCE_LABEL][row, number - 1]),
                record,
                number,
            )
        )
    return examples


def _add_faults(
    report: ShardReport, task: ShardTask, faults: dict[StoredRecord, str]
) -> None:
    report.num_faults += len(faults)
    report.faults += [
        Fault(task.path, what, record.number, record.offset)
        for record, what in faults.items()
    ]
    # A damaged record is found before the faults of the batch that it
    # interrupts.
    report.faults.sort(key=lambda fault: fault.record)
    del report.faults[task.max_faults :]


class _DigestedFile:
    """A file whose bytes are digested while they are read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        block = self._file.read(size)
        self._digest.update(block)
        return block

    def sha256_to_end(self) -> str:
        """Reads the rest of the file; returns the digest of the file."""
        while self.read(1 << 20):
            pass
        return self._digest.hexdigest()
