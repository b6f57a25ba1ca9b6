"""A directory of records: its metadata, vocabulary and files."""

import dataclasses
import itertools
import posixpath
from collections.abc import Iterator, Sequence

import numpy as np

from albert_tf.errors import UserError
from albert_tf.io import files
from albert_tf.io.tfrecord import StoredRecord, read_records
from albert_tf.records.features import (
    METADATA_FILE,
    TOKENIZER_FILE,
    UNFINISHED_FILE,
    RecordsMetadata,
    read_metadata,
)
from albert_tf.records.tokenization import Tokenizer
from data_prep.inspection.checks import RecordRules
from data_prep.inspection.parsing import count_values
from data_prep.inspection.shards import Fault
from data_prep.inspection.statistics import (
    Finding,
    Statistics,
    empty_statistics,
)

SHARDS = "*.tfrecord"

# If there is no metadata, one of the first records must contain the lengths.
_NUM_RECORDS_TO_LEARN_FROM = 100


@dataclasses.dataclass
class RecordSet:
    """The shards of a directory, and the results of their inspection.

    Attributes:
        shards: Paths of the shards to inspect, sorted.
        metadata: None for records of google-research/albert.
        tokenizer: The vocabulary; None if it is unknown or not that of the
            metadata.
        findings: Lines of the table.
        faults: Faults of the files and the first faults of each shard.
        num_faults: Number of all faults.
        examples: Examples to print.
    """

    directory: str
    shards: list[str]
    metadata: RecordsMetadata | None
    tokenizer: Tokenizer | None
    rules: RecordRules
    statistics: Statistics
    findings: list[Finding] = dataclasses.field(default_factory=list)
    faults: list[Fault] = dataclasses.field(default_factory=list)
    num_faults: int = 0
    examples: list[dict[str, np.ndarray]] = dataclasses.field(
        default_factory=list
    )

    def is_complete(self) -> bool:
        """Whether all shards of the metadata are inspected."""
        return self.metadata is None or self.metadata.shards.keys() <= {
            posixpath.basename(path) for path in self.shards
        }

    def refuse(self, name: str, what: str) -> None:
        """Adds a fault of a file of the directory."""
        self.faults.append(Fault(posixpath.join(self.directory, name), what))
        self.num_faults += 1


def open_set(
    directory: str, shards: list[str], spm_model_file: str
) -> RecordSet:
    """Reads the metadata and the vocabulary of a directory.

    Raises:
        UserError: If the metadata or `spm_model_file` is unreadable, or if
            there is no metadata and no record contains the lengths.
    """
    metadata = None
    if files.exists(posixpath.join(directory, METADATA_FILE)):
        metadata = read_metadata(directory)
    tokenizer, finding = _open_vocabulary(directory, metadata, spm_model_file)
    if metadata is None:
        rules = _learn_rules(shards)
    else:
        rules = RecordRules(
            **{
                field.name: getattr(metadata, field.name)
                for field in dataclasses.fields(RecordRules)
                if field.name != "starts_word"
            }
        )
    if tokenizer is not None:
        rules = dataclasses.replace(
            rules,
            vocab_size=tokenizer.vocab_size,
            starts_word=tokenizer.starts_word,
        )
    statistics = empty_statistics(rules)
    return RecordSet(
        directory, shards, metadata, tokenizer, rules, statistics, [finding]
    )


def check_directory(records: RecordSet) -> None:
    """Compares the files of the directory with the metadata."""
    directory = records.directory
    for parent in (directory, posixpath.dirname(directory.rstrip("/"))):
        path = posixpath.join(parent, UNFINISHED_FILE)
        if files.exists(path):
            records.refuse(
                posixpath.relpath(path, directory),
                "must not exist; the build is unfinished",
            )
    for path in files.list_files(directory, "*" + files.PARTIAL_SUFFIX):
        records.refuse(
            posixpath.basename(path), "must not exist; it is incomplete"
        )
    if records.metadata is None:
        expected = "no metadata; counts and checksums are not checked"
        found = f"{len(records.shards)}"
        records.findings.append(Finding("shards", found, expected))
        return
    listed = set(records.metadata.shards)
    present = {
        posixpath.basename(path) for path in files.list_files(directory, SHARDS)
    } | {posixpath.basename(path) for path in records.shards}
    for name in sorted(listed - present):
        records.refuse(name, "must exist; the metadata lists it")
    for name in sorted(present - listed):
        records.refuse(name, "must not exist; the metadata does not list it")
    records.findings.append(
        Finding(
            "shards",
            f"{len(present)}, {len(records.shards)} of them inspected",
            f"{len(listed)} in metadata",
            listed == present,
        )
    )


def _open_vocabulary(
    directory: str, metadata: RecordsMetadata | None, spm_model_file: str
) -> tuple[Tokenizer | None, Finding]:
    """The vocabulary of a set, compared with the metadata.

    Raises:
        UserError: If `spm_model_file` is given and unreadable.
    """
    path = spm_model_file or posixpath.join(directory, TOKENIZER_FILE)
    try:
        tokenizer = Tokenizer(path)
    except UserError as error:
        if spm_model_file:
            raise
        if metadata is None:
            expected = "none given; word starts are not checked"
            return None, Finding("vocabulary", "unknown", expected)
        return None, Finding("vocabulary", "unreadable", str(error), False)
    if metadata is None:
        return tokenizer, Finding("vocabulary", path)
    is_equal = tokenizer.sha256 == metadata.vocabulary_sha256
    finding = Finding(
        "vocabulary",
        f"sha256 {tokenizer.sha256[:12]}",
        f"{metadata.vocabulary_sha256[:12]} in metadata",
        is_equal,
    )
    return (tokenizer if is_equal else None), finding


def _learn_rules(shards: Sequence[str]) -> RecordRules:
    """The lengths of the first intact record, for records without metadata.

    Raises:
        UserError: If no such record is found.
    """
    first = itertools.islice(_read_shards(shards), _NUM_RECORDS_TO_LEARN_FROM)
    for record in first:
        counts = count_values(record.content)
        if counts.get("input_ids", 0) > 0:
            num_predictions = counts.get("masked_lm_positions", 0)
            return RecordRules(
                max_seq_length=counts["input_ids"],
                max_predictions_per_seq=num_predictions,
                masking="static" if num_predictions else "dynamic",
            )
    raise UserError(
        "input_file must hold TFRecords of tf.train.Example with input_ids",
        received=f"{shards[0]}, whose first records have none",
    )


def _read_shards(shards: Sequence[str]) -> Iterator[StoredRecord]:
    for path in shards:
        with files.open_existing(path, "rb") as file:
            yield from read_records(file)
