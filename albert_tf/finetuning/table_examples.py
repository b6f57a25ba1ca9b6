"""Makes examples of the rows of a table."""

import dataclasses
import functools
import math
import posixpath
from collections.abc import Callable, Sequence
from typing import Any

from albert_tf.config.task import TaskConfig
from albert_tf.config.task_head import (
    CLASSIFICATION,
    KINDS,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
)
from albert_tf.errors import UserError, name_faults
from albert_tf.finetuning.example_types import (
    Answer,
    ChoiceExample,
    ExampleSet,
    Question,
    TextExample,
)
from albert_tf.finetuning.race_files import add_choices, parse_choice
from albert_tf.finetuning.squad_file import add_question
from albert_tf.finetuning.tables import Row, read_rows, read_text
from albert_tf.finetuning.tasks import DEV, TRAIN, Columns
from albert_tf.finetuning.tfds_rows import read_tfds
from albert_tf.io import files

_MICROSOFT_MRPC = "msr_paraphrase_train.txt"

# Where TensorFlow Datasets names the texts differently from the files.
_TFDS_TEXTS = {
    "mnli": ("premise", "hypothesis"),
    "ax": ("premise", "hypothesis"),
    "mrpc": ("sentence1", "sentence2"),
}


def read_table(examples: ExampleSet, config: TaskConfig) -> None:
    """Adds the rows of the table `examples.source` to `examples`.

    Collects the labels of a task of one's own that has none yet.

    Raises:
        UserError: If the table has another layout, or a label that the task
            does not have.
    """
    kind = examples.task.kind
    if kind == QUESTION_ANSWERING:
        if examples.task.layout == "squad":  # of TensorFlow Datasets
            config = dataclasses.replace(
                config,
                text_column="context",
                answer_column="answers",
                id_column="id",
            )
        _read_questions(examples, config)
    elif kind == MULTIPLE_CHOICE:
        _read_choices(examples, config)
    else:
        _read_texts(examples, config)


def _read_texts(examples: ExampleSet, config: TaskConfig) -> None:
    task, columns = examples.task, _find_columns(examples, config)
    needed = [columns.text]
    needed += [columns.text_pair] if columns.text_pair else []
    needed += [columns.label] if examples.has_labels else []
    rows = _read_rows(examples, config, needed, columns.header)
    if examples.source.endswith(_MICROSOFT_MRPC):
        rows = _split_mrpc(examples, rows)
    if task.kind == CLASSIFICATION and not task.labels and examples.has_labels:
        examples.task = task = dataclasses.replace(
            task, labels=_collect_labels(rows, columns.label)
        )
    classes = {label: i for i, label in enumerate(task.labels)}
    for number, row in enumerate(rows):
        where = f"line {row.number}"
        label: int | float | None = None
        if examples.has_labels:
            text = _text(row.values[columns.label])
            if text == "-" and task.name not in KINDS:
                # The annotators of MNLI did not agree.
                examples.report_bad(where, "no gold label")
                continue
            label = (
                _parse(examples, row, columns.label, _finite)
                if task.kind == REGRESSION
                else _class_of(examples, where, text, classes)
            )
        example = TextExample(
            _id_of(row, columns.id, number),
            _text(row.values[columns.text]),
            _text(row.values[columns.text_pair]) if columns.text_pair else None,
            label,
        )
        texts = [t for t in (example.text, example.text_pair) if t is not None]
        if not all(map(str.strip, texts)):
            examples.report_bad(where, "a text is empty")
            if examples.is_training:
                continue
        examples.examples.append(example)


def _read_rows(
    examples: ExampleSet,
    config: TaskConfig,
    needed: Sequence[str],
    header: Sequence[str] = (),
) -> list[Row]:
    if config.tfds:
        return read_tfds(examples, config, needed)
    return read_rows(examples, needed, header)


def _find_columns(examples: ExampleSet, config: TaskConfig) -> Columns:
    task = examples.task
    if task.name in KINDS:
        return Columns(
            config.text_column,
            config.text_pair_column,
            config.label_column,
            config.id_column,
        )
    columns = task.splits[examples.split].columns
    assert columns is not None
    if config.tfds:
        texts = _TFDS_TEXTS.get(task.name, (columns.text, columns.text_pair))
        return Columns(*texts, id="idx")
    return columns


def _collect_labels(rows: Sequence[Row], column: str) -> tuple[str, ...]:
    """The distinct labels, sorted; by value, if all are whole numbers."""
    labels = {_text(row.values[column]) for row in rows}
    try:
        return tuple(sorted(labels, key=int))
    except ValueError:
        return tuple(sorted(labels))


def _class_of(
    examples: ExampleSet, where: str, label: str, classes: dict[str, int]
) -> int:
    if label not in classes:
        raise UserError(
            f"labels of {examples.source} must be one of "
            f"{name_faults(list(classes))}",
            received=f"{label!r} in {where}",
            remedy="Check the file and --label_column; a model predicts only "
            "labels of its training file.",
        )
    return classes[label]


def _split_mrpc(examples: ExampleSet, rows: list[Row]) -> list[Row]:
    """The rows of a split of Microsoft's training file.

    GLUE lists the rows for evaluation in `dev_ids.tsv`.
    """
    path = posixpath.join(posixpath.dirname(examples.source), "dev_ids.tsv")
    if not files.exists(path):
        if examples.split == TRAIN:
            return rows
        raise UserError(
            f"{path} must exist to split {_MICROSOFT_MRPC}",
            received="no such file",
            remedy="It belongs to GLUE; or name another file as --dev_file.",
        )
    dev_ids = {
        tuple(line.split()) for line in read_text(path).split("\n") if line
    }
    return [
        row
        for row in rows
        if ((row.values["#1 ID"], row.values["#2 ID"]) in dev_ids)
        == (examples.split == DEV)
    ]


def _read_choices(examples: ExampleSet, config: TaskConfig) -> None:
    choice_columns = config.choice_columns
    needed = [config.text_column, config.question_column, *choice_columns]
    needed += [config.label_column] if examples.has_labels else []
    needed += [config.id_column] if config.id_column else []
    for number, row in enumerate(_read_rows(examples, config, needed)):
        choices = [row.values[name] for name in choice_columns]
        if len(choices) == 1 and isinstance(choices[0], list):
            choices = choices[0]
        if not examples.task.num_choices:
            examples.task = dataclasses.replace(
                examples.task, num_choices=len(choices)
            )
        label = None
        if examples.has_labels:
            label = _parse(examples, row, config.label_column, parse_choice)
        add_choices(
            examples,
            ChoiceExample(
                _id_of(row, config.id_column, number),
                _text(row.values[config.text_column]),
                _text(row.values[config.question_column]),
                tuple(map(_text, choices)),
                label,
            ),
        )


def _read_questions(examples: ExampleSet, config: TaskConfig) -> None:
    needed = [config.text_column, config.question_column]
    needed += [config.answer_column] if examples.has_labels else []
    needed += [config.id_column] if config.id_column else []
    for number, row in enumerate(_read_rows(examples, config, needed)):
        answers: tuple[Answer, ...] = ()
        if examples.has_labels:
            start = row.values.get(config.answer_start_column, "")
            parse = functools.partial(_answers, start=start)
            answers = _parse(examples, row, config.answer_column, parse)
        add_question(
            examples,
            Question(
                _id_of(row, config.id_column, number),
                _text(row.values[config.question_column]),
                _text(row.values[config.text_column]),
                answers,
                is_impossible=examples.has_labels and not answers,
            ),
        )


def _answers(value: Any, start: Any) -> tuple[Answer, ...]:
    """Answers of one text and start, or in the form of Hugging Face.

    The form is `{"text": [...], "answer_start": [...]}`.
    """
    if isinstance(value, dict):
        pairs = zip(value["text"], value["answer_start"], strict=True)
        return tuple(Answer(text, int(begin)) for text, begin in pairs)
    return (Answer(_text(value), int(start)),) if _text(value) else ()


def _parse(
    examples: ExampleSet, row: Row, column: str, parse: Callable[[Any], Any]
) -> Any:
    try:
        return parse(row.values[column])
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"values of {column} of {examples.source} must be those of "
            f"--task={examples.task.name}",
            received=f"{row.values[column]!r} in line {row.number}: {error}",
        ) from None


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _id_of(row: Row, column: str, number: int) -> str:
    return _text(row.values[column]) if column in row.values else str(number)


def _text(value: Any) -> str:
    return "" if value is None else str(value)
