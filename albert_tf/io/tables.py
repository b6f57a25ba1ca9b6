"""Rows of tables: CSV, TSV, JSON and Parquet, in bounded memory.

Each row has its place, e.g. "line 7", and its values by column, or the reason
why it is malformed; a reader decides whether to refuse such a row or to leave
it out. What damages a complete table is an error: equal names of columns, an
open quotation mark, zero bytes, a damaged page.

A cell of CSV may have quotes, which are doubled within it, and line breaks. In
a TSV file, a quotation mark is a character, and only a line feed ends a row, as
in the files of GLUE; see `has_quotes` for others. JSON is one object after
another, in lines or in a list.
"""

import codecs
import contextlib
import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from absl import logging

from albert_tf.errors import UserError, first_line
from albert_tf.io import files

Row: TypeAlias = tuple[str, dict[str, Any] | str]

# Characters of a cell or of a line without an end, and of an object of JSON.
LONGEST_CELL = 1 << 26

# A delimiter that gives a file the wanted columns is taken.
DELIMITERS = ",\t;|"

# A header may have cells of several lines.
_LONGEST_HEADER = 100

_ROWS_AT_A_TIME = 64

_TO_UTF_8 = "Convert it, e.g. with iconv -f UTF-16 -t UTF-8."
_PARQUET_FROM_ARROW = (
    "Convert it, e.g. with pyarrow.{}.read_table and "
    "pyarrow.parquet.write_table."
)

PARQUET = b"PAR1"

# The beginning of a file of another format, and what to do with it.
_OTHER_FORMATS = {
    b"\xff\xfe": ("a byte order mark of UTF-16 or UTF-32", _TO_UTF_8),
    b"\xfe\xff": ("a byte order mark of UTF-16", _TO_UTF_8),
    b"PARE": ("encrypted Parquet", "Write it again without encryption."),
    b"ORC": ("ORC", _PARQUET_FROM_ARROW.format("orc")),
    b"ARROW1": ("an Arrow file", _PARQUET_FROM_ARROW.format("feather")),
    b"\xff{4}": (
        "a stream of Arrow",
        "Convert it, e.g. with pyarrow.ipc.open_stream(FILE).read_all() and "
        "pyarrow.parquet.write_table.",
    ),
    b"\x1f\x8b": ("gzip", "Unpack it with gzip -d."),
    b"PK\x03\x04": (
        "a zip archive, e.g. of Excel",
        "Unpack it with unzip, or save the table as CSV.",
    ),
    b"%PDF-": ("PDF", "Extract its text, e.g. with pdftotext."),
    rb"{\\rtf": ("RTF", "Save it as plain text."),
    rb"(?i)\s*<(!doctype )?html\b": (
        "HTML",
        "Extract its text, e.g. with lynx.",
    ),
    rb"(?s).{257}ustar": ("a tar archive", "Unpack it with tar -xf."),
}

_BETWEEN_VALUES = re.compile(r"[\s,\[\]\ufeff]*")


class Table(NamedTuple):
    """The columns of a table, and its rows, which are read once.

    `columns` says of each column whether it has text. `num_rows` is None where
    only reading can count them.
    """

    columns: Mapping[str, bool]
    rows: Iterator[Row]
    num_rows: int | None = None


def check_format(head: bytes, name: str) -> None:
    """Refuses other formats by the first bytes of a file.

    Raises:
        UserError: It names the format, and how to convert it.
    """
    for beginning, (what, remedy) in _OTHER_FORMATS.items():
        if re.match(beginning, head):
            raise UserError(f"{name} must be plain UTF-8", what, remedy)


def zero_byte(name: str, number: int, line: bytes) -> UserError:
    """The error for a line with a zero byte."""
    return UserError(
        f"line {number} of {name} must be UTF-8 without zero bytes",
        received=f"a zero byte at byte {line.index(0)}",
        remedy="If the file is UTF-16, convert it, e.g. with iconv -f UTF-16LE "
        "-t UTF-8. If it is text but for these bytes, remove them with tr -d "
        "'\\000'. Other formats are not read.",
    )


def read_lines(
    blocks: Iterable[bytes], name: str, errors: str = "strict"
) -> Iterator[str]:
    """Yields the lines of UTF-8 without LF, and what follows the last one.

    Args:
        errors: "surrogateescape" lets surrogates stand for other bytes.

    Raises:
        UserError: For bytes that are not UTF-8, zero bytes, and lines of more
            than `LONGEST_CELL` characters.
    """
    number, rest = 1, ""
    for text in _decode(blocks, name, errors):
        *lines, rest = (rest + text).split("\n")
        yield from lines
        number += len(lines)
        if len(rest) > LONGEST_CELL:
            raise _too_long(f"line {number} of {name}", "a line")
    yield rest


def _decode(blocks: Iterable[bytes], name: str, errors: str) -> Iterator[str]:
    """Yields the text of blocks of UTF-8, without a byte order mark."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors)
    number = 1
    for block in itertools.chain(blocks, [b""]):
        if b"\0" in block:
            *before, line = block[: block.index(0) + 1].split(b"\n")
            raise zero_byte(name, number + len(before), line)
        try:
            yield decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            number += error.object.count(b"\n", 0, error.start)
            raise UserError(
                f"line {number} of {name} must be UTF-8",
                received=str(error),
                remedy="Convert the file, e.g. with iconv -t UTF-8.",
            ) from None
        number += block.count(b"\n")


def _too_long(where: str, what: str) -> UserError:
    return UserError(
        f"{where}: {what} must have at most {LONGEST_CELL} characters",
        received="more",
        remedy="Check for a missing line break or quotation mark, or split it.",
    )


# --- CSV and TSV --------------------------------------------------------------


def open_table(
    lines: Iterator[str],
    name: str,
    is_csv: bool,
    read_again: Callable[[], Iterable[str]] | None = None,
    wanted: Sequence[str] = (),
    header: Sequence[str] = (),
) -> Table:
    """Opens a CSV or TSV file.

    Args:
        lines: Of `read_lines`.
        read_again: Returns the lines once more, for a TSV file that may have
            the quotes of CSV.
        wanted: The delimiter of a CSV file is the first one that gives these
            columns, or else a comma.
        header: The columns of a file without a header.

    Raises:
        UserError: If two columns have one name, or the file has no header.
            While rows are read: for an open quotation mark, and for cells of
            more than `LONGEST_CELL` characters.
    """
    quotes = is_csv
    if not is_csv and read_again and has_quotes(read_again(), name):
        logging.info("%s is read with the quotes of CSV", name)
        quotes = True
    delimiters = DELIMITERS if is_csv else "\t"
    first = list(itertools.islice(lines, _LONGEST_HEADER))
    mark = delimiters[0]
    for delimiter in delimiters:
        with contextlib.suppress(UserError):
            rows = _split(iter(first), name, quotes, delimiter)
            _, names = next(rows, (0, []))
            if {*wanted} <= {*names}:
                mark = delimiter
                break
    rows = _split(itertools.chain(first, lines), name, quotes, mark)
    if not header:
        _, header = next(rows, (0, []))
        _check_header(header, name, quotes)
    return Table(dict.fromkeys(header, True), _rows_of_cells(rows, header))


def _check_header(
    header: Sequence[str], name: str, quotes: bool = True
) -> None:
    if re.fullmatch("sep=.?", "".join(header)):
        raise UserError(
            f"line 1 of {name} must have the names of the columns",
            received="".join(header),
            remedy="Remove this line of Excel, e.g. with tail -n +2.",
        )
    if not quotes and any("\r" in column for column in header):
        raise UserError(
            f"the lines of {name} must end at line feeds",
            received="carriage returns",
            remedy="Convert it, e.g. with tr '\\r' '\\n'.",
        )
    twice = [n for n in dict.fromkeys(header) if header.count(n) > 1]
    if twice:
        raise UserError(
            f"{name} must have each column once",
            received=f"{', '.join(map(repr, twice))} more than once",
            remedy="Rename or remove one of them.",
        )


def _rows_of_cells(
    rows: Iterator[tuple[int, list[str]]], header: Sequence[str]
) -> Iterator[Row]:
    for number, cells in rows:
        if len(cells) == len(header):
            yield f"line {number}", dict(zip(header, cells, strict=True))
        elif len(cells) > 1 or cells[0].strip():  # else a line of spaces
            fault = f"{len(cells)} columns instead of {len(header)}"
            yield f"line {number}", fault


def has_quotes(lines: Iterable[str], name: str) -> bool:
    """Whether a TSV file has the quotes of CSV, as pandas writes them.

    It has doubled quotes, and all rows have as many cells with them.
    """
    is_doubled = False

    def note(lines: Iterable[str]) -> Iterator[str]:
        nonlocal is_doubled
        for line in lines:
            is_doubled |= '""' in line
            yield line

    try:
        sizes = {
            len(cells) for _, cells in _quoted_cells(note(lines), name, "\t")
        }
    except UserError:
        return False
    return is_doubled and len(sizes) == 1


def _split(
    lines: Iterator[str], name: str, quotes: bool, mark: str
) -> Iterator[tuple[int, list[str]]]:
    """Yields the cells of each row, after the number of its first line."""
    if quotes:
        yield from _quoted_cells(lines, name, mark)
        return
    for number, line in enumerate(lines, 1):
        if line := line.removesuffix("\r"):
            yield number, line.split(mark)


def _quoted_cells(
    lines: Iterable[str], name: str, mark: str
) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST_CELL)
    # newline="": cells may have line breaks; a carriage return ends a line.
    pieces = itertools.chain.from_iterable(
        io.StringIO(f"{line}\n", newline="") for line in lines
    )
    # Strict: otherwise, an unclosed quotation mark takes the rest of the file
    # for one cell.
    reader = csv.reader(pieces, strict=True, delimiter=mark)
    first_number = 1
    try:
        for cells in reader:
            if cells:
                yield first_number, cells
            first_number = reader.line_num + 1
    except csv.Error as error:
        if "field limit" in str(error):
            where = f"the row of {name} that begins in line {first_number}"
            raise _too_long(where, "a cell") from None
        raise UserError(
            f"quotation marks in {name} must enclose a field, and be doubled "
            "within it",
            received=f"{error}, in the row that begins in line {first_number}",
            remedy="Correct the row, or write the table as JSON lines.",
        ) from None


# --- JSON ---------------------------------------------------------------------


def read_json(
    blocks: Iterable[bytes], name: str, errors: str = "strict"
) -> Iterator[Row]:
    """Yields the objects of JSON lines, or of a list of objects.

    After a malformed object, reading goes on in the next line.

    Args:
        errors: See `read_lines`.
    """
    # Accepts tabs and other control characters in strings.
    decoder = json.JSONDecoder(strict=False, object_pairs_hook=_once)
    text, number, is_list = "", 1, False
    # An empty text stands for the end.
    for more in itertools.chain(
        filter(None, _decode(blocks, name, errors)), [""]
    ):
        text += more
        begin = 0
        while True:
            match = _BETWEEN_VALUES.match(text, begin)
            between = match.group() if match else ""
            number += between.count("\n")
            begin += len(between)
            if "[" in between or "]" in between:
                is_list = between.rfind("[") > between.rfind("]")
            if begin == len(text):
                break
            where = f"line {number}"
            try:
                value, end = decoder.raw_decode(text, begin)
            except (ValueError, RecursionError) as error:
                end = text.find("\n", begin) + 1
                may_go_on = _is_open(error, text) or not end
                if more and may_go_on and len(text) - begin <= LONGEST_CELL:
                    break
                yield where, _describe_json(error, len(text) - begin)
                end = end or len(text)
            else:
                is_object = isinstance(value, dict)
                fault = f"{json.dumps(value):.60} instead of a JSON object"
                yield where, value if is_object else fault
            number += text.count("\n", begin, end)
            begin = end
        text = text[begin:]
    if is_list:
        yield f"line {number}", "a list without an end"


def _is_open(error: Exception, text: str) -> bool:
    """Whether a value may be complete with more text."""
    return isinstance(error, json.JSONDecodeError) and (
        error.pos > len(text) - 16 or "Untermi" in error.msg
    )


def _describe_json(error: Exception, size: int) -> str:
    if size > LONGEST_CELL:
        return f"more than {LONGEST_CELL} characters, or no end; split it"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, at character {error.colno - 1}"
    return str(error)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object without repeated names."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError(f"a name more than once in {[n for n, _ in pairs]}")
    return values


# --- Parquet ------------------------------------------------------------------


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


def open_parquet(path: str, columns: Sequence[str] = ()) -> Table:
    """Opens a Parquet file, and reads some of its columns, or all.

    No row is malformed. Surrogates stand for bytes that are not UTF-8, since a
    column of other bytes, e.g. images, may not be used.

    Raises:
        UserError: If the file is damaged, or two columns have one name.
    """
    import pyarrow.parquet

    stream = io.BufferedReader(
        _Seekable(files.open_existing(path, "rb")), 1 << 20
    )
    try:
        file = pyarrow.parquet.ParquetFile(
            stream, page_checksum_verification=True
        )
    except (pyarrow.ArrowException, OSError) as error:
        raise _damaged(path, error) from None
    schema = file.schema_arrow
    _check_header(schema.names, path)
    is_text = {field.name: _has_text(field.type) for field in schema}
    wanted = [name for name in columns or schema.names if name in is_text]

    def read() -> Iterator[Row]:
        number = 0
        try:
            for batch in file.iter_batches(_ROWS_AT_A_TIME, columns=wanted):
                cells = []
                for name in wanted:
                    column = batch.column(name)
                    if is_text[name]:
                        column = column.cast(pyarrow.large_binary())
                    cells.append(map(_to_text, column.to_pylist()))
                for values in zip(*cells, strict=True):
                    yield (
                        f"row {number}",
                        dict(zip(wanted, values, strict=True)),
                    )
                    number += 1
        except (pyarrow.ArrowException, OSError) as error:
            raise _damaged(path, error) from None

    return Table(is_text, read(), file.metadata.num_rows)


def _has_text(kind: Any) -> bool:
    """Whether a type of pyarrow holds text, or only nulls."""
    import pyarrow

    if isinstance(kind, pyarrow.BaseExtensionType):  # e.g. arrow.json
        kind = kind.storage_type
    if isinstance(kind, pyarrow.DictionaryType):
        kind = kind.value_type
    name = str(kind).removeprefix("large_").removesuffix("_view")
    return name in ("string", "binary", "null")


def _to_text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    return value


def _damaged(path: str, error: Exception) -> Exception:
    if isinstance(error, OSError) and error.errno:
        return error
    return UserError(
        f"{path} must be a complete Parquet file",
        received=first_line(error),
        remedy="Write or copy it again, without encryption; unpack it, if it "
        "was compressed, e.g. by gzip.",
    )
