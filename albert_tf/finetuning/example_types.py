"""Examples of the tasks as text, before tokenization."""

import dataclasses
from typing import Any, NamedTuple

from albert_tf.errors import UserError, name_faults
from albert_tf.finetuning.tasks import TRAIN, Task


class TextExample(NamedTuple):
    """A text or a pair of texts.

    Attributes:
        id: Identifies the example in its file.
        text_pair: The second text; None for a single text.
        label: Index of the class, or the value to predict; None if unknown.
    """

    id: str
    text: str
    text_pair: str | None
    label: int | float | None


class ChoiceExample(NamedTuple):
    """A question about a passage with several choices.

    Attributes:
        id: Identifies the example in its file.
        passage: The text that the question is about.
        question: The question; a choice replaces each "_" in it.
        label: Index of the right choice; None if unknown.
    """

    id: str
    passage: str
    question: str
    choices: tuple[str, ...]
    label: int | None


class BadExample(NamedTuple):
    """An example that cannot be used as it is.

    Attributes:
        where: Its id, or its line in a table, e.g. "line 2".
        reason: What is wrong.
    """

    where: str
    reason: str


@dataclasses.dataclass
class ExampleSet:
    """The examples of a split.

    Attributes:
        task: The task, with the labels and number of choices of its examples.
        split: Name of the split, e.g. "train".
        source: The file or directory.
        stop_at_bad: Whether a bad example is an error.
        examples: The examples, all of one of the types above.
        bad: Bad examples. Training leaves them out. Evaluation and prediction
            use them if they can be parsed, since every example needs a
            prediction.

    Example:
        >>> from albert_tf.finetuning.tasks import TASKS
        >>> examples = ExampleSet(TASKS["rte"], "test", "RTE/test.tsv")
        >>> examples.has_labels
        False
    """

    task: Task
    split: str
    source: str
    stop_at_bad: bool = False
    examples: list[Any] = dataclasses.field(default_factory=list)
    bad: list[BadExample] = dataclasses.field(default_factory=list)

    @property
    def is_training(self) -> bool:
        """Whether the examples are for training."""
        return self.split == TRAIN

    @property
    def has_labels(self) -> bool:
        """Whether the split has labels."""
        return not self.split.startswith("test")

    def report_bad(self, where: str, reason: str) -> None:
        """Adds an example to `bad`.

        Raises:
            UserError: If a bad example is an error.
        """
        if self.stop_at_bad:
            raise UserError(
                f"examples of {self.source} must be usable",
                received=f"{where}: {reason}",
                remedy="Correct it, or set --on_bad_example=skip.",
            )
        self.bad.append(BadExample(where, reason))

    def describe(self) -> list[str]:
        """Describes the examples in lines for the log."""
        lines = [
            f"{self.split}: {len(self.examples)} examples of {self.source}"
        ]
        if self.bad:
            faults = name_faults(list(map(": ".join, self.bad)))
            lines.append(
                f"{self.split}: {len(self.bad)} bad examples: {faults}"
            )
        return lines
