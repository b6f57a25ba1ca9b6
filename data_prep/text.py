"""Reads text as documents of lines, in bounded memory, and breaks sentences.

Text files are local or gs://. Their first bytes say how they are compressed,
and whether they are text, JSON or Parquet, and their names if they are CSV or
TSV; other formats are refused. A line, which ends at LF, CR LF or CR, is a
sentence or a paragraph; a line without visible characters or the end of the
file ends a document. In JSON, each object is a document; in tables, each row;
in TensorFlow Datasets, each element.

All text is read twice: `check_inputs` finds faults before the work begins, and
`CheckedText.read_documents` compares what it reads with what was checked.
"""

import bz2
import csv
import dataclasses
import hashlib
import importlib.metadata
import itertools
import json
import lzma
import os
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sentencepiece
import sentencex
import zstandard
from absl import logging

from albert_tf.errors import UserError, first_line, name_faults
from albert_tf.io import files, tables
from albert_tf.io.datasets import open_dataset, read_elements
from albert_tf.records.tokenization import describe_lost_accents
from albert_tf.records.word_boundaries import WORD_MARK
from data_prep.config import CorpusConfig
from data_prep.processes import show_progress

# Longer documents (characters) and lines (bytes) are cut. This bounds memory
# for a book on one line and for a corpus without blank lines.
LONGEST_DOCUMENT = 1 << 20

BLOCK_BYTES = 1 << 20

# Stored bytes that are decompressed at a time. gzip expands them to 4 MB at
# most.
_STORED_BYTES = 1 << 12

# The beginning of a text that decides about a warning.
_JUDGED_CHARACTERS = 1 << 18

# Lines are wrapped if the next word does not fit after this share of the lines
# of a paragraph, and half of these lines end within a sentence.
_WRAPPED_SHARE = 0.6
_WRAPPED_WIDTHS = range(40, 141)
_SENTENCE_ENDS = (".", "!", "?", ":", ";", '"', "\u201d", "\u2026")

# Largest fraction of a text that a vocabulary of symbols may not know.
_LARGEST_UNKNOWN = 0.001

# First bytes that decide about a format.
_HEAD_BYTES = 1 << 16

_BOM = b"\xef\xbb\xbf"

# Makes the decompressor of a stream that begins with these bytes. By default,
# zstandard refuses files of zstd --long=28 to --long=31.
_DECOMPRESSORS: dict[bytes, tuple[str, Callable[[], Any]]] = {
    b"\x1f\x8b": ("gz", lambda: zlib.decompressobj(16 + zlib.MAX_WBITS)),
    b"BZh": ("bz2", bz2.BZ2Decompressor),
    b"\xfd7zXZ\0": ("xz", lzma.LZMADecompressor),
    b"\x28\xb5\x2f\xfd": (
        "zst",
        lambda: zstandard.ZstdDecompressor(
            max_window_size=1 << 31
        ).decompressobj(),
    ),
}

_NAME = re.compile(
    r"\.(jsonl|json|ndjson|csv|tsv)(\.(gz|bz2|xz|zstd?))?$", re.IGNORECASE
)
_JSON = re.compile(rb"\s*(\[\s*)?{\s*[\"}]")

# Cells with which databases and pandas write that there is no text.
_NULLS = frozenset(("\\N", "NULL", "NaN", "nan"))

# How bytes that are not UTF-8 are decoded.
_SURROGATES = "surrogateescape"

# Surrogates that stand for no byte: JSON can encode half of a pair.
_HALF_PAIRS = re.compile("[\ud800-\udc7f\udd00-\udfff]")

_LINE_END = re.compile(r"\r\n|\r|\n")

# Characters without width or ink, beyond white space.
_INVISIBLE = "".join(
    character
    for character in map(chr, range(0x3001))
    if unicodedata.category(character) in ("Cc", "Cf", "Zs", "Zl", "Zp")
) + (
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164"
    "\ufeff\uffa0\ufff9\ufffa\ufffb" + "".join(map(chr, range(0xFE00, 0xFE10)))
)

SKIPPED_LINES = "lines that are not UTF-8"
SKIPPED_TEXTS = "documents that are not Unicode"
EMPTY_TEXTS = "documents without text"
CUT_DOCUMENTS = "cuts of documents of more than 1M characters"
CUT_WORDS = "cuts of 16,384 characters without a space"
JOINED_LINES = "ends of wrapped lines, read as spaces"

# Follows the units of a labelled line, and separates its words. Python counts
# it as white space, so no unit contains it.
_LABEL_MARK = "\x1f"
# A labelled line has this many units at most.
_UNITS_OF_LINE = 4096

OnBytes = Callable[[int], Any]
OnStored = Callable[[bytes], Any]
Skipped = Counter[str]


class Reading(NamedTuple):
    """How text is read, and what becomes known of it.

    Attributes:
        on_bytes: Called with the number of stored bytes of each read.
        skipped: Counter of skipped lines and documents, and of cuts, by
            reason.
        digests: Receives a digest of each source, at its end.
    """

    config: CorpusConfig
    on_bytes: OnBytes
    skipped: Skipped
    digests: list[str]


# --- documents ----------------------------------------------------------------


def find_inputs(
    config: CorpusConfig, written: Iterable[str] = ()
) -> list["Source"]:
    """Returns the sources that `input_file`, sorted by path, and `tfds` name.

    Of several paths of one local file, only the first is read. Empty files,
    and markers of Spark and Hadoop such as _SUCCESS, are passed over.

    Args:
        written: Files that the command itself writes; they are passed over.

    Raises:
        UserError: If neither setting is given, a pattern matches no file, all
            files are empty, or a dataset is not available.
    """
    if not config.tfds:
        config.require("input_file")
    paths = files.find_all("input_file", config.input_file, "*.txt")

    def real(path: str) -> str:
        return path if files.is_remote(path) else os.path.realpath(path)

    # A link is another path of its file.
    unique: dict[str, str] = {}
    for path in paths:
        unique.setdefault(real(path), path)
    sources: list[Source] = []
    passed_over: list[str] = []
    own = set(map(real, written))
    for file, path in unique.items():
        if file in own:
            passed_over.append(path)
        elif size := files.count_bytes(path):
            sources.append(TextFile(path, size))
        else:
            passed_over.append(f"{path}, 0 bytes")
    if passed_over:
        logging.warning(
            "passing over %d files that are empty or not input: %s",
            len(passed_over),
            name_faults(passed_over),
        )
    if config.tfds:
        sources.append(_find_dataset(config))
    if not sources:
        raise UserError(
            "input files must not be empty", name_faults(passed_over)
        )
    return sources


@dataclasses.dataclass(frozen=True)
class CheckedText:
    """Text that `check_inputs` has read.

    Attributes:
        digests: A digest of the text of each source, in order.
        counts: Numbers of "documents", "lines", "characters", and
            "joined_lines", ends of wrapped lines that are read as spaces.
        beginning: Its first `_JUDGED_CHARACTERS`.
    """

    config: CorpusConfig
    digests: Mapping["Source", str]
    counts: Mapping[str, int]
    beginning: str

    @property
    def num_bytes(self) -> int:
        """Stored bytes of all sources."""
        return sum(source.num_bytes for source in self.digests)

    def read_documents(
        self, task: str, skipped: Skipped
    ) -> Iterator[list[str]]:
        """Yields the stripped lines of each document; none is empty.

        Args:
            task: What the documents are read for, shown with the progress.
            skipped: See `Reading`; also counts the cuts of long documents.

        Raises:
            UserError: For text that has changed since it was checked.
        """
        with show_progress(task, self.num_bytes) as bar:
            for source, digest in self.digests.items():
                reading = Reading(self.config, bar.update, skipped, [])
                yield from _collect_documents(source, reading)
                if reading.digests != [digest]:
                    raise UserError(
                        f"{source.name} must not change while the command runs",
                        received="other text than when it was checked",
                        remedy="Run the command again once nothing writes to "
                        "it, or on a copy.",
                    )

    def warn_of_lost_accents(self, remedy: str) -> None:
        """Warns if dropping combining marks changes the text."""
        if lost := describe_lost_accents(self.beginning):
            logging.warning("accents are dropped: %s. %s", lost, remedy)


def check_inputs(
    sources: Sequence["Source"], config: CorpusConfig
) -> CheckedText:
    """Reads all text once, so that a fault is reported early.

    Raises:
        UserError: For damaged files, bytes that are not UTF-8, other formats,
            and JSON without text. The error names file and line.
    """
    counts = dict.fromkeys(("documents", "lines", "characters"), 0)
    beginning = ""
    num_bytes = sum(source.num_bytes for source in sources)
    with show_progress("checking inputs", num_bytes) as bar:
        reading = Reading(config, bar.update, Counter(), [])
        for source in sources:
            for document in _collect_documents(source, reading):
                counts["documents"] += 1
                counts["lines"] += len(document)
                counts["characters"] += sum(map(len, document))
                if len(beginning) < _JUDGED_CHARACTERS:
                    beginning += "\n".join(document) + "\n"
    counts["joined_lines"] = number = reading.skipped[JOINED_LINES]
    if number:
        logging.info("the text has wrapped lines: joined %d of them", number)
    digests = dict(zip(sources, reading.digests, strict=True))
    return CheckedText(config, digests, counts, beginning[:_JUDGED_CHARACTERS])


def _collect_documents(
    source: "Source", reading: Reading
) -> Iterator[list[str]]:
    """Yields the lines of each document of a source; long ones are cut."""
    document: list[str] = []
    size = 0
    for line in source.read_texts(reading):
        is_too_long = size + len(line) > LONGEST_DOCUMENT
        if document and (is_too_long or not line):
            if line:
                reading.skipped[CUT_DOCUMENTS] += 1
            yield document
            document, size = [], 0
        if line:
            document.append(line)
            size += len(line)
    if document:
        yield document


def join_counts(skipped: Mapping[str, int]) -> str:
    """Counts of what was skipped, as text."""
    return ", ".join(f"{count} {what}" for what, count in skipped.items())


def refuse_unknown(unknown: int, total: int, symbols: str) -> None:
    """Refuses a text of which too much is unknown to a vocabulary of symbols.

    Args:
        symbols: Which ones are unknown.
    """
    if unknown > _LARGEST_UNKNOWN * total:
        raise UserError(
            "a vocabulary of symbols must know all but "
            f"{_LARGEST_UNKNOWN:.1%} of the text",
            received=f"{unknown:,} of {total:,} symbols unknown{symbols}",
            remedy="Add them to the list of symbols, or correct the text; "
            "--symbols=text takes all of a text.",
        )


def _strip(line: str) -> str:
    """Strips spaces; a line without visible characters is blank."""
    line = line.strip()
    return line if line[:1].isalnum() or line.strip(_INVISIBLE) else ""


def _lines_of_text(
    text: str | bytes | None, where: str, reading: Reading
) -> Iterator[str]:
    """Yields the lines of one document, and the empty line that ends it."""
    # null is a document without text
    decoded = _to_unicode(text or "", where, reading.config)
    if decoded is None:
        reading.skipped[SKIPPED_TEXTS] += 1
        return
    is_empty = True
    for line in _LINE_END.split(decoded):
        for begin in range(0, len(line), LONGEST_DOCUMENT):
            if part := _strip(line[begin : begin + LONGEST_DOCUMENT]):
                is_empty = False
                yield part
    if is_empty:
        reading.skipped[EMPTY_TEXTS] += 1
    yield ""


def _to_unicode(
    text: str | bytes, where: str, config: CorpusConfig
) -> str | None:
    """Applies `on_bad_utf8`; returns None for text that it skips.

    Args:
        text: UTF-8, or a string with surrogates in place of other bytes.
        where: The place of the text, for an error.
    """
    if isinstance(text, bytes):
        text = text.decode(errors="surrogateescape")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if config.on_bad_utf8 == "error":
            code = ord(text[error.start])
            what = f"half of a surrogate pair, U+{code:04X},"
            if 0xDC80 <= code < 0xDD00:
                what = f"byte 0x{code - 0xDC00:02x}"
            raise UserError(
                f"{where} must be UTF-8",
                received=f"{what} at character {error.start}",
                remedy="Convert the text, e.g. with iconv, or set "
                "--on_bad_utf8=replace or --on_bad_utf8=skip.",
            ) from None
        if config.on_bad_utf8 == "skip":
            return None
        text = _HALF_PAIRS.sub("\ufffd", text)
        text = text.encode(errors="surrogateescape").decode(errors="replace")
    return text


# --- sources ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file of text or of JSON."""

    name: str  # its path
    num_bytes: int  # its stored size

    def read_texts(self, reading: Reading) -> Iterator[str]:
        """Yields stripped lines, and an empty line at the end of a document."""
        digest = hashlib.sha256()
        num_read = 0

        def on_stored(block: bytes) -> None:
            nonlocal num_read
            digest.update(block)
            num_read += len(block)
            reading.on_bytes(len(block))

        blocks = read_blocks(self.name, on_stored)
        head = next(blocks, b"").removeprefix(_BOM)
        form = "jsonl"  # of labelled text
        if not reading.config.reads_labels:
            form = self._find_format(head, reading.config)
        if form == "parquet":
            yield from self._read_parquet(self.num_bytes - num_read, reading)
            return
        blocks = itertools.chain([head], blocks)
        width = 0
        if form == "text":
            start = head[:_JUDGED_CHARACTERS].decode(errors="replace")
            width = find_width(start)
            lines = self._read_text(blocks, reading)
            yield from _join_lines(lines, width, reading) if width else lines
        else:
            yield from self._read_table(form, blocks, reading)
        # The setting decides what the same bytes are.
        prefix = "" if form == "text" else f"{form}:"
        prefix = "wrapped:" if width else prefix
        reading.digests.append(prefix + digest.hexdigest())

    def _find_format(self, head: bytes, config: CorpusConfig) -> str:
        """Returns "text", "jsonl", "csv", "tsv" or "parquet"; refuses others.

        Args:
            head: First bytes of the content, without a byte order mark.
        """
        form = config.input_format
        if head.startswith(tables.PARQUET):
            return "parquet"
        tables.check_format(head, self.name)
        if form != "auto":
            return form
        named = _NAME.search(self.name)
        ending = named[1].lower() if named else ""
        if "json" in ending or _JSON.match(head):
            return "jsonl"
        if ending:  # csv, tsv
            return ending
        if _is_table(head[:_HEAD_BYTES].decode(errors="replace")):
            raise UserError(
                f"{self.name} must be text, or JSON lines",
                "a table, e.g. CSV",
                "--input_format=csv reads its column --text_field. "
                "--input_format=text reads it as text.",
            )
        return "text"

    def _read_text(
        self, blocks: Iterator[bytes], reading: Reading
    ) -> Iterator[str]:
        for number, line in read_lines(blocks, LONGEST_DOCUMENT):
            if b"\0" in line:
                raise tables.zero_byte(self.name, number, line)
            text: str | None
            try:
                text = line.decode()
            except UnicodeDecodeError:
                where = f"line {number} of {self.name}"
                text = _to_unicode(line, where, reading.config)
            if text is None:
                reading.skipped[SKIPPED_LINES] += 1
            else:
                yield _strip(text)

    def _read_table(
        self, form: str, blocks: Iterator[bytes], reading: Reading
    ) -> Iterator[str]:
        field = reading.config.text_field
        if form == "jsonl":
            rows = tables.read_json(blocks, self.name, _SURROGATES)
        else:
            table = tables.open_table(
                tables.read_lines(blocks, self.name, _SURROGATES),
                self.name,
                is_csv=form == "csv",
                read_again=self._read_lines,
                wanted=[field],
            )
            if field not in table.columns:
                raise _unknown_column(self.name, field, table.columns)
            rows = table.rows
        for place, values in rows:
            where = f"{place} of {self.name}"
            if reading.config.reads_labels:
                yield from _labelled_lines(values, where, reading)
                continue
            text = _text_of(where, values, field, form)
            yield from _lines_of_text(text, where, reading)

    def _read_lines(self) -> Iterator[str]:
        blocks = read_blocks(self.name, lambda block: None)
        return tables.read_lines(blocks, self.name, _SURROGATES)

    def _read_parquet(self, num_bytes: int, reading: Reading) -> Iterator[str]:
        """Args: num_bytes: stored bytes that are not reported yet."""
        field = reading.config.text_field
        table = tables.open_parquet(self.name, [field])
        if not table.columns.get(field):
            raise _unknown_column(self.name, field, table.columns)
        texts = (
            values[field]
            for _, values in table.rows
            if isinstance(values, dict)
        )
        place = "row", self.name
        total = table.num_rows or 0
        yield from _read_rows(texts, total, num_bytes, place, reading)


def _text_of(
    where: str, values: dict[str, Any] | str, field: str, form: str
) -> str | None:
    """The text of a row; None if the row says that there is none."""
    if isinstance(values, str):
        raise UserError(
            f"{where} must be a complete JSON object, or have a cell for each "
            "column of a table",
            received=values,
            remedy="Write the file as JSON lines, e.g. with jq -c ., or put "
            "quotation marks around cells with the delimiter. "
            "--input_format=text reads it as text.",
        )
    text = values.get(field, False)
    if _is_list_of_strings(text):
        return " ".join(text)
    # pandas writes NaN for null.
    if text != text or (form != "jsonl" and text in _NULLS):
        return None
    if not (text is None or isinstance(text, str)):
        raise UserError(
            f'{where} must be an object with a string "{field}"',
            received=json.dumps(values)[:80],
            remedy="Name the field by --text_field, or set "
            "--input_format=text, if it is not JSON.",
        )
    return text


def _is_list_of_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


def _labelled_lines(
    values: dict[str, Any] | str, where: str, reading: Reading
) -> Iterator[str]:
    """Yields a row of `units` and `words` as lines for `split_labels`.

    An empty line follows. A unit, the symbols of a word, has no white space.
    """
    row = values if isinstance(values, dict) else {}
    units: Any = row.get("units")
    words: Any = row.get("words")
    received = ""
    if not (_is_list_of_strings(units) and _is_list_of_strings(words)):
        received = json.dumps(values)[:80]
    elif len(units) != len(words):
        received = f"{len(units)} units and {len(words)} words"
    else:
        for unit in units:
            # A word mark is a space for SentencePiece.
            if unit.replace(WORD_MARK, " ").split() != [unit]:
                received = f"the unit {unit!r}"
                break
    if received:
        raise UserError(
            f"{where} must be JSON with two lists of strings of equal length: "
            "`units`, without white space and not empty, and `words`",
            received=received,
        )
    for begin in range(0, len(units), _UNITS_OF_LINE):
        part = slice(begin, begin + _UNITS_OF_LINE)
        named = [" ".join(word.split()) for word in words[part]]
        line = _LABEL_MARK.join([" ".join(units[part]), *named])
        if (decoded := _to_unicode(line, where, reading.config)) is not None:
            yield decoded
    if not units:
        reading.skipped[EMPTY_TEXTS] += 1
    yield ""


def split_labels(line: str) -> tuple[str, list[str]]:
    """The units of a labelled line, joined by spaces, and the word of each."""
    text, *words = line.split(_LABEL_MARK)
    return text, words


def choose_labels(checked: CheckedText, number: int) -> list[str]:
    """The most frequent words of labelled text, at most a number of them."""
    counts: Counter[str] = Counter()
    for lines in checked.read_documents("counting words", Counter()):
        for line in lines:
            counts.update(filter(None, split_labels(line)[1]))
    by_count = sorted(counts, key=lambda word: (-counts[word], word))[:number]
    labelled = sum(counts[word] for word in by_count)
    logging.info(
        "%d labels for %.1f %% of the words, which are %d different ones",
        len(by_count),
        100 * labelled / max(1, counts.total()),
        len(counts),
    )
    return by_count


def _unknown_column(
    path: str, text_field: str, columns: Iterable[str]
) -> UserError:
    return UserError(
        f"text_field must be a column of text of {path}",
        received=text_field,
        remedy=f"Its columns are {', '.join(columns)[:200]}.",
    )


def _is_table(head: str) -> bool:
    """Whether text has rows of as many cells, of tabs or below names."""
    lines = [line for line in _LINE_END.split(head) if line.strip()][:40]
    for mark in tables.DELIMITERS:
        rows = list(csv.reader(lines, delimiter=mark))
        # The last row may be incomplete.
        sizes = {len(row) for row in rows[: max(2, len(rows) - 1)]}
        is_header = bool(rows) and all(map(str.isidentifier, rows[0]))
        is_table = len(rows) > 1 and len(sizes) == 1 and sizes != {1}
        if is_table and (is_header or mark == "\t"):
            return True
    return False


def _read_rows(
    texts: Iterable[str | bytes | None],
    total: int,
    num_bytes: int,
    place: tuple[str, str],
    reading: Reading,
) -> Iterator[str]:
    """Reads documents that are rows of a table, and not bytes of a file.

    See `TextFile.read_texts`; the digest is that of the texts.

    Args:
        texts: UTF-8, or with surrogates for other bytes; None is a document
            without text.
        total: Their number.
        num_bytes: Stored bytes of all of them.
        place: What a row is, and the table, for messages.
    """
    digest = hashlib.sha256()
    for number, text in enumerate(texts):
        content = text or b""
        if isinstance(content, str):
            content = content.encode(errors=_SURROGATES)
        digest.update(b"%d:%b" % (len(content), content))
        where = f"{place[0]} {number} of {place[1]}"
        yield from _lines_of_text(content, where, reading)
        done = num_bytes * (number + 1) // total
        reading.on_bytes(done - num_bytes * number // total)
    reading.digests.append(digest.hexdigest())


@dataclasses.dataclass(frozen=True)
class DatasetSplit:
    """A split of a dataset of TensorFlow Datasets, or a slice of it."""

    name: str  # for messages, e.g. "wikipedia/20230601.en/1.0.0:train"
    num_bytes: int

    def read_texts(self, reading: Reading) -> Iterator[str]:
        """See `TextFile.read_texts`."""
        config = reading.config
        builder = open_dataset(config.tfds)
        elements = read_elements(builder, config.tfds_split)
        total = builder.info.splits[config.tfds_split].num_examples
        texts = (element[config.text_field] for element in elements)
        place = "element", self.name
        yield from _read_rows(texts, total, self.num_bytes, place, reading)


Source = TextFile | DatasetSplit


def _find_dataset(config: CorpusConfig) -> DatasetSplit:
    """Finds `tfds_split` of `tfds`."""
    info = open_dataset(config.tfds).info
    split = config.tfds_split
    try:
        found = info.splits[split]
        paths = [str(path) for path in found.filepaths]
        fault = "" if found.num_examples > 0 else "It has no examples."
    except Exception as error:  # of the split's name or its slice
        fault = first_line(error)
    if fault:
        raise UserError(
            "tfds_split must be a split of the dataset, or a slice of it",
            received=split,
            remedy=f"Its splits are {', '.join(info.splits)}. {fault}",
        )
    feature = dict(info.features).get(config.text_field)
    # TensorFlow Datasets declares strings as NumPy objects.
    if feature is None or feature.shape != () or feature.np_dtype != np.object_:
        raise _unknown_column(info.full_name, config.text_field, info.features)
    num_bytes = sum(map(files.count_bytes, paths))
    return DatasetSplit(f"{info.full_name}:{split}", num_bytes)


# --- lines of files -----------------------------------------------------------


def find_width(text: str) -> int:
    r"""The number of characters at which the lines of a text are wrapped, or 0.

    Example:
        >>> import textwrap
        >>> wrapped = textwrap.fill("A paragraph of many words " * 50, 72)
        >>> find_width(wrapped)
        72
        >>> find_width("A sentence on its own line.\n" * 50)
        0
    """
    lines = [line.strip() for line in _LINE_END.split(text)]
    pairs = [pair for pair in itertools.pairwise(lines) if all(pair)]
    lengths = sorted(len(line) for line, _ in pairs)
    # Some lines may be longer, e.g. addresses and tables.
    width = lengths[int(0.9 * len(lengths))] if lengths else 0
    full = [line for line, after in pairs if _is_full(line, after, width)]
    within = [line for line in full if not line.endswith(_SENTENCE_ENDS)]
    is_wrapped = (
        width in _WRAPPED_WIDTHS
        and len(full) >= max(10, _WRAPPED_SHARE * len(pairs))
        and len(within) >= len(full) / 2
    )
    return width if is_wrapped else 0


def _is_full(line: str, following: str, width: int) -> bool:
    """Whether the first word of the following line does not fit in a line."""
    word = following.partition(" ")[0]
    return " " in line and len(line) + 1 + len(word) > width


def _join_lines(
    lines: Iterable[str], width: int, reading: Reading
) -> Iterator[str]:
    """Joins the lines of paragraphs; see `find_width`."""
    paragraph = previous = ""
    for line in lines:
        is_part = previous and line and _is_full(previous, line, width)
        if is_part and len(paragraph) < LONGEST_DOCUMENT:
            # Also within a word with a hyphen.
            space = "" if re.search(r"\w-$", previous) else " "
            paragraph += space + line
            reading.skipped[JOINED_LINES] += 1
        else:
            if paragraph:
                yield paragraph
            paragraph = line
            if not line:
                yield line
        previous = line
    if paragraph:
        yield paragraph


def read_lines(
    blocks: Iterable[bytes], longest: int
) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of text, given in blocks, with their numbers from 1.

    Args:
        longest: Longest line in bytes. Longer lines are cut into parts, after
            a space if possible, else between characters.
    """
    number, rest = 1, b""
    for block in blocks:
        lines = (rest + block).splitlines(keepends=True)
        rest = b""
        if lines and not lines[-1].endswith(b"\n"):
            # It continues in the next block; after a CR, perhaps with an LF.
            rest = lines.pop()
        for line in lines:
            line = line.rstrip(b"\r\n")
            for part in [line] if len(line) <= longest else cut(line, longest):
                yield number, part
            number += 1
        while len(rest) > 2 * longest:
            part = next(cut(rest, longest))
            yield number, part
            rest = rest[len(part) :]
    if rest:
        for part in cut(rest.rstrip(b"\r"), longest):
            yield number, part


def cut(content: bytes, longest: int) -> Iterator[bytes]:
    """Yields the content in parts of at most `longest` bytes."""
    begin = 0
    while len(content) - begin > longest:
        end = content.rfind(b" ", begin, begin + longest) + 1
        if not end:
            end = begin + longest
            # Bytes 10xxxxxx continue a character; it has at most 3 of them.
            for _ in range(3):
                if content[end] & 0xC0 == 0x80:
                    end -= 1
        yield content[begin:end]
        begin = end
    yield content[begin:]


def read_blocks(path: str, on_stored: OnStored) -> Iterator[bytes]:
    """Yields the decompressed content of a file.

    Args:
        on_stored: Called with each block of stored (compressed) bytes.

    Raises:
        UserError: For a damaged or incomplete compressed file.
    """
    with files.open_existing(path, "rb") as file:

        def read(size: int) -> bytes:
            block = file.read(size)
            on_stored(block)
            return block

        head = read(_STORED_BYTES)
        magic = next(filter(head.startswith, _DECOMPRESSORS), b"")
        if magic:
            stored = iter(lambda: read(_STORED_BYTES), b"")
            yield from _decompress(itertools.chain([head], stored), magic, path)
        else:
            # Its first block decides how text is read, compressed or not.
            yield head + read(BLOCK_BYTES)
            yield from iter(lambda: read(BLOCK_BYTES), b"")


def _decompress(
    stored_blocks: Iterable[bytes], magic: bytes, path: str
) -> Iterator[bytes]:
    """Yields the content of all streams of a file, which follow each other.

    Unlike here, the readers of bz2 and zstandard end without an error at some
    damages of later streams.
    """
    name, open_stream = _DECOMPRESSORS[magic]
    stream = None
    content = bytearray()
    try:
        for stored in stored_blocks:
            while stored:
                stream = stream or open_stream()
                content += stream.decompress(stored)
                stored = b""
                if stream.eof:
                    stored, stream = stream.unused_data, None
            if len(content) >= BLOCK_BYTES:
                yield bytes(content)
                content.clear()
        if stream is not None:
            raise EOFError("the file ended within a stream")
    except (
        EOFError,
        OSError,
        lzma.LZMAError,
        zlib.error,
        zstandard.ZstdError,
    ) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise UserError(
            f"{path} must be a complete {name} file", received=str(error)
        ) from None
    if content:
        yield bytes(content)


# --- sentences ----------------------------------------------------------------

# sentencex pairs quotes and brackets over its complete input, so it finds fewer
# sentence ends in long lines: of 1,000,000 characters, 20 % instead of 96 %.
# In windows of this many characters, it finds 96 % of the ends at any length,
# and 99 % of the found ends are correct.
WINDOW_CHARACTERS = 2000

# A window without a sentence end grows to this size. sentencex takes the square
# of the number of open quotes of a window.
_LARGEST_WINDOW = 16_000

# SentencePiece takes the square of the length of a word that it does not know.
LONGEST_WORD = 1 << 14

# sentencex 1.0.32 panics at some white space of several bytes, since it takes
# the number of its characters for that of its bytes.
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")


def break_sentences(
    lines: list[str], config: CorpusConfig, skipped: Skipped
) -> list[str]:
    """Returns the sentences of a document of lines, or of paragraphs.

    Args:
        skipped: Counts cuts of very long words.
    """
    sentences = lines
    if config.sentence_breaker != "none":
        sentences = [
            sentence.strip()
            for line in lines
            for sentence in break_line(config.language, line)
            if sentence.strip()
        ]
    return [part for s in sentences for part in _cut_words(s, skipped)]


def _cut_words(sentence: str, skipped: Skipped) -> list[str]:
    """Cuts a sentence within words of more than `LONGEST_WORD` characters."""
    if len(sentence) <= LONGEST_WORD:
        return [sentence]
    parts: list[list[str]] = [[]]
    for word in sentence.split(" "):
        parts[-1].append(word[:LONGEST_WORD])
        for begin in range(LONGEST_WORD, len(word), LONGEST_WORD):
            parts.append([word[begin : begin + LONGEST_WORD]])
            skipped[CUT_WORDS] += 1
    return list(map(" ".join, parts))


def describe_breaking(config: CorpusConfig) -> dict[str, Any]:
    """Returns what decides the sentences besides text and settings."""
    if config.sentence_breaker == "none":
        return {}
    return {"window_characters": WINDOW_CHARACTERS, "wide_space": "as space"}


def find_versions(config: CorpusConfig) -> dict[str, str]:
    """Returns the versions that the result of a command depends on, by name."""
    versions = {
        "sentencepiece": sentencepiece.__version__,
        "unicode": unicodedata.unidata_version,
    }
    if config.sentence_breaker == "sentencex":
        versions["sentencex"] = importlib.metadata.version("sentencex")
    return versions


def break_line(language: str, line: str) -> Iterator[str]:
    """Yields the sentences of a line; joined, they are the line.

    A line of up to `WINDOW_CHARACTERS` is one window. A window of a longer line
    grows until it holds a complete sentence, or up to `_LARGEST_WINDOW`. Its
    last sentence, which may be incomplete, begins the next window.
    """
    first = begin = 0  # of the sentence, of the window
    size = WINDOW_CHARACTERS
    while len(line) - begin > size:
        window = line[begin : begin + size]
        last_space = window.rfind(" ")
        if last_space > 0:
            window = window[:last_space]
        *complete, last = _break_window(language, window)
        if complete:
            yield line[first : begin + len(complete[0])]
            yield from complete[1:]
            first = begin = begin + len(window) - len(last)
            size = WINDOW_CHARACTERS
        elif size < _LARGEST_WINDOW:
            size *= 2
        else:
            begin += len(window)
    head, *others = _break_window(language, line[begin:]) or [""]
    if sentence := line[first:begin] + head:
        yield sentence
    yield from others


def _break_window(language: str, window: str) -> list[str]:
    """Returns the sentences of a window; joined, they are the window."""
    parts = sentencex.segment(language, _WIDE_SPACE.sub(" ", window))
    ends = list(itertools.accumulate(map(len, parts), initial=0))
    return [window[begin:end] for begin, end in itertools.pairwise(ends)]
