"""Reads text as documents of lines, in bounded memory, and breaks sentences.

Text files are local or gs://. Their first bytes say how they are compressed,
and whether they are text, JSON or Parquet, and their names if they are CSV;
other formats are refused. A line, which ends at LF, CR LF or CR, is a sentence
or a paragraph; a line without visible characters or the end of the file ends a
document. In JSON, each object is a document; in tables, each row; in TensorFlow
Datasets, each element.

All text is read twice: `check_inputs` finds faults before the work begins, and
`read_documents` compares what it reads with what was checked.
"""

import bz2
import codecs
import csv
import dataclasses
import hashlib
import importlib.metadata
import io
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
from albert_tf.io import files
from albert_tf.io.datasets import open_dataset, read_elements
from data_prep.config import CorpusConfig
from data_prep.processes import show_progress

# Longer documents (characters) and lines (bytes) are cut. This bounds memory
# for a book on one line and for a corpus without blank lines.
LONGEST_DOCUMENT = 1 << 20

# Longest JSON document, in bytes. It is larger than `LONGEST_DOCUMENT`, because
# JSON that is cut cannot be parsed.
_LONGEST_JSON = 1 << 26

BLOCK_BYTES = 1 << 20

# Stored bytes that are decompressed at a time. gzip expands them to 4 MB at
# most.
_STORED_BYTES = 1 << 12

# First bytes that decide about a format.
_HEAD_BYTES = 1 << 16

_BOM = b"\xef\xbb\xbf"

# Makes the decompressor of a stream that begins with these bytes. By default,
# zstandard refuses files of zstd --long=28 to --long=31.
_DECOMPRESSORS: dict[bytes, tuple[str, Callable[[], Any]]] = {
    b"\x1f\x8b": ("gz", lambda: zlib.decompressobj(16 + zlib.MAX_WBITS)),
    b"BZh": ("bz2", bz2.BZ2Decompressor),
    b"\xfd7zXZ\0": ("xz", lzma.LZMADecompressor),
    **dict.fromkeys(
        (b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18"),  # the second: of pzstd
        (
            "zst",
            lambda: zstandard.ZstdDecompressor(
                max_window_size=1 << 31
            ).decompressobj(),
        ),
    ),
}

_PARQUET = b"PAR1"
_ROWS_AT_A_TIME = 64

# What begins with these bytes, and what to do with it. Most other formats have
# zero bytes, which are refused in any line.
_REFUSED_FORMATS = {
    **dict.fromkeys(
        (b"\xff\xfe", b"\xfe\xff"),
        (
            "a byte order mark of UTF-16 or UTF-32",
            "Convert the file, e.g. with iconv -f UTF-16 -t UTF-8.",
        ),
    ),
    _PARQUET: ("Parquet", "Set --input_format=parquet."),
    b"PK\x03\x04": ("a zip archive", "Unpack it with unzip."),
    b"%PDF-": ("PDF", "Extract its text, e.g. with pdftotext."),
    b"{\\rtf": ("RTF", "Save it as plain text."),
}

_COMPRESSED = r"(\.(gz|bz2|xz|zstd?))?$"
_JSON_NAME = re.compile(rf"\.(jsonl|json|ndjson){_COMPRESSED}", re.IGNORECASE)
_CSV_NAME = re.compile(rf"\.[ct]sv{_COMPRESSED}", re.IGNORECASE)
_DELIMITERS = ",\t;|"
_JSON = re.compile(rb"\s*(\[\s*)?{\s*[\"}]")
_BETWEEN_VALUES = re.compile(r"[\s,\[\]\ufeff]*")
# Accepts tabs and other control characters in strings.
_JSON_DECODER = json.JSONDecoder(strict=False)

# Surrogates that stand for no byte: JSON can encode half of a pair.
_HALF_PAIRS = re.compile("[\ud800-\udc7f\udd00-\udfff]")

# A tag with an attribute, alone, before a tag, or that is closed in its line.
_MARKUP = re.compile(
    r"<(\?|!|(\w[\w:.-]*)(\s+[\w:.-]+\s*=|[^<>]*>\s*($|<|.*</\2>)))"
)

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
    if not config.input_file and not config.tfds:
        raise UserError(
            "--input_file or --tfds is required",
            remedy="See --help for their form and an example.",
        )
    paths = files.find_all("input_file", config.input_file, "*.txt")

    def real(path: str) -> str:
        return path if files.is_remote(path) else os.path.realpath(path)

    # A link is another path of its file.
    unique: dict[str, str] = {}
    for path in paths:
        unique.setdefault(real(path), path)
    sources: list[Source] = []
    passed_over = [unique.pop(p) for p in map(real, written) if p in unique]
    for path in unique.values():
        if size := files.count_bytes(path):
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
        sources += _find_dataset(config)
    if not sources:
        raise UserError(
            "input files must not be empty", name_faults(passed_over)
        )
    return sources


def check_inputs(
    sources: Sequence["Source"], config: CorpusConfig
) -> dict["Source", str]:
    """Reads all text once, so that a fault is reported early.

    Returns:
        The sources, in order, with a digest of the text of each.

    Raises:
        UserError: For damaged files, bytes that are not UTF-8, other formats,
            and JSON without text. The error names file and line.
    """
    num_bytes = sum(source.num_bytes for source in sources)
    with show_progress("checking inputs", num_bytes) as bar:
        reading = Reading(config, bar.update, Counter(), [])
        for source in sources:
            for _ in source.read_texts(reading):
                pass
    return dict(zip(sources, reading.digests, strict=True))


def read_documents(
    sources: Mapping["Source", str],
    config: CorpusConfig,
    on_bytes: OnBytes,
    skipped: Skipped,
) -> Iterator[list[str]]:
    """Yields the stripped lines of each document; none is empty.

    Args:
        sources: The sources, with what `check_inputs` returned for them.
        on_bytes: As `skipped`, see `Reading`.

    Raises:
        UserError: For text that `check_inputs` refuses, or that has changed
            since.
    """
    for source, digest in sources.items():
        document: list[str] = []
        size = 0
        reading = Reading(config, on_bytes, skipped, [])
        for line in source.read_texts(reading):
            if line:
                if size + len(line) > LONGEST_DOCUMENT:
                    skipped[CUT_DOCUMENTS] += 1
                    yield document
                    document, size = [], 0
                document.append(line)
                size += len(line)
            elif document:
                yield document
                document, size = [], 0
        if reading.digests != [digest]:
            raise UserError(
                f"{source.name} must not change while the command runs",
                received="other text than when it was checked",
                remedy="Run the command again once nothing writes to it, or "
                "on a copy.",
            )
        if document:
            yield document


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
        form = self._find_format(head, reading.config)
        if form == "parquet":
            texts, total = _read_parquet(self.name, reading.config.text_field)
            rest = self.num_bytes - num_read
            yield from _read_rows(
                texts, total, rest, ("row", self.name), reading
            )
            return
        read = {
            "text": self._read_text,
            "jsonl": self._read_json,
            "csv": self._read_csv,
        }[form]
        yield from read(itertools.chain([head], blocks), reading)
        # The setting decides what the same bytes are.
        prefix = "" if form == "text" else f"{form}:"
        reading.digests.append(prefix + digest.hexdigest())

    def _find_format(self, head: bytes, config: CorpusConfig) -> str:
        """Returns a value of `input_format`; refuses what has none.

        Args:
            head: First bytes of the content, without a byte order mark.
        """
        form = config.input_format
        if form in ("auto", "parquet") and head.startswith(_PARQUET):
            return "parquet"
        found = [r for m, r in _REFUSED_FORMATS.items() if head.startswith(m)]
        if head[257:262] == b"ustar":
            found = [("a tar archive", "Unpack it with tar -xf.")]
        if found:
            raise UserError(f"{self.name} must be UTF-8", *found[0])
        if form == "parquet":
            raise UserError(
                f"{self.name} must be Parquet",
                received=repr(head[:20]),
                remedy="Leave out --input_format.",
            )
        if form != "auto":
            return form
        if _JSON_NAME.search(self.name) or _JSON.match(head):
            return "jsonl"
        if _CSV_NAME.search(self.name):
            return "csv"
        if other := _find_form(head[:_HEAD_BYTES].decode(errors="replace")):
            what, remedy = other
            raise UserError(
                f"{self.name} must be text, or JSON lines",
                what,
                f"{remedy} --input_format=text reads it as text.",
            )
        return "text"

    def _read_text(
        self, blocks: Iterator[bytes], reading: Reading
    ) -> Iterator[str]:
        for number, line in read_lines(blocks, LONGEST_DOCUMENT):
            if b"\0" in line:
                raise UserError(
                    f"line {number} of {self.name} must be UTF-8 without zero "
                    "bytes",
                    received=f"a zero byte at byte {line.index(0)}",
                    remedy="If the file is UTF-16, convert it, e.g. with iconv "
                    "-f UTF-16LE -t UTF-8. If it is text but for these bytes, "
                    "remove them with tr -d '\\000'. Other formats are not "
                    "read.",
                )
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

    def _read_json(
        self, blocks: Iterator[bytes], reading: Reading
    ) -> Iterator[str]:
        field = reading.config.text_field
        for where, found in self._parse_json(blocks):
            is_object = isinstance(found, dict)
            text = found.get(field, False) if is_object else False
            if text != text:  # pandas writes NaN for null
                text = None
            if not (text is None or isinstance(text, str)):
                raise UserError(
                    f'{where} must be an object with a string "{field}"',
                    received=json.dumps(found)[:80],
                    remedy="Name the field by --text_field, or set "
                    "--input_format=text, if it is not JSON.",
                )
            yield from _lines_of_text(text, where, reading)

    def _read_csv(
        self, blocks: Iterator[bytes], reading: Reading
    ) -> Iterator[str]:
        csv.field_size_limit(_LONGEST_JSON)
        lines = _decode_lines(blocks)
        header = next(lines, "")
        field = reading.config.text_field
        delimiter, column = _find_column(self.name, header, field)
        # Strict: otherwise, an unclosed quotation mark takes the rest of the
        # file for one cell.
        rows = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            for row in filter(None, rows):
                where = (
                    f"the row before line {rows.line_num + 2} of {self.name}"
                )
                if column >= len(row):
                    raise UserError(
                        f"{where} must have at least {column + 1} cells",
                        received=repr(row)[:80],
                    )
                yield from _lines_of_text(row[column], where, reading)
        except csv.Error as error:
            raise UserError(
                f"{self.name} must be CSV",
                received=f"{error}, at line {rows.line_num + 1}",
                remedy="Check its quotation marks.",
            ) from None

    def _parse_json(self, blocks: Iterator[bytes]) -> Iterator[tuple[str, Any]]:
        """Yields the values of JSON lines or of a list, with their places.

        Surrogates stand for bytes that are not UTF-8.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        text, number = "", 1
        for block in itertools.chain(blocks, [b""]):
            text += decoder.decode(block, final=not block)
            begin = 0
            while True:
                between = _BETWEEN_VALUES.match(text, begin)
                start = between.end() if between else begin
                number += text.count("\n", begin, start)
                begin = start
                where = f"line {number} of {self.name}"
                try:
                    found, end = _JSON_DECODER.raw_decode(text, begin)
                except (ValueError, RecursionError) as error:
                    size = len(text) - begin
                    # The value may continue in the next block.
                    is_open = isinstance(error, json.JSONDecodeError) and (
                        error.pos > len(text) - 16 or "Untermi" in error.msg
                    )
                    is_too_long = is_open and size > _LONGEST_JSON
                    if size and (is_too_long or not (block and is_open)):
                        raise _json_error(where, error, is_too_long) from None
                    break
                number += text.count("\n", begin, end)
                begin = end
                yield where, found
            text = text[begin:]


def _json_error(where: str, error: Exception, is_too_long: bool) -> UserError:
    if is_too_long:
        return UserError(
            f"{where}: a JSON document must have at most {_LONGEST_JSON} bytes",
            received="more",
            remedy="Split it into several documents.",
        )
    fault = str(error)
    if isinstance(error, json.JSONDecodeError):
        fault = f"{error.msg}, at character {error.colno - 1}"
    return UserError(
        f"{where} must be a complete JSON object: the file must be JSON lines, "
        "one document per line, or a list of objects",
        received=fault,
        remedy="Convert it, e.g. with jq -c ., or set --input_format=text.",
    )


def _decode_lines(blocks: Iterable[bytes]) -> Iterator[str]:
    """Yields lines with their LF; surrogates stand for other bytes."""
    rest = ""
    for text in codecs.iterdecode(blocks, "utf-8", "surrogateescape"):
        *lines, rest = (rest + text).split("\n")
        yield from (line + "\n" for line in lines)
    if rest:
        yield rest


def _find_column(path: str, header: str, text_field: str) -> tuple[str, int]:
    """Returns the delimiter of a CSV file, and the index of a column."""
    for delimiter in _DELIMITERS:
        names = next(csv.reader([header], delimiter=delimiter), [])
        if text_field in names:
            return delimiter, names.index(text_field)
    raise _unknown_column(path, text_field, header.strip()[:200])


def _unknown_column(path: str, text_field: str, columns: str) -> UserError:
    return UserError(
        f"text_field must be a column of text of {path}",
        received=text_field,
        remedy=f"Its columns are {columns}.",
    )


class _Seekable(io.RawIOBase):
    """What `files.open_existing` returns, as pyarrow needs it."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._file.seek(offset, whence)
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


def _read_parquet(
    path: str, text_field: str
) -> tuple[Iterator[bytes | None], int]:
    """Returns the UTF-8 texts of a column, and their number."""
    import pyarrow.parquet

    faults = pyarrow.ArrowException, OSError
    stream = io.BufferedReader(
        _Seekable(files.open_existing(path, "rb")), BLOCK_BYTES
    )
    try:
        file = pyarrow.parquet.ParquetFile(stream)
    except faults as error:
        raise _damaged(path, error) from None
    types = {field.name: field.type for field in file.schema_arrow}
    kind = types.get(text_field)
    if isinstance(kind, pyarrow.DictionaryType):
        kind = kind.value_type
    if str(kind).removeprefix("large_") not in ("string", "binary"):
        raise _unknown_column(path, text_field, ", ".join(types))

    def read() -> Iterator[bytes | None]:
        try:
            for batch in file.iter_batches(
                _ROWS_AT_A_TIME, columns=[text_field]
            ):
                texts = batch.column(0).cast(pyarrow.large_binary())
                yield from texts.to_pylist()
        except faults as error:
            raise _damaged(path, error) from None

    return read(), file.metadata.num_rows


def _damaged(path: str, error: Exception) -> Exception:
    if isinstance(error, OSError) and error.errno:
        return error
    return UserError(
        f"{path} must be a complete Parquet file", received=first_line(error)
    )


def _find_form(head: str) -> tuple[str, str] | None:
    """Returns what text is that is not prose, with a remedy."""
    lines = [line for line in _LINE_END.split(head) if line.strip()][:40]
    if lines and _MARKUP.match(lines[0].strip()):
        return "markup", (
            "Extract its text, e.g. from a dump of Wikipedia with "
            "WikiExtractor --json."
        )
    for mark in "\t,;|":
        # Rows of as many cells, of tabs or below names. The last row may be
        # incomplete.
        rows = list(csv.reader(lines, delimiter=mark))
        sizes = {len(row) for row in rows[: max(2, len(rows) - 1)]}
        is_header = bool(rows) and all(map(str.isidentifier, rows[0]))
        is_table = len(rows) > 1 and len(sizes) == 1 and sizes != {1}
        if is_table and (is_header or mark == "\t"):
            return (
                "a table, e.g. CSV",
                "--input_format=csv reads its column --text_field.",
            )
    return None


def _read_rows(
    texts: Iterable[bytes | None],
    total: int,
    num_bytes: int,
    place: tuple[str, str],
    reading: Reading,
) -> Iterator[str]:
    """Reads documents that are rows of a table, and not bytes of a file.

    See `TextFile.read_texts`; the digest is that of the texts.

    Args:
        texts: UTF-8; None is a document without text.
        total: Their number.
        num_bytes: Stored bytes of all of them.
        place: What a row is, and the table, for messages.
    """
    digest = hashlib.sha256()
    for number, text in enumerate(texts):
        content = text or b""
        digest.update(b"%d:%b" % (len(content), content))
        where = f"{place[0]} {number} of {place[1]}"
        yield from _lines_of_text(content, where, reading)
        done = num_bytes * (number + 1) // total
        reading.on_bytes(done - num_bytes * number // total)
    reading.digests.append(digest.hexdigest())


@dataclasses.dataclass(frozen=True)
class DatasetPart:
    """A split of a dataset of TensorFlow Datasets, or one shard of a split."""

    name: str  # for messages, e.g. "wikipedia/20230601.en/1.0.0:train"
    num_bytes: int
    instruction: str  # to read, e.g. "train[2shard:3shard]"

    def read_texts(self, reading: Reading) -> Iterator[str]:
        """See `TextFile.read_texts`."""
        config = reading.config
        builder = open_dataset(config.tfds, config.tfds_data_dir)
        elements = read_elements(builder, self.instruction)
        total = builder.info.splits[self.instruction].num_examples
        texts = (element[config.text_field] for element in elements)
        place = "element", self.name
        yield from _read_rows(texts, total, self.num_bytes, place, reading)


Source = TextFile | DatasetPart


def _find_dataset(config: CorpusConfig) -> list[DatasetPart]:
    """Finds `tfds_split` of `tfds`; a complete split has one part per file."""
    info = open_dataset(config.tfds, config.tfds_data_dir).info
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
        raise UserError(
            f"text_field must be a text feature of {info.full_name}",
            received=config.text_field,
            remedy=f"Its features are {', '.join(info.features)}.",
        )
    parts = {split: paths}
    if split in info.splits:
        parts = {
            f"{split}[{i}shard:{i + 1}shard]": [path]
            for i, path in enumerate(paths)
        }
    return [
        DatasetPart(
            f"{info.full_name}:{instruction}",
            sum(map(files.count_bytes, part_paths)),
            instruction,
        )
        for instruction, part_paths in parts.items()
    ]


# --- lines of files -----------------------------------------------------------


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
        size = _STORED_BYTES if magic else BLOCK_BYTES
        blocks = itertools.chain([head], iter(lambda: read(size), b""))
        yield from _decompress(blocks, magic, path) if magic else blocks


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
        *(EOFError, OSError, lzma.LZMAError, zlib.error, zstandard.ZstdError),
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
