"""Reads tables: the TSV files of GLUE, and TSV, CSV or JSON lines.

A TSV file has no quotes and no escapes: a quotation mark is a character, and
only a line feed ends a line. That is how the files of GLUE are written.

An empty line is not a row, also in a file of one column. A line with tabs or
commas only is a row of empty fields.
"""

import csv
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from albert_tf.config.task_head import KINDS
from albert_tf.errors import UserError
from albert_tf.finetuning.example_types import ExampleSet
from albert_tf.finetuning.tasks import Columns
from albert_tf.io.files import open_existing

# A file with a larger fraction of malformed lines has another layout.
_MAX_MALFORMED = 0.1

# Number of a line, and its values or, for a malformed line, the reason.
_Lines = Iterator[tuple[int, dict[str, Any] | str]]


class Row(NamedTuple):
    """The values of an example.

    Attributes:
        where: The line of a table, e.g. "line 2"; or the id of a question.
        values: The values by column; text, except for JSON.
        number: Position among the rows of a table, from 0, malformed rows
            included. Unused if the row has an id.
    """

    where: str
    values: dict[str, Any]
    number: int = 0


def read_table(examples: ExampleSet, columns: Columns) -> list[Row]:
    """Reads the rows of the table `examples.source`.

    Malformed lines are reported as bad examples and left out.

    Raises:
        UserError: If a column is missing, or too many lines are malformed,
            both signs of a file of another task.
    """
    path = examples.source
    if path.endswith(".csv"):
        found = _parse_fields(examples, iter(_read_csv(path)), columns)
    elif path.endswith((".tsv", ".txt")):
        found = _parse_fields(examples, _read_tsv(path), columns)
    elif path.endswith(".jsonl"):
        found = _parse_json_lines(examples, columns)
    else:
        raise UserError(
            f"files of --task={examples.task.name} must end in .tsv, .csv or "
            ".jsonl",
            received=path,
        )
    lines = list(found)
    malformed = [(n, reason) for n, reason in lines if isinstance(reason, str)]
    if len(malformed) > _MAX_MALFORMED * len(lines):
        number, reason = malformed[0]
        raise UserError(
            f"{path} must be a file of --task={examples.task.name}",
            received=f"{len(malformed)} of {len(lines)} lines malformed, line "
            f"{number}: {reason}",
        )
    for number, reason in malformed:
        examples.report_bad(f"line {number}", reason)
    return [
        Row(f"line {line}", values, number)
        for number, (line, values) in enumerate(lines)
        if isinstance(values, dict)
    ]


def check_columns(
    examples: ExampleSet, columns: Columns, found: Iterable[str]
) -> None:
    """Checks the columns of a file.

    Raises:
        UserError: If the file lacks a column that `examples` need.
    """
    found = list(found)
    needed = _needed(examples, columns)
    missing = set(needed) - set(found)
    if missing:
        raise _other_columns(
            examples, needed, found, is_unlabelled=missing == {columns.label}
        )


def _other_columns(
    examples: ExampleSet,
    needed: Sequence[str],
    found: Sequence[str],
    is_unlabelled: bool = False,
) -> UserError:
    """The error for a file without the columns of its task."""
    task, split = examples.task.name, examples.split
    remedy = f"Give the {split} file of {task}."
    if task in KINDS:
        remedy = "Name the right file, or other columns by --*_column."
    if is_unlabelled and not examples.is_training:
        remedy = "Give a file without labels as --test_file."
    return UserError(
        f"{examples.source} must have the columns {', '.join(needed)}",
        received=", ".join(map(repr, found[:20])),
        remedy=remedy,
    )


def _needed(examples: ExampleSet, columns: Columns) -> list[str]:
    needed = [columns.text, columns.text_pair, *columns.choices]
    if examples.has_labels:
        needed.append(columns.label)
    if examples.task.name in KINDS:  # an official file may lack the id
        needed.append(columns.id)
    return list(filter(None, needed))


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


def _read_tsv(path: str) -> Iterator[tuple[int, list[str]]]:
    """The fields of each row, after the number of its line."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if fields := line.removesuffix("\r"):
            yield number, fields.split("\t")


def _read_csv(path: str) -> list[tuple[int, list[str]]]:
    """The fields of each row, after the number of its first line.

    Raises:
        UserError: If the quotation marks do not fit together. A reader that is
            not strict would take the rest of the file for one field.
    """
    text = read_text(path)
    # newline="", as the csv module requires: fields may have line breaks.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = []
    first_line = 1
    # By default, a field of more than 131,072 characters is an error.
    limit_before = csv.field_size_limit(len(text))
    try:
        for fields in reader:
            if fields:
                rows.append((first_line, fields))
            first_line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"quotation marks in {path} must enclose a field, and be doubled "
            "within it",
            received=f"{error}, in the row that begins in line {first_line}",
        ) from None
    finally:
        csv.field_size_limit(limit_before)
    return rows


def _parse_fields(
    examples: ExampleSet,
    lines: Iterator[tuple[int, list[str]]],
    columns: Columns,
) -> _Lines:
    number, header = next(lines, (0, [""]))
    if columns.header:
        if len(header) != len(columns.header):
            raise _other_columns(examples, columns.header, header)
        lines = itertools.chain([(number, header)], lines)
        header = list(columns.header)
    check_columns(examples, columns, header)
    for number, fields in lines:
        if len(fields) == len(header):
            yield number, dict(zip(header, fields, strict=True))
        else:
            yield number, f"{len(fields)} columns instead of {len(header)}"


def _parse_json_lines(examples: ExampleSet, columns: Columns) -> _Lines:
    lines: list[tuple[int, Any]] = []
    for number, line in enumerate(read_text(examples.source).split("\n"), 1):
        if not line.strip():
            continue
        try:
            lines.append((number, json.loads(line)))
        except (ValueError, RecursionError) as error:  # of nesting
            lines.append((number, error))
    objects = [values for _, values in lines if isinstance(values, dict)]
    if objects:
        check_columns(
            examples, columns, dict.fromkeys(itertools.chain(*objects))
        )
    needed = _needed(examples, columns)
    for number, values in lines:
        if not isinstance(values, dict):
            yield number, f"{values} instead of a JSON object"
        elif missing := [name for name in needed if name not in values]:
            yield number, f"no {', '.join(missing)}"
        else:
            yield number, values
