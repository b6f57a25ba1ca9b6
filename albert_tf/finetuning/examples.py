"""Reads the examples of a task: official files, your own, TensorFlow Datasets.

Every source gives rows, values by column, which become examples of the type
that the task needs.

A TSV file has no quotes and no escapes: a quotation mark is a character, and
only a line feed ends a line. That is how the files of GLUE are written. An
empty line is not a row, also in a file of one column. A line with tabs or
commas only is a row of empty fields.
"""

import collections
import contextlib
import csv
import dataclasses
import io
import itertools
import json
import math
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from albert_tf.config.task import (
    CLASSIFICATION,
    KINDS,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TaskConfig,
)
from albert_tf.errors import UserError, name_faults
from albert_tf.finetuning.tasks import (
    DEV,
    LAYOUTS,
    LETTERS,
    TEST,
    TRAIN,
    Columns,
    Task,
    find_task,
)
from albert_tf.io import files
from albert_tf.records.documents import Answer, Question

_MICROSOFT_MRPC = "msr_paraphrase_train.txt"

# Where TensorFlow Datasets names the texts differently from the files.
_TFDS_TEXTS = {
    "mnli": ("premise", "hypothesis"),
    "ax": ("premise", "hypothesis"),
    "mrpc": ("sentence1", "sentence2"),
}

# A file with a larger fraction of malformed lines has another layout.
_MAX_MALFORMED = 0.1

# The form of a label, by kind of the task.
_FORMS = {
    REGRESSION: "a finite number",
    MULTIPLE_CHOICE: "the number of a choice from 0, or a letter from A",
    QUESTION_ANSWERING: "a text, with a number as answer_start",
}

# The values of `is_impossible`; `str(True)` in lower case is "true".
_TRUTH_VALUES = {"true": True, "1": True, "false": False, "0": False}


class TextExample(NamedTuple):
    """A text or a pair of texts.

    Attributes:
        id: Identifies the example in its file.
        text_pair: The second text; None for a single text.
        label: Index of the class, or the value to predict; None if unknown.
    """

    id: str
    text: str
    text_pair: str | None
    label: int | float | None


class ChoiceExample(NamedTuple):
    """A question about a passage with several choices.

    Attributes:
        id: Identifies the example in its file.
        passage: The text that the question is about.
        question: The question; a choice replaces each "_" in it.
        label: Index of the right choice; None if unknown.
    """

    id: str
    passage: str
    question: str
    choices: tuple[str, ...]
    label: int | None


Example: TypeAlias = TextExample | ChoiceExample | Question


class BadExample(NamedTuple):
    """An example that cannot be used as it is.

    Attributes:
        where: Its id, or its line in a table, e.g. "line 2".
        reason: What is wrong.
    """

    where: str
    reason: str


@dataclasses.dataclass
class ExampleSet:
    """The examples of a split.

    Attributes:
        task: The task, with the labels and number of choices of its examples.
        split: Name of the split, e.g. "train".
        source: The file or directory.
        stop_at_bad: Whether a bad example is an error.
        examples: The examples, all of one of the types above.
        bad: Bad examples. Training leaves them out. Evaluation and prediction
            use them if they can be parsed, since every example needs a
            prediction.
    """

    task: Task
    split: str
    source: str
    stop_at_bad: bool = False
    examples: list[Any] = dataclasses.field(default_factory=list)
    bad: list[BadExample] = dataclasses.field(default_factory=list)

    @property
    def is_training(self) -> bool:
        return self.split == TRAIN

    @property
    def has_labels(self) -> bool:
        return not self.split.startswith(TEST)

    def report_bad(self, where: str, reason: str) -> None:
        """Adds an example to `bad`.

        Raises:
            UserError: If a bad example is an error.
        """
        if self.stop_at_bad:
            raise UserError(
                f"examples of {self.source} must be usable",
                received=f"{where}: {reason}",
                remedy="Correct it, or set --on_bad_example=skip.",
            )
        self.bad.append(BadExample(where, reason))

    def describe(self) -> list[str]:
        """Describes the examples in lines for the log."""
        lines = [
            f"{self.split}: {len(self.examples)} examples of {self.source}"
        ]
        if self.bad:
            faults = name_faults(list(map(": ".join, self.bad)))
            lines.append(
                f"{self.split}: {len(self.bad)} bad examples: {faults}"
            )
        return lines


def read_examples(
    config: TaskConfig, split: str, task: Task | None = None
) -> ExampleSet:
    """Reads the examples of a split.

    An example for evaluation is read even if it is unusable for training, since
    it needs a prediction, unless it lacks the label of its class or has an
    unpaired surrogate. Labels and the number of choices are collected, if the
    task has none yet.

    Args:
        config: Task, files and columns.
        split: A name in `task.splits`; "train", "dev" or "test" for a task of
            your own. For "test", labels are not read.
        task: The task with the labels of the training set, for other splits of
            a task of your own.

    Raises:
        UserError: If a file is missing, has the layout of another task, or a
            label that the task does not have.

    Example:
        >>> read_examples(TaskConfig(task="qnli"), "dev")
        Traceback (most recent call last):
        albert_tf.errors.UserError: --data_dir is required. See --help for its
        form and an example.
    """
    task = task or find_task(config)
    examples = ExampleSet(
        task,
        split,
        _find_source(config, task, split),
        stop_at_bad=config.on_bad_example == "error",
    )
    columns = _find_columns(config, examples)
    rows = _read_rows(config, examples, columns)
    rows = _without_surrogates(examples, rows, columns)
    if task.kind == CLASSIFICATION and not task.labels and examples.has_labels:
        labels = _collect_labels([row.values[columns.label] for row in rows])
        examples.task = dataclasses.replace(task, labels=labels)
    for row in rows:
        _add_example(examples, row, columns)
    _check(examples)
    return examples


# --- sources -----------------------------------------------------------------


def has_split(config: TaskConfig, task: Task, split: str) -> bool:
    """Whether the settings name the data of a split."""
    if split in task.splits or _named_file(config, split):
        return True
    return bool(
        config.tfds
        and task.name in KINDS
        and _tfds_split(task, split) in _prepare(config).info.splits
    )


def _named_file(config: TaskConfig, split: str) -> str:
    """The file of a split that a flag names; "" without one."""
    return getattr(config, f"{split}_file", "")


def _tfds_split(task: Task, split: str) -> str:
    if task.name in KINDS:
        return "validation" if split == DEV else split
    if split not in task.splits or not task.splits[split].tfds:
        raise UserError(
            f"TensorFlow Datasets has no split {split} of --task={task.name}",
            remedy="Omit --tfds, and set --data_dir to the official files.",
        )
    return task.splits[split].tfds


def _find_source(config: TaskConfig, task: Task, split: str) -> str:
    """Path of the file, or of the directory of RACE; or "dataset:split"."""
    if split == TRAIN and task.splits and TRAIN not in task.splits:
        raise UserError(
            f"--task={task.name} has no training set",
            remedy=f"Train on --task={task.starts_from}. Then use that run as "
            f"--output_dir, with --task={task.name} and --mode=eval or "
            "predict.",
        )
    if config.tfds:
        return f"{config.tfds}:{_tfds_split(task, split)}"
    named = _named_file(config, split)
    if named:
        return named
    if task.name in KINDS or split not in task.splits:
        raise UserError(
            f"--task={config.task} must have a file for {split}",
            received="none",
            remedy=f"Set --{split}_file."
            if split in (TRAIN, DEV, TEST)
            else f"Splits: {', '.join(task.splits)}.",
        )
    config.require("data_dir")
    if task.layout == "race":
        return config.data_dir
    names = task.splits[split].files
    for name in names:
        path = posixpath.join(config.data_dir, name)
        if files.exists(path):
            return path
    raise UserError(
        f"{config.data_dir} must contain {' or '.join(names)}, the {split} "
        f"file of --task={task.name}",
        received="no such file",
        remedy="Set --data_dir to the directory of the task's official files.",
    )


def _layout_of(examples: ExampleSet) -> str:
    """The layout of the task; your own question files may have SQuAD's."""
    is_json = examples.source.endswith(".json")
    if is_json and examples.task.kind == QUESTION_ANSWERING:
        return "squad"
    return examples.task.layout


def _find_columns(config: TaskConfig, examples: ExampleSet) -> Columns:
    task, layout = examples.task, _layout_of(examples)
    if layout in LAYOUTS:
        return LAYOUTS[layout]
    if task.name in KINDS:
        has_pairs = task.kind in (CLASSIFICATION, REGRESSION)
        has_spans = task.kind == QUESTION_ANSWERING
        has_choices = task.kind == MULTIPLE_CHOICE
        return Columns(
            config.text_column,
            config.text_pair_column if has_pairs else config.question_column,
            config.answer_column if has_spans else config.label_column,
            config.id_column,
            config.choice_columns if has_choices else (),
            answer_start=config.answer_start_column,
        )
    columns = task.splits[examples.split].columns
    assert columns is not None
    if config.tfds:
        texts = _TFDS_TEXTS.get(task.name, (columns.text, columns.text_pair))
        return Columns(*texts, id="idx")
    return columns


def _race_directories(config: TaskConfig, examples: ExampleSet) -> list[str]:
    """The directories with the files of a split of RACE, one for each level.

    The source is `data_dir`, the directory of a split with those of the levels,
    or the directory of a level.
    """
    source, names = examples.source, examples.task.splits[examples.split].files
    if source == config.data_dir:
        return [posixpath.join(source, name) for name in names]
    levels = [
        posixpath.join(source, posixpath.basename(name)) for name in names
    ]
    has_levels = any(files.list_files(level, "*.txt") for level in levels)
    return levels if has_levels else [source]


# --- rows --------------------------------------------------------------------


class _Row(NamedTuple):
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


def _read_rows(
    config: TaskConfig, examples: ExampleSet, columns: Columns
) -> list[_Row]:
    source, task = examples.source, examples.task
    if config.tfds:
        rows = _read_tfds(config, examples, columns)
        if task.layout != "race":
            return rows
        return [
            question
            for row in rows
            for question in _read_passage(
                source, row.values | {"id": row.values["example_id"]}
            )
        ]
    layout = _layout_of(examples)
    if layout == "table":
        rows = _read_table(examples, columns)
        if source.endswith(_MICROSOFT_MRPC):
            rows = _split_mrpc(examples, rows)
        return rows
    if layout == "race":
        rows = _read_race(_race_directories(config, examples))
    else:
        rows = _read_squad(examples)
    for row in rows:
        _check_columns(examples, columns, row.values)
    return rows


def _needed(examples: ExampleSet, columns: Columns) -> list[str]:
    needed = [columns.text, columns.text_pair, *columns.choices]
    if examples.has_labels:
        needed.append(columns.label)
    if examples.task.name in KINDS:  # an official file may lack the id
        needed.append(columns.id)
    return list(filter(None, needed))


def _check_columns(
    examples: ExampleSet, columns: Columns, found: Iterable[str]
) -> None:
    """Refuses a file without the columns of its task."""
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


def read_text(path: str) -> str:
    """The content of a UTF-8 file, without a byte order mark.

    Raises:
        UserError: If the file is missing or is not UTF-8.
    """
    try:
        with files.open_existing(path, "rb") as file:
            content: bytes = file.read()
        return content.decode("utf-8-sig")
    except OSError as error:
        raise UserError(
            f"{path} must be a readable file", received=error.strerror
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} must be UTF-8", received=error) from None


# Number of a line, and its values or, for a malformed line, the reason.
_Lines = Iterator[tuple[int, dict[str, Any] | str]]


def _read_table(examples: ExampleSet, columns: Columns) -> list[_Row]:
    """Reads TSV, CSV or JSON lines.

    Malformed lines are reported as bad examples and left out. Too many of them
    are the sign of a file of another task, as a missing column is.
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
        _Row(f"line {line}", values, number)
        for number, (line, values) in enumerate(lines)
        if isinstance(values, dict)
    ]


def _read_tsv(path: str) -> Iterator[tuple[int, list[str]]]:
    """The fields of each row, after the number of its line."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if fields := line.removesuffix("\r"):
            yield number, fields.split("\t")


def _read_csv(path: str) -> list[tuple[int, list[str]]]:
    """The fields of each row, after the number of its first line.

    Quotation marks must fit together: a reader that is not strict would take
    the rest of the file for one field.
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
    _check_columns(examples, columns, header)
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
        _check_columns(
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


def _split_mrpc(examples: ExampleSet, rows: list[_Row]) -> list[_Row]:
    """The rows of a split of Microsoft's training file.

    GLUE lists the rows for evaluation in `dev_ids.tsv`.
    """
    path = posixpath.join(posixpath.dirname(examples.source), "dev_ids.tsv")
    if not files.exists(path):
        if examples.is_training:
            return rows
        raise UserError(
            f"{path} must exist to split {_MICROSOFT_MRPC}",
            received="no such file",
            remedy="Copy it from GLUE, or name another file as --dev_file.",
        )
    dev_ids = {
        tuple(line.split()) for line in read_text(path).split("\n") if line
    }
    found = [
        row
        for row in rows
        if ((row.values["#1 ID"], row.values["#2 ID"]) in dev_ids)
        == (examples.split == DEV)
    ]
    return [row._replace(number=number) for number, row in enumerate(found)]


@contextlib.contextmanager
def _format_of(path: str, name: str) -> Iterator[None]:
    """Turns errors in parsing into errors that name the format."""
    try:
        yield
    except UserError:
        raise
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise UserError(
            f"{path} must be a JSON file {name}",
            received=f"no {error}"
            if isinstance(error, KeyError)
            else f"{type(error).__name__}: {error}",
        ) from None


def _read_squad(examples: ExampleSet) -> list[_Row]:
    """Reads a file of SQuAD 1.1 or 2.0, or your own file in their format.

    Rows have `is_impossible`, False for files of SQuAD 1.1.
    """
    path = examples.source
    with _format_of(path, "in the format of SQuAD"):
        rows = [
            _Row(str(entry["id"]), {"context": context, **entry})
            for article in json.loads(read_text(path))["data"]
            for paragraph in article["paragraphs"]
            for context in [paragraph["context"]]
            for entry in paragraph["qas"]
        ]
    for name, values, _ in rows:
        if "answers" not in values or "is_impossible" in values:
            continue
        if examples.task.name == "squad_v2":
            raise UserError(
                f"questions of {path} must have is_impossible",
                received=f"none in {name}",
                remedy="Use --task=squad_v1 for files of SQuAD 1.1.",
            )
        values["is_impossible"] = False
    return rows


def _read_race(directories: list[str]) -> list[_Row]:
    """Reads all files `*.txt` of directories, with a passage in each."""
    rows = []
    for directory in directories:
        paths = files.list_files(directory, "*.txt")
        if not paths:
            raise UserError(
                f"{directory} must have files *.txt of RACE",
                received="none",
                remedy="Name a directory of RACE: it contains train, dev and "
                "test; these contain middle and high, which contain the files.",
            )
        for path in paths:
            # A passage per line; the official files have one line each.
            for line in filter(str.strip, read_text(path).split("\n")):
                rows += _read_passage(path, line)
    return rows


def _read_passage(path: str, content: str | Mapping[str, Any]) -> list[_Row]:
    """Reads the questions about a passage of RACE, JSON or its values."""
    with _format_of(path, "of RACE"):
        passage = json.loads(content) if isinstance(content, str) else content
        names = ("questions", "options", "answers")
        lists = {name: passage[name] for name in names if name in passage}
        rows = [
            dict(zip(lists, values, strict=True))
            | {"id": f"{passage['id']}-{i}", "article": passage["article"]}
            for i, values in enumerate(zip(*lists.values(), strict=True))
        ]
        return [_Row(row["id"], row) for row in rows]


# --- TensorFlow Datasets -----------------------------------------------------


def _read_tfds(
    config: TaskConfig, examples: ExampleSet, columns: Columns
) -> list[_Row]:
    """Reads the split `examples.source`, a name `dataset:split`.

    A label is the name of its class; or its number, if the labels of the task
    are numbers.
    """
    builder = _prepare(config)
    split = examples.source.removeprefix(f"{config.tfds}:")
    if split not in builder.info.splits:
        raise UserError(
            f"{config.tfds} must have the split {split}",
            received=", ".join(sorted(builder.info.splits)),
            remedy="Omit --tfds, and give files.",
        )
    import tensorflow_datasets as tfds

    elements = builder.as_dataset(
        split=split,
        # One file after another, so that the order is always the same.
        read_config=tfds.ReadConfig(interleave_cycle_length=1),
    )
    features = builder.info.features
    _check_columns(examples, columns, sorted(features))
    has_numbers = examples.task.labels[:1] == ("0",)
    rows = []
    for number, element in enumerate(tfds.as_numpy(elements)):
        values = {name: _plain(value) for name, value in element.items()}
        for name, feature in features.items():
            # Sets without labels have -1 instead.
            if isinstance(feature, tfds.features.ClassLabel):
                label = values[name]
                is_named = label >= 0 and not has_numbers
                values[name] = feature.int2str(label) if is_named else label
        rows.append(_Row(f"example {number}", values, number))
    return rows


def _prepare(config: TaskConfig) -> Any:
    """The builder of a dataset that is prepared."""
    try:
        import tensorflow_datasets as tfds
    except ModuleNotFoundError:
        raise UserError(
            "--tfds needs TensorFlow Datasets",
            received="no module named tensorflow_datasets",
            remedy="pip install -e '.[tfds]'.",
        ) from None
    try:
        builder = tfds.builder(
            config.tfds, data_dir=config.tfds_data_dir or None
        )
        builder.download_and_prepare()
    except Exception as error:  # of the name, the network, the disk
        raise UserError(
            f"{config.tfds} must be a dataset of TensorFlow Datasets that is "
            "prepared or downloadable",
            received=f"{type(error).__name__}: {error}",
            remedy="Prepare it on a machine with network access, and pass its "
            "directory as --tfds_data_dir.",
        ) from error
    return builder


def _plain(value: Any) -> Any:
    """NumPy's values as text, numbers, lists and dictionaries."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if hasattr(value, "to_list"):  # of a ragged tensor
        value = value.to_list()
    if hasattr(value, "tolist"):  # an array or a number
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


# --- labels ------------------------------------------------------------------


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _has_class(value: Any) -> bool:
    """Whether a cell has a label, i.e. is neither empty nor null."""
    return bool(_text(value).strip())


def _collect_labels(values: Iterable[Any]) -> tuple[str, ...]:
    """The distinct labels, sorted; by value, if all are whole numbers."""
    labels = {_text(value) for value in values if _has_class(value)}
    try:
        # Different labels can have the same value, e.g. 1 and 01.
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    except ValueError:
        return tuple(sorted(labels))


def _label_of(examples: ExampleSet, row: _Row, columns: Columns) -> Any:
    """The class, value, right choice or answers of a row."""
    task, value = examples.task, row.values[columns.label]
    if task.kind == CLASSIFICATION:
        if _text(value) in task.labels:
            return task.labels.index(_text(value))
        raise UserError(
            f"labels of {examples.source} must be one of "
            f"{name_faults(task.labels)}",
            received=f"{_text(value)!r} in {row.where}",
            remedy="Check the file and --label_column; a model predicts only "
            "labels of its training file.",
        )
    try:
        if task.kind == REGRESSION:
            return _parse_finite(value)
        if task.kind == MULTIPLE_CHOICE:
            return _parse_choice(value)
        return _parse_answers(value, row.values.get(columns.answer_start, ""))
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{columns.label} of {examples.source} must be {_FORMS[task.kind]}",
            received=f"{value!r} in {row.where}: {error}",
            remedy="Check the file and the flags that name its columns.",
        ) from None


def _parse_finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _parse_choice(value: Any) -> int:
    """The index of a choice from its number, from 0, or its letter."""
    text = str(value).strip()
    is_letter = len(text) == 1 and text.upper() in LETTERS
    return LETTERS.index(text.upper()) if is_letter else int(text)


def _parse_answers(value: Any, start: Any) -> tuple[Answer, ...]:
    """Parses answers: a text and its start, or one of the forms of SQuAD.

    Files of SQuAD have a list of `{"text": ..., "answer_start": ...}`.
    TensorFlow Datasets and Hugging Face have a dictionary of two lists.
    """
    if isinstance(value, dict):
        pairs = zip(value["text"], value["answer_start"], strict=True)
        return tuple(Answer(text, int(begin)) for text, begin in pairs)
    if isinstance(value, list):
        return tuple(Answer(v["text"], int(v["answer_start"])) for v in value)
    return (Answer(_text(value), int(start)),) if _text(value) else ()


# --- examples ----------------------------------------------------------------


def _without_surrogates(
    examples: ExampleSet, rows: Sequence[_Row], columns: Columns
) -> list[_Row]:
    """Reports rows with an unpaired surrogate, and returns the others.

    JSON can encode a surrogate; UTF-8, and so the tokenizer, cannot.
    """
    names = [columns.text, columns.text_pair, columns.label, columns.id]
    kept = []
    for row in rows:
        values = [row.values.get(name) for name in (*names, *columns.choices)]
        text = json.dumps(values, ensure_ascii=False, default=str)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            examples.report_bad(row.where, f"unpaired surrogate U+{code:04X}")
        else:
            kept.append(row)
    return kept


def _add_example(examples: ExampleSet, row: _Row, columns: Columns) -> None:
    """Adds the example of a row, unless it is unusable."""
    task, label = examples.task, None
    if examples.has_labels:
        value = row.values[columns.label]
        if value == "-" and task.name not in KINDS:
            # The annotators of MNLI did not agree.
            examples.report_bad(row.where, "no gold label")
            return
        if task.kind == CLASSIFICATION and not _has_class(value):
            examples.report_bad(row.where, "no label")
            return
        label = _label_of(examples, row, columns)
    name = _text(row.values.get(columns.id, row.number))
    example = _make_example(examples, name, row, columns, label)
    problem = _find_problem(example, examples.has_labels)
    if problem:
        is_text = isinstance(example, TextExample)
        examples.report_bad(row.where if is_text else name, problem)
    if not (problem and examples.is_training):
        examples.examples.append(example)


def _make_example(
    examples: ExampleSet, name: str, row: _Row, columns: Columns, label: Any
) -> Example:
    task, values = examples.task, row.values
    text = _text(values[columns.text])
    pair = _text(values[columns.text_pair]) if columns.text_pair else None
    if task.kind == MULTIPLE_CHOICE:
        choices = [values[column] for column in columns.choices]
        if len(choices) == 1 and isinstance(choices[0], list):
            choices = choices[0]
        texts = tuple(map(_text, choices))
        question = ChoiceExample(name, text, pair or "", texts, label)
        _check_choices(examples, question)
        return question
    if task.kind != QUESTION_ANSWERING:
        return TextExample(name, text, pair, label)
    is_impossible = examples.has_labels and _is_impossible(examples, row, label)
    if is_impossible and not task.may_be_unanswerable:
        raise UserError(
            f"every question of {examples.source} must have an answer",
            received=f"none in {name}",
            remedy="Use --task=squad_v2 for files of SQuAD 2.0.",
        )
    return Question(name, pair or "", text, label or (), is_impossible)


def _is_impossible(examples: ExampleSet, row: _Row, label: Any) -> bool:
    """Whether a question has no answer, by `is_impossible` or its answers."""
    if "is_impossible" not in row.values:
        return not label
    value = row.values["is_impossible"]
    text = _text(value).strip().lower()
    if text not in _TRUTH_VALUES:
        raise UserError(
            f"is_impossible of {examples.source} must be true, false, 1 or 0",
            received=f"{value!r} in {row.where}",
        )
    return _TRUTH_VALUES[text]


def _check_choices(examples: ExampleSet, example: ChoiceExample) -> None:
    if not examples.task.num_choices:
        examples.task = dataclasses.replace(
            examples.task, num_choices=len(example.choices)
        )
    num_choices = examples.task.num_choices
    if len(example.choices) != num_choices:
        raise UserError(
            f"questions of {examples.source} must have {num_choices} choices",
            received=f"{len(example.choices)} in {example.id}",
        )
    if example.label is not None and not 0 <= example.label < num_choices:
        raise UserError(
            f"the label of a question of {examples.source} must be one of "
            f"its {num_choices} choices",
            received=f"choice {example.label}, counted from 0, in {example.id}",
        )


def _find_problem(example: Example, has_labels: bool) -> str:
    """Why an example is unusable for training; "" if it is usable."""
    if isinstance(example, TextExample):
        texts = [t for t in (example.text, example.text_pair) if t is not None]
        return "" if all(map(str.strip, texts)) else "a text is empty"
    if isinstance(example, ChoiceExample):
        texts = [example.passage, *example.choices]
        is_full = all(map(str.strip, texts))
        return "" if is_full else "the passage or a choice is empty"
    if not example.question.strip():
        return "the question is empty"
    if not example.document.strip():
        return "the document is empty"
    if not has_labels or example.is_impossible:
        return ""
    if not example.answers:
        return "no answer, though the question is not marked as impossible"
    text, start = example.answers[0]
    found = example.document[max(start, 0) : start + len(text)]
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
    task = examples.task
    if not examples.examples:
        raise UserError(
            f"{examples.source} must have usable examples",
            received=f"{len(examples.bad)} that cannot be used, e.g. "
            + ": ".join(examples.bad[0])
            if examples.bad
            else "none",
        )
    if task.kind == QUESTION_ANSWERING:
        # Answers are stored and scored by id.
        counts = collections.Counter(q.id for q in examples.examples)
        repeated = [name for name, count in counts.items() if count > 1]
        if repeated:
            raise UserError(
                f"questions of {examples.source} must have different ids",
                received=f"{name_faults(repeated)}, more than once",
                remedy="Correct the file or, for a table, name another column "
                "as --id_column.",
            )
    is_classification = task.kind == CLASSIFICATION
    if is_classification and examples.is_training and len(task.labels) < 2:
        raise UserError(
            f"{examples.source} must have labels of at least two classes",
            received=", ".join(task.labels) or "none",
        )
    if examples.has_labels and not any(map(_has_label, examples.examples)):
        raise UserError(
            f"{examples.source}, the {examples.split} set, must have "
            f"{'labels' if task.layout != 'squad' else 'answers'}",
            received="none",
            remedy="Give a file without them as --test_file.",
        )


def _has_label(example: Example) -> bool:
    if isinstance(example, Question):
        return bool(example.answers) or example.is_impossible
    return example.label is not None
