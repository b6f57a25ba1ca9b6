"""Reads RACE: a directory of JSON files per level, one passage in each."""

import json
from collections.abc import Mapping
from typing import Any

from albert_tf.errors import UserError
from albert_tf.finetuning.example_types import ChoiceExample, ExampleSet
from albert_tf.finetuning.tables import read_text
from albert_tf.io import files

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def read_race(examples: ExampleSet, directories: list[str]) -> None:
    """Adds the questions of all files `*.txt` of directories to `examples`.

    Raises:
        UserError: If a directory has no files, or a file another format.
    """
    for directory in directories:
        paths = files.find(f"{directory}/*.txt")
        if not paths:
            raise UserError(
                f"{directory} must have files *.txt of RACE",
                received="none",
                remedy="Set --data_dir to the directory that contains train, "
                "dev and test.",
            )
        for path in paths:
            # The official files have one line each; more lines are passages.
            for line in read_text(path).split("\n"):
                if line.strip():
                    add_passage(examples, path, line)


def add_passage(
    examples: ExampleSet, path: str, content: str | Mapping[str, Any]
) -> None:
    """Adds the questions about a passage to `examples`.

    Args:
        examples: The set that the questions belong to.
        path: Where the passage comes from.
        content: The passage, as JSON or as its values.

    Raises:
        UserError: If the passage has another format.
    """
    try:
        passage = json.loads(content) if isinstance(content, str) else content
        article, number = passage["article"], passage["id"]
        questions, options = passage["questions"], passage["options"]
        answers = passage.get("answers") or [None] * len(questions)
        for i, question in enumerate(questions):
            label = None if answers[i] is None else LETTERS.index(answers[i])
            add_choices(
                examples,
                ChoiceExample(
                    f"{number}-{i}", article, question, tuple(options[i]), label
                ),
            )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{path} must be a JSON file of RACE",
            received=f"{type(error).__name__} {error}",
        ) from None


def parse_choice(value: Any) -> int:
    """The index of a choice from its number, from 0, or its letter.

    Raises:
        ValueError: If it is neither.
    """
    text = str(value).strip()
    return LETTERS.index(text) if text.isalpha() else int(text)


def add_choices(examples: ExampleSet, example: ChoiceExample) -> None:
    """Adds a question with choices, unless it is unusable for training.

    Raises:
        UserError: If it has another number of choices than the task.
    """
    task = examples.task
    if len(example.choices) != task.num_choices:
        raise UserError(
            f"questions of {examples.source} must have {task.num_choices} "
            "choices",
            received=f"{len(example.choices)} in {example.id}",
        )
    if example.label is not None and not 0 <= example.label < task.num_choices:
        raise UserError(
            f"the label of a question of {examples.source} must be one of "
            f"its {task.num_choices} choices",
            received=f"choice {example.label}, counted from 0, in {example.id}",
        )
    if not example.passage.strip() or not all(map(str.strip, example.choices)):
        examples.report_bad(example.id, "the passage or a choice is empty")
        if examples.is_training:
            return
    examples.examples.append(example)
