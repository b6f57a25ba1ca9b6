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

import dataclasses
import io
import itertools
import math
import posixpath
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.config import flags
from albert_tf.errors import UserError
from albert_tf.io import files
from albert_tf.io.artifact import check_writable
from albert_tf.io.tfrecord import StoredRecord, read_records
from albert_tf.records.features import (
    MASK_ID,
    METADATA_FILE,
    SCHEMA_VERSION,
    SENTENCE_LABEL,
    SEP_ID,
    TOKENIZER_FILE,
    UNFINISHED_FILE,
    UNK_ID,
    RecordsMetadata,
    read_metadata,
)
from albert_tf.records.masking import FIRST_ORDINARY_ID
from albert_tf.records.tokenization import WORD_MARK, Tokenizer
from data_prep.config import InspectConfig
from data_prep.inspection import (
    Rules,
    ShardReport,
    add,
    check_rows,
    inspect_shard,
    read_lists,
)
from data_prep.processes import Processes, count_workers, show_progress
from data_prep.segments import DOCUMENTS, EXAMPLES, SENTENCES, SPLITS, TOKENS
from data_prep.shards import MAX_USE, judge_form

_SHARDS = "*.tfrecord"

# If there is no metadata, one of the first records must contain the lengths.
_NUM_RECORDS_TO_LEARN_FROM = 100

# Limit of token ids if the vocabulary is unknown; a larger id is damage.
_LARGEST_VOCABULARY = 1 << 18

# A statistic with a known distribution must lie within five standard deviations
# of its mean; chance violates that once in two million.
_MAX_DEVIATIONS = 5.0

# Pieces in the histogram.
_NUM_PIECES = 25

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
        spm_model_file: The vocabulary; "" for that of the directory.

    Attributes:
        shape: The metadata, or what the first record shows.
        tokenizer: The vocabulary; None if it is unknown or not that of the
            metadata.
        statistics: Of the rows without faults; see `ShardReport`.
        num_faults: Number of faults of files and records.
        num_failed, num_warnings: Numbers of lines of the table that fail, and
            that warn.

    Raises:
        UserError: If the metadata or `spm_model_file` is unreadable, or if
            there is no metadata and no record contains the lengths.
    """

    def __init__(
        self, directory: str, shards: list[str], spm_model_file: str
    ) -> None:
        self.directory = directory
        self.shards = shards
        self.statistics: dict[str, Any] = {}
        self.num_faults = self.num_failed = self.num_warnings = 0
        self._file_faults: list[str] = []
        self._record_faults: list[str] = []
        self._table = [("", "", "found", "expected")]
        self._metadata: RecordsMetadata | None = None
        if files.exists(posixpath.join(directory, METADATA_FILE)):
            self._metadata = read_metadata(directory)
        self.tokenizer = self._open_vocabulary(spm_model_file)
        shape = self._metadata or _learn_metadata(shards, self.tokenizer)
        # The worker processes need no lists of files.
        self.shape = dataclasses.replace(shape, shards={}, checksums={})
        words = self.tokenizer.words if self.tokenizer else None
        if self._metadata and self._metadata.schema_version < SCHEMA_VERSION:
            words = None  # of another rule
        self.rules: Rules = self.shape, words
        self._check_files()

    def _refuse(self, name: str, what: str) -> None:
        """Adds a fault of a file of the directory."""
        self._file_faults.append(
            f"{posixpath.join(self.directory, name)}: {what}"
        )
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

    def _open_vocabulary(self, spm_model_file: str) -> Tokenizer | None:
        """The vocabulary of a set, compared with the metadata."""
        own = posixpath.join(self.directory, TOKENIZER_FILE)
        path, name = spm_model_file or own, "vocabulary"
        try:
            tokenizer = Tokenizer(path)
        except UserError as error:
            if spm_model_file:
                raise
            if self._metadata is None:
                expected = "none given; word starts are not checked"
                self._note(name, "unknown", expected)
            else:
                self._note(name, "unreadable", str(error), False)
            return None
        if self._metadata is None:
            self._note(name, path)
            return tokenizer
        wanted = self._metadata.vocabulary_sha256
        is_equal = tokenizer.sha256 == wanted
        expected = f"{wanted[:12]} in metadata"
        self._note(name, f"sha256 {tokenizer.sha256[:12]}", expected, is_equal)
        return tokenizer if is_equal else None

    def _check_files(self) -> None:
        """Compares the files of the directory with the metadata."""
        # On gs://, ".." is a name like any other.
        for parent in (self.directory, posixpath.dirname(self.directory)):
            path = posixpath.join(parent, UNFINISHED_FILE)
            if files.exists(path):
                name = posixpath.relpath(path, self.directory)
                self._refuse(name, "must not exist; the build is unfinished")
        found = f"{len(self.shards)} inspected"
        if self._metadata is None:
            expected = "no metadata; counts and checksums are not checked"
            self._note("shards", found, expected)
            return
        listed = set(self._metadata.shards)
        paths = [*files.list_files(self.directory, _SHARDS), *self.shards]
        present = {posixpath.basename(path) for path in paths}
        for name in sorted(listed - present):
            self._refuse(name, "must exist; the metadata lists it")
        for name in sorted(present - listed):
            self._refuse(name, "must not exist; the metadata does not list it")
        expected = f"{len(listed)} in metadata"
        found = f"{len(present)}, {found}"
        self._note("shards", found, expected, listed == present)

    def add_reports(self, reports: Mapping[str, ShardReport]) -> None:
        """Adds the results of all shards, by file name."""
        for report in reports.values():
            add(self.statistics, report.statistics)
            self._record_faults += report.faults
        num_faulty = sum(report.num_faults for report in reports.values())
        self.num_faults += num_faulty
        if self._metadata is not None:
            stored = self._metadata.checksums
            compared = [n for n in reports if n in stored]
            wrong = [n for n in compared if reports[n].sha256 != stored[n]]
            for n in wrong:
                self._refuse(n, "must have the SHA-256 of the metadata")
            found = f"{len(compared) - len(wrong)} correct"
            expected = f"of {len(compared)} in metadata"
            passed = not wrong if compared else None
            self._note("checksums", found, expected, passed)
        name, found = "damaged or faulty records", f"{num_faulty:,}"
        self._note(name, found, "0", not num_faulty)
        self._judge_statistics()

    def _judge_statistics(self) -> None:
        """Compares statistics with the metadata and with the rules."""
        statistics, metadata = self.statistics, self._metadata
        shape, num_examples = self.shape, statistics["num_examples"]
        num_rows, num_tokens, num_masked = (
            int(statistics[name].sum())
            for name in ("row_lengths", "tokens", "replacements")
        )
        inspected = set(map(posixpath.basename, self.shards))
        for name, found, key in (
            ("records", num_rows, "num_rows"),
            ("examples", num_examples, "num_examples"),
            ("tokens", num_tokens, "num_pieces"),
            ("masked tokens", num_masked, "num_masked"),
        ):
            expected, passed = "", None
            if metadata is not None:
                total = getattr(metadata, key)
                expected, passed = f"{total:,} in metadata", found == total
                if not metadata.shards.keys() <= inspected:
                    expected, passed = f"{expected} for all shards", None
            self._note(name, f"{found:,}", expected, passed)
        if not num_examples:
            return
        # Equal documents have equal labels, since the random numbers are keyed
        # by the text. So one draw decides the labels of at most this many
        # examples.
        num_equal = 1 + (metadata.num_duplicate_documents if metadata else 0)
        num_label, draws = statistics["num_label"], num_examples / num_equal
        is_sop = shape.sentence_objective == "sop"
        compared = [("label 1", num_label, num_examples, 0.5, draws, is_sop)]
        if num_masked:
            prob = shape.masked_lm_prob
            expected = f"{prob:.2%}, rounded per example" if prob else ""
            fraction = f"{num_masked / num_tokens:.2%}"
            self._note("fraction masked", fraction, expected)
            # A random replacement is by chance the original token.
            chance = 0.1 / (shape.vocab_size - FIRST_ORDINARY_ID)
            kinds = {
                "[MASK]": 0.8,
                "kept": 0.1 + chance,
                "random": 0.1 - chance,
            }
            counts = statistics["replacements"].tolist()
            compared += [
                (
                    f"masked tokens: {kind}",
                    count,
                    num_masked,
                    probability,
                    num_masked,
                    metadata is not None,
                )
                for (kind, probability), count in zip(
                    kinds.items(), counts, strict=True
                )
            ]
        for name, count, number, probability, draws, is_judged in compared:
            deviation = math.sqrt(probability * (1 - probability) / draws)
            tolerance = _MAX_DEVIATIONS * deviation
            expected = f"{probability:.2%}, plus or minus {tolerance:.2%}"
            passed = abs(count / number - probability) <= tolerance
            found = f"{count / number:.2%}"
            self._note(name, found, expected, passed if is_judged else None)
        num_unknown = statistics["tokens"][UNK_ID]
        num_text = num_unknown + statistics["tokens"][FIRST_ORDINARY_ID:].sum()
        unknown = num_unknown / max(1, num_text)
        capacity = num_rows * shape.max_seq_length
        self._note("examples per record", f"{num_examples / num_rows:.2f}")
        usual = MAX_USE["unknown"]
        expected = f"up to {usual:.0%}; the vocabulary does not suit the text"
        self._note("fraction <unk>", f"{unknown:.2%}", expected)
        self._warn_if(unknown > usual)
        if self.rules[1] is not None and metadata is None:
            found = f"{statistics['num_other_boundaries']:,} tokens"
            expected = "those of digits and of scripts other than Latin"
            self._note("other token_boundary than here", found, expected)
        self._note("positions filled", f"{num_tokens / capacity:.2%}")
        if metadata and (form := metadata.text_form):
            length = form[SENTENCES] / form[DOCUMENTS]
            self._note("sentences per document", f"{length:.1f}")
            length = form[TOKENS] / form[SENTENCES]
            self._note("tokens per sentence", f"{length:.1f}")
            splits = form[SPLITS] / form[EXAMPLES]
            warning = judge_form(form)
            name = "examples split within a sentence"
            self._note(name, f"{splits:.2%}", warning)
            self._warn_if(bool(warning))

    def _warn_if(self, warns: bool) -> None:
        """Marks the last line of the table as a warning."""
        if warns:
            self.num_warnings += 1
            self._table[-1] = "WARN", *self._table[-1][1:]

    def print(self, max_faults: int) -> None:
        """Prints the table, and the first faults."""
        widths = [max(len(row[i]) for row in self._table) for i in range(3)]
        for row in self._table:
            cells = map(str.ljust, row, widths)
            print("  ".join([*cells, row[3]]).rstrip())
        faults = self._file_faults + self._record_faults
        for fault in faults[:max_faults]:
            print(f"fault: {fault}")
        num_more = self.num_faults - max_faults
        if num_more > 0:
            print(f"... and {num_more:,} more faults; --max_faults prints more")
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
        RecordSet(directory, shards, config.spm_model_file)
        for directory, shards in _find_shards(config.input_file).items()
    ]
    if config.output_file:
        check_writable(config.output_file)
    _inspect_shards(sets, config)
    for records in sets:
        _print_examples(records, config.num_examples)
        records.print(config.max_faults)
    if config.output_file:
        files.write_bytes(config.output_file, _draw_histograms(sets))
        print(f"histograms: {config.output_file}")
    num_faults = sum(records.num_faults for records in sets)
    num_failed = sum(records.num_failed for records in sets)
    if num_faults or num_failed:
        print(
            f"NOT passed: {num_failed} lines of the table fail, "
            f"{num_faults} faults"
        )
        return 1
    if num_warnings := sum(records.num_warnings for records in sets):
        print(f"passed, but {num_warnings} lines of the table warn (WARN)")
    else:
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


def _read_shards(shards: Sequence[str], number: int) -> list[StoredRecord]:
    def read() -> Iterator[StoredRecord]:
        for path in shards:
            with files.open_existing(path, "rb") as file:
                yield from read_records(file)

    return list(itertools.islice(read(), number))


def _learn_metadata(
    shards: Sequence[str], tokenizer: Tokenizer | None
) -> RecordsMetadata:
    """What the first intact record shows; unknown values are 0 or empty."""
    for record in _read_shards(shards, _NUM_RECORDS_TO_LEARN_FROM):
        lists = read_lists(record.content)
        if "input_ids" in lists:
            _, positions = lists.get("masked_lm_positions", ("", ()))
            names = [
                field.name for field in dataclasses.fields(RecordsMetadata)
            ]
            known: dict[str, Any] = {
                "max_seq_length": len(lists["input_ids"][1]),
                "max_predictions_per_seq": len(positions),
                "masking": "static" if positions else "dynamic",
                "packing": "none",
                "max_examples_per_row": 1,
                "sentence_objective": "",
                "vocab_size": tokenizer.vocab_size
                if tokenizer
                else _LARGEST_VOCABULARY,
            }
            return RecordsMetadata(**dict.fromkeys(names, 0) | known)
    received, remedy = f"{shards[0]}, whose first records have none", ""
    for record in _read_shards(shards, 1):
        if record.fault:
            received = f"{shards[0]}: {record.fault}"
        if "input_word_ids" in (lists := read_lists(record.content)):
            received = f"{shards[0]} with {', '.join(lists)}"
            remedy = (
                "These are names of TensorFlow Model Garden: build the records "
                "with build_tfrecords or google-research/albert."
            )
    raise UserError(
        "input_file must hold TFRecords of tf.train.Example with input_ids",
        received,
        remedy,
    )


def _inspect_shards(sets: Sequence[RecordSet], config: InspectConfig) -> None:
    """Inspects all shards in worker processes, and adds the results."""
    tasks = [
        (path, records.rules, config.max_faults)
        for records in sets
        for path in records.shards
    ]
    sizes = [files.count_bytes(path) for path, *_ in tasks]
    num_workers = min(count_workers(config.num_workers), len(tasks))
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
            records.add_reports(reports)


# --- examples and histograms -------------------------------------------------


def _print_examples(records: RecordSet, num_examples: int) -> None:
    """Prints the examples of the first records that have no fault."""
    shape = records.shape
    print(
        f"\n{records.directory}: {shape.max_seq_length} tokens, sentence "
        f"objective {shape.sentence_objective or 'unknown'}, {shape.masking} "
        f"masking, up to {shape.max_examples_per_row} examples per record\n"
    )
    first = _read_shards(records.shards[:1], num_examples)
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


def _draw_histograms(sets: Sequence[RecordSet]) -> bytes:
    """A PNG with a line of histograms for each set."""
    import matplotlib

    matplotlib.use("Agg")  # draws without a display
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(
        len(sets), 2, figsize=(11, 3.75 * len(sets)), squeeze=False
    )
    for (lengths, pieces), records in zip(grid, sets, strict=True):
        counts = records.statistics["row_lengths"]
        lengths.set_title(records.directory, loc="left")
        lengths.hist(np.arange(len(counts)), bins=40, weights=counts)
        lengths.set_xlabel("tokens of a record")
        lengths.set_ylabel("records")
        counts = records.statistics["tokens"].copy()
        counts[:FIRST_ORDINARY_ID] = 0
        ids = np.argsort(counts)[::-1][:_NUM_PIECES].tolist()
        # Matplotlib reads a pair of dollar signs as a formula.
        names = ["".join(_spell(i, records.tokenizer)) for i in ids]
        names = [n.replace(" ", "_").replace("$", r"\$") for n in names]
        pieces.bar(range(len(ids)), counts[ids] / max(1, counts.sum()))
        pieces.set_xticks(range(len(ids)), names, rotation=70, fontsize=8)
        pieces.set_xlabel("most frequent pieces")
        pieces.set_ylabel("fraction of tokens")
    content = io.BytesIO()
    with warnings.catch_warnings():
        # Characters that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure.tight_layout()
        figure.savefig(content, format="png", dpi=100)
    plt.close(figure)
    return content.getvalue()


if __name__ == "__main__":
    flags.run(main, InspectConfig)
