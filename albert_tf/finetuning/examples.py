"""Reads the examples of a task: official files, or files of one's own."""

import posixpath
from typing import Any

from albert_tf.config.task import TaskConfig
from albert_tf.config.task_head import CLASSIFICATION, KINDS
from albert_tf.errors import UserError
from albert_tf.finetuning.example_types import ExampleSet
from albert_tf.finetuning.race_files import add_passage, read_race
from albert_tf.finetuning.squad_file import read_squad
from albert_tf.finetuning.table_examples import read_table
from albert_tf.finetuning.tasks import DEV, TEST, TRAIN, Task, find_task
from albert_tf.finetuning.tfds_rows import read_tfds
from albert_tf.io import files


def read_examples(
    config: TaskConfig, split: str, task: Task | None = None
) -> ExampleSet:
    """Reads the examples of a split.

    Args:
        config: Task, files and columns.
        split: A name in `task.splits`; "train", "dev" or "test" for a task of
            one's own. For "test", labels are not read.
        task: The task of the training set, whose labels were collected, when
            another split of a task of one's own is read.

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
    if config.tfds and task.layout == "race":
        for row in read_tfds(examples, config, ("article", "questions")):
            values = row.values | {"id": row.values["example_id"]}
            add_passage(examples, examples.source, values)
    elif config.tfds:
        read_table(examples, config)
    elif task.layout == "race":
        directories = [examples.source]
        if examples.source == config.data_dir:
            directories = [
                posixpath.join(config.data_dir, name)
                for name in task.splits[split].files
            ]
        read_race(examples, directories)
    elif task.layout == "squad" or examples.source.endswith(".json"):
        read_squad(examples)
    else:
        read_table(examples, config)
    _check(examples)
    return examples


def _find_source(config: TaskConfig, task: Task, split: str) -> str:
    """The file to read; the directory of RACE; or dataset:split."""
    if config.tfds:
        return f"{config.tfds}:{_tfds_split(task, split)}"
    named = {
        TRAIN: config.train_file,
        DEV: config.dev_file,
        TEST: config.test_file,
    }.get(split)
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


def _tfds_split(task: Task, split: str) -> str:
    if task.name in KINDS:
        return "validation" if split == DEV else split
    if split not in task.splits or not task.splits[split].tfds:
        raise UserError(
            f"--task={task.name} must have the split {split} in TensorFlow "
            "Datasets",
            received="none",
            remedy="Read it from a file.",
        )
    return task.splits[split].tfds


def _check(examples: ExampleSet) -> None:
    """Checks what only all examples show."""
    task = examples.task
    if not examples.examples:
        raise UserError(
            f"{examples.source} must have usable examples",
            received=f"{len(examples.bad)} bad ones, e.g. "
            + ": ".join(examples.bad[0]),
        )
    if task.kind == CLASSIFICATION and len(task.labels) < 2:
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


def _has_label(example: Any) -> bool:
    if hasattr(example, "answers"):
        return bool(example.answers) or example.is_impossible
    return example.label is not None
