"""What a fine-tuned model predicts, which decides its head."""

import dataclasses

from albert_tf.config.settings import Config, setting
from albert_tf.errors import UserError

CLASSIFICATION = "classification"
REGRESSION = "regression"
MULTIPLE_CHOICE = "multiple_choice"
QUESTION_ANSWERING = "question_answering"
KINDS = (CLASSIFICATION, REGRESSION, MULTIPLE_CHOICE, QUESTION_ANSWERING)

SPAN_HEADS = ("plain", "beam")


@dataclasses.dataclass(frozen=True)
class TaskHeadConfig(Config):
    """The head of a fine-tuned model; a run stores it as `task.json`.

    Example:
        >>> head = TaskHeadConfig("classification", ("no", "yes", "maybe"))
        >>> head.num_outputs, head.has_pooler
        (3, True)
        >>> TaskHeadConfig("classification", ("yes",))
        Traceback (most recent call last):
        albert_tf.errors.UserError: labels must be at least two different
        classes. Received: yes.
    """

    kind: str = setting(
        CLASSIFICATION,
        "classification of a text or a pair of texts; regression, one number "
        "for them; multiple_choice, the best of several answers; "
        "question_answering, a span of a text.",
        choices=KINDS,
        affects="model",
    )
    labels: tuple[str, ...] = setting(
        (),
        "Names of the classes, in the order of the logits.",
        affects="model",
    )
    num_choices: int = setting(
        1,
        "Number of answers to choose from; 1 for other kinds.",
        at_least=1,
        affects="model",
    )
    span_head: str = setting(
        "plain",
        "Head for question answering. plain: one score for the first and one "
        "for the last token of the answer. beam: the end depends on the start, "
        "and a third part predicts whether there is an answer.",
        choices=SPAN_HEADS,
        affects="model",
    )

    def check(self) -> None:
        if self.kind == CLASSIFICATION and (
            len(self.labels) < 2 or len(set(self.labels)) < len(self.labels)
        ):
            raise UserError(
                "labels must be at least two different classes",
                received=", ".join(self.labels) or "none",
            )
        if self.kind == MULTIPLE_CHOICE and self.num_choices < 2:
            raise UserError(
                "num_choices must be at least 2", received=self.num_choices
            )

    @property
    def num_outputs(self) -> int:
        """Width of the logits of a sequence, without question answering."""
        return len(self.labels) if self.kind == CLASSIFICATION else 1

    @property
    def has_pooler(self) -> bool:
        """Whether the head reads the pooled output."""
        return self.kind != QUESTION_ANSWERING

    @property
    def is_beam(self) -> bool:
        """Whether the head is the beam head of question answering."""
        return not self.has_pooler and self.span_head == "beam"
