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
import itertools
import posixpath
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from albert_tf.config import flags
from albert_tf.errors import UserError
from albert_tf.io import files
from albert_tf.io.artifact import check_writable
from albert_tf.io.tfrecord import StoredRecord, read_records
from albert_tf.records.features import (
    MASK_ID,
    METADATA_FILE,
    SEP_ID,
    TOKENIZER_FILE,
    UNFINISHED_FILE,
    RecordsMetadata,
    read_metadata,
)
from albert_tf.records.tokenization import WORD_MARK, Tokenizer
from data_prep.config import InspectConfig
from data_prep.inspection.rows import RecordRules, read_lists
from data_prep.inspection.shards import (
    Example,
    Fault,
    ShardReport,
    ShardTask,
    inspect_shard,
)
from data_prep.inspection.statistics import (
    Finding,
    Statistics,
    draw_histograms,
    empty_statistics,
    judge_statistics,
)
from data_prep.processes import Processes, count_workers, show_progress

_SHARDS = "*.tfrecord"

# If there is no metadata, one of the first records must contain the lengths.
_NUM_RECORDS_TO_LEARN_FROM = 100

_LEGEND = (
    "[MASK:piece] is masked, [kept:piece] is unchanged, [piece->other] is "
    "replaced;\nthe model predicts the original of all three"
)

_LABELS = {
    "sop": (", in order", ", swapped"),
    "nsp": (", adjacent text", ", text of another document"),
}


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
    findings: list[Finding]
    faults: list[Fault] = dataclasses.field(default_factory=list)
    num_faults: int = 0
    examples: list[Example] = dataclasses.field(default_factory=list)

    def refuse(self, name: str, what: str) -> None:
        """Adds a fault of a file of the directory."""
        self.faults.append(Fault(posixpath.join(self.directory, name), what))
        self.num_faults += 1


def main(config: InspectConfig) -> int:
    """Inspects records and prints the results.

    Returns:
        0 if no fault is found, else 1.

    Raises:
        UserError: If there are no records, or if the metadata or the
            vocabulary of `--spm_model_file` is unreadable.
        OSError: If the histograms cannot be written.
    """
    config.require("input_file")
    # Text can hold characters that the terminal cannot show.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    sets = [
        _open_set(directory, shards, config.spm_model_file)
        for directory, shards in _find_shards(config.input_file).items()
    ]
    if config.output_file:
        check_writable(config.output_file)
    _inspect_shards(sets, config)
    for records in sets:
        metadata = records.metadata
        records.findings += judge_statistics(
            records.statistics,
            records.rules,
            metadata,
            is_complete=metadata is None
            or metadata.shards.keys()
            <= set(map(posixpath.basename, records.shards)),
        )
        _print_set(records, config.max_faults)
    if config.output_file:
        picture = draw_histograms(
            {s.directory: (s.statistics, s.tokenizer) for s in sets}
        )
        files.write_bytes(config.output_file, picture)
        print(f"histograms: {config.output_file}")
    num_faults = sum(records.num_faults for records in sets)
    num_failed = sum(f.passed is False for s in sets for f in s.findings)
    if num_faults or num_failed:
        print(
            f"NOT passed: {num_failed} lines of the table fail, "
            f"{num_faults} faults"
        )
        return 1
    print("all checks passed")
    return 0


def _find_shards(patterns: Sequence[str]) -> dict[str, list[str]]:
    """The shards to inspect, sorted, by directory.

    Raises:
        UserError: If a pattern matches nothing.
    """
    found: dict[str, set[str]] = {}
    for pattern in patterns:
        matches = files.find(pattern) or _list_shards(pattern)
        shards = [
            path
            for path in matches
            if posixpath.basename(path) not in (METADATA_FILE, TOKENIZER_FILE)
        ]
        if not shards:
            raise UserError(
                "input_file must match records", received=f"none at {pattern}"
            )
        for path in shards:
            found.setdefault(posixpath.dirname(path), set()).add(path)
    return {directory: sorted(found[directory]) for directory in sorted(found)}


def _list_shards(pattern: str) -> list[str]:
    """The shards of a directory, or of the directories that match a glob."""
    names = (_SHARDS, posixpath.join("*", _SHARDS))
    if files.exists(pattern):
        found = [files.list_files(pattern, name) for name in names]
    else:
        found = [files.find(posixpath.join(pattern, name)) for name in names]
    return list(itertools.chain(*found))


def _open_set(
    directory: str, shards: list[str], spm_model_file: str
) -> RecordSet:
    """Reads metadata and vocabulary, and compares the files with them.

    Raises:
        UserError: If the metadata or `spm_model_file` is unreadable, or if
            there is no metadata and no record contains the lengths.
    """
    metadata = None
    if files.exists(posixpath.join(directory, METADATA_FILE)):
        metadata = read_metadata(directory)
    tokenizer, finding = _open_vocabulary(directory, metadata, spm_model_file)
    known: dict[str, Any] = {}
    if tokenizer is not None:
        known = {
            "vocab_size": tokenizer.vocab_size,
            "starts_word": tokenizer.starts_word,
        }
    if metadata is None:
        rules = _learn_rules(shards, known)
    else:
        described = dataclasses.asdict(metadata) | known
        names = [field.name for field in dataclasses.fields(RecordRules)]
        rules = RecordRules(
            **{n: described[n] for n in names if n in described}
        )
    statistics = empty_statistics(rules)
    records = RecordSet(
        directory, shards, metadata, tokenizer, rules, statistics, [finding]
    )
    _check_files(records)
    return records


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


def _learn_rules(
    shards: Sequence[str], known: Mapping[str, Any]
) -> RecordRules:
    """The lengths of the first intact record, for records without metadata.

    Raises:
        UserError: If no such record is found.
    """

    def read_shards() -> Iterator[StoredRecord]:
        for path in shards:
            with files.open_existing(path, "rb") as file:
                yield from read_records(file)

    for record in itertools.islice(read_shards(), _NUM_RECORDS_TO_LEARN_FROM):
        lists = read_lists(record.content)
        if "input_ids" in lists:
            _, positions = lists.get("masked_lm_positions", ("", ()))
            return RecordRules(
                max_seq_length=len(lists["input_ids"][1]),
                max_predictions_per_seq=len(positions),
                masking="static" if positions else "dynamic",
                **known,
            )
    raise UserError(
        "input_file must hold TFRecords of tf.train.Example with input_ids",
        received=f"{shards[0]}, whose first records have none",
    )


def _check_files(records: RecordSet) -> None:
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
    found = f"{len(records.shards)} inspected"
    if records.metadata is None:
        expected = "no metadata; counts and checksums are not checked"
        records.findings.append(Finding("shards", found, expected))
        return
    listed = set(records.metadata.shards)
    paths = [*files.list_files(directory, _SHARDS), *records.shards]
    present = {posixpath.basename(path) for path in paths}
    for name in sorted(listed - present):
        records.refuse(name, "must exist; the metadata lists it")
    for name in sorted(present - listed):
        records.refuse(name, "must not exist; the metadata does not list it")
    records.findings.append(
        Finding(
            "shards",
            f"{len(present)}, {found}",
            f"{len(listed)} in metadata",
            listed == present,
        )
    )


def _inspect_shards(sets: Sequence[RecordSet], config: InspectConfig) -> None:
    """Inspects all shards in worker processes, and adds the results."""
    tasks = [
        ShardTask(
            path,
            records.rules,
            config.max_faults,
            config.num_examples if path == records.shards[0] else 0,
        )
        for records in sets
        for path in records.shards
    ]
    sizes = {task.path: files.count_bytes(task.path) for task in tasks}
    num_workers = min(count_workers(config.num_workers), len(tasks))
    with (
        show_progress("inspecting", sum(sizes.values())) as bar,
        Processes(num_workers, dict) as processes,
    ):
        inspected = processes.map(inspect_shard, tasks)
        for records in sets:
            reports = []
            for path in records.shards:
                reports.append(next(inspected))
                bar.update(sizes[path])
            _add_reports(records, reports)


def _add_reports(records: RecordSet, reports: Sequence[ShardReport]) -> None:
    """Adds the results of all shards, compared with the metadata."""
    for report in reports:
        records.statistics = records.statistics.plus(report.statistics)
        records.examples += report.examples
        records.faults += report.faults
    num_faulty = sum(report.num_faults for report in reports)
    records.num_faults += num_faulty
    if records.metadata is not None:
        for name, stored, received, fault in (
            (
                "records of each shard",
                records.metadata.shards,
                [report.num_records for report in reports],
                "must hold {} records, as in the metadata. Received: {}",
            ),
            (
                "checksums",
                records.metadata.checksums,
                [report.sha256 for report in reports],
                "must have the SHA-256 of the metadata, {:.12}... "
                "Received: {:.12}...",
            ),
        ):
            file_names = map(posixpath.basename, records.shards)
            pairs = dict(zip(file_names, received, strict=True))
            compared = [n for n in pairs if n in stored]
            wrong = [n for n in compared if pairs[n] != stored[n]]
            for file_name in wrong:
                what = fault.format(stored[file_name], pairs[file_name])
                records.refuse(file_name, what)
            found = f"{len(compared) - len(wrong)} correct"
            expected = f"of {len(compared)} in metadata"
            passed = not wrong if compared else None
            records.findings.append(Finding(name, found, expected, passed))
    found = f"{num_faulty:,}"
    name = "damaged or faulty records"
    records.findings.append(Finding(name, found, "0", not num_faulty))


def _print_set(records: RecordSet, max_faults: int) -> None:
    rules = records.rules
    objective = rules.sentence_objective or "unknown"
    print(
        f"\n{records.directory}: {rules.max_seq_length} tokens, sentence "
        f"objective {objective}, {rules.masking} masking, up to "
        f"{rules.max_examples_per_row} examples per record\n"
    )
    if records.examples and rules.masking == "static":
        print(f"{_LEGEND}\n")
    for number, example in enumerate(records.examples):
        shown = show_example(example, records.tokenizer, objective)
        where = f"example {example.number} of record {example.record}"
        print(f"example {number}, {where}: {shown}\n")
    marks = {True: "pass", False: "FAIL", None: "note"}
    rows = [("", "", "found", "expected")]
    rows += [(marks[f.passed], *f[:3]) for f in records.findings]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for row in rows:
        cells = map(str.ljust, row, widths)
        print("  ".join([*cells, row[3]]).rstrip())
    # Faults of files first; the others stay in order.
    records.faults.sort(key=lambda fault: fault.record >= 0)
    for fault in records.faults[:max_faults]:
        print(f"fault: {fault}")
    num_more = records.num_faults - max_faults
    if num_more > 0:
        print(f"... and {num_more:,} more faults; --max_faults prints more")
    print()


def show_example(
    example: Example, tokenizer: Tokenizer | None, sentence_objective: str
) -> str:
    """The segments and the label of an example.

    Args:
        tokenizer: The vocabulary; if None, ids are shown.
        sentence_objective: "sop", "nsp" or "none"; with any other value, the
            meaning of the label is not shown.
    """
    segments = [""]
    tokens = zip(
        example.restored, example.shown, example.is_masked, strict=True
    )
    for token, shown, is_masked in list(tokens)[1:-1]:
        if token == SEP_ID:
            segments.append("")
            continue
        space, text = _spell(token, tokenizer)
        if is_masked and shown == MASK_ID:
            text = f"[MASK:{text}]"
        elif is_masked and shown == token:
            text = f"[kept:{text}]"
        elif is_masked:
            text = f"[{text}->{_spell(shown, tokenizer)[1]}]"
        segments[-1] += space + text
    head = f"{len(example.shown)} tokens, {example.is_masked.sum()} masked"
    if len(segments) > 1:
        meaning = _LABELS.get(sentence_objective, ("", ""))[example.label]
        head += f"; label {example.label}{meaning}"
    return "\n".join(
        [head]
        + [
            textwrap.fill(
                text,
                79,
                initial_indent=f"  {name}: ",
                subsequent_indent="     ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            for name, text in zip("AB", segments, strict=False)
        ]
    )


def _spell(token_id: int, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """The space before a token, and its text."""
    if tokenizer is None:
        return " ", str(token_id)
    piece = tokenizer.id_to_piece(int(token_id))
    text = piece.removeprefix(WORD_MARK)
    # A piece can consist of the mark alone.
    return (" " if text != piece else ""), text or piece


if __name__ == "__main__":
    flags.run(main, InspectConfig)
