"""What a fine-tuned model predicts; this determines its head."""

import dataclasses

from albert_tf.config.settings import Config, setting

CLASSIFICATION = "classification"
REGRESSION = "regression"
MULTIPLE_CHOICE = "multiple_choice"
QUESTION_ANSWERING = "question_answering"
KINDS = (CLASSIFICATION, REGRESSION, MULTIPLE_CHOICE, QUESTION_ANSWERING)

SQUAD_HEADS = ("plain", "beam")


@dataclasses.dataclass(frozen=True)
class TaskHeadConfig(Config):
    """The head of a fine-tuned model; the task and its data determine it.

    Example:
        >>> head = TaskHeadConfig("classification", ("no", "yes", "maybe"))
        >>> head.num_outputs, head.num_classes, head.has_pooler
        (3, 3, True)
    """

    kind: str = setting(
        CLASSIFICATION,
        "classification of a text or a pair of texts; regression, one number "
        "for them; multiple_choice, the best of several answers; "
        "question_answering, a span of a text.",
        choices=KINDS,
        affects="model",
        has_flag=False,
    )
    labels: tuple[str, ...] = setting(
        (),
        "Names of the classes, in the order of the logits.",
        affects="model",
        has_flag=False,
    )
    num_choices: int = setting(
        1,
        "Number of answers to choose from; 1 for other kinds.",
        at_least=1,
        affects="model",
        has_flag=False,
    )
    squad_head: str = setting(
        "plain",
        "Head for question answering. plain: one score for the first and one "
        "for the last token of the answer, as in Hugging Face. beam: the score "
        "of the last token depends on the first token, and a further logit "
        "predicts whether there is an answer, as in google-research/albert for "
        "SQuAD 2.0.",
        choices=SQUAD_HEADS,
        affects="model",
    )

    @property
    def num_outputs(self) -> int:
        """Number of logits of a sequence; undefined for question answering."""
        return len(self.labels) if self.kind == CLASSIFICATION else 1

    @property
    def num_classes(self) -> int:
        """Number of classes or choices to choose from; 0 for other kinds."""
        if self.kind == MULTIPLE_CHOICE:
            return self.num_choices
        return len(self.labels)

    @property
    def has_pooler(self) -> bool:
        """Whether the head reads the pooled output."""
        return self.kind != QUESTION_ANSWERING

    @property
    def is_beam(self) -> bool:
        """Whether the head is the beam head of question answering."""
        return not self.has_pooler and self.squad_head == "beam"
