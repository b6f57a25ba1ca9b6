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

import itertools
import posixpath
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.config import flags
from albert_tf.errors import UserError
from albert_tf.io import files
from albert_tf.records.features import (
    MASK_ID,
    METADATA_FILE,
    SENTENCE_LABEL,
    SEP_ID,
    TOKENIZER_FILE,
)
from albert_tf.records.tokenization import WORD_MARK, Tokenizer
from data_prep.config import InspectConfig
from data_prep.inspection.record_set import (
    SHARDS,
    RecordSet,
    check_directory,
    open_set,
)
from data_prep.inspection.shards import (
    ShardReport,
    ShardTask,
    inspect_shard,
)
from data_prep.inspection.statistics import (
    Finding,
    judge_statistics,
)
from data_prep.processes import Processes, count_workers
from data_prep.progress import show_bytes
from data_prep.results import check_writable

_LEGEND = (
    "[MASK:piece] is masked, [kept:piece] is unchanged, [piece->other] is "
    "replaced;\nthe model predicts the original of all three"
)

_LABELS = {
    "sop": ("in order", "swapped"),
    "nsp": ("adjacent text", "text of another document"),
}


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
        open_set(directory, shards, config.spm_model_file)
        for directory, shards in _find_shards(config.input_file).items()
    ]
    for records in sets:
        check_directory(records)
    if config.output_file:
        check_writable(config.output_file)
    _inspect_shards(sets, config)
    for records in sets:
        records.findings += judge_statistics(
            records.statistics,
            records.rules,
            records.metadata,
            is_complete=records.is_complete(),
        )
        _print_set(records, config.max_faults)
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
        finding.passed is False
        for records in sets
        for finding in records.findings
    )
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
    names = (SHARDS, posixpath.join("*", SHARDS))
    if files.exists(pattern):
        found = [files.list_files(pattern, name) for name in names]
    else:
        found = [files.find(posixpath.join(pattern, name)) for name in names]
    return list(itertools.chain(*found))


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
        show_bytes("inspecting", sum(sizes.values())) as bar,
        Processes(num_workers, dict) as processes,
    ):
        done = processes.map(inspect_shard, tasks)
        for records in sets:
            reports = []
            for path in records.shards:
                reports.append(next(done).result)
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
        _compare_shards(
            records,
            "records of each shard",
            records.metadata.shards,
            {report.path: report.num_records for report in reports},
            "must hold {} records, as in the metadata. Received: {}",
        )
        _compare_shards(
            records,
            "checksums",
            records.metadata.checksums,
            {report.path: report.sha256 for report in reports},
            "must have the SHA-256 of the metadata, {:.12}... "
            "Received: {:.12}...",
        )
    records.findings.append(
        Finding(
            "damaged or faulty records", f"{num_faulty:,}", "0", not num_faulty
        )
    )


def _compare_shards(
    records: RecordSet,
    name: str,
    expected: Mapping[str, Any],
    received: Mapping[str, Any],
    fault: str,
) -> None:
    """Compares a property of all shards with the metadata.

    Args:
        records: Gets a finding, and a fault for each difference.
        expected: Values in the metadata, by file name.
        received: Values of the shards, by path.
        fault: Format of a fault, from the expected and the received value.
    """
    num_compared = num_equal = 0
    for path, value in received.items():
        file_name = posixpath.basename(path)
        if file_name in expected:
            num_compared += 1
            num_equal += value == expected[file_name]
            if value != expected[file_name]:
                what = fault.format(expected[file_name], value)
                records.refuse(file_name, what)
    records.findings.append(
        Finding(
            name,
            f"{num_equal} correct",
            f"of {num_compared} in metadata",
            num_equal == num_compared if num_compared else None,
        )
    )


def _print_set(records: RecordSet, max_faults: int) -> None:
    rules = records.rules
    objective = rules.sentence_objective or "unknown"
    packed = ""
    if rules.packing != "none":
        packed = f", up to {rules.max_examples_per_row} examples per record"
    print(
        f"\n{records.directory}: {rules.max_seq_length} tokens, sentence "
        f"objective {objective}, {rules.masking} masking{packed}\n"
    )
    if records.examples and rules.masking == "static":
        print(f"{_LEGEND}\n")
    for number, example in enumerate(records.examples):
        shown = show_example(example, records.tokenizer, objective)
        where = ""
        if "place" in example:
            record, place, size = example["place"].tolist()
            where = f", {place} of {size} in record {record}"
        print(f"example {number}{where}: {shown}\n")
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
    example: Mapping[str, np.ndarray],
    tokenizer: Tokenizer | None,
    sentence_objective: str,
    width: int = 79,
) -> str:
    """The segments and the label of an example.

    Args:
        example: Features by name, and "restored", the token ids before
            masking.
        tokenizer: The vocabulary; if None, ids are shown.
        sentence_objective: "sop", "nsp" or "none"; with any other value, the
            meaning of the label is not shown.
        width: Characters per line.
    """
    restored, shown = example["restored"], example["input_ids"]
    num_tokens = int(np.count_nonzero(example["input_mask"]))
    weights = example.get("masked_lm_weights", np.zeros(0))
    positions = example.get("masked_lm_positions", np.zeros(0))
    masked = {int(p) for p in positions[weights > 0]}
    segments = [""]
    for position in range(1, num_tokens - 1):
        if restored[position] == SEP_ID:
            segments.append("")
            continue
        space, text = _spell(restored[position], tokenizer)
        if position in masked:
            other = _spell(shown[position], tokenizer)[1]
            if shown[position] == MASK_ID:
                text = f"[MASK:{text}]"
            elif shown[position] == restored[position]:
                text = f"[kept:{text}]"
            else:
                text = f"[{text}->{other}]"
        segments[-1] += space + text
    label = int(example[SENTENCE_LABEL][0])
    head = f"{num_tokens} tokens, {len(masked)} masked"
    if len(segments) > 1:
        meaning = _LABELS.get(sentence_objective)
        head += f"; label {label}" + (f", {meaning[label]}" if meaning else "")
    lines = [head]
    for name, text in zip("AB", segments, strict=False):
        indent = f"  {name}: "
        lines += textwrap.wrap(
            text,
            width,
            initial_indent=indent,
            subsequent_indent=" " * len(indent),
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


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
