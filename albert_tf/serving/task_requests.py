"""Asks fine-tuned models, through any connection.

A connection is a `Client`: to a server (`serving.client`), or to a SavedModel
in this process (`serving.local_client`). This module does not import
TensorFlow, which clients of a REST server do not need.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from albert_tf.config import TextsConfig
from albert_tf.errors import UserError
from albert_tf.serving.names import (
    CHOOSE,
    CLASSIFY,
    FIND_ANSWER,
    PAIR_SUFFIX,
    PREDICT_VALUE,
    TEXT_SUFFIX,
)

# Names of inputs -> strings, `(batch,)`, or for choices `(batch, choices)`.
Inputs = Mapping[str, Sequence[Any]]


class Client(Protocol):
    """A connection to a model."""

    def list_signatures(self) -> list[str]:
        """Returns the names of the model's signatures.

        Raises:
            UserError: If the request fails; it quotes the server's message.
        """

    def predict(self, signature: str, inputs: Inputs) -> dict[str, Any]:
        """Calls a signature that takes text.

        Args:
            inputs: Strings by the name of the input.

        Returns:
            Nested lists of numbers and strings by the name of the output.

        Raises:
            UserError: If the request fails; it quotes the server's message.
        """


class Task(NamedTuple):
    """A kind of task, and the settings that hold its texts.

    Attributes:
        signature: Name of its signature, without "_text".
        name: The kind, in words.
        needs: Settings that must be given.
        may_have: Further settings.
    """

    signature: str
    name: str
    needs: tuple[str, ...]
    may_have: tuple[str, ...] = ()


_TASKS = (
    Task(CLASSIFY, "classification", ("text",)),
    Task(PREDICT_VALUE, "regression", ("text",)),
    Task(CHOOSE, "multiple choice", ("text", "question", "choice")),
    Task(FIND_ANSWER, "question answering", ("text", "question")),
)


def find_task(signatures: Sequence[str]) -> Task | None:
    """Finds the task of a fine-tuned model that takes text.

    Returns:
        The task; None if the model is not fine-tuned, or does not take text.

    Example:
        >>> find_task(["classify", "classify_text_pair"]).needs
        ('text', 'text_pair')
    """
    for task in _TASKS:
        takes_texts = task.signature + TEXT_SUFFIX in signatures
        takes_pairs = task.signature + PAIR_SUFFIX in signatures
        pair = ("text_pair",) if takes_pairs else ()
        if takes_texts:
            return task._replace(may_have=pair)
        if takes_pairs:
            return task._replace(
                name=f"{task.name} of pairs", needs=(*task.needs, *pair)
            )
    return None


def ask(client: Client, task: Task, texts: TextsConfig) -> list[dict[str, Any]]:
    """Asks a fine-tuned model.

    Args:
        task: What `find_task` returned.
        texts: The texts. Each question is asked about each text.

    Returns:
        An answer for each text, or for each text and question, in order, with
        these keys. Classification: `label`, and `probabilities` by label.
        Regression: `value`. Multiple choice: `choice`, `choice_number` from 0,
        and `probabilities`, one for each choice. Question answering: `answer`,
        "" if there is none; `start` and `end`, so that `text[start:end]` is
        the answer; `score`, `null_score` and `null_odds`.

    Raises:
        UserError: If a setting that the task needs is missing, or if a setting
            is given that the task does not take.
    """
    _check(task, texts)
    pairs = [(text, q) for text in texts.text for q in texts.question or ("",)]
    contexts, questions = ([p[i] for p in pairs] for i in (0, 1))
    suffix = TEXT_SUFFIX
    inputs: dict[str, Sequence[Any]] = {"text": contexts}
    if "question" in task.needs:
        inputs = {"question": questions, "context": contexts}
    if texts.choice:
        inputs["choices"] = [list(texts.choice)] * len(pairs)
    if texts.text_pair:
        inputs["text_pair"] = texts.second_texts()
        suffix = PAIR_SUFFIX
    outputs = client.predict(task.signature + suffix, inputs)
    return list(_read_answers(task.signature, outputs))


def _check(task: Task, texts: TextsConfig) -> None:
    _, name, needs, may_have = task
    settings = ("text", "text_pair", "question", "choice")
    given = [setting for setting in settings if getattr(texts, setting)]
    if not set(needs) <= set(given) <= {*needs, *may_have}:
        may = f", and may have {', '.join(may_have)}" if may_have else ""
        remedy = f"Set {' '.join(f'--{setting}=...' for setting in needs)}"
        others = [n for n in given if n not in (*needs, *may_have)]
        if others:
            remedy += f", and omit {' '.join(f'--{name}' for name in others)}"
        raise UserError(
            f"a model for {name} must be given {', '.join(needs)}{may}",
            received=", ".join(given) or "none",
            remedy=f"{remedy}.",
        )


def _read_answers(
    signature: str, outputs: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    if signature == PREDICT_VALUE:
        # A REST server omits the name of a single output.
        (values,) = outputs.values()
        outputs = {"value": values}
    names = sorted(outputs)
    for values in zip(*(outputs[name] for name in names), strict=True):
        answer = dict(zip(names, values, strict=True))
        if signature == CLASSIFY:
            labels = answer.pop("labels")
            answer["probabilities"] = dict(
                zip(labels, answer["probabilities"], strict=True)
            )
        yield answer


def print_answers(client: Client, task: Task, texts: TextsConfig) -> None:
    """Prints a JSON object for each answer of `ask`."""
    for answer in ask(client, task, texts):
        print(json.dumps(answer, ensure_ascii=False))


def decode(values: Any) -> Any:
    """Decodes the UTF-8 strings of nested lists; keeps numbers.

    Example:
        >>> decode([["Café".encode()], [3]])
        [['Café'], [3]]
    """
    if isinstance(values, list):
        return [decode(value) for value in values]
    return values.decode() if isinstance(values, bytes) else values
