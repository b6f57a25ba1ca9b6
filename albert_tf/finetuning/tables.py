"""Reads tables: the TSV files of GLUE, and TSV, CSV or JSON lines.

A TSV file has no quotes and no escapes: a quotation mark is a character, and
only a line feed ends a line. That is how the files of GLUE are written.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from albert_tf.errors import UserError
from albert_tf.finetuning.example_types import ExampleSet
from albert_tf.io.files import open_existing

# A file with more malformed lines than this fraction is of another layout.
_MAX_MALFORMED = 0.1


class Row(NamedTuple):
    """A line of a table.

    Attributes:
        number: Number of the line, from 1.
        values: The values by column; text, except for JSON lines.
    """

    number: int
    values: dict[str, Any]


def read_rows(
    examples: ExampleSet, needed: Sequence[str], header: Sequence[str] = ()
) -> list[Row]:
    """Reads the rows of `examples.source`.

    Malformed lines are reported as bad examples and left out.

    Args:
        examples: The set that the rows belong to.
        needed: Columns that the table must have.
        header: Names of the columns of a file that has no header.

    Raises:
        UserError: If a column is missing, or too many lines are malformed,
            both signs of a file of another task.
    """
    path = examples.source
    if path.endswith(".csv"):
        # newline="" is what the csv module asks for: fields contain breaks.
        reader = csv.reader(io.StringIO(read_text(path), newline=""))
        lines = ((reader.line_num, fields) for fields in reader)
        found = _parse_fields(path, lines, needed, header)
    elif path.endswith((".tsv", ".txt")):
        fields = (
            (number, line.removesuffix("\r").split("\t"))
            for number, line in _numbered_lines(path)
        )
        found = _parse_fields(path, fields, needed, header)
    elif path.endswith(".jsonl"):
        found = _parse_json_lines(path, needed)
    else:
        raise UserError(
            "files of this task must end in .tsv, .csv or .jsonl", received=path
        )
    rows, malformed = [], []
    for number, values in found:
        if isinstance(values, str):
            malformed.append((number, values))
        else:
            rows.append(Row(number, values))
    if len(malformed) > _MAX_MALFORMED * (len(rows) + len(malformed)):
        number, reason = malformed[0]
        raise UserError(
            f"{path} must be a file of --task={examples.task.name}",
            received=f"{len(malformed)} of {len(rows) + len(malformed)} lines "
            f"malformed, line {number}: {reason}",
        )
    if not rows:
        raise UserError(f"{path} must have examples", received="none")
    for number, reason in malformed:
        examples.report_bad(f"line {number}", reason)
    return rows


def read_text(path: str) -> str:
    """The content of a UTF-8 file, without a byte order mark.

    Raises:
        UserError: If the file is missing or is not UTF-8.
    """
    try:
        with open_existing(path, "rb") as file:
            content: bytes = file.read()
        return content.decode("utf-8-sig")
    except OSError as error:
        raise UserError(
            f"{path} must be a readable file", received=error.strerror
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} must be UTF-8", received=error) from None


def _numbered_lines(path: str) -> Iterator[tuple[int, str]]:
    lines = enumerate(read_text(path).split("\n"), 1)
    return ((number, line) for number, line in lines if line.strip())


def _parse_fields(
    path: str,
    lines: Iterator[tuple[int, list[str]]],
    needed: Sequence[str],
    header: Sequence[str],
) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yields the number of each line, and its values or what is wrong."""
    if not header:
        header = next(lines, (0, [""]))[1]
    if not set(needed) <= set(header):
        raise UserError(
            f"{path} must have the columns {', '.join(needed)}",
            received=", ".join(map(repr, header[:20])),
            remedy="Name the right file, or other columns by --*_column.",
        )
    for number, fields in lines:
        if len(fields) == len(header):
            yield number, dict(zip(header, fields, strict=True))
        elif fields:
            yield number, f"{len(fields)} columns instead of {len(header)}"


def _parse_json_lines(
    path: str, needed: Sequence[str]
) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yields the number of each line, and its values or what is wrong."""
    for number, line in _numbered_lines(path):
        try:
            values = json.loads(line)
            missing = [name for name in needed if name not in values]
        except (json.JSONDecodeError, TypeError) as error:
            yield number, str(error)
        else:
            yield number, f"no {', '.join(missing)}" if missing else values
