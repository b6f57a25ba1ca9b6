"""Reads the examples of a task: official files, or your own files."""

import collections
import posixpath
from typing import Any

from albert_tf.config.task import TaskConfig
from albert_tf.config.task_head import (
    CLASSIFICATION,
    KINDS,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    REGRESSION,
)
from albert_tf.errors import UserError, name_faults
from albert_tf.finetuning.example_types import ExampleSet
from albert_tf.finetuning.json_rows import read_passage, read_race, read_squad
from albert_tf.finetuning.row_examples import add_examples
from albert_tf.finetuning.tables import (
    Row,
    check_columns,
    read_table,
    read_text,
)
from albert_tf.finetuning.tasks import (
    DEV,
    LAYOUTS,
    TEST,
    TRAIN,
    Columns,
    Task,
    find_task,
)
from albert_tf.finetuning.tfds_rows import list_splits, read_tfds
from albert_tf.io import files

_MICROSOFT_MRPC = "msr_paraphrase_train.txt"

# Where TensorFlow Datasets names the texts differently from the files.
_TFDS_TEXTS = {
    "mnli": ("premise", "hypothesis"),
    "ax": ("premise", "hypothesis"),
    "mrpc": ("sentence1", "sentence2"),
}


def read_examples(
    config: TaskConfig, split: str, task: Task | None = None
) -> ExampleSet:
    """Reads the examples of a split.

    Args:
        config: Task, files and columns.
        split: A name in `task.splits`; "train", "dev" or "test" for a task of
            your own. For "test", labels are not read.
        task: The task with the labels of the training set, for other splits of
            a task of your own.

    Raises:
        UserError: If a file is missing, has the layout of another task, or a
            label that the task does not have.

    Example:
        >>> read_examples(TaskConfig(task="qnli"), "dev")
        Traceback (most recent call last):
        albert_tf.errors.UserError: --data_dir is required. See --help for its
        form and an example.
        >>> config = TaskConfig(  # doctest: +SKIP
        ...     task="qnli", data_dir="glue_data/QNLI"
        ... )
        >>> read_examples(config, "dev").describe()  # doctest: +SKIP
        ['dev: 5463 examples of glue_data/QNLI/dev.tsv']
    """
    task = task or find_task(config)
    examples = ExampleSet(
        task,
        split,
        _find_source(config, task, split),
        stop_at_bad=config.on_bad_example == "error",
    )
    columns = _find_columns(config, examples)
    rows = _read_rows(config, examples, columns)
    add_examples(examples, rows, columns, config.answer_start_column)
    _check(examples)
    return examples


def has_split(config: TaskConfig, task: Task, split: str) -> bool:
    """Whether the settings name the data of a split.

    Args:
        split: As for `read_examples`.
    """
    if split in task.splits or _named_file(config, split):
        return True
    if not (config.tfds and task.name in KINDS):
        return False
    return _tfds_split(task, split) in list_splits(config)


def _read_rows(
    config: TaskConfig, examples: ExampleSet, columns: Columns
) -> list[Row]:
    source, task = examples.source, examples.task
    if config.tfds:
        rows = read_tfds(examples, config, columns)
        if task.layout != "race":
            return rows
        return [
            question
            for row in rows
            for question in read_passage(
                source, row.values | {"id": row.values["example_id"]}
            )
        ]
    layout = _layout_of(examples)
    if layout == "table":
        rows = read_table(examples, columns)
        if source.endswith(_MICROSOFT_MRPC):
            rows = _split_mrpc(examples, rows)
        return rows
    if layout == "race":
        rows = read_race(_race_directories(config, examples))
    else:
        rows = read_squad(examples)
    for row in rows:
        check_columns(examples, columns, row.values)
    return rows


def _race_directories(config: TaskConfig, examples: ExampleSet) -> list[str]:
    """The directories with the files of a split of RACE, one for each level.

    The source is `data_dir`, the directory of a split with those of the levels,
    or the directory of a level.
    """
    source, names = examples.source, examples.task.splits[examples.split].files
    if source == config.data_dir:
        return [posixpath.join(source, name) for name in names]
    levels = [
        posixpath.join(source, posixpath.basename(name)) for name in names
    ]
    has_levels = any(files.list_files(level, "*.txt") for level in levels)
    return levels if has_levels else [source]


def _layout_of(examples: ExampleSet) -> str:
    """The layout of the task; your own question files may have SQuAD's."""
    is_json = examples.source.endswith(".json")
    if is_json and examples.task.kind == QUESTION_ANSWERING:
        return "squad"
    return examples.task.layout


def _find_columns(config: TaskConfig, examples: ExampleSet) -> Columns:
    task, layout = examples.task, _layout_of(examples)
    if layout in LAYOUTS:
        return LAYOUTS[layout]
    if task.name in KINDS:
        has_pairs = task.kind in (CLASSIFICATION, REGRESSION)
        has_spans = task.kind == QUESTION_ANSWERING
        has_choices = task.kind == MULTIPLE_CHOICE
        return Columns(
            config.text_column,
            config.text_pair_column if has_pairs else config.question_column,
            config.answer_column if has_spans else config.label_column,
            config.id_column,
            config.choice_columns if has_choices else (),
        )
    columns = task.splits[examples.split].columns
    assert columns is not None
    if config.tfds:
        texts = _TFDS_TEXTS.get(task.name, (columns.text, columns.text_pair))
        return Columns(*texts, id="idx")
    return columns


def _split_mrpc(examples: ExampleSet, rows: list[Row]) -> list[Row]:
    """The rows of a split of Microsoft's training file.

    GLUE lists the rows for evaluation in `dev_ids.tsv`.
    """
    path = posixpath.join(posixpath.dirname(examples.source), "dev_ids.tsv")
    if not files.exists(path):
        if examples.split == TRAIN:
            return rows
        raise UserError(
            f"{path} must exist to split {_MICROSOFT_MRPC}",
            received="no such file",
            remedy="Copy it from GLUE, or name another file as --dev_file.",
        )
    dev_ids = {
        tuple(line.split()) for line in read_text(path).split("\n") if line
    }
    found = [
        row
        for row in rows
        if ((row.values["#1 ID"], row.values["#2 ID"]) in dev_ids)
        == (examples.split == DEV)
    ]
    return [row._replace(number=number) for number, row in enumerate(found)]


def _find_source(config: TaskConfig, task: Task, split: str) -> str:
    """Path of the file, or of the directory of RACE; or "dataset:split"."""
    if split == TRAIN and task.splits and TRAIN not in task.splits:
        raise UserError(
            f"--task={task.name} has no training set",
            remedy=f"Train on --task={task.starts_from}. Then use that run as "
            f"--output_dir, with --task={task.name} and --mode=eval or "
            "predict.",
        )
    if config.tfds:
        return f"{config.tfds}:{_tfds_split(task, split)}"
    named = _named_file(config, split)
    if named:
        return named
    if task.name in KINDS or split not in task.splits:
        raise UserError(
            f"--task={config.task} must have a file for {split}",
            received="none",
            remedy=f"Set --{split}_file."
            if split in (TRAIN, DEV, TEST)
            else f"Splits: {', '.join(task.splits)}.",
        )
    config.require("data_dir")
    if task.layout == "race":
        return config.data_dir
    names = task.splits[split].files
    for name in names:
        path = posixpath.join(config.data_dir, name)
        if files.exists(path):
            return path
    raise UserError(
        f"{config.data_dir} must contain {' or '.join(names)}, the {split} "
        f"file of --task={task.name}",
        received="no such file",
        remedy="Set --data_dir to the directory of the task's official files.",
    )


def _named_file(config: TaskConfig, split: str) -> str:
    """The file of a split that a flag names; "" without one."""
    named = {
        TRAIN: config.train_file,
        DEV: config.dev_file,
        TEST: config.test_file,
    }
    return named.get(split, "")


def _tfds_split(task: Task, split: str) -> str:
    if task.name in KINDS:
        return "validation" if split == DEV else split
    if split not in task.splits or not task.splits[split].tfds:
        raise UserError(
            f"TensorFlow Datasets has no split {split} of --task={task.name}",
            remedy="Omit --tfds, and set --data_dir to the official files.",
        )
    return task.splits[split].tfds


def _check(examples: ExampleSet) -> None:
    """Checks the examples together: their number and their labels."""
    task = examples.task
    if not examples.examples:
        raise UserError(
            f"{examples.source} must have usable examples",
            received=f"{len(examples.bad)} that cannot be used, e.g. "
            + ": ".join(examples.bad[0])
            if examples.bad
            else "none",
        )
    if task.kind == QUESTION_ANSWERING:
        _check_ids(examples)
    is_classification = task.kind == CLASSIFICATION
    if is_classification and examples.is_training and len(task.labels) < 2:
        raise UserError(
            f"{examples.source} must have labels of at least two classes",
            received=", ".join(task.labels) or "none",
        )
    if examples.has_labels and not any(map(_has_label, examples.examples)):
        raise UserError(
            f"{examples.source}, the {examples.split} set, must have "
            f"{'labels' if task.layout != 'squad' else 'answers'}",
            received="none",
            remedy="Give a file without them as --test_file.",
        )


def _check_ids(examples: ExampleSet) -> None:
    """Refuses repeated ids: answers are stored and scored by id."""
    counts = collections.Counter(question.id for question in examples.examples)
    repeated = [name for name, count in counts.items() if count > 1]
    if repeated:
        raise UserError(
            f"questions of {examples.source} must have different ids",
            received=f"{name_faults(repeated)}, more than once",
            remedy="Correct the file or, for a table, name another column as "
            "--id_column.",
        )


def _has_label(example: Any) -> bool:
    if hasattr(example, "answers"):
        return bool(example.answers) or example.is_impossible
    return example.label is not None
