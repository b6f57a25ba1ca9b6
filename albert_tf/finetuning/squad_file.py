"""Reads questions from JSON files in the format of SQuAD 1.1 and 2.0."""

from collections.abc import Iterator
from typing import Any

from albert_tf.errors import UserError
from albert_tf.finetuning.example_types import Answer, ExampleSet, Question
from albert_tf.io.files import load_json


def read_squad(examples: ExampleSet) -> None:
    """Adds the questions of `examples.source` to `examples`.

    Raises:
        UserError: If the file has another format, or if it is one of the
            other version of SQuAD.
    """
    path = examples.source
    content = load_json(path)
    try:
        for document, entry in _entries(content["data"]):
            _add(examples, document, entry)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} must be a JSON file in the format of SQuAD",
            received=f"no {error}"
            if isinstance(error, KeyError)
            else f"other values: {error}",
        ) from None
    if not examples.examples:
        raise UserError(f"{path} must have questions", received="none")


def _entries(articles: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for article in articles:
        for paragraph in article["paragraphs"]:
            for entry in paragraph["qas"]:
                yield paragraph["context"], entry


def _add(examples: ExampleSet, document: str, entry: dict[str, Any]) -> None:
    task = examples.task
    is_impossible = bool(entry.get("is_impossible", False))
    if (
        task.name == "squad_v2"
        and examples.has_labels
        and "is_impossible" not in entry
    ):
        raise UserError(
            f"questions of {examples.source} must have is_impossible",
            received=f"none in {entry['id']}",
            remedy="Use --task=squad_v1 for files of SQuAD 1.1.",
        )
    if is_impossible and not task.may_be_unanswerable:
        raise UserError(
            f"every question of {examples.source} must have an answer",
            received=f"is_impossible in {entry['id']}",
            remedy="Use --task=squad_v2 for files of SQuAD 2.0.",
        )
    answers = tuple(
        Answer(answer["text"], int(answer["answer_start"]))
        for answer in entry.get("answers", ())
    )
    add_question(
        examples,
        Question(
            str(entry["id"]),
            entry["question"],
            document,
            answers,
            is_impossible,
        ),
    )


def add_question(examples: ExampleSet, question: Question) -> None:
    """Adds a question, unless it is unusable for training.

    A question for evaluation is added in any case, since it needs a
    prediction.
    """
    problem = _find_problem(examples, question)
    if problem:
        examples.report_bad(question.id, problem)
        if examples.is_training:
            return
    examples.examples.append(question)


def _find_problem(examples: ExampleSet, question: Question) -> str:
    """What makes a question unusable for training; "" for nothing."""
    if not question.question.strip():
        return "the question is empty"
    if not question.document.strip():
        return "the document is empty"
    if not examples.has_labels or question.is_impossible:
        return ""
    if not question.answers:
        return "no answer, though the question is not marked as impossible"
    answer = question.answers[0]
    end = answer.start + len(answer.text)
    found = question.document[max(answer.start, 0) : end]
    if not answer.text.strip():
        return "the answer is empty"
    if answer.start < 0 or found != answer.text:
        return (
            f"the document has {found[:40]!r} at answer_start {answer.start}, "
            f"not the answer {answer.text[:40]!r}"
        )
    return ""
