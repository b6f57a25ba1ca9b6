"""Reads the examples of a task: official files, or your own.

1. Every file gives rows, values by column, or says why a row is malformed.
2. A file without the columns of its task, or with many malformed rows, is a
   file of another task.
3. Rows become examples of the type that the task needs.

A TSV file has no quotes and no escapes: a quotation mark is a character, and
only a line feed ends a line. That is how the files of GLUE are written. Your
own file may have the quotes of CSV, as pandas writes them, if all of its rows
can be read so. An empty line is not a row, also in a file of one column. A line
with tabs or commas only is a row of empty fields. See `io/tables`.

Rows without a label are left out and listed.

A file of words and tags has a word and its tag in each line, as in CoNLL; an
empty line ends a text. Tabs or, in a line without tabs, blanks separate its
columns. The tag is the last one, and the word the first one that has more than
numbers, unless --text_column and --label_column are numbers of columns.
"""

import collections
import contextlib
import functools
import itertools
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from albert_tf.config.task import OWN_TASKS, TaskConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.kinds import (
    KINDS,
    ExampleRow,
    ExampleSet,
    find_task,
)
from albert_tf.finetuning.tasks import (
    SQUAD,
    TRAIN,
    Columns,
    Task,
)
from albert_tf.io import files, tables
from albert_tf.io.datasets import open_dataset, read_elements
from albert_tf.io.tables import Row

_SQUAD_FORMAT = (
    'SQuAD has {"data": [{"paragraphs": [{"context", "qas": [{"id", "question",'
    ' "answers": [{"text", "answer_start"}]}]}]}]}. Other layouts can be JSON '
    "lines (.jsonl) with --text_column, --text_pair_column and --label_column."
)

# A file with a larger fraction of malformed rows has another layout.
_MAX_MALFORMED = 0.1

# Cells of a file of words and tags: numbers of words or texts, and tags.
_NUMBER = re.compile(r"\d+([-.]\d+)?")
_TAG = re.compile(r"O|[A-Z]-.+")

_BLOCK_SIZE = 1 << 20  # bytes of a file to read at once

# JSON can encode a surrogate; UTF-8, and so the tokenizer, cannot.
_SURROGATE = re.compile("[\ud800-\udfff]")

# How the name of a split of TensorFlow Datasets begins.
_TFDS = "tfds:"


def read_examples(
    config: TaskConfig, split: str, task: Task | None = None
) -> ExampleSet:
    """Reads the examples of a split.

    Labels and the number of choices are collected, if the task has none yet.

    Args:
        split: A name in `task.splits`, or "test", whose labels are not read.
        task: The task with the labels of the training set, for other splits.

    Raises:
        UserError: If a file is missing, has the layout of another task, or a
            label that the task does not have.
    """
    task = task or find_task(config)
    examples = ExampleSet(task, split, _find_source(config, task, split))
    columns, found = _open_rows(examples)
    rows = _check_rows(examples, columns, found)
    kind = KINDS[task.kind]
    kind.collect_labels(examples, rows)
    for row in rows:
        kind.add_example(examples, row)
    if not examples.examples:
        raise UserError(
            f"{examples.source} must have usable examples",
            received=f"{len(examples.bad)} that cannot be used, e.g. "
            + ": ".join(examples.bad[0])
            if examples.bad
            else "none",
        )
    kind.check(examples)
    return examples


# --- sources -----------------------------------------------------------------


def has_split(config: TaskConfig, task: Task, split: str) -> bool:
    """Whether the settings name the data of a split."""
    known = task.splits.get(split)
    named = getattr(config, f"{split}_file", "")
    return bool(named or (known and known.file))


def _find_source(config: TaskConfig, task: Task, split: str) -> str:
    """Path of the file, or of a directory of RACE."""
    known = task.splits.get(split)
    if split == TRAIN and known is None:
        raise UserError(
            f"--task={task.name} has no training set",
            remedy=f"Train on --task={task.starts_from}. Then use that run as "
            f"--output_dir, with --task={task.name} and --mode=eval or "
            "predict.",
        )
    if named := getattr(config, f"{split}_file", ""):
        return str(named)
    if known is None or not known.file:
        raise UserError(
            f"--task={config.task} must have a file for {split}",
            received="none",
            remedy=f"Set --{split}_file.",
        )
    config.require("data_dir")
    return posixpath.join(config.data_dir, known.file)


# --- rows --------------------------------------------------------------------


def _open_rows(examples: ExampleSet) -> tuple[Columns, Iterable[Row]]:
    """The rows of a source, and the columns that make an example."""
    source, task = examples.source, examples.task
    if source.startswith(_TFDS) and task.name in OWN_TASKS:
        return task.splits[examples.split].columns, _read_tfds(source)
    layout = task.layout
    if task.name in OWN_TASKS:
        layout = KINDS[task.kind].layout(source)
    if layout == "squad":
        return SQUAD, _read_squad(source)
    columns = task.splits[examples.split].columns
    if layout == "race":
        return columns, _read_race(source)
    if layout == "conll":
        return columns, _read_conll(source, columns)
    return columns, read_rows(
        source,
        f"--task={task.name}",
        f"A task of your own ({', '.join(OWN_TASKS)}) can also have "
        f"{_TFDS}NAME:SPLIT.",
        columns.header,
        may_quote=task.name in OWN_TASKS,
        wanted=list(filter(None, [columns.text])),
    )


def read_rows(
    path: str,
    name: str,
    remedy: str = "",
    header: Sequence[str] = (),
    may_quote: bool = True,
    wanted: Sequence[str] = (),
) -> Iterable[Row]:
    """The rows of a .tsv, .csv, .jsonl, .json or .parquet file.

    Args:
        name: What the file belongs to, for the error about another ending.
        remedy: What to do then.
        header: All columns; () if the first line of a table has them.
        may_quote: Whether a TSV file may have the quotes of CSV.
        wanted: Columns that the delimiter of a CSV file must give.

    Returns:
        Each line, and its values by column, or why it is malformed.
    """
    if path.endswith((".jsonl", ".json")):
        return tables.read_json(_read_blocks(path), path)
    if path.endswith(".parquet"):
        return tables.open_parquet(path).rows
    if not path.endswith((".tsv", ".csv")):
        raise UserError(
            f"files of {name} must end in .tsv, .csv, .jsonl, .json or "
            ".parquet",
            received=path,
            remedy=remedy,
        )
    table = tables.open_table(
        read_lines(path),
        path,
        is_csv=path.endswith(".csv"),
        read_again=functools.partial(read_lines, path) if may_quote else None,
        wanted=wanted,
        header=header,
    )
    return table.rows


def _check_rows(
    examples: ExampleSet, columns: Columns, found: Iterable[Row]
) -> list[ExampleRow]:
    """Refuses a file of another task; lists and drops malformed rows."""
    needed = [columns.text, columns.text_pair, *columns.choices]
    if examples.has_labels:
        needed.append(columns.label)
    if examples.task.name in OWN_TASKS:  # an official file may lack the id
        needed.append(columns.id)
    needed = list(filter(None, needed))
    task = examples.task.name
    remedy = f"Give the {examples.split} file of {task}."
    good, malformed, has = [], [], ""
    for number, (where, values) in enumerate(found):
        if isinstance(values, dict):
            lacking = [name for name in needed if name not in values]
            if not lacking:
                good.append(ExampleRow(where, values, number, columns))
                continue
            names = ", ".join(map(repr, values))
            has = has or f"; the columns are {names:.200}"
            values = f"no {', '.join(lacking)}"
            if lacking == [columns.label] and not examples.is_training:
                remedy = "Give a file without labels as --test_file."
            elif task in OWN_TASKS:
                remedy = "Name the right file, or other columns by --*_column."
        malformed.append((where, values))
    num_rows = len(good) + len(malformed)
    if len(malformed) > _MAX_MALFORMED * num_rows:
        raise UserError(
            f"{examples.source} must be a file of --task={task}, with the "
            f"columns {', '.join(needed)}",
            received=f"{len(malformed)} of {num_rows} rows malformed, "
            + ": ".join(malformed[0])
            + has,
            remedy=remedy,
        )
    examples.bad += malformed
    kept = []
    for row in good:
        used = [row.values.get(name) for name in (*needed, columns.id)]
        text = json.dumps(used, ensure_ascii=False, default=str)
        if surrogate := _SURROGATE.search(text):
            code = f"U+{ord(surrogate.group()):04X}"
            examples.bad.append((row.where, f"unpaired surrogate {code}"))
        else:
            kept.append(row)
    return kept


def read_lines(path: str) -> Iterator[str]:
    """The lines of a UTF-8 file, without line feed and byte order mark.

    Raises:
        OSError: If the file cannot be read.
        UserError: If it is not UTF-8.
    """
    return tables.read_lines(_read_blocks(path), path)


def _read_blocks(path: str) -> Iterator[bytes]:
    with files.open_existing(path, "rb") as file:
        blocks = iter(lambda: file.read(_BLOCK_SIZE), b"")
        head = next(blocks, b"")
        tables.check_format(head, path)
        yield head
        yield from blocks


def read_text(path: str) -> str:
    """The content of a file; see `read_lines`."""
    return "\n".join(read_lines(path))


def _read_conll(path: str, columns: Columns) -> Iterable[Row]:
    """Reads words and tags, two columns of a text's lines."""
    texts: list[tuple[str, list[list[str]]]] = []
    text: list[list[str]] = []
    lines = itertools.chain(read_lines(path), [""])
    for number, line in enumerate(lines, 1):
        line = line.strip(" \r")
        cells = re.split("\t" if "\t" in line else " +", line)
        if any(cells) and cells[0] != "-DOCSTART-":
            text.append(cells)
        elif text:
            texts.append((f"line {number - len(text)}", text))
            text = []
    word, tag = _find_columns(path, [text for _, text in texts], columns)
    for where, text in texts:
        counts = {*map(len, text)}
        has_both = min(word, tag) >= 0 and max(word, tag) < max(counts)
        if len(counts) > 1 or not has_both:
            yield where, f"lines of {counts} columns, numbered from 1"
            continue
        values: dict[str, Any] = {columns.text: [cells[word] for cells in text]}
        if tag != word:
            values[columns.label] = [cells[tag] for cells in text]
        yield where, values if all(values[columns.text]) else "an empty word"


def _find_columns(
    path: str, texts: Sequence[list[list[str]]], columns: Columns
) -> tuple[int, int]:
    """Numbers of the columns of words and tags, from 0; see the module.

    Raises:
        UserError: If several columns have tags of the same kinds of spans.
    """
    rows = list(itertools.chain.from_iterable(texts))
    counts = collections.Counter(map(len, rows))
    usual = max(counts, key=counts.__getitem__, default=0)
    usual_rows = [row for row in rows if len(row) == usual]
    cells = list(zip(*usual_rows, strict=True))  # by column
    word, tag = 0, len(cells) - 1
    while word < tag and all(map(_NUMBER.fullmatch, cells[word])):
        word += 1
    if columns.text.isdigit():
        word = int(columns.text) - 1
    if columns.label.isdigit():
        return word, int(columns.label) - 1
    kinds = {
        number: {cell[2:] for cell in cells[number]} - {""}
        for number in range(word + 1, tag + 1)
        if all(map(_TAG.fullmatch, cells[number]))
    }
    alike = [
        number
        for number in kinds
        if number < tag and kinds[number] & kinds.get(tag, set())
    ]
    if alike:
        numbers = [str(number + 1) for number in (*alike, tag)]
        raise UserError(
            f"{path} must have one column of tags",
            received=f"the columns {', '.join(numbers)}",
            remedy=f"Choose one, e.g. --label_column={numbers[0]}.",
        )
    return word, tag


@contextlib.contextmanager
def _format_of(path: str, name: str, remedy: str = "") -> Iterator[None]:
    """Turns errors in parsing into errors that name the format."""
    try:
        yield
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        kind = "no" if isinstance(error, KeyError) else type(error).__name__
        raise UserError(
            f"{path} must be a JSON file {name}",
            received=f"{kind} {error}",
            remedy=remedy,
        ) from None


def _read_squad(path: str) -> Iterable[Row]:
    """Reads a file of SQuAD 1.1 or 2.0, or your own file in their format."""
    text = read_text(path)
    with _format_of(path, "in the format of SQuAD", _SQUAD_FORMAT):
        return [
            (str(entry["id"]), {"context": paragraph["context"], **entry})
            for article in json.loads(text)["data"]
            for paragraph in article["paragraphs"]
            for entry in paragraph["qas"]
        ]


def _read_race(directory: str) -> Iterable[Row]:
    """Reads the files `*.txt` of a directory and of its levels.

    Each file has a passage in each line; the official files have one line.
    """
    places = [posixpath.join(directory, name) for name in ("middle", "high")]
    paths = [
        path
        for place in (*places, directory)
        for path in files.list_files(place, "*.txt")
    ]
    if not paths:
        raise UserError(
            f"{directory} must have files *.txt of RACE",
            received="none",
            remedy="Name a directory of RACE: it contains train, dev and test; "
            "these contain middle and high, which contain the files.",
        )
    for path in paths:
        for line in filter(str.strip, read_lines(path)):
            with _format_of(path, "of RACE"):
                passage = json.loads(line)
                names = ("questions", "options", "answers")
                lists = {
                    name: passage[name] for name in names if name in passage
                }
                rows = [
                    {
                        "id": f"{passage['id']}-{number}",
                        "article": passage["article"],
                        **dict(zip(lists, values, strict=True)),
                    }
                    for number, values in enumerate(
                        zip(*lists.values(), strict=True)
                    )
                ]
            yield from ((row["id"], row) for row in rows)


def _read_tfds(source: str) -> Iterable[Row]:
    """Reads `tfds:NAME:SPLIT`; a class is given by its name."""
    name, _, split = source.removeprefix(_TFDS).rpartition(":")
    builder = open_dataset(name)
    if split not in builder.info.splits:
        raise UserError(
            f"{_TFDS}{name} must be followed by :SPLIT",
            received=source,
            remedy=f"It has {', '.join(sorted(builder.info.splits))}.",
        )
    classes = {
        column: feature.names
        for column, feature in builder.info.features.items()
        if hasattr(feature, "int2str")
    }
    for number, element in enumerate(read_elements(builder, split)):
        values = {column: _plain(value) for column, value in element.items()}
        for column, names in classes.items():
            values[column] = _named(values[column], names)
        yield f"example {number}", values


def _named(value: Any, names: Sequence[str]) -> Any:
    """The name of a class, or those of a list; -1, no label, stays."""
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    return names[value] if value >= 0 else value


def _plain(value: Any) -> Any:
    """NumPy's values as text, numbers, lists and dictionaries."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    for method in ("to_list", "tolist"):  # of ragged tensors, of arrays
        value = getattr(value, method, lambda same=value: same)()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value
