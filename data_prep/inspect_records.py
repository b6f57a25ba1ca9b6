r"""Check records, and show their contents.

    python -m data_prep.inspect_records --input_file=build/records

1. Read and check every record of every shard, in several processes.
2. Print some examples as text, with their masks marked.
3. Print a table for each directory: what was found and what was expected.
4. Print the faults, each with its shard and record number.

Exit status: 1 for any fault: a damaged or missing file, a record that violates
the format, or statistics that differ from the metadata or cannot be explained
by chance. Records of google-research/albert have no metadata, so less of them
is checked; their examples are text if their vocabulary is next to them, as
spiece.model.
"""

import dataclasses
import itertools
import math
import posixpath
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.config import flags
from albert_tf.errors import UserError
from albert_tf.io import files
from albert_tf.io.tfrecord import read_records
from albert_tf.records.features import (
    MASK_ID,
    METADATA_FILE,
    SENTENCE_LABEL,
    SEP_ID,
    TOKENIZER_FILE,
    UNFINISHED_FILE,
    RecordsMetadata,
    read_metadata,
)
from albert_tf.records.masking import FIRST_ORDINARY_ID
from albert_tf.records.tokenization import WORD_MARK, Tokenizer
from data_prep.config import InspectConfig
from data_prep.inspection import (
    MAX_FAULTS,
    Rules,
    ShardReport,
    add,
    check_rows,
    inspect_shard,
    learn_metadata,
)
from data_prep.processes import Processes, count_workers, show_progress

_SHARDS = "*.tfrecord"

# A statistic with a known distribution must lie within five standard deviations
# of its mean; chance violates that once in two million.
_MAX_DEVIATIONS = 5.0

_LEGEND = (
    "[MASK:piece] is masked, [kept:piece] is unchanged, [piece->other] is "
    "replaced;\nthe model predicts the original of all three"
)

_LABELS = {
    "sop": (", in order", ", swapped"),
    "nsp": (", adjacent text", ", text of another document"),
}


class RecordSet:
    """The shards of a directory, and the results of their inspection.

    Args:
        shards: Paths of the shards to inspect, sorted.

    Attributes:
        shape: The metadata, or what the first record shows.
        tokenizer: The vocabulary; None without that of the metadata.
        statistics: Of the rows without faults; see `ShardReport`.
        num_faults: Number of faults of files and records.
        num_failed: Number of lines of the table that fail.

    Raises:
        UserError: If the metadata is unreadable, or if there is none and the
            first record is no record of this format.
    """

    def __init__(self, directory: str, shards: list[str]) -> None:
        self.directory = directory
        self.shards = shards
        self.statistics: dict[str, Any] = {}
        self.num_faults = self.num_failed = 0
        self._faults: list[str] = []
        self._table = [("", "", "found", "expected")]
        self._metadata: RecordsMetadata | None = None
        self.tokenizer: Tokenizer | None = None
        # On gs://, ".." is a name like any other.
        parent = posixpath.dirname(directory)
        unfinished = posixpath.join(parent, UNFINISHED_FILE)
        if files.exists(unfinished):
            self._refuse(unfinished, "must not exist; the build is unfinished")
        vocabulary = posixpath.join(directory, TOKENIZER_FILE)
        if files.exists(posixpath.join(directory, METADATA_FILE)):
            self._metadata = read_metadata(directory)
            self._check_files(self._metadata)
        elif files.exists(vocabulary):
            self.tokenizer = Tokenizer(vocabulary)
        size = self.tokenizer.vocab_size if self.tokenizer else 0
        shape = self._metadata or learn_metadata(shards[0], size)
        # The worker processes need no lists of files.
        self.shape = dataclasses.replace(shape, shards={}, checksums={})
        tokenizer = self.tokenizer if self._metadata else None
        words = tokenizer.words if tokenizer else None
        self.rules: Rules = self.shape, words

    def _refuse(self, path: str, what: str) -> None:
        """Adds a fault of a file, given by its path or name."""
        self._faults.append(f"{posixpath.join(self.directory, path)}: {what}")
        self.num_faults += 1

    def _note(
        self,
        name: str,
        found: str,
        expected: str = "",
        passed: bool | None = None,
    ) -> None:
        """Adds a line of the table; `passed` is None if the reader judges."""
        marks = {True: "pass", False: "FAIL", None: "note"}
        self._table.append((marks[passed], name, found, expected))
        self.num_failed += passed is False

    def _check_files(self, metadata: RecordsMetadata) -> None:
        """Compares the files of the directory with the metadata."""
        paths = [*files.list_files(self.directory, _SHARDS), *self.shards]
        present = {posixpath.basename(path) for path in paths}
        for name in sorted(metadata.shards.keys() - present):
            self._refuse(name, "must exist; the metadata lists it")
        for name in sorted(present - metadata.shards.keys()):
            self._refuse(name, "must not exist; the metadata does not list it")
        try:
            tokenizer = Tokenizer(
                posixpath.join(self.directory, TOKENIZER_FILE)
            )
        except UserError as error:
            self._refuse(TOKENIZER_FILE, str(error))
            return
        if tokenizer.sha256 == metadata.vocabulary_sha256:
            self.tokenizer = tokenizer
        else:
            self._refuse(
                TOKENIZER_FILE, "must have the SHA-256 of the metadata"
            )

    def judge(self, reports: Mapping[str, ShardReport]) -> None:
        """Judges the results of all shards, given by file name."""
        stored = self._metadata.checksums if self._metadata else {}
        for name, report in reports.items():
            if stored.get(name, report.sha256) != report.sha256:
                self._refuse(name, "must have the SHA-256 of the metadata")
        for report in reports.values():
            add(self.statistics, report.statistics)
            self._faults += report.faults
            self.num_faults += report.num_faults
        statistics = self.statistics
        num_masked = int(statistics["replacements"].sum())
        totals = {
            "num_rows": ("records", statistics["num_rows"]),
            "num_examples": ("examples", statistics["num_examples"]),
            "num_pieces": ("tokens", statistics["num_pieces"]),
            "num_masked": ("masked tokens", num_masked),
        }
        for key, (name, found) in totals.items():
            expected, passed = "", None
            if self._metadata:
                total = getattr(self._metadata, key)
                expected, passed = f"{total:,} in metadata", found == total
                if not self._metadata.shards.keys() <= reports.keys():
                    expected, passed = f"{expected} for all shards", None
            self._note(name, f"{found:,}", expected, passed)
        size = statistics["num_rows"] * self.shape.max_seq_length
        fill = statistics["num_pieces"] / max(size, 1)
        self._note("positions filled", f"{fill:.1%}")
        if not num_masked:
            return
        prob = self.shape.masked_lm_prob
        expected = f"{prob:.2%}, rounded per example" if prob else ""
        fraction = num_masked / statistics["num_pieces"]
        self._note("fraction masked", f"{fraction:.2%}", expected)
        # A random replacement is by chance the original token.
        chance = 0.1 / (self.shape.vocab_size - FIRST_ORDINARY_ID)
        for (kind, probability), count in zip(
            (("[MASK]", 0.8), ("kept", 0.1 + chance), ("random", 0.1 - chance)),
            statistics["replacements"].tolist(),
            strict=True,
        ):
            variance = probability * (1 - probability) / num_masked
            tolerance = _MAX_DEVIATIONS * math.sqrt(variance)
            self._note(
                f"masked tokens: {kind}",
                f"{count / num_masked:.2%}",
                f"{probability:.2%}, plus or minus {tolerance:.2%}",
                abs(count / num_masked - probability) <= tolerance,
            )

    def print(self) -> None:
        """Prints the table, and the first faults."""
        widths = [max(len(row[i]) for row in self._table) for i in range(3)]
        for row in self._table:
            cells = map(str.ljust, row, widths)
            print("  ".join([*cells, row[3]]).rstrip())
        for fault in self._faults[:MAX_FAULTS]:
            print(f"fault: {fault}")
        if self.num_faults > MAX_FAULTS:
            print(f"... and {self.num_faults - MAX_FAULTS:,} more faults")
        print()


def main(config: InspectConfig) -> int:
    """Inspects records and prints the results.

    Returns:
        0 if no fault is found, else 1.
    """
    config.require("input_file")
    # Text can hold characters that the terminal cannot show.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    sets = [
        RecordSet(directory, shards)
        for directory, shards in _find_shards(config.input_file).items()
    ]
    _inspect_shards(sets, config.num_workers)
    for records in sets:
        _print_examples(records, config.num_examples)
        records.print()
    num_faults = sum(records.num_faults for records in sets)
    num_failed = sum(records.num_failed for records in sets)
    if num_faults or num_failed:
        print(
            f"NOT passed: {num_failed} lines of the table fail, "
            f"{num_faults} faults"
        )
        return 1
    print("all checks passed")
    return 0


def _find_shards(patterns: Sequence[str]) -> dict[str, list[str]]:
    """The shards to inspect, sorted, by directory."""
    found: dict[str, set[str]] = {}
    for pattern in patterns:
        shards = [
            path
            for path in files.find(pattern) or _list_shards(pattern)
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


def _inspect_shards(sets: Sequence[RecordSet], num_workers: int) -> None:
    """Inspects all shards in worker processes, and judges the results."""
    tasks = [
        (path, records.rules) for records in sets for path in records.shards
    ]
    sizes = [files.count_bytes(path) for path, _ in tasks]
    num_workers = min(count_workers(num_workers), len(tasks))
    with (
        show_progress("inspecting", sum(sizes)) as bar,
        Processes(num_workers, dict) as processes,
    ):
        inspected = zip(processes.map(inspect_shard, tasks), sizes, strict=True)
        for records in sets:
            reports = {}
            for path in records.shards:
                reports[posixpath.basename(path)], size = next(inspected)
                bar.update(size)
            records.judge(reports)


# --- examples ----------------------------------------------------------------


def _print_examples(records: RecordSet, num_examples: int) -> None:
    """Prints the examples of the first records that have no fault."""
    shape = records.shape
    print(
        f"\n{records.directory}: {shape.max_seq_length} tokens, sentence "
        f"objective {shape.sentence_objective or 'unknown'}, {shape.masking} "
        f"masking, up to {shape.max_examples_per_row} examples per record\n"
    )
    with files.open_existing(records.shards[0], "rb") as file:
        first = list(itertools.islice(read_records(file), num_examples))
    rows = check_rows([record.content for record in first], records.rules)
    numbers = rows.features["input_mask"]
    if len(numbers) and shape.masking == "static":
        print(f"{_LEGEND}\n")
    places = [
        (row, number)
        for row in range(len(numbers))
        for number in range(1, numbers[row].max() + 1)
    ]
    for i, (row, number) in enumerate(places[:num_examples]):
        values = rows.restored, rows.features["input_ids"], rows.is_masked
        tokens = np.stack(values, axis=2)[row, numbers[row] == number]
        label = int(rows.features[SENTENCE_LABEL][row, number - 1])
        objective = shape.sentence_objective
        shown = show_example(tokens, label, records.tokenizer, objective)
        print(f"example {i}, number {number} in its record: {shown}\n")


def show_example(
    tokens: np.ndarray,
    label: int,
    tokenizer: Tokenizer | None,
    sentence_objective: str,
) -> str:
    """The segments and the label of an example.

    Args:
        tokens: Integers, `(tokens, 3)`: the token before masking, the token of
            the record, and whether it is masked.
        tokenizer: The vocabulary; if None, ids are shown.
        sentence_objective: "sop", "nsp" or "none"; with any other value, the
            meaning of the label is not shown.
    """
    segments = [""]
    for token, shown, is_masked in tokens[1:-1].tolist():
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
    head = f"{len(tokens)} tokens, {tokens[:, 2].sum()} masked"
    if len(segments) > 1:
        meaning = _LABELS.get(sentence_objective, ("", ""))[label]
        head += f"; label {label}{meaning}"
    fill = textwrap.TextWrapper(
        79,
        subsequent_indent="     ",
        break_long_words=False,
        break_on_hyphens=False,
    ).fill
    lines = zip("AB", segments, strict=False)
    return "\n".join(
        [head, *(fill(f"  {name}: {text}") for name, text in lines)]
    )


def _spell(token_id: int, tokenizer: Tokenizer | None) -> tuple[str, str]:
    """The space before a token, and its text."""
    if tokenizer is None:
        return " ", str(token_id)
    piece = tokenizer.id_to_piece(token_id)
    text = piece.removeprefix(WORD_MARK)
    # A piece can consist of the mark alone.
    return (" " if text != piece else ""), text or piece


if __name__ == "__main__":
    flags.run(main, InspectConfig)
