"""Writes the unpacked shards of packed records.

Shards and metadata have the bytes of a build with the same settings and
`--packing=none`.
"""

import dataclasses
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from albert_tf.errors import UserError
from albert_tf.io import files
from albert_tf.io.tfrecord import TFRecordWriter, read_records
from albert_tf.records.features import (
    METADATA_FILE,
    TOKENIZER_FILE,
    RecordsMetadata,
)
from data_prep.builder.serialization import serialize_examples
from data_prep.inspection.checks import RecordRules
from data_prep.inspection.example_parsing import parse_examples
from data_prep.inspection.record_set import RecordSet
from data_prep.inspection.unpacking import unpack_rows
from data_prep.processes import Processes
from data_prep.progress import show_count
from data_prep.writability import check_writable

# Rows unpacked at a time.
_BATCH_SIZE = 256


class _UnpackTask(NamedTuple):
    """A shard to unpack.

    Attributes:
        source, target: Paths of the packed and of the unpacked shard.
    """

    source: str
    target: str
    rules: RecordRules


def choose_targets(sets: Sequence[RecordSet], parent: str) -> dict[str, str]:
    """Returns the directory to write to for each packed set, by its directory.

    Args:
        parent: Directory to write to; each set gets a subdirectory, see
            `target_names`.

    Raises:
        UserError: If no set is packed, if only some shards of a directory are
            inspected, or if a directory to write to is not empty.
        OSError: If the directories cannot be written.
    """
    packed = [records for records in sets if records.rules.packing != "none"]
    if not packed:
        raise UserError(
            "--unpack needs packed records",
            received=", ".join(records.directory for records in sets),
        )
    names = target_names([records.directory for records in packed])
    targets = [posixpath.join(parent, name) for name in names]
    for records, target in zip(packed, targets, strict=True):
        if not records.is_complete():
            raise UserError(
                "--unpack needs all shards of a directory",
                received=f"{len(records.shards)} of {records.directory}",
                remedy="Give the directory as --input_file.",
            )
        if found := files.list_files(target, "*"):
            raise UserError(
                "the directories that --unpack writes must be empty",
                received=found[0],
            )
        check_writable(posixpath.join(target, METADATA_FILE))
    return {
        records.directory: target
        for records, target in zip(packed, targets, strict=True)
    }


def unpack(
    sets: Sequence[RecordSet], targets: Mapping[str, str], num_workers: int
) -> None:
    """Writes unpacked shards, metadata and the vocabulary of packed sets.

    Args:
        sets: Directories of records without faults.
        targets: The return value of `choose_targets`.
    """
    packed = [records for records in sets if records.directory in targets]
    tasks = [
        _UnpackTask(
            path,
            posixpath.join(
                targets[records.directory], posixpath.basename(path)
            ),
            records.rules,
        )
        for records in packed
        for path in records.shards
    ]
    with (
        show_count("unpacking", len(tasks), "shard") as bar,
        Processes(min(num_workers, len(tasks)), dict) as processes,
    ):
        done = processes.map(_unpack_shard, tasks)
        for records in packed:
            target = targets[records.directory]
            files.make_directories(target)
            counts, checksums = {}, {}
            for path in records.shards:
                name = posixpath.basename(path)
                counts[name], checksums[name] = next(done).result
                bar.update(1)
            _finish(records, target, counts, checksums)


def target_names(directories: Sequence[str]) -> list[str]:
    """Returns the shortest endings of the paths that are all different.

    Raises:
        UserError: If two paths name the same directory.

    Example:
        >>> target_names(["build/packed/train", "build/packed/eval"])
        ['train', 'eval']
        >>> target_names(["gs://bucket/a/train", "gs://bucket/b/train"])
        ['a/train', 'b/train']
    """
    paths = [
        list(filter(None, _absolute(directory).split("/")))
        for directory in directories
    ]
    for length in range(1, max(map(len, paths)) + 1):
        names = ["/".join(path[-length:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise UserError(
        "--unpack needs each directory once", received=", ".join(directories)
    )


def _absolute(directory: str) -> str:
    """The path without "..", with which a target could leave its parent."""
    if files.is_remote(directory):
        return posixpath.normpath(directory.split("://")[1])
    return os.path.abspath(directory)


def _finish(
    records: RecordSet,
    target: str,
    counts: dict[str, int],
    checksums: dict[str, str],
) -> None:
    metadata: RecordsMetadata | None = records.metadata
    assert metadata is not None  # only metadata says that records are packed
    path = posixpath.join(records.directory, TOKENIZER_FILE)
    with files.open_existing(path, "rb") as file:
        files.write_bytes(posixpath.join(target, TOKENIZER_FILE), file.read())
    unpacked = dataclasses.replace(
        metadata,
        packing="none",
        max_examples_per_row=1,
        num_rows=metadata.num_examples,
        shards=counts,
        checksums=checksums,
    )
    files.write_text(posixpath.join(target, METADATA_FILE), unpacked.to_json())


def _unpack_shard(_state: Any, task: _UnpackTask) -> tuple[int, str]:
    """Returns the number of examples, and the digest of the unpacked shard."""
    num_written = 0
    # Examples that wait for examples of lower numbers. A build closes every
    # row after some thousands of examples, so few wait here.
    waiting: dict[int, bytes] = {}
    files.make_directories(posixpath.dirname(task.target))
    with files.atomic_write(task.target) as file:
        with TFRecordWriter(file) as writer:
            for number, example in _read_examples(task):
                waiting[number] = example
                while num_written in waiting:
                    writer.write(waiting.pop(num_written))
                    num_written += 1
        return num_written, writer.sha256()


def _read_examples(task: _UnpackTask) -> Iterator[tuple[int, bytes]]:
    """Yields the serialized examples of a packed shard, with their numbers."""
    features, lengths = task.rules.features(), task.rules.lengths()

    def unpack_batch(contents: list[bytes]) -> Iterator[tuple[int, bytes]]:
        parsed = parse_examples(contents, features, lengths)
        unpacked = unpack_rows(
            parsed.features, task.rules.max_predictions_per_seq
        )
        yield from zip(
            unpacked.numbers.tolist(),
            serialize_examples(unpacked.features),
            strict=True,
        )

    contents: list[bytes] = []
    with files.open_existing(task.source, "rb") as file:
        for record in read_records(file):
            contents.append(record.content)
            if len(contents) == _BATCH_SIZE:
                yield from unpack_batch(contents)
                contents = []
    if contents:
        yield from unpack_batch(contents)
