"""Descriptions of the tasks: kind, official files, labels and scores.

The settings of the paper for each task are flag files, `configs/finetune`.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from albert_tf.config.task import (
    ALWAYS_ANSWERABLE,
    CLASSIFICATION,
    KINDS,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
    TaskConfig,
)
from albert_tf.errors import UserError

TRAIN, DEV, TEST = "train", "dev", "test"

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # of choices, as in RACE


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a table, by name.

    Attributes:
        text: The text, passage or document.
        text_pair: The second text of a pair; "" for single texts.
        label: The label; "" for a file without labels.
        id: Identifies an example. If it is "", or the file lacks that column,
            examples are numbered from 0.
        choices: The choices of a question: a column for each, or one with the
            list of all; () for other kinds.
        header: The names of all columns of an official file without header;
            () if the first line has them.
        answer_start: In a table of questions, the position of the answer's
            first character.
    """

    text: str
    text_pair: str = ""
    label: str = "label"
    id: str = ""
    choices: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    answer_start: str = ""


# The names of the values of an example in JSON, by layout.
LAYOUTS: Mapping[str, Columns] = {
    "squad": Columns("context", "question", "answers", "id"),
    "race": Columns("article", "questions", "answers", "id", ("options",)),
}


@dataclasses.dataclass(frozen=True)
class Split:
    """A part of the data of a task.

    Attributes:
        files: Official names in the data directory; the first file that exists
            is read. For RACE: directories, all of which are read.
        columns: The columns of a table; None for the other layouts.
        tfds: Name of the split in TensorFlow Datasets; "" if it has none.
        submission: File name of predictions for the GLUE leaderboard.
    """

    files: tuple[str, ...]
    columns: Columns | None = None
    tfds: str = ""
    submission: str = ""


@dataclasses.dataclass(frozen=True)
class Task:
    """A fine-tuning task.

    Attributes:
        name: Value of --task.
        kind: One of `config.task_head.KINDS`.
        layout: "table", "squad" or "race".
        splits: The official splits by name. Those whose names begin with "test"
            have no labels. Empty for a task of your own.
        labels: The classes, in the order of their ids, which is that of
            google-research/albert; () for other kinds, and for your own tasks
            until `examples.read_examples` has collected them.
        metrics: Names of the scores, the most important first.
        num_choices: Number of choices of a question; 0 for other kinds, and
            for your own tasks until `examples.read_examples` has found it.
        starts_from: Task on which the paper fine-tunes the model before this
            task; "" for a pretrained model.

    Example:
        >>> TASKS["rte"].labels, TASKS["rte"].starts_from
        (('entailment', 'not_entailment'), 'mnli')
        >>> [name for name in TASKS["mnli"].splits if name.startswith("dev")]
        ['dev', 'dev_mismatched']
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
    def may_be_unanswerable(self) -> bool:
        """Whether a document may lack the answer to its question."""
        return (
            self.kind == QUESTION_ANSWERING and self.name != ALWAYS_ANSWERABLE
        )


def find_task(config: TaskConfig) -> Task:
    """Returns the task that `config.task` names.

    Raises:
        UserError: If the name is unknown, or if a task of your own has a
            `data_dir` or, with multiple choice, no `choice_columns`.

    Example:
        >>> find_task(TaskConfig(task="squad_v2")).kind
        'question_answering'
    """
    if config.task in KINDS:
        return _own_task(config)
    if config.task not in TASKS:
        raise UserError(
            "--task must be one of " + ", ".join([*TASKS, *KINDS]),
            received=repr(config.task),
        )
    return TASKS[config.task]


def _own_task(config: TaskConfig) -> Task:
    if config.data_dir:
        raise UserError(
            f"--task={config.task} must have --train_file, --dev_file or "
            "--test_file instead of --data_dir",
            received=config.data_dir,
        )
    if config.task == MULTIPLE_CHOICE:
        config.require("choice_columns")
    metrics = {
        CLASSIFICATION: ("accuracy", "f1_macro"),
        REGRESSION: ("pearson", "spearman", "mean_squared_error"),
        MULTIPLE_CHOICE: ("accuracy",),
        QUESTION_ANSWERING: ("f1", "exact"),
    }
    return Task(config.task, config.task, metrics=metrics[config.task])


# The splits of a GLUE task, as (split, official files, name in TensorFlow
# Datasets, end of the submission's name).
_PARTS = (
    (TRAIN, ("train.tsv",), TRAIN, ""),
    (DEV, ("dev.tsv",), "validation", ""),
    (TEST, ("test.tsv",), TEST, ""),
)
# The files of GLUE; or those of Microsoft with dev_ids.tsv of GLUE.
_MRPC_PARTS = (
    (TRAIN, ("train.tsv", "msr_paraphrase_train.txt"), TRAIN, ""),
    (DEV, ("dev.tsv", "msr_paraphrase_train.txt"), "validation", ""),
    (TEST, ("test.tsv", "msr_paraphrase_test.txt"), TEST, ""),
)
# Two sets for evaluation: of the genres of the training set, and of others.
_MNLI_PARTS = (
    (TRAIN, ("train.tsv",), TRAIN, ""),
    (DEV, ("dev_matched.tsv",), "validation_matched", ""),
    (TEST, ("test_matched.tsv",), "test_matched", "-m"),
    ("dev_mismatched", ("dev_mismatched.tsv",), "validation_mismatched", ""),
    ("test_mismatched", ("test_mismatched.tsv",), "test_mismatched", "-mm"),
)


def _glue(
    name: str,
    submission: str,
    columns: Columns,
    labels: tuple[str, ...] = ("0", "1"),
    metrics: tuple[str, ...] = ("accuracy",),
    starts_from: str = "",
    test_id: str = "index",
    parts: Sequence[tuple[str, tuple[str, ...], str, str]] = _PARTS,
) -> Task:
    test = dataclasses.replace(columns, label="", header=(), id=test_id)
    return Task(
        name,
        CLASSIFICATION if labels else REGRESSION,
        splits={
            split: Split(files, test, tfds, f"{submission}{end}.tsv")
            if split.startswith(TEST)
            else Split(files, columns, tfds)
            for split, files, tfds, end in parts
        },
        labels=labels,
        metrics=metrics,
        starts_from=starts_from,
    )


def _race(name: str, *levels: str) -> Task:
    splits = {
        split: Split(tuple(f"{split}/{level}" for level in levels), tfds=split)
        for split in (TRAIN, DEV, TEST)
    }
    return Task(name, MULTIPLE_CHOICE, "race", splits, num_choices=4)


def _squad(name: str, version: str) -> Task:
    return Task(
        name,
        QUESTION_ANSWERING,
        "squad",
        {
            TRAIN: Split((f"train-v{version}.json",), tfds=TRAIN),
            DEV: Split((f"dev-v{version}.json",), tfds="validation"),
        },
        metrics=("f1", "exact"),
    )


_ENTAILMENT = ("entailment", "not_entailment")
_MNLI_LABELS = ("contradiction", "entailment", "neutral")
_SENTENCES = Columns("sentence1", "sentence2", "label", "index")
_MNLI = Columns("sentence1", "sentence2", "gold_label", "index")
_COLA = Columns("sentence", header=("source", "label", "note", "sentence"))
_QNLI = Columns("question", "sentence", "label", "index")
_QQP = Columns("question1", "question2", "is_duplicate", "id")
_STSB = Columns("sentence1", "sentence2", "score", "index")

_ALL = (
    _glue("cola", "CoLA", _COLA, metrics=("matthews",)),
    _glue("sst2", "SST-2", Columns("sentence")),
    _glue(
        "mrpc",
        "MRPC",
        Columns("#1 String", "#2 String", "Quality"),
        metrics=("accuracy", "f1"),
        starts_from="mnli",
        parts=_MRPC_PARTS,
    ),
    _glue("stsb", "STS-B", _STSB, (), ("pearson", "spearman"), "mnli"),
    _glue("qqp", "QQP", _QQP, metrics=("accuracy", "f1"), test_id="id"),
    _glue("mnli", "MNLI", _MNLI, _MNLI_LABELS, parts=_MNLI_PARTS),
    _glue("qnli", "QNLI", _QNLI, _ENTAILMENT),
    _glue("rte", "RTE", _SENTENCES, _ENTAILMENT, starts_from="mnli"),
    _glue("wnli", "WNLI", _SENTENCES),
    # Has no training set: a model of MNLI predicts it. Only one of its two
    # files has labels.
    Task(
        "ax",
        CLASSIFICATION,
        splits={
            DEV: Split(
                ("diagnostic-full.tsv",),
                Columns("Premise", "Hypothesis", "Label"),
            ),
            TEST: Split(
                ("diagnostic.tsv",),
                dataclasses.replace(_SENTENCES, label=""),
                TEST,
                "AX.tsv",
            ),
        },
        labels=_MNLI_LABELS,
        metrics=("matthews", "accuracy"),
        starts_from="mnli",
    ),
    _squad(ALWAYS_ANSWERABLE, "1.1"),
    _squad("squad_v2", "2.0"),
    _race("race", "middle", "high"),
    _race("race_middle", "middle"),
    _race("race_high", "high"),
)

TASKS: Mapping[str, Task] = {task.name: task for task in _ALL}
