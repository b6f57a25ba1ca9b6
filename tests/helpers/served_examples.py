"""Inputs of fine-tuned models that are served."""

from albert_tf.config.task import TaskConfig
from albert_tf.finetuning.examples import (
    ChoiceExample,
    ExampleSet,
    read_examples,
)
from albert_tf.finetuning.tasks import Task
from albert_tf.records.documents import Question
from tests.helpers.tiny_albert import TESTDATA


def squad_examples() -> ExampleSet:
    """Real questions of SQuAD 2.0, and unusual texts."""
    path = TESTDATA / "finetuning" / "squad-v2.0-excerpt.json"
    config = TaskConfig(task="squad_v2", dev_file=str(path))
    examples = read_examples(config, "dev")
    question, document = examples.examples[2][1:3]
    more = {
        "empty": (question, ""),
        "marks": (question, " \u0301 \xa8 \u0301 "),
        "long": (question, "Rhine, İstanbul " * 900),
        "accents": (question, f"  Ünï\u0301 ﬁn ½\t{document} "),
        "long question": ("who " * 40, document),
    }
    examples.examples += [
        Question(name, *texts, (), True) for name, texts in more.items()
    ]
    return examples


def choice_examples() -> ExampleSet:
    """Questions with three choices, some longer than a sequence."""
    passage = "In 2011, the Café in Zürich was closed. "
    examples = [
        ("Where is it?", passage, ("Zürich", "1,000, Rome", "Bern")),
        ("It is _.", passage * 20, ("here", "a_b", "")),
        ("_, _ or _", passage * 20, ("x" * 90, "y " * 90, "z")),
        ("Why? " * 30, "", ("so " * 30, "Oslo.", "_")),
        ("", " \t", ("here", "not _ here", "\xa8")),
    ]
    task = Task("multiple_choice", "multiple_choice", num_choices=3)
    return ExampleSet(
        task,
        "test",
        "tests",
        examples=[
            ChoiceExample(str(i), passage, question, choices, None)
            for i, (question, passage, choices) in enumerate(examples)
        ],
    )
