"""Reads and checks one shard of records, in a worker process."""

import dataclasses
import hashlib
from typing import Any, NamedTuple

import numpy as np

from albert_tf.io.files import READ_ATTEMPTS, is_remote, open_existing
from albert_tf.io.tfrecord import StoredRecord, read_records
from data_prep.inspection.checks import RecordRules, check_examples
from data_prep.inspection.packed import find_packing_faults, unpack_rows
from data_prep.inspection.parsing import parse_examples
from data_prep.inspection.statistics import (
    Statistics,
    count_examples,
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


@dataclasses.dataclass
class ShardReport:
    """The result of the inspection of a shard.

    Attributes:
        statistics: Statistics of the examples without faults.
        faults: The first faults, sorted by record.
        num_faults: Number of all faults.
        num_records: Number of records, damaged ones included.
        sha256: Digest of the file.
        examples: The first examples without faults: features by name;
            "restored", the token ids before masking; and for packed records
            "place", the number of the record in the shard, the number of the
            example in the record, from 1, and the number of its examples.
    """

    path: str
    statistics: Statistics
    faults: list[Fault] = dataclasses.field(default_factory=list)
    num_faults: int = 0
    num_records: int = 0
    sha256: str = ""
    examples: list[dict[str, np.ndarray]] = dataclasses.field(
        default_factory=list
    )


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
    rules = task.rules
    contents = [record.content for record in batch]
    parsed = parse_examples(contents, rules.features(), rules.lengths())
    features, faults = parsed.features, dict(parsed.faults)
    # For each example, the record in the batch, and whether it has a fault.
    rows = parsed.rows
    if rules.packing != "none" and len(rows):
        found = find_packing_faults(features, rules)
        faults |= {int(rows[row]): what for row, what in found.items()}
        intact_rows = np.setdiff1d(np.arange(len(rows)), list(found))
        unpacked = unpack_rows(
            {name: values[intact_rows] for name, values in features.items()},
            rules.max_predictions_per_seq,
        )
        features = unpacked.features
        rows = rows[intact_rows][unpacked.rows]
    places = np.arange(len(rows)) - np.searchsorted(rows, rows) + 1
    checked = check_examples(features, rules)
    for i, what in checked.faults.items():
        if rules.packing != "none":
            what = f"example {places[i]}: {what}"
        faults.setdefault(int(rows[i]), what)
    _add_faults(
        report, task, {batch[row]: what for row, what in faults.items()}
    )
    kept = ~np.isin(rows, list(faults))
    intact = checked.take(kept)
    rows, places = rows[kept], places[kept]
    report.statistics = report.statistics.plus(
        count_examples(intact, rules, rows)
    )
    num_wanted = task.num_examples - len(report.examples)
    for i in range(min(num_wanted, len(intact.restored))):
        example = {name: v[i].copy() for name, v in intact.features.items()}
        example["restored"] = intact.restored[i].copy()
        if rules.packing != "none":
            size = np.count_nonzero(rows == rows[i])
            example["place"] = np.array(
                [batch[rows[i]].number, places[i], size]
            )
        report.examples.append(example)


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
