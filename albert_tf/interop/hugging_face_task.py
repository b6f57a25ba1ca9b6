"""The head of a fine-tuned model as part of Hugging Face's config.json."""

from collections.abc import Mapping
from typing import Any

from albert_tf.config import TaskHeadConfig
from albert_tf.config.task import (
    CLASSIFICATION,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
)
from albert_tf.errors import UserError

# Classes of transformers by kind of task.
CLASSES = {
    CLASSIFICATION: "AlbertForSequenceClassification",
    REGRESSION: "AlbertForSequenceClassification",
    MULTIPLE_CHOICE: "AlbertForMultipleChoice",
    QUESTION_ANSWERING: "AlbertForQuestionAnswering",
}
PIPELINES = {
    CLASSIFICATION: "text-classification",
    REGRESSION: "text-classification",
    MULTIPLE_CHOICE: "multiple-choice",
    QUESTION_ANSWERING: "question-answering",
}

# The number of choices in a config.json, which only albert_tf writes, and the
# number if it is missing: that of the documentation of transformers.
NUM_CHOICES = "num_choices"
DEFAULT_NUM_CHOICES = 2


def format_head(head: TaskHeadConfig) -> dict[str, Any]:
    """The settings of a config.json that describe the head.

    Raises:
        UserError: If transformers has no such head.

    Example:
        >>> head = TaskHeadConfig("classification", ("no", "yes"))
        >>> values = format_head(head)
        >>> values["architectures"], values["id2label"]
        (['AlbertForSequenceClassification'], {'0': 'no', '1': 'yes'})
    """
    if head.is_beam:
        raise UserError(
            "transformers has no ALBERT with the head squad_head=beam",
            remedy="Fine-tune with --squad_head=plain.",
        )
    values: dict[str, Any] = {"architectures": [CLASSES[head.kind]]}
    if head.kind == REGRESSION:
        values |= {"problem_type": "regression", "id2label": {"0": "value"}}
    if head.kind == CLASSIFICATION:
        values |= {
            "problem_type": "single_label_classification",
            "id2label": {str(i): name for i, name in enumerate(head.labels)},
            "label2id": {name: i for i, name in enumerate(head.labels)},
        }
    if head.kind == MULTIPLE_CHOICE:
        # Not a setting of transformers, which ignores it.
        values[NUM_CHOICES] = head.num_choices
    return values


def read_head(stored: Mapping[str, Any]) -> TaskHeadConfig | None:
    """The head that a config.json describes; None for a pretrained model.

    Raises:
        UserError: If the head classifies into several classes at once.
    """
    if stored.get("problem_type") == "multi_label_classification":
        raise UserError(
            "problem_type must be single_label_classification or regression",
            received="multi_label_classification",
            remedy="albert_tf has no head that predicts several classes of "
            "one text.",
        )
    name = (stored.get("architectures") or [""])[0]
    labels = stored.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if name == CLASSES[CLASSIFICATION]:
        if len(labels) == 1 or stored.get("problem_type") == REGRESSION:
            return TaskHeadConfig(REGRESSION)
        return TaskHeadConfig(
            CLASSIFICATION, tuple(labels[str(i)] for i in range(len(labels)))
        )
    if name == CLASSES[MULTIPLE_CHOICE]:
        num_choices = stored.get(NUM_CHOICES, DEFAULT_NUM_CHOICES)
        return TaskHeadConfig(MULTIPLE_CHOICE, num_choices=num_choices)
    if name == CLASSES[QUESTION_ANSWERING]:
        return TaskHeadConfig(QUESTION_ANSWERING)
    return None
