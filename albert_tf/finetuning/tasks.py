"""Descriptions of the tasks: kind, official files, labels and scores.

The settings of the paper for each task are flag files, `configs/finetune`.
"""

import dataclasses
from collections.abc import Mapping

from albert_tf.config.task import TaskConfig
from albert_tf.config.task_head import (
    CLASSIFICATION,
    KINDS,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
)
from albert_tf.errors import UserError

TRAIN, DEV, TEST = "train", "dev", "test"


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a table, by name.

    Attributes:
        text: The text, passage or document.
        text_pair: The second text of a pair; "" for single texts.
        label: The label; "" for a file without labels.
        id: Identifies an example; "": examples are numbered from 0.
        header: The names of all columns of an official file without header;
            () if the first line has them.
    """

    text: str
    text_pair: str = ""
    label: str = "label"
    id: str = ""
    header: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Split:
    """A part of the data of a task.

    Attributes:
        files: Official names in the data directory, of which the first that
            exists is read; for RACE, the directories to read, all of them.
        columns: The columns of a table; None for JSON.
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
        splits: The official parts by name: "train"; "dev", and others that
            begin with "dev", with labels; "test" and others without.
            Empty for a task of one's own.
        labels: The classes, in the order of their ids, which is that of
            google-research/albert; () for other kinds, and for own tasks
            until `examples.read_task` has collected them.
        metrics: Names of the scores, the most important first.
        num_choices: Number of choices of a question; 0 for other kinds, and
            for own tasks until they are known.
        starts_from: Task on which the paper fine-tunes the model before this
            task; "" for a pretrained model.
        may_be_unanswerable: Whether a document may lack the answer.

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
    may_be_unanswerable: bool = False


def find_task(config: TaskConfig) -> Task:
    """Returns the task of that name.

    Raises:
        UserError: If the name is unknown, or the files of a task of one's own
            are not named.

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
    return Task(
        config.task,
        config.task,
        metrics=metrics[config.task],
        may_be_unanswerable=config.task == QUESTION_ANSWERING,
    )


def _glue(
    name: str,
    submission: str,
    columns: Columns,
    test: Columns,
    *,
    labels: tuple[str, ...] = ("0", "1"),
    metrics: tuple[str, ...] = ("accuracy",),
    starts_from: str = "",
    train_files: tuple[str, ...] = ("train.tsv",),
    dev_files: tuple[str, ...] = ("dev.tsv",),
    test_files: tuple[str, ...] = ("test.tsv",),
) -> Task:
    return Task(
        name,
        CLASSIFICATION if labels else REGRESSION,
        splits={
            TRAIN: Split(train_files, columns, TRAIN),
            DEV: Split(dev_files, columns, "validation"),
            TEST: Split(test_files, test, TEST, submission),
        },
        labels=labels,
        metrics=metrics,
        starts_from=starts_from,
    )


_ENTAILMENT = ("entailment", "not_entailment")
_MNLI_LABELS = ("contradiction", "entailment", "neutral")
_SENTENCES = Columns("sentence1", "sentence2", "label", "index")
_MRPC = Columns("#1 String", "#2 String", "Quality")
_MNLI = Columns("sentence1", "sentence2", "gold_label", "index")


def _unlabeled(columns: Columns) -> Columns:
    return dataclasses.replace(columns, label="", header=(), id="index")


def _race(name: str, *levels: str) -> Task:
    return Task(
        name,
        MULTIPLE_CHOICE,
        "race",
        {
            split: Split(
                tuple(f"{split}/{level}" for level in levels), tfds=split
            )
            for split in (TRAIN, DEV, TEST)
        },
        num_choices=4,
    )


def _squad(name: str, version: str, *, may_be_unanswerable: bool) -> Task:
    return Task(
        name,
        QUESTION_ANSWERING,
        "squad",
        {
            TRAIN: Split((f"train-v{version}.json",), None, TRAIN),
            DEV: Split((f"dev-v{version}.json",), None, "validation"),
        },
        metrics=("f1", "exact"),
        may_be_unanswerable=may_be_unanswerable,
    )


def _mnli() -> Task:
    def split(file: str, columns: Columns, tfds: str, submission: str) -> Split:
        return Split((file,), columns, tfds, submission)

    return Task(
        "mnli",
        CLASSIFICATION,
        splits={
            TRAIN: Split(("train.tsv",), _MNLI, "train"),
            DEV: Split(("dev_matched.tsv",), _MNLI, "validation_matched"),
            "dev_mismatched": Split(
                ("dev_mismatched.tsv",), _MNLI, "validation_mismatched"
            ),
            TEST: Split(
                ("test_matched.tsv",),
                _unlabeled(_MNLI),
                "test_matched",
                "MNLI-m.tsv",
            ),
            "test_mismatched": Split(
                ("test_mismatched.tsv",),
                _unlabeled(_MNLI),
                "test_mismatched",
                "MNLI-mm.tsv",
            ),
        },
        labels=_MNLI_LABELS,
    )


_COLA = Columns(
    "sentence", label="label", header=("source", "label", "note", "sentence")
)
_SST2 = Columns("sentence")
_QNLI = Columns("question", "sentence", "label", "index")
_QQP = Columns("question1", "question2", "is_duplicate", "id")
_STSB = Columns("sentence1", "sentence2", "score", "index")
# The diagnostic set has one file without labels and one with labels.
_AX = Columns("Premise", "Hypothesis", "Label")

_ALL = (
    _glue("cola", "CoLA.tsv", _COLA, _unlabeled(_COLA), metrics=("matthews",)),
    _glue("sst2", "SST-2.tsv", _SST2, _unlabeled(_SST2)),
    _glue(
        "mrpc",
        "MRPC.tsv",
        _MRPC,
        _unlabeled(_MRPC),
        metrics=("accuracy", "f1"),
        starts_from="mnli",
        # The files of GLUE; or those of Microsoft with dev_ids.tsv of GLUE.
        train_files=("train.tsv", "msr_paraphrase_train.txt"),
        dev_files=("dev.tsv", "msr_paraphrase_train.txt"),
        test_files=("test.tsv", "msr_paraphrase_test.txt"),
    ),
    _glue(
        "stsb",
        "STS-B.tsv",
        _STSB,
        _unlabeled(_STSB),
        labels=(),
        metrics=("pearson", "spearman"),
        starts_from="mnli",
    ),
    _glue(
        "qqp",
        "QQP.tsv",
        _QQP,
        dataclasses.replace(_QQP, label=""),
        metrics=("accuracy", "f1"),
    ),
    _mnli(),
    _glue("qnli", "QNLI.tsv", _QNLI, _unlabeled(_QNLI), labels=_ENTAILMENT),
    _glue(
        "rte",
        "RTE.tsv",
        _SENTENCES,
        _unlabeled(_SENTENCES),
        labels=_ENTAILMENT,
        starts_from="mnli",
    ),
    _glue("wnli", "WNLI.tsv", _SENTENCES, _unlabeled(_SENTENCES)),
    # Has no training set: a model of MNLI predicts it.
    Task(
        "ax",
        CLASSIFICATION,
        splits={
            DEV: Split(("diagnostic-full.tsv",), _AX),
            TEST: Split(
                ("diagnostic.tsv",), _unlabeled(_SENTENCES), TEST, "AX.tsv"
            ),
        },
        labels=_MNLI_LABELS,
        metrics=("matthews", "accuracy"),
        starts_from="mnli",
    ),
    _squad("squad_v1", "1.1", may_be_unanswerable=False),
    _squad("squad_v2", "2.0", may_be_unanswerable=True),
    _race("race", "middle", "high"),
    _race("race_middle", "middle"),
    _race("race_high", "high"),
)

TASKS: Mapping[str, Task] = {task.name: task for task in _ALL}
