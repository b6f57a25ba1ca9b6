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

The name of a class is the text of its cell, with single spaces for white space.
An empty cell, `nan` and `-` (unless `+` is a class, too) mean that there is no
label, and so does -1, unless it is a class beside 0, or 0 and 1. Rows without a
label are left out and listed.

A file of words and tags has a word, first, and its tag, last, in each line, as
in CoNLL; an empty line ends a text.
"""

import collections
import contextlib
import dataclasses
import itertools
import json
import math
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from absl import logging

from albert_tf.config.task import (
    CLASSIFICATION,
    KINDS,
    MULTI_LABEL,
    MULTIPLE_CHOICE,
    OWN_TASKS,
    QUESTION_ANSWERING,
    REGRESSION,
    TOKEN_CLASSIFICATION,
    TaskConfig,
)
from albert_tf.errors import UserError, name_faults
from albert_tf.finetuning.tasks import (
    LETTERS,
    SQUAD,
    TEST,
    TRAIN,
    Columns,
    Task,
    find_task,
)
from albert_tf.io import files, tables
from albert_tf.io.datasets import open_dataset, read_elements
from albert_tf.io.tables import Row
from albert_tf.records.questions import Answer, Question

_SQUAD_FORMAT = (
    'SQuAD has {"data": [{"paragraphs": [{"context", "qas": [{"id", "question",'
    ' "answers": [{"text", "answer_start"}]}]}]}]}. Other layouts can be JSON '
    "lines (.jsonl) with --text_column, --question_column and --answer_column."
)

# A file with a larger fraction of malformed rows has another layout.
_MAX_MALFORMED = 0.1

_BLOCK_SIZE = 1 << 20  # bytes of a file to read at once

# JSON can encode a surrogate; UTF-8, and so the tokenizer, cannot.
_SURROGATE = re.compile("[\ud800-\udfff]")

# How the name of a split of TensorFlow Datasets begins.
_TFDS = "tfds:"

# Cells that mean "no label".
_NO_LABEL = ("", "nan", "-")

# Tags of words: outside of a span, or in it and its kind.
_TAG = re.compile("O|[BIES]-.+")

# The values of `is_impossible`; `str(True)` in lower case is "true".
_TRUTH_VALUES = {"true": True, "1": True, "false": False, "0": False}


class TextExample(NamedTuple):
    """A text or a pair of texts.

    Attributes:
        id: Identifies the example in its file.
        label: Index of the class, indices of the classes, or the value to
            predict; None if unknown.
    """

    id: str
    text: str
    text_pair: str | None
    label: int | float | tuple[int, ...] | None


class TokenExample(NamedTuple):
    """A text as words; `label` has the index of the tag of each."""

    id: str
    words: tuple[str, ...]
    label: tuple[int, ...] | None


class ChoiceExample(NamedTuple):
    """A question about a passage; a choice fills each gap "_" in it."""

    id: str
    passage: str
    question: str
    choices: tuple[str, ...]
    label: int | None


Example: TypeAlias = TextExample | TokenExample | ChoiceExample | Question


@dataclasses.dataclass
class ExampleSet:
    """The examples of a split.

    Attributes:
        task: The task, with the labels and number of choices of its examples.
        split: Name of the split, e.g. "train".
        source: The file or directory.
        examples: The examples, all of one of the types above.
        bad: Bad examples, by id or row, and the reason. Training leaves them
            out. Evaluation and prediction use them if they can be parsed, since
            every example needs a prediction.
    """

    task: Task
    split: str
    source: str
    examples: list[Any] = dataclasses.field(default_factory=list)
    bad: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    @property
    def is_training(self) -> bool:
        return self.split == TRAIN

    @property
    def has_labels(self) -> bool:
        return not self.split.startswith(TEST)

    def labels(self) -> list[Any]:
        """The labels as `score.score` takes them, with names for indices."""
        return [self.task.named(example.label) for example in self.examples]

    def describe(self) -> list[str]:
        """Describes the examples in lines for the log."""
        lines = [f"{len(self.examples)} examples of {self.source}"]
        if self.bad:
            faults = name_faults(list(map(": ".join, self.bad)))
            lines.append(f"{len(self.bad)} bad examples: {faults}")
        return [f"{self.split}: {line}" for line in lines]


class _Row(NamedTuple):
    """The values of an example by column; text, except for JSON.

    `where` is the line of a table, or the id of a question. `number` is its
    position among the rows, from 0, malformed rows included.
    """

    where: str
    values: Mapping[str, Any]
    number: int


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
    has_classes = KINDS[task.kind].has_classes and examples.has_labels
    if has_classes and not task.labels:
        found_names = (_class_names(examples, row, columns) for row in rows)
        labels = _find_classes(set(itertools.chain.from_iterable(found_names)))
        examples.task = dataclasses.replace(task, labels=labels)
        _warn_of_similar(examples)
    if task.kind == TOKEN_CLASSIFICATION:
        _check_tags(examples)
    for row in rows:
        _add_example(examples, row, columns)
    _check(examples)
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
    path = posixpath.join(config.data_dir, known.file)
    if not files.exists(path):
        raise UserError(
            f"{config.data_dir} must contain {known.file}, the {split} file of "
            f"--task={task.name}",
            received="no such file",
            remedy="Set --data_dir to the directory of the task's official "
            "files.",
        )
    return path


# --- rows --------------------------------------------------------------------


def _open_rows(examples: ExampleSet) -> tuple[Columns, Iterable[Row]]:
    """The rows of a source, and the columns that make an example."""
    source, task = examples.source, examples.task
    if source.startswith(_TFDS) and task.name in OWN_TASKS:
        return task.splits[examples.split].columns, _read_tfds(source)
    is_json, is_span = source.endswith(".json"), task.kind == QUESTION_ANSWERING
    if task.layout == "squad" or (is_json and is_span):
        return SQUAD, _read_squad(source)
    columns = task.splits[examples.split].columns
    if task.layout == "race":
        return columns, _read_race(source)
    has_lists = source.endswith((".jsonl", ".json", ".parquet"))
    if task.kind == TOKEN_CLASSIFICATION and not has_lists:
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
    is_csv = path.endswith(".csv")
    quotes = is_csv or (may_quote and tables.has_quotes(read_lines(path), path))
    if quotes and not is_csv:
        logging.info("%s is read with the quotes of CSV", path)
    delimiters = tables.DELIMITERS if is_csv else "\t"
    table = tables.open_table(
        read_lines(path), path, quotes, delimiters, wanted, header
    )
    return table.rows


def _check_rows(
    examples: ExampleSet, columns: Columns, found: Iterable[Row]
) -> list[_Row]:
    """Refuses a file of another task; lists and drops malformed rows."""
    needed = [columns.text, columns.text_pair, *columns.choices]
    if examples.has_labels:
        needed.append(columns.label)
    if examples.task.name in OWN_TASKS:  # an official file may lack the id
        needed.append(columns.id)
    needed = list(filter(None, needed))
    task = examples.task.name
    remedy = f"Give the {examples.split} file of {task}."
    good, malformed = [], []
    for number, (where, values) in enumerate(found):
        if isinstance(values, dict):
            lacking = [name for name in needed if name not in values]
            if not lacking:
                good.append(_Row(where, values, number))
                continue
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
            + ": ".join(malformed[0]),
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
        UserError: If the file is missing or is not UTF-8.
    """
    return tables.read_lines(_read_blocks(path), path)


def _read_blocks(path: str) -> Iterator[bytes]:
    try:
        with files.open_existing(path, "rb") as file:
            blocks = iter(lambda: file.read(_BLOCK_SIZE), b"")
            head = next(blocks, b"")
            tables.check_format(head, path)
            yield head
            yield from blocks
    except OSError as error:
        raise UserError(
            f"{path} must be a readable file", received=error.strerror
        ) from None


def read_text(path: str) -> str:
    """The content of a file; see `read_lines`."""
    return "\n".join(read_lines(path))


def _read_conll(path: str, columns: Columns) -> Iterable[Row]:
    """Reads words and tags, the first and the last column of a text's lines."""
    text: list[list[str]] = []
    lines = itertools.chain(read_lines(path), [""])
    for number, line in enumerate(lines, 1):
        fields = re.split("[ \t]+", line.strip(" \t\r"))
        if fields[0] not in ("", "-DOCSTART-"):
            text.append(fields)
            continue
        if text:
            where, counts = f"line {number - len(text)}", {*map(len, text)}
            words, *_ = zip(*text, strict=False)
            values: dict[str, Any] = {columns.text: list(words)}
            if counts != {1}:
                values[columns.label] = [fields[-1] for fields in text]
            is_even = len(counts) == 1
            yield where, values if is_even else f"lines of {counts} columns"
        text = []


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
        for column, names in classes.items():  # -1: no label
            if values[column] >= 0:
                values[column] = names[values[column]]
        yield f"example {number}", values


def _plain(value: Any) -> Any:
    """NumPy's values as text, numbers, lists and dictionaries."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    for method in ("to_list", "tolist"):  # of ragged tensors, of arrays
        value = getattr(value, method, lambda same=value: same)()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


# --- examples ----------------------------------------------------------------


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _class_names(
    examples: ExampleSet, row: _Row, columns: Columns
) -> list[str]:
    """The names of a row's class, classes or tags; see the beginning.

    Raises:
        UserError: For a list instead of a name, or the reverse, or an object.
    """
    value, kind = row.values[columns.label], examples.task.kind
    values, form = [value], "one name or number"
    remedy = (
        "An example has one class: name another --label_column, or set "
        "--labels_are_lists."
    )
    if kind != CLASSIFICATION and value is not None:
        form, remedy = "a list of names", "Name the column of the lists."
        if kind == MULTI_LABEL and isinstance(value, str):
            value = list(filter(str.strip, value.split(",")))
        values = value if isinstance(value, list) else [{}]
    if any(isinstance(name, list | dict) for name in values):
        raise UserError(
            f"{columns.label} of {examples.source} must be {form}",
            received=f"{value!r} in {row.where}",
            remedy=remedy,
        )
    return [" ".join(_text(name).split()) for name in values]


def _is_no_label(name: str, classes: Iterable[str]) -> bool:
    """Whether a cell means "no label"; `classes`: all names of the file."""
    others = {*classes} - {"-1", *_NO_LABEL}
    if name == "-":
        return "+" not in classes
    if name == "-1":
        counted = {str(n) for n in range(len(others))}
        return others != counted or len(others) not in (1, 2)
    return name.casefold() in _NO_LABEL


def _find_classes(names: set[str]) -> tuple[str, ...]:
    """The classes, sorted; by value, if all are whole numbers."""
    labels = {name for name in names if not _is_no_label(name, names)}
    try:
        # Different labels can have the same value, e.g. 1 and 01.
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    except ValueError:
        return tuple(sorted(labels))


def _check_tags(examples: ExampleSet) -> None:
    """Refuses tags of no scheme that seqeval knows."""
    wrong = [tag for tag in examples.task.labels if not _TAG.fullmatch(tag)]
    if wrong:
        raise UserError(
            f"tags of {examples.source} must be O, or B-, I-, E- or S- and the "
            "name of a kind of spans",
            received=name_faults(wrong),
            remedy="Write e.g. B-PER for the first and I-PER for each further "
            "word of a span, or name another --tags_column.",
        )


def _warn_of_spans(examples: ExampleSet) -> None:
    """Says how spans count that begin with I-."""
    open_spans = [
        f"{tag} after {before} in {example.id}"
        for example, tags in zip(
            examples.examples, examples.labels(), strict=True
        )
        for before, tag in itertools.pairwise(["O", *tags])
        if tag[0] in "IE" and before[1:] != tag[1:]
    ]
    if open_spans:
        logging.warning(
            "%s: %d spans begin with I- or E-: %s. They count as spans, as in "
            "the scheme IOB1",
            *(examples.source, len(open_spans), name_faults(open_spans)),
        )


def _warn_of_similar(examples: ExampleSet) -> None:
    """Warns of classes that may be one, e.g. `Pos` and `pos`, `1` and `1.0`."""
    similar: dict[str, list[str]] = {}
    for label in examples.task.labels:
        key = {"true": "1", "false": "0"}.get(
            label.casefold(), label.casefold()
        )
        with contextlib.suppress(ValueError):
            key = str(float(key))
        similar.setdefault(key, []).append(label)
    if doubtful := [" and ".join(n) for n in similar.values() if len(n) > 1]:
        logging.warning(
            "%s HAS CLASSES WITH SIMILAR NAMES: %s. Give each class one name",
            *(examples.source, name_faults(doubtful)),
        )


def _label_of(examples: ExampleSet, row: _Row, columns: Columns) -> Any:
    """The class, value, right choice or answers of a row."""
    kind, labels = examples.task.kind, examples.task.labels
    value = row.values[columns.label]
    text = _text(value)
    try:
        if KINDS[kind].has_classes:
            form = f"one of {name_faults(labels)}"
            # Earlier versions stored the names with their white space.
            names = [" ".join(label.split()) for label in labels]
            found = _class_names(examples, row, columns)
            if not {*found} <= {*names}:
                raise ValueError("no label of the training file")
            indices = tuple(map(names.index, found))
            return indices[0] if kind == CLASSIFICATION else indices
        if kind == REGRESSION:
            form = "a finite number"
            if not math.isfinite(number := float(value)):
                raise ValueError("not a finite number")
            return number
        if kind == MULTIPLE_CHOICE:
            form = "the number of a choice from 0, or a letter from A"
            letter = text.strip().upper()
            is_letter = len(letter) == 1 and letter in LETTERS
            return LETTERS.index(letter) if is_letter else int(letter)
        form = "a text, with a number as answer_start"
        if isinstance(value, dict):  # Hugging Face
            texts, starts = value["text"], value["answer_start"]
        elif isinstance(value, list):  # SQuAD
            texts = [answer["text"] for answer in value]
            starts = [answer["answer_start"] for answer in value]
        else:
            texts = [text] if text else []
            starts = [row.values.get(columns.answer_start, "")] * len(texts)
        pairs = zip(texts, map(int, starts), strict=True)
        return tuple(Answer(*pair) for pair in pairs)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{columns.label} of {examples.source} must be {form}",
            received=f"{value!r} in {row.where}: {error}",
            remedy="Check the file and the flags that name its columns.",
        ) from None


def _has_no_label(examples: ExampleSet, row: _Row, columns: Columns) -> bool:
    task = examples.task
    value = row.values[columns.label]
    if task.kind == QUESTION_ANSWERING:
        return False
    if task.kind == MULTI_LABEL and value == "":  # an empty list
        return False
    name = _text(value).strip()
    if task.kind == CLASSIFICATION:
        (name,) = _class_names(examples, row, columns)
        if name in task.labels:
            return False
    if name == "-1":
        return task.kind != REGRESSION
    return _is_no_label(name, task.labels)


def _add_example(examples: ExampleSet, row: _Row, columns: Columns) -> None:
    """Adds the example of a row, unless it is unusable."""
    task, values, label = examples.task, row.values, None
    if examples.has_labels:
        if _has_no_label(examples, row, columns):
            examples.bad.append((row.where, "no label"))
            return
        label = _label_of(examples, row, columns)
    where = name = _text(values.get(columns.id, row.number))
    if task.kind != QUESTION_ANSWERING:  # a tab would break predictions
        where = name = " ".join(name.split())
    if task.kind == TOKEN_CLASSIFICATION:
        _add_words(examples, row, columns, TokenExample(name, (), label))
        return
    text = _text(values[columns.text])
    pair = _text(values[columns.text_pair]) if columns.text_pair else None
    example: Example
    if task.kind == MULTIPLE_CHOICE:
        choices = [values[column] for column in columns.choices]
        if len(choices) == 1 and isinstance(choices[0], list):
            (choices,) = choices
        texts = tuple(map(_text, choices))
        example = ChoiceExample(name, text, pair or "", texts, label)
        _check_choices(examples, example)
        is_full = _are_full(text, *texts)
        problem = "" if is_full else "the passage or a choice is empty"
    elif task.kind == QUESTION_ANSWERING:
        is_impossible = _is_impossible(examples, row, name, label)
        example = Question(name, pair or "", text, label or (), is_impossible)
        problem = _find_problem(example, examples.has_labels)
    else:
        example, where = TextExample(name, text, pair, label), row.where
        is_full = _are_full(text) and (pair is None or _are_full(pair))
        problem = "" if is_full else "a text is empty"
    if problem:
        examples.bad.append((where, problem))
    if not (problem and examples.is_training):
        examples.examples.append(example)


def _add_words(
    examples: ExampleSet, row: _Row, columns: Columns, example: TokenExample
) -> None:
    """Adds an example with its words, unless it is unusable."""
    words = row.values[columns.text]
    if not isinstance(words, list):
        raise UserError(
            f"{columns.text} of {examples.source} must be a list of words",
            received=f"{words!r:.80} in {row.where}",
            remedy="Name another --tokens_column.",
        )
    example = example._replace(words=tuple(map(_text, words)))
    problem = "" if any(map(str.strip, example.words)) else "a text is empty"
    labels = example.label
    differ = labels is not None and len(labels) != len(words)
    if differ:
        problem = f"{len(labels or ())} tags for {len(words)} words"
    if problem:
        examples.bad.append((row.where, problem))
    if not ((problem and examples.is_training) or differ):
        examples.examples.append(example)


def _are_full(*texts: str) -> bool:
    return all(map(str.strip, texts))


def _check_choices(examples: ExampleSet, example: ChoiceExample) -> None:
    count, label = len(example.choices), example.label or 0
    if not examples.task.num_choices:
        examples.task = dataclasses.replace(examples.task, num_choices=count)
    wanted = examples.task.num_choices
    if count != wanted or not 0 <= label < count:
        raise UserError(
            f"questions of {examples.source} must have {wanted} choices, one "
            "of which is the label",
            received=f"{count} choices, and choice {label}, counted from 0, in "
            f"{example.id}",
        )


def _is_impossible(
    examples: ExampleSet, row: _Row, name: str, answers: Any
) -> bool:
    """Whether a question is marked as impossible or, unmarked, unanswered."""
    if not examples.has_labels:
        return False
    value = row.values.get("is_impossible", not answers)
    truth = _TRUTH_VALUES.get(_text(value).strip().lower())
    if truth is None:
        raise UserError(
            f"is_impossible of {examples.source} must be true, false, 1 or 0",
            received=f"{value!r} in {row.where}",
        )
    if truth and not examples.task.may_be_unanswerable:
        raise UserError(
            f"every question of {examples.source} must have an answer",
            received=f"none in {name}",
            remedy="Use --task=squad_v2 for files of SQuAD 2.0.",
        )
    return truth


def _find_problem(question: Question, has_labels: bool) -> str:
    """Why a question is unusable for training; "" if it is usable."""
    for name in ("question", "document"):
        if not _are_full(getattr(question, name)):
            return f"the {name} is empty"
    if not has_labels or question.is_impossible:
        return ""
    if not question.answers:
        return "no answer, though the question is not marked as impossible"
    text, start = question.answers[0]
    found = question.document[max(start, 0) : start + len(text)]
    if not text.strip():
        return "the answer is empty"
    if start < 0 or found != text:
        return (
            f"the document has {found[:40]!r} at answer_start {start}, not the "
            f"answer {text[:40]!r}"
        )
    return ""


def _check(examples: ExampleSet) -> None:
    """Checks the examples together: their number, ids and labels."""
    task, found, source = examples.task, examples.examples, examples.source
    if not found:
        raise UserError(
            f"{source} must have usable examples",
            received=f"{len(examples.bad)} that cannot be used, e.g. "
            + ": ".join(examples.bad[0])
            if examples.bad
            else "none",
        )
    if task.kind == TOKEN_CLASSIFICATION and examples.has_labels:
        _warn_of_spans(examples)
    needs_classes = KINDS[task.kind].has_classes and examples.is_training
    if needs_classes and len(task.labels) < 2:
        raise UserError(
            f"{source} must have labels of at least two classes",
            received=", ".join(task.labels) or "none",
        )
    if task.kind != QUESTION_ANSWERING:
        return
    # Answers are stored and scored by id.
    counts = collections.Counter(question.id for question in found)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise UserError(
            f"questions of {source} must have different ids",
            received=f"{name_faults(repeated)}, more than once",
            remedy="Correct the file or, for a table, name another column as "
            "--id_column.",
        )
