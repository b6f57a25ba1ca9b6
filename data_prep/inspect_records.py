r"""Check records, and show their contents.

    python -m data_prep.inspect_records \
      --input_file=build/records --output_file=build/records.png

1. Read and check every record of every shard, in several processes.
2. Print some examples as text, with their masks marked.
3. Print a table for each directory: what was found and what was expected.
4. Print the faults, each with its shard and record number.

Exit status: 1 for any fault: a damaged shard, a record that violates the
format, or statistics that differ from the metadata or cannot be explained by
chance. Records of google-research/albert have no metadata; checks that need it
are skipped.
"""

# TensorFlow is not imported here: each worker process imports this module.

import dataclasses
import multiprocessing
import os
import posixpath
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from albert_tf.config import (
    flags,
)
from albert_tf.errors import UserError
from albert_tf.io import files
from albert_tf.io.tfrecord import read_records
from albert_tf.records.features import (
    METADATA_FILE,
    TOKENIZER_FILE,
    UNFINISHED_FILE,
    RecordsMetadata,
    read_metadata,
)
from albert_tf.records.tokenization import Tokenizer
from data_prep.config import (
    InspectConfig,
)
from data_prep.inspection.checks import RecordRules
from data_prep.inspection.example_parsing import count_values
from data_prep.inspection.shards import (
    Fault,
    ShardReport,
    ShardTask,
    inspect_shard,
)
from data_prep.inspection.statistics import (
    FAIL,
    NOTE,
    PASS,
    Statistics,
    Verdict,
    judge_statistics,
)
from data_prep.inspection.text import LEGEND, show_example
from data_prep.processes import Processes
from data_prep.progress import show_bytes

_SHARDS = "*.tfrecord"

# Records looked at to learn the lengths of a set without metadata.
_RECORDS_TO_LEARN_FROM = 100


@dataclasses.dataclass
class RecordSet:
    """The shards of a directory.

    Attributes:
        directory: Where they are.
        shards: Those to inspect, sorted.
        metadata: None for records that google-research/albert made.
        tokenizer: The vocabulary, if there is one that can be trusted.
        rules: What each record must be.
        verdicts: What was found out about the directory.
        faults: Those of the directory and of its shards.
        num_faults: All of them.
        reports: Of the shards.
        statistics: Of all their records.
    """

    directory: str
    shards: list[str]
    metadata: RecordsMetadata | None
    tokenizer: Tokenizer | None
    rules: RecordRules
    verdicts: list[Verdict] = dataclasses.field(default_factory=list)
    faults: list[Fault] = dataclasses.field(default_factory=list)
    num_faults: int = 0
    reports: list[ShardReport] = dataclasses.field(default_factory=list)
    statistics: Statistics = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.statistics = Statistics.of_none(self.rules)

    def is_whole(self) -> bool:
        """Whether all shards of the metadata are to be inspected."""
        return self.metadata is None or self.metadata.shards.keys() <= {
            posixpath.basename(path) for path in self.shards
        }

    def refuse(self, name: str, what: str) -> None:
        """Adds a fault of a file of the directory."""
        path = posixpath.join(self.directory, name)
        self.faults.append(Fault(path, -1, 0, what))
        self.num_faults += 1


def main(config: InspectConfig) -> int:
    """Inspects records and prints what was found.

    Returns:
        0 if the records are sound, else 1.

    Raises:
        UserError: If there are no records, or their metadata, or a
            vocabulary that was asked for, cannot be read.
    """
    config.require("input_file")
    # Text may hold what the terminal cannot show.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    sets = [
        _open_set(directory, shards, config.spm_model_file)
        for directory, shards in _find_shards(config.input_file).items()
    ]
    for records in sets:
        _check_directory(records)
    _inspect_shards(sets, config)
    for records in sets:
        _check_shards(records)
        records.verdicts += judge_statistics(
            records.statistics,
            records.rules,
            records.metadata,
            is_whole=records.is_whole(),
        )
        _print_set(records, config)
    if config.output_file:
        from data_prep.inspection.plots import draw_histograms

        picture = draw_histograms(
            {
                records.directory: (records.statistics, records.tokenizer)
                for records in sets
            }
        )
        files.write_bytes(config.output_file, picture)
        print(f"histograms: {config.output_file}")
    num_faults = sum(records.num_faults for records in sets)
    num_failed = sum(
        verdict.verdict == FAIL
        for records in sets
        for verdict in records.verdicts
    )
    if num_faults or num_failed:
        print(f"NOT sound: {num_failed} figures fail, {num_faults} faults")
        return 1
    print("sound, as far as it was checked")
    return 0


def _find_shards(patterns: Sequence[str]) -> dict[str, list[str]]:
    """The shards to inspect, sorted, by directory.

    Raises:
        UserError: If a pattern matches nothing.
    """
    found: dict[str, set[str]] = {}
    for pattern in patterns:
        found_here = files.find(pattern) or [
            *files.find(posixpath.join(pattern, _SHARDS)),
            *files.find(posixpath.join(pattern, "*", _SHARDS)),
        ]
        shards = [
            path
            for path in found_here
            if posixpath.basename(path) not in (METADATA_FILE, TOKENIZER_FILE)
        ]
        if not shards:
            raise UserError(
                "input_file must match records", received=f"none at {pattern}"
            )
        for path in shards:
            found.setdefault(posixpath.dirname(path), set()).add(path)
    return {directory: sorted(found[directory]) for directory in sorted(found)}


def _open_set(
    directory: str, shards: list[str], spm_model_file: str
) -> RecordSet:
    """Reads what is known of the shards of a directory.

    Raises:
        UserError: If metadata or a vocabulary that was asked for cannot be
            read, or if no record tells the lengths.
    """
    metadata = None
    if files.exists(posixpath.join(directory, METADATA_FILE)):
        metadata = read_metadata(directory)
    tokenizer, verdict = _open_vocabulary(directory, metadata, spm_model_file)
    if metadata is None:
        rules = _learn_rules(shards)
    else:
        rules = RecordRules(
            max_seq_length=metadata.max_seq_length,
            max_predictions_per_seq=metadata.max_predictions_per_seq,
            masking=metadata.masking,
            vocab_size=metadata.vocab_size,
            sentence_objective=metadata.sentence_objective,
            masked_lm_prob=metadata.masked_lm_prob,
            ngram=metadata.ngram,
        )
    if tokenizer is not None:
        rules = dataclasses.replace(
            rules,
            vocab_size=tokenizer.vocab_size,
            starts_word=tokenizer.starts_word,
        )
    return RecordSet(directory, shards, metadata, tokenizer, rules, [verdict])


def _open_vocabulary(
    directory: str, metadata: RecordsMetadata | None, spm_model_file: str
) -> tuple[Tokenizer | None, Verdict]:
    """The vocabulary of a set, and whether it is the right one.

    Raises:
        UserError: If one was asked for that cannot be read.
    """
    path = spm_model_file or posixpath.join(directory, TOKENIZER_FILE)
    try:
        tokenizer = Tokenizer(path)
    except UserError as error:
        if spm_model_file:
            raise
        if metadata is None:
            wanted = "none given: pieces and word starts are not checked"
            return None, Verdict("vocabulary", "unknown", wanted, NOTE)
        return None, Verdict("vocabulary", "unreadable", str(error), FAIL)
    if metadata is None:
        return tokenizer, Verdict("vocabulary", path, "", NOTE)
    agrees = tokenizer.sha256 == metadata.vocabulary_sha256
    verdict = Verdict(
        "vocabulary",
        f"sha256 {tokenizer.sha256[:12]}",
        f"{metadata.vocabulary_sha256[:12]} in metadata",
        PASS if agrees else FAIL,
    )
    return (tokenizer if agrees else None), verdict


def _learn_rules(shards: Sequence[str]) -> RecordRules:
    """Lengths of records without metadata: those of the first one.

    Raises:
        UserError: If none of the first records can be read.
    """
    num_seen = 0
    for path in shards:
        with files.open_existing(path, "rb") as file:
            for record in read_records(file):
                counts = count_values(record.content)
                if counts.get("input_ids", 0) > 0:
                    num_masked = counts.get("masked_lm_positions", 0)
                    return RecordRules(
                        max_seq_length=counts["input_ids"],
                        max_predictions_per_seq=num_masked,
                        masking="static" if num_masked else "dynamic",
                    )
                num_seen += 1
                if num_seen == _RECORDS_TO_LEARN_FROM:
                    break
    raise UserError(
        "input_file must hold TFRecords of tf.train.Example with input_ids",
        received=f"{shards[0]}, whose first records have none",
    )


def _check_directory(records: RecordSet) -> None:
    """Whether the directory is complete, and holds nothing else."""
    directory = records.directory
    for place in (directory, posixpath.dirname(directory.rstrip("/"))):
        path = posixpath.join(place, UNFINISHED_FILE)
        if files.exists(path):
            records.refuse(
                posixpath.relpath(path, directory),
                "must not be there; the build has not ended",
            )
    for path in files.find(
        posixpath.join(directory, "*" + files.PARTIAL_SUFFIX)
    ):
        records.refuse(
            posixpath.basename(path), "must not be there; it is half written"
        )
    if records.metadata is None:
        wanted = "no metadata: counts, checksums and figures are not judged"
        found = f"{len(records.shards)}"
        records.verdicts.append(Verdict("shards", found, wanted, NOTE))
        return
    listed = set(records.metadata.shards)
    present = {
        posixpath.basename(path)
        for path in files.find(posixpath.join(directory, _SHARDS))
    } | {posixpath.basename(path) for path in records.shards}
    for name in sorted(listed - present):
        records.refuse(name, "must be there; metadata lists it")
    for name in sorted(present - listed):
        records.refuse(name, "must not be there; metadata does not list it")
    records.verdicts.append(
        Verdict(
            "shards",
            f"{len(present)}, {len(records.shards)} of them inspected",
            f"{len(listed)} in metadata",
            PASS if listed == present else FAIL,
        )
    )


def _inspect_shards(sets: Sequence[RecordSet], config: InspectConfig) -> None:
    """Fills in the reports of all shards."""
    tasks = [
        (
            records,
            ShardTask(
                path,
                records.rules,
                config.max_faults,
                config.num_examples if path == records.shards[0] else 0,
            ),
        )
        for records in sets
        for path in records.shards
    ]
    num_bytes = sum(files.count_bytes(task.path) for _, task in tasks)
    num_workers = min(config.num_workers or os.cpu_count() or 1, len(tasks))
    # Of the processes' context, or it could not be handed to them.
    bytes_read = multiprocessing.get_context("spawn").Value("Q", 0)
    with (
        show_bytes("inspecting", num_bytes) as bar,
        _following(bar, bytes_read),
        Processes(num_workers, _same, bytes_read) as processes,
    ):
        done = processes.map(inspect_shard, (task for _, task in tasks))
        for (records, _), (result, _) in zip(tasks, done, strict=True):
            report, statistics = result
            records.statistics.merge(statistics)
            records.reports.append(report)
            records.num_faults += report.num_faults
            records.faults += report.faults


def _same(value: Any) -> Any:
    return value


@contextmanager
def _following(bar: Any, bytes_read: Any) -> Iterator[None]:
    """Moves a bar while processes add to a counter."""
    ended = threading.Event()

    def follow() -> None:
        is_last = False
        while not is_last:
            is_last = ended.wait(0.5)
            bar.update(bytes_read.value - bar.n)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _check_shards(records: RecordSet) -> None:
    """Compares shards with the metadata, and sums up their faults."""
    num_faulty = sum(report.num_faults for report in records.reports)
    metadata = records.metadata
    if metadata is not None:
        _check_counts(records, metadata)
        _check_checksums(records, metadata)
    records.verdicts.append(
        Verdict(
            "damaged or faulty records",
            f"{num_faulty:,}",
            "0",
            FAIL if num_faulty else PASS,
        )
    )


def _check_counts(records: RecordSet, metadata: RecordsMetadata) -> None:
    agree = True
    for report in records.reports:
        name = posixpath.basename(report.path)
        wanted = metadata.shards.get(name)
        if wanted is not None and wanted != report.num_records:
            agree = False
            records.refuse(
                name,
                f"must hold {wanted} records, as metadata says. "
                f"Received: {report.num_records}",
            )
    records.verdicts.append(
        Verdict(
            "records of each shard",
            "as in metadata" if agree else "others",
            f"{sum(metadata.shards.values()):,} in all",
            PASS if agree else FAIL,
        )
    )


def _check_checksums(records: RecordSet, metadata: RecordsMetadata) -> None:
    num_compared = num_equal = 0
    for report in records.reports:
        name = posixpath.basename(report.path)
        wanted = metadata.checksums.get(name)
        if wanted is None:
            continue
        num_compared += 1
        num_equal += wanted == report.sha256
        if wanted != report.sha256:
            records.refuse(
                name,
                f"must have the SHA-256 of the metadata, {wanted[:12]}... "
                f"Received: {report.sha256[:12]}...",
            )
    verdict = PASS if num_equal == num_compared else FAIL
    wanted = f"of {len(records.reports)} shards"
    if not num_compared:
        verdict, wanted = NOTE, "metadata holds none"
    found = f"{num_equal} right"
    records.verdicts.append(Verdict("checksums", found, wanted, verdict))


def _print_set(records: RecordSet, config: InspectConfig) -> None:
    rules = records.rules
    objective = rules.sentence_objective or "not known"
    print(
        f"\n{records.directory}: {rules.max_seq_length} pieces, sentence "
        f"objective {objective}, {rules.masking} masking\n"
    )
    examples = records.reports[0].examples if records.reports else []
    if examples and rules.masking == "static":
        print(f"{LEGEND}\n")
    for number, example in enumerate(examples):
        shown = show_example(example, records.tokenizer, objective)
        print(f"example {number}: {shown}\n")
    rows = [
        (v.verdict, v.name, v.found, v.wanted)
        for v in (Verdict("", "found", "wanted", ""), *records.verdicts)
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        cells = [
            cell.ljust(width) for cell, width in zip(row, widths, strict=False)
        ]
        print("  ".join([*cells, row[3]]).rstrip())
    # Those of whole shards first.
    records.faults.sort(key=lambda fault: fault.record >= 0)
    for fault in records.faults[: config.max_faults]:
        print(f"fault: {fault}")
    num_more = records.num_faults - config.max_faults
    if num_more > 0:
        print(f"... and {num_more:,} more faults, see --max_faults")
    print()


if __name__ == "__main__":
    flags.run(main, InspectConfig)
