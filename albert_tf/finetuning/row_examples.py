"""Makes examples from rows, in the type that their task needs."""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from albert_tf.config.task_head import (
    CLASSIFICATION,
    KINDS,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
)
from albert_tf.errors import UserError, name_faults
from albert_tf.finetuning.example_types import (
    ChoiceExample,
    ExampleSet,
    TextExample,
)
from albert_tf.finetuning.tables import Row
from albert_tf.finetuning.tasks import LETTERS, Columns
from albert_tf.records.documents import Answer, Question

_Example: TypeAlias = TextExample | ChoiceExample | Question

# The form of a label, by kind of the task.
_FORMS = {
    REGRESSION: "a finite number",
    MULTIPLE_CHOICE: "the number of a choice from 0, or a letter from A",
    QUESTION_ANSWERING: "a text, with a number as answer_start",
}

# The values of `is_impossible`; `str(True)` in lower case is "true".
_TRUTH_VALUES = {"true": True, "1": True, "false": False, "0": False}


def add_examples(
    examples: ExampleSet,
    rows: Sequence[Row],
    columns: Columns,
    answer_start_column: str,
) -> None:
    """Adds the example of each row to `examples`, unless it is unusable.

    An example for evaluation is added even if it is unusable for training,
    since it needs a prediction, unless it lacks the label of its class or has
    an unpaired surrogate. Labels and the number of choices are collected, if
    the task has none yet.

    Args:
        columns: The columns of the rows.
        answer_start_column: In a table of questions, the column with the
            position of the answer's first character.

    Raises:
        UserError: If a label, a number of choices or a question without an
            answer does not fit the task.
    """
    task = examples.task
    rows = _leave_out_surrogates(examples, rows, columns)
    if task.kind == CLASSIFICATION and not task.labels and examples.has_labels:
        labels = _collect_labels(rows, columns.label)
        examples.task = dataclasses.replace(task, labels=labels)
    for row in rows:
        label = None
        if examples.has_labels:
            value = row.values[columns.label]
            if value == "-" and task.name not in KINDS:
                # The annotators of MNLI did not agree.
                examples.report_bad(row.where, "no gold label")
                continue
            if task.kind == CLASSIFICATION and not _has_class(value):
                examples.report_bad(row.where, "no label")
                continue
            label = _label_of(examples, row, columns, answer_start_column)
        name = _text(row.values.get(columns.id, row.number))
        example = _make_example(examples, name, row, columns, label)
        problem = _find_problem(example, examples.has_labels)
        if problem:
            is_text = isinstance(example, TextExample)
            examples.report_bad(row.where if is_text else name, problem)
        if not (problem and examples.is_training):
            examples.examples.append(example)


def _leave_out_surrogates(
    examples: ExampleSet, rows: Sequence[Row], columns: Columns
) -> list[Row]:
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


# --- labels -----------------------------------------------------------------


def _collect_labels(rows: Sequence[Row], column: str) -> tuple[str, ...]:
    """The distinct labels, sorted; by value, if all are whole numbers."""
    values = [row.values[column] for row in rows]
    labels = {_text(value) for value in values if _has_class(value)}
    try:
        # Different labels can have the same value, e.g. 1 and 01.
        return tuple(sorted(labels, key=lambda label: (int(label), label)))
    except ValueError:
        return tuple(sorted(labels))


def _has_class(value: Any) -> bool:
    """Whether a cell has a label, i.e. is neither empty nor null."""
    return bool(_text(value).strip())


def _label_of(
    examples: ExampleSet, row: Row, columns: Columns, answer_start_column: str
) -> Any:
    """The class, value, right choice or answers of a row."""
    task, value = examples.task, row.values[columns.label]
    if task.kind == CLASSIFICATION and _text(value) not in task.labels:
        raise UserError(
            f"labels of {examples.source} must be one of "
            f"{name_faults(task.labels)}",
            received=f"{_text(value)!r} in {row.where}",
            remedy="Check the file and --label_column; a model predicts only "
            "labels of its training file.",
        )
    try:
        if task.kind == CLASSIFICATION:
            return task.labels.index(_text(value))
        if task.kind == REGRESSION:
            return _finite(value)
        if task.kind == MULTIPLE_CHOICE:
            return _parse_choice(value)
        return _answers(value, row.values.get(answer_start_column, ""))
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{columns.label} of {examples.source} must be {_FORMS[task.kind]}",
            received=f"{value!r} in {row.where}: {error}",
            remedy="Check the file and the flags that name its columns.",
        ) from None


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _parse_choice(value: Any) -> int:
    """The index of a choice from its number, from 0, or its letter."""
    text = str(value).strip()
    is_letter = len(text) == 1 and text.upper() in LETTERS
    return LETTERS.index(text.upper()) if is_letter else int(text)


def _answers(value: Any, start: Any) -> tuple[Answer, ...]:
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


# --- examples ---------------------------------------------------------------


def _make_example(
    examples: ExampleSet, name: str, row: Row, columns: Columns, label: Any
) -> _Example:
    task, values = examples.task, row.values
    text = _text(values[columns.text])
    pair = _text(values[columns.text_pair]) if columns.text_pair else None
    if task.kind == MULTIPLE_CHOICE:
        choices = _choices_of(row, columns.choices)
        question = ChoiceExample(name, text, pair or "", choices, label)
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


def _is_impossible(examples: ExampleSet, row: Row, label: Any) -> bool:
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


def _choices_of(row: Row, columns: Sequence[str]) -> tuple[str, ...]:
    """The choices: one in each column, or the list in the only column."""
    choices = [row.values[name] for name in columns]
    if len(choices) == 1 and isinstance(choices[0], list):
        choices = choices[0]
    return tuple(map(_text, choices))


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


def _find_problem(example: _Example, has_labels: bool) -> str:
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


def _text(value: Any) -> str:
    return "" if value is None else str(value)
