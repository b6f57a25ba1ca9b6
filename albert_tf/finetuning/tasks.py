"""The tasks: kind, official files and their columns, labels and scores.

The settings of the paper for each task are flag files, `configs/finetune`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from albert_tf.config.task import (
    ALWAYS_ANSWERABLE,
    CLASSIFICATION,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
)

TRAIN, DEV, TEST = "train", "dev", "test"

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # of choices, as in RACE


class Columns(NamedTuple):
    """The columns of a row that make an example; "" and () for none.

    Attributes:
        text: The text, passage or document, or the list of words.
        text_pair: The second text or the question.
        label: The label, the answers, or the list of labels or tags.
        id: Without that column, examples are numbered from 0.
        choices: A column for each choice, or one with the list of all.
        header: All columns of an official file without header.
        answer_start: Position of the answer's first character, in a table.
    """

    text: str
    text_pair: str = ""
    label: str = "label"
    id: str = ""
    choices: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    answer_start: str = ""


SQUAD = Columns("context", "question", "answers", "id")
RACE = Columns("article", "questions", "answers", "id", ("options",))


class Split(NamedTuple):
    """A part of the data of a task.

    Attributes:
        file: Official name in the data directory; for RACE, of a directory.
        submission: File name of predictions for the GLUE leaderboard.
    """

    columns: Columns
    file: str = ""
    submission: str = ""


@dataclasses.dataclass(frozen=True)
class Task:
    """A fine-tuning task.

    Attributes:
        name: Value of --task.
        kind: One of `config.task.KINDS`.
        layout: "table", "squad" or "race".
        splits: By name; those that begin with "test" have no labels.
        labels: The classes in the order of google-research/albert, or the
            tags; () for other kinds. `examples.read_examples` finds those of
            your own task, and `num_choices`.
        metrics: Names of the scores, the most important first.
        num_choices: Number of choices of a question; 0 for other kinds.
        starts_from: Task on which the paper fine-tunes the model before; "" for
            a pretrained model.

    Example:
        >>> TASKS["rte"].labels, TASKS["rte"].starts_from
        (('entailment', 'not_entailment'), 'mnli')
    """

    name: str
    kind: str
    layout: str = "table"
    splits: Mapping[str, Split] = dataclasses.field(default_factory=dict)
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy",)
    num_choices: int = 0
    starts_from: str = ""

    @property
    def names(self) -> Sequence[str]:
        """The classes or tags; or letters of choices, and numbers after Z."""
        numbers = range(len(LETTERS), self.num_choices)
        return self.labels or [*LETTERS[: self.num_choices], *map(str, numbers)]


# --- official tasks ----------------------------------------------------------

FILES = {TRAIN: "train.tsv", DEV: "dev.tsv", TEST: "test.tsv"}
# Two sets for evaluation: of the genres of the training set, and of others.
_MNLI_FILES = {
    TRAIN: "train.tsv",
    DEV: "dev_matched.tsv",
    TEST: "test_matched.tsv",
    "dev_mismatched": "dev_mismatched.tsv",
    "test_mismatched": "test_mismatched.tsv",
}
_ENDS = {"test_matched.tsv": "-m", "test_mismatched.tsv": "-mm"}


def _glue(
    name: str,
    submission: str,
    columns: Columns,
    labels: tuple[str, ...] = ("0", "1"),
    metrics: tuple[str, ...] = ("accuracy",),
    starts_from: str = "",
    test_id: str = "index",
    files: Mapping[str, str] = FILES,
) -> Task:
    test = columns._replace(label="", header=(), id=test_id)
    splits = {
        split: Split(test, file, f"{submission}{_ENDS.get(file, '')}.tsv")
        if split.startswith(TEST)
        else Split(columns, file)
        for split, file in files.items()
    }
    kind = CLASSIFICATION if labels else REGRESSION
    return Task(
        name, kind, "table", splits, labels, metrics, starts_from=starts_from
    )


def _squad(name: str, version: str) -> Task:
    splits = {
        split: Split(SQUAD, f"{split}-v{version}.json")
        for split in (TRAIN, DEV)
    }
    metrics = ("f1", "exact")
    return Task(name, QUESTION_ANSWERING, "squad", splits, metrics=metrics)


_ENTAILMENT = ("entailment", "not_entailment")
_MNLI_LABELS = ("contradiction", "entailment", "neutral")
_SENTENCES = Columns("sentence1", "sentence2", "label", "index")
_MNLI = Columns("sentence1", "sentence2", "gold_label", "index")
_COLA = Columns("sentence", header=("source", "label", "note", "sentence"))
_MRPC = Columns("#1 String", "#2 String", "Quality")
_QNLI = Columns("question", "sentence", "label", "index")
_QQP = Columns("question1", "question2", "is_duplicate", "id")
_STSB = Columns("sentence1", "sentence2", "score", "index")
_BOTH = ("accuracy", "f1")

# A model of MNLI predicts the diagnostic set, which has no training set. Only
# one of its two files has labels.
_AX = {
    DEV: Split(
        Columns("Premise", "Hypothesis", "Label"), "diagnostic-full.tsv"
    ),
    TEST: Split(_SENTENCES._replace(label=""), "diagnostic.tsv", "AX.tsv"),
}
_RACE = {split: Split(RACE, split) for split in (TRAIN, DEV, TEST)}

_ALL = (
    _glue("cola", "CoLA", _COLA, metrics=("matthews",)),
    _glue("sst2", "SST-2", Columns("sentence")),
    _glue("mrpc", "MRPC", _MRPC, ("0", "1"), _BOTH, "mnli"),
    _glue("stsb", "STS-B", _STSB, (), ("pearson", "spearman"), "mnli"),
    _glue("qqp", "QQP", _QQP, metrics=_BOTH, test_id="id"),
    _glue("mnli", "MNLI", _MNLI, _MNLI_LABELS, files=_MNLI_FILES),
    _glue("qnli", "QNLI", _QNLI, _ENTAILMENT),
    _glue("rte", "RTE", _SENTENCES, _ENTAILMENT, starts_from="mnli"),
    _glue("wnli", "WNLI", _SENTENCES),
    Task(
        "ax",
        CLASSIFICATION,
        splits=_AX,
        labels=_MNLI_LABELS,
        metrics=("matthews", "accuracy"),
        starts_from="mnli",
    ),
    _squad(ALWAYS_ANSWERABLE, "1.1"),
    _squad("squad_v2", "2.0"),
    Task("race", MULTIPLE_CHOICE, "race", _RACE, num_choices=4),
)

TASKS: Mapping[str, Task] = {task.name: task for task in _ALL}
