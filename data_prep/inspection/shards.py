"""A shard of records, read and checked to its end; the work of a process."""

import dataclasses
import hashlib
from typing import Any, NamedTuple

import numpy as np

from albert_tf.io.files import open_existing
from albert_tf.io.tfrecord import StoredRecord, read_records
from albert_tf.records.features import sha256_of
from data_prep.inspection.checks import RecordRules, check_examples
from data_prep.inspection.example_parsing import parse_examples
from data_prep.inspection.statistics import Statistics

# Pieces checked at a time; an array of them fits the processor's caches.
_PIECES_AT_A_TIME = 1 << 17


class Fault(NamedTuple):
    """Something wrong with a shard or with one of its records.

    Attributes:
        path: The shard.
        record: Records before it in the file; -1 for the shard itself.
        offset: Where it begins in the file, bytes.
        what: What must hold and, where it can be told, what came instead.
    """

    path: str
    record: int
    offset: int
    what: str

    def __str__(self) -> str:
        if self.record < 0:
            return f"{self.path}: {self.what}"
        where = f"record {self.record} at byte {self.offset}"
        return f"{self.path}, {where}: {self.what}"


class ShardTask(NamedTuple):
    """What a process is to do.

    Attributes:
        path: The shard.
        rules: What its records must be.
        max_faults: Faults to describe at the most.
        num_examples: Examples to hand back, the first ones.
    """

    path: str
    rules: RecordRules
    max_faults: int
    num_examples: int


@dataclasses.dataclass
class ShardReport:
    """What was found.

    Attributes:
        path: The shard.
        faults: In their order, as many as were asked for.
        num_faults: All of them.
        num_records: Records in it, damaged ones included.
        sha256: Of the file.
        examples: Features by name of the first examples without faults, with
            "restored", the pieces before masking.
    """

    path: str
    faults: list[Fault] = dataclasses.field(default_factory=list)
    num_faults: int = 0
    num_records: int = 0
    sha256: str = ""
    examples: list[dict[str, np.ndarray]] = dataclasses.field(
        default_factory=list
    )


def inspect_shard(
    bytes_read: Any, task: ShardTask
) -> tuple[ShardReport, Statistics]:
    """Reads and checks a shard.

    Args:
        bytes_read: A `multiprocessing.Value` that bytes are added to.
        task: What to do.

    Returns:
        What was found, and the figures of the examples without faults.
    """
    report = ShardReport(task.path)
    statistics = Statistics.of_none(task.rules)
    batch_size = max(16, _PIECES_AT_A_TIME // task.rules.max_seq_length)
    batch: list[StoredRecord] = []
    with open_existing(task.path, "rb") as stored:
        file = _DigestedFile(stored, bytes_read)
        for record in read_records(file):
            report.num_records += 1
            if record.fault:
                _add_faults(report, task, {record: record.fault})
                continue
            batch.append(record)
            if len(batch) == batch_size:
                _inspect_batch(report, statistics, task, batch)
                batch = []
        if batch:
            _inspect_batch(report, statistics, task, batch)
        report.sha256 = file.sha256_to_end()
    return report, statistics


def _inspect_batch(
    report: ShardReport,
    statistics: Statistics,
    task: ShardTask,
    batch: list[StoredRecord],
) -> None:
    rules = task.rules
    contents = [record.content for record in batch]
    parsed = parse_examples(contents, rules.features(), rules.lengths())
    checked = check_examples(parsed.features, rules)
    faults = parsed.faults | {
        int(parsed.rows[row]): what for row, what in checked.faults.items()
    }
    _add_faults(
        report, task, {batch[row]: what for row, what in faults.items()}
    )
    sound = checked.sound()
    if not len(sound.restored):
        return
    # Of the shard and the place in it, so that no two batches share it.
    label = f"{task.path}:{batch[0].number}".encode()
    statistics.add(sound, rules, int(sha256_of(label)[:16], 16))
    num_wanted = task.num_examples - len(report.examples)
    for row in range(min(num_wanted, len(sound.restored))):
        example = {name: v[row].copy() for name, v in sound.features.items()}
        example["restored"] = sound.restored[row].copy()
        report.examples.append(example)


def _add_faults(
    report: ShardReport, task: ShardTask, faults: dict[StoredRecord, str]
) -> None:
    report.num_faults += len(faults)
    report.faults += [
        Fault(task.path, record.number, record.offset, what)
        for record, what in faults.items()
    ]
    # A batch's faults come later than those of framing within it.
    report.faults.sort(key=lambda fault: fault.record)
    del report.faults[task.max_faults :]


class _DigestedFile:
    """A file whose bytes are digested and counted while they are read."""

    def __init__(self, file: Any, bytes_read: Any) -> None:
        self._file = file
        self._bytes_read = bytes_read
        self._digest = hashlib.sha256()

    def read(self, size: int) -> bytes:
        block = self._file.read(size)
        self._digest.update(block)
        with self._bytes_read.get_lock():
            self._bytes_read.value += len(block)
        return block

    def sha256_to_end(self) -> str:
        """Digest of the whole file, of what was not read, too."""
        while self.read(1 << 20):
            pass
        return self._digest.hexdigest()
