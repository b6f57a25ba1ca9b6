"""Makes examples of the rows of a table."""

import dataclasses
import math
import posixpath
from collections.abc import Sequence
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
    columns = _find_columns(examples, config)
    is_own = examples.task.name in KINDS
    has_choices = examples.task.kind == MULTIPLE_CHOICE
    choice_columns = config.choice_columns if has_choices else ()
    needed = [columns.text, columns.text_pair, *choice_columns]
    needed += [columns.label] if examples.has_labels else []
    needed += [columns.id] if is_own else []
    needed = [name for name in needed if name]
    if config.tfds:
        rows = read_tfds(examples, config, needed)
    else:
        rows = read_rows(examples, needed, columns.header)
    if examples.source.endswith(_MICROSOFT_MRPC):
        rows = _split_mrpc(examples, rows)
    task = examples.task
    if task.kind == CLASSIFICATION and not task.labels and examples.has_labels:
        labels = _collect_labels(rows, columns.label)
        examples.task = dataclasses.replace(task, labels=labels)
    for number, row in enumerate(rows):
        label = None
        if examples.has_labels:
            if row.values[columns.label] == "-" and not is_own:
                # The annotators of MNLI did not agree.
                examples.report_bad(f"line {row.number}", "no gold label")
                continue
            label = _label_of(examples, config, row, columns.label)
        name = _text(row.values.get(columns.id, number))
        text = _text(row.values[columns.text])
        pair = columns.text_pair and _text(row.values[columns.text_pair])
        if task.kind == QUESTION_ANSWERING:
            is_impossible = examples.has_labels and not label
            add_question(
                examples,
                Question(name, pair, text, label or (), is_impossible),
            )
        elif task.kind == MULTIPLE_CHOICE:
            choices = _choices_of(row, choice_columns)
            if not examples.task.num_choices:
                examples.task = dataclasses.replace(
                    task, num_choices=len(choices)
                )
            add_choices(
                examples, ChoiceExample(name, text, pair, choices, label)
            )
        else:
            text_pair = pair if columns.text_pair else None
            example = TextExample(name, text, text_pair, label)
            _add_text(examples, example, row.number)


def _add_text(examples: ExampleSet, example: TextExample, number: int) -> None:
    """Adds a text, unless it is empty and for training."""
    texts = [t for t in (example.text, example.text_pair) if t is not None]
    if not all(map(str.strip, texts)):
        examples.report_bad(f"line {number}", "a text is empty")
        if examples.is_training:
            return
    examples.examples.append(example)


def _find_columns(examples: ExampleSet, config: TaskConfig) -> Columns:
    task = examples.task
    if task.layout == "squad":  # of TensorFlow Datasets
        return Columns("context", "question", "answers", "id")
    if task.name in KINDS:
        has_pairs = task.kind in (CLASSIFICATION, REGRESSION)
        has_spans = task.kind == QUESTION_ANSWERING
        return Columns(
            config.text_column,
            config.text_pair_column if has_pairs else config.question_column,
            config.answer_column if has_spans else config.label_column,
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


def _label_of(
    examples: ExampleSet, config: TaskConfig, row: Row, column: str
) -> Any:
    """The class, value, right choice or answers of a row."""
    task, value = examples.task, row.values[column]
    if task.kind == CLASSIFICATION and _text(value) not in task.labels:
        raise UserError(
            f"labels of {examples.source} must be one of "
            f"{name_faults(task.labels)}",
            received=f"{_text(value)!r} in line {row.number}",
            remedy="Check the file and --label_column; a model predicts only "
            "labels of its training file.",
        )
    try:
        if task.kind == CLASSIFICATION:
            return task.labels.index(_text(value))
        if task.kind == REGRESSION:
            return _finite(value)
        if task.kind == MULTIPLE_CHOICE:
            return parse_choice(value)
        return _answers(value, row.values.get(config.answer_start_column, ""))
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"values of {column} of {examples.source} must be those of "
            f"--task={task.name}",
            received=f"{value!r} in line {row.number}: {error}",
        ) from None


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


def _choices_of(row: Row, columns: Sequence[str]) -> tuple[str, ...]:
    """The choices: one in each column, or the list in the only column."""
    choices = [row.values[name] for name in columns]
    if len(choices) == 1 and isinstance(choices[0], list):
        choices = choices[0]
    return tuple(map(_text, choices))


def _answers(value: Any, start: Any) -> tuple[Answer, ...]:
    """Answers of one text and start, or in the form of Hugging Face.

    The form is `{"text": [...], "answer_start": [...]}`.
    """
    if isinstance(value, dict):
        pairs = zip(value["text"], value["answer_start"], strict=True)
        return tuple(Answer(text, int(begin)) for text, begin in pairs)
    return (Answer(_text(value), int(start)),) if _text(value) else ()


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _text(value: Any) -> str:
    return "" if value is None else str(value)
