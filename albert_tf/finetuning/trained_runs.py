"""The runs of an output directory: which one is best, its task, its scores."""

import dataclasses
import posixpath
import statistics

from absl import logging

from albert_tf.config import FinetuningConfig
from albert_tf.config.task import TaskConfig
from albert_tf.config.task_head import (
    KINDS,
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
)
from albert_tf.errors import UserError, name_faults
from albert_tf.finetuning.tasks import Task, find_task
from albert_tf.runs.directory import load_config
from albert_tf.runs.log import read_metrics

SMALLER_IS_BETTER = ("mean_squared_error",)


def run_dirs(config: FinetuningConfig) -> list[str]:
    """The directory of each run.

    Example:
        >>> from albert_tf.config.finetuning import FinetuningTrainingConfig
        >>> settings = FinetuningTrainingConfig(output_dir="rte", num_runs=2)
        >>> run_dirs(FinetuningConfig(training=settings))
        ['rte/run-1', 'rte/run-2']
    """
    parent, count = config.training.output_dir, config.training.num_runs
    if count == 1:
        return [parent]
    return [posixpath.join(parent, f"run-{i}") for i in range(1, count + 1)]


def best_run(config: FinetuningConfig) -> str:
    """The directory of the run with the best score in its own task.

    Raises:
        UserError: If there are several runs and one was not evaluated.
    """
    directories = run_dirs(config)
    if len(directories) == 1:
        return directories[0]
    stored = load_config(directories[0], FinetuningConfig)
    assert isinstance(stored, FinetuningConfig)
    metric = find_task(stored.task).metrics[0]
    evaluations = {name: _last_evaluation(name) for name in directories}
    missing = [name for name in directories if metric not in evaluations[name]]
    if missing:
        raise UserError(
            f"all {len(directories)} runs must be evaluated, so that the one "
            f"with the best {metric} can be used",
            received=f"no {metric} in {name_faults(missing)}",
            remedy="Train with a development set; or omit --num_runs, and give "
            "one run as --output_dir.",
        )
    return max(directories, key=lambda name: evaluations[name][metric])


def _last_evaluation(run_dir: str) -> dict[str, float]:
    lines = [m for m in read_metrics(run_dir) if m.get("split") == "eval"]
    last = lines[-1] if lines else {}
    return {n: v for n, v in last.items() if n != "split"}


def summarize(directories: list[str], task: Task) -> dict[str, object]:
    """The last evaluation of each run, and their median and best.

    The median and the best are computed for each score separately, as in the
    paper. The best mean squared error is the smallest.
    """
    runs = [_last_evaluation(directory) for directory in directories]
    if len(runs) == 1:
        return dict(runs[0])
    names = [name for name in task.metrics if name in runs[0]]
    return {
        "runs": runs,
        "median": {n: statistics.median(r[n] for r in runs) for n in names},
        "best": {
            n: (min if n in SMALLER_IS_BETTER else max)(r[n] for r in runs)
            for n in names
        },
    }


# --- the task of a run ------------------------------------------------------


def task_of_run(config: FinetuningConfig, task: Task, run_dir: str) -> Task:
    """The task, with labels and number of choices of the run.

    A converted run may not know the number of choices. Since its weights score
    any number, that of the task remains, or 0 for a task of your own.

    Raises:
        UserError: If the run was trained on a task of another kind or with
            other labels, or on single texts and the task has pairs, or the
            reverse.
    """
    stored = load_config(run_dir, FinetuningConfig)
    assert isinstance(stored, FinetuningConfig)
    head = stored.head
    same_labels = not task.labels or task.labels == head.labels
    if head.kind != task.kind or not same_labels:
        raise UserError(
            f"{run_dir} must be a run of --task={task.name}, or of a task of "
            "the same kind with the same labels",
            received=f"a run of {stored.task.task}, {head.kind}"
            + (f" into {', '.join(head.labels)}" if head.labels else ""),
        )
    task = dataclasses.replace(task, labels=head.labels)
    if not stored.task.task:  # of a converted run
        return task
    _check_pairs(stored.task, config.task, run_dir)
    _warn_of_other_lengths(stored, config, run_dir)
    return dataclasses.replace(task, num_choices=head.num_choices)


def _check_pairs(stored: TaskConfig, task: TaskConfig, run_dir: str) -> None:
    wants_pairs = bool(stored.has_pairs)
    if task.has_pairs == wants_pairs:
        return
    texts = {True: "pairs of texts", False: "single texts"}
    column = stored.text_pair_column or "COLUMN"
    remedy = f"Set --text_pair_column={column}."
    if not wants_pairs:
        remedy = "Omit --text_pair_column."
    raise UserError(
        f"{run_dir} was trained on {texts[wants_pairs]}, so the task must have "
        "them too",
        received=f"--task={task.task} with {texts[not wants_pairs]}",
        remedy=remedy if task.task in KINDS else "",
    )


def _warn_of_other_lengths(
    stored: FinetuningConfig, config: FinetuningConfig, run_dir: str
) -> None:
    """Warns if texts are cut otherwise than in training."""
    names = {
        QUESTION_ANSWERING: ("doc_stride", "max_query_length"),
        MULTIPLE_CHOICE: ("max_qa_length",),
    }
    changed = [
        f"--{name} was {before} and is {now}"
        for name in names.get(stored.head.kind, ())
        for before, now in [
            (getattr(stored.task, name), getattr(config.task, name))
        ]
        if before != now
    ]
    # A run stores the length of its longest sequence, so a larger
    # max_seq_length may be that of the training.
    before, now = stored.data.max_seq_length, config.data.max_seq_length
    if now < before:
        changed.append(
            f"sequences had up to {before} tokens and --max_seq_length is {now}"
        )
    if changed:
        logging.warning(
            "texts are cut otherwise than in the training of %s, which can "
            "lower the scores: %s",
            run_dir,
            "; ".join(changed),
        )
