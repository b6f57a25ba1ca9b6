"""Writes and reads files of predictions.

*.tsv              of GLUE's leaderboard: columns index and prediction
predictions.json   answers by question id, as the scripts of SQuAD read them
best_answers.json  the same, without the null threshold
null_odds.json     by question id; the larger, the less likely an answer
nbest.json         the best answers to each question, with probabilities
"""

import collections
import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from albert_tf.config.task import CLASSIFICATION, REGRESSION
from albert_tf.errors import UserError, name_faults
from albert_tf.finetuning.examples import ExampleSet, read_text
from albert_tf.finetuning.tasks import LETTERS, Task
from albert_tf.io.files import write_text
from albert_tf.records.documents import QuestionAnswer

_HEADER = "index\tprediction"


def names_of(task: Task) -> Sequence[str]:
    """Names of the classes or choices by index; () for regression.

    A choice after Z is called by its number, from 0.
    """
    if task.kind == CLASSIFICATION:
        return task.labels
    numbers = range(len(LETTERS), task.num_choices)
    return [*LETTERS[: task.num_choices], *map(str, numbers)]


def write_predictions(
    path: str, examples: ExampleSet, predictions: np.ndarray
) -> None:
    """Writes the predictions of all kinds but question answering.

    Args:
        path: The file; `Split.submission` is its name for the leaderboard.
        predictions: `(examples,)`: indices of classes or choices, or values.
            Values of STS-B are cut to its range, 0 to 5.
    """
    task = examples.task
    lines = [_HEADER]
    for example, value in zip(examples.examples, predictions, strict=True):
        if task.kind == REGRESSION:
            bounded = min(max(value, 0), 5) if task.name == "stsb" else value
            lines.append(f"{example.id}\t{bounded:.3f}")
        else:
            lines.append(f"{example.id}\t{names_of(task)[int(value)]}")
    write_text(path, "\n".join(lines) + "\n")


def read_predictions(path: str, examples: ExampleSet) -> np.ndarray:
    """Reads what `write_predictions` writes, in the order of the examples.

    Raises:
        UserError: If the file has other examples, or other labels.
    """
    task, values = examples.task, read_values(path, examples)
    try:
        if task.kind == REGRESSION:
            return np.array([float(value) for value in values])
        classes = {label: i for i, label in enumerate(names_of(task))}
        return np.array([classes[value] for value in values])
    except (ValueError, KeyError) as error:
        names = ", ".join(names_of(task))
        wanted = f"one of {names}" if names else "a number"
        raise UserError(
            f"each prediction in {path} must be {wanted}", received=error
        ) from None


def read_values(path: str, examples: ExampleSet) -> list[str]:
    """Reads predictions as text, in the order of the examples.

    Raises:
        UserError: If the file has other examples.
    """
    header, *lines = read_text(path).replace("\r", "").rstrip("\n").split("\n")
    fields = [line.split("\t") for line in lines]
    if header != _HEADER or any(len(values) != 2 for values in fields):
        raise UserError(
            f"{path} must have two columns, index and prediction, separated "
            "by a tab",
            received=repr(header),
        )
    found = dict(fields)
    ids = [example.id for example in examples.examples]
    known = set(ids)
    other = [f"{name} is missing" for name in ids if name not in found]
    other += [f"{name} is unknown" for name in found if name not in known]
    counts = collections.Counter(name for name, _ in fields)
    other += [f"{name} is repeated" for name, n in counts.items() if n > 1]
    if other:
        raise UserError(
            f"{path} must have one prediction for each example of "
            f"{examples.source}",
            received=name_faults(other),
            remedy="Check that these are predictions of that file.",
        )
    return [found[name] for name in ids]


def write_answers(
    directory: str,
    answers: Sequence[QuestionAnswer],
    null_threshold: float | None = None,
) -> None:
    """Writes all files of answers.

    Args:
        directory: The directory, local or gs://.
        answers: The answers to all questions.
        null_threshold: In `predictions.json`, an answer with larger null odds
            is replaced by ""; None replaces none.
    """
    contents: Mapping[str, Mapping[str, Any]] = {
        "predictions.json": {a.id: a.text(null_threshold) for a in answers},
        "best_answers.json": {a.id: a.text() for a in answers},
        "null_odds.json": {a.id: a.null_odds for a in answers},
        "nbest.json": {
            a.id: [candidate._asdict() for candidate in a.candidates]
            for a in answers
        },
    }
    for name, content in contents.items():
        text = json.dumps(content, indent=2, ensure_ascii=False)
        write_text(posixpath.join(directory, name), text + "\n")
