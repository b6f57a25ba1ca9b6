"""Fine-tuning from top to bottom: examples, model, features, runs, scores."""

import dataclasses
import functools
import json
import posixpath
import statistics
import tempfile
import time
from collections.abc import Mapping

import tensorflow as tf
from absl import logging

from albert_tf.cluster.strategy import make_strategy
from albert_tf.cluster.workers import is_chief, wait_for_all
from albert_tf.config import FinetuningConfig, TaskHeadConfig
from albert_tf.config.task import KINDS, QUESTION_ANSWERING, TaskConfig
from albert_tf.errors import UserError, name_faults
from albert_tf.finetuning import base_model, features, predict
from albert_tf.finetuning.base_model import BaseModel
from albert_tf.finetuning.examples import (
    ExampleSet,
    has_split,
    read_examples,
)
from albert_tf.finetuning.objective import Finetuning
from albert_tf.finetuning.predict import HOLDOUT, Inputs, Scorer
from albert_tf.finetuning.tasks import DEV, TEST, TRAIN, Task, find_task
from albert_tf.records.documents import WindowMaker
from albert_tf.records.features import sha256_of
from albert_tf.runs.directory import load_config, null_threshold
from albert_tf.runs.log import read_metrics
from albert_tf.training import preflight
from albert_tf.training.train import train

FEATURES_DIR = "features"


def run(config: FinetuningConfig, began: float | None = None) -> int:
    """Does what `--mode` says; returns the exit status.

    Args:
        began: When the command began, in seconds since the epoch; None: now.

    Raises:
        UserError: For settings, files or models that do not fit.
    """
    began = began or time.time()
    mode, is_dry = config.training.mode, config.training.dry_run
    is_training = mode in ("train", "train_and_predict")
    if is_dry and not is_training:
        raise UserError("dry_run must be off with mode=eval and mode=predict")
    # All files are read first, so that their errors come before the training.
    task = find_task(config.task)
    if is_training:
        training_sets = read_training_sets(config, task)
        task = training_sets[TRAIN].task
    else:
        task = task_of_run(config, task, best_run(config))
    sets = {
        split: read_examples(config.task, split, task)
        for split in splits_to_predict(config, task)
    }
    strategy = make_strategy(config.distribution)
    if is_training:
        status = _train(config, training_sets, strategy, began)
        if status or not sets or is_dry:
            return status
    run_dir = best_run(config)
    base = base_model.of_run(run_dir)
    assert base.head is not None
    num_choices = max(examples.task.num_choices for examples in sets.values())
    inputs = _resolve(
        config.replace(output_dir=run_dir),
        base,
        dataclasses.replace(base.head, num_choices=max(num_choices, 1)),
        sets,
        null_threshold(run_dir, config),
        strategy,
    )
    predict.run(inputs, strategy)
    return 0


def _train(
    config: FinetuningConfig,
    sets: Mapping[str, ExampleSet],
    strategy: tf.distribute.Strategy,
    began: float,
) -> int:
    """Trains all runs; returns the status of the first that was stopped."""
    task = sets[TRAIN].task
    directories = run_dirs(config)
    base = base_model.find(config, directories)
    if task.starts_from and base.weights and base.weights.head is None:
        logging.warning(
            "the paper fine-tunes on %s before %s, which gives higher scores; "
            "this run starts from a pretrained model. Give a run of "
            "--task=%s as --init_checkpoint",
            *(task.starts_from, task.name, task.starts_from),
        )
    head = dataclasses.replace(
        config.head,
        kind=task.kind,
        labels=task.labels,
        num_choices=max(task.num_choices, 1),
    )
    with tempfile.TemporaryDirectory(prefix="albert_tf_") as scratch:
        inputs = _resolve(
            config,
            base,
            head,
            sets,
            config.training.null_threshold,
            strategy,
            # A dry run leaves no files.
            scratch if config.training.dry_run else "",
        )
        for index, directory in enumerate(directories):
            of_run = inputs._replace(
                config=inputs.config.replace(
                    output_dir=directory, seed=config.training.seed + index
                )
            )
            objective = Finetuning(
                of_run.config,
                of_run.files,
                base,
                of_run.scorers.get(DEV),
                task.metrics[0],
            )
            if config.training.dry_run:
                return preflight.run(of_run.config, objective, strategy)
            status = train(of_run.config, objective, strategy, began)
            if status:
                return status
            if HOLDOUT in sets:
                predict.choose_null_threshold(of_run, strategy)
            began = time.time()  # of the next run
    if DEV in sets and is_chief(strategy):
        print(json.dumps(summarize(directories, task)))
    return 0


# --- examples ---------------------------------------------------------------


def read_training_sets(
    config: FinetuningConfig, task: Task
) -> dict[str, ExampleSet]:
    """Reads the examples to train on and, if there are any, to evaluate on."""
    training, files = config.training, config.task
    sets = {TRAIN: read_examples(files, TRAIN, task)}
    if training.null_holdout_fraction:
        sets |= predict.hold_out(sets[TRAIN], training.null_holdout_fraction)
    if has_split(files, task, DEV):
        sets[DEV] = read_examples(files, DEV, sets[TRAIN].task)
    elif training.mode != "train" and training.num_runs > 1:
        remedy = "Set --dev_file"
        if files.tfds:
            remedy = "Give files instead of --tfds, with a --dev_file"
        raise UserError(
            "mode=train_and_predict with several runs must have a development "
            "set, which decides the run that predicts",
            received="none",
            remedy=f"{remedy}; or omit --num_runs.",
        )
    return sets


def splits_to_predict(config: FinetuningConfig, task: Task) -> list[str]:
    """The splits to evaluate or predict, after the training if there is one."""
    mode = config.training.mode
    if mode == "train":
        return []
    tests = [
        name
        for name in task.splits
        if name.startswith(TEST) and has_split(config.task, task, name)
    ]
    if config.task.test_file:
        tests = [TEST]
    if tests and mode != "eval":
        return tests
    return [name for name in task.splits if name.startswith(DEV)]


# --- features ----------------------------------------------------------------


def _resolve(
    config: FinetuningConfig,
    base: BaseModel,
    head: TaskHeadConfig,
    sets: Mapping[str, ExampleSet],
    threshold: float,
    strategy: tf.distribute.Strategy,
    scratch: str = "",
) -> Inputs:
    """Writes or finds the features of examples, and completes the settings.

    Logs the examples, with those that cannot be used.

    Args:
        threshold: Null odds above which a question has no answer.
        scratch: Where to write the features; "" for `output_dir`.
    """
    task, length = config.task, config.data.max_seq_length
    inputs = {
        "examples": {
            split: sha256_of("\n".join(map(repr, examples.examples)).encode())
            for split, examples in sets.items()
        },
        "vocabulary": base.describe_vocabulary(),
        "max_seq_length": length,
        "kind": head.kind,
        "doc_stride": task.doc_stride,
        "max_query_length": task.max_query_length,
        "max_qa_length": task.max_qa_length,
    }
    find_features = functools.partial(
        features.find_or_write,
        posixpath.join(config.training.output_dir, FEATURES_DIR),
        {
            split: functools.partial(
                features.make_records, examples, base.tokenizer, task, length
            )
            for split, examples in sets.items()
        },
        head,
        length,
        inputs,
        scratch,
    )
    maker = None
    if head.kind == QUESTION_ANSWERING:
        # Windows may be longer than the sequences of the features.
        maker = WindowMaker(base.tokenizer, task, length)
    files = find_features() if is_chief(strategy) else None
    # After the windows are made, which finds more bad examples.
    for examples in sets.values():
        for line in examples.describe():
            logging.info("%s", line)
    wait_for_all(strategy, 0)  # the other workers wait for the chief
    files = files or find_features()
    complete = config.replace(
        model=base.config,
        head=head,
        max_seq_length=files.max_seq_length,
        input_file=files.names(TRAIN),
        eval_input_file=files.names(DEV),
    )
    scorers = {
        split: Scorer(examples, maker, threshold)
        for split, examples in sets.items()
    }
    return Inputs(complete, base, files, scorers)


# --- runs --------------------------------------------------------------------


def run_dirs(config: FinetuningConfig) -> list[str]:
    """The directory of each run."""
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
    metric = find_task(_stored_config(directories[0]).task).metrics[0]
    evaluations = {name: _last_evaluation(name) for name in directories}
    found = {n: e[metric] for n, e in evaluations.items() if metric in e}
    missing = [name for name in directories if name not in found]
    if missing:
        raise UserError(
            f"all {len(directories)} runs must be evaluated, so that the one "
            f"with the best {metric} can be used",
            received=f"no {metric} in {name_faults(missing)}",
            remedy="Train with a development set; or omit --num_runs, and give "
            "one run as --output_dir.",
        )
    return max(directories, key=found.__getitem__)


def _stored_config(run_dir: str) -> FinetuningConfig:
    stored = load_config(run_dir, FinetuningConfig)
    assert isinstance(stored, FinetuningConfig)
    return stored


def _last_evaluation(run_dir: str) -> dict[str, float]:
    lines = [m for m in read_metrics(run_dir) if m.get("split") == "eval"]
    return {
        n: v for line in lines[-1:] for n, v in line.items() if n != "split"
    }


def summarize(directories: list[str], task: Task) -> dict[str, object]:
    """The last evaluation of each run, and their median and best.

    Both are computed for each score separately, as in the paper.
    """
    runs = [_last_evaluation(directory) for directory in directories]
    if len(runs) == 1:
        return dict(runs[0])
    values = {n: [r[n] for r in runs] for n in task.metrics if n in runs[0]}
    return {
        "runs": runs,
        "median": {n: statistics.median(v) for n, v in values.items()},
        "best": {
            n: min(v) if n == "mean_squared_error" else max(v)
            for n, v in values.items()
        },
    }


def task_of_run(config: FinetuningConfig, task: Task, run_dir: str) -> Task:
    """The task, with labels and number of choices of the run.

    A converted run may not know the number of choices. Since its weights score
    any number, that of the task remains, or 0 for a task of your own.

    Raises:
        UserError: If the run was trained on a task of another kind or with
            other labels, or on single texts and the task has pairs, or the
            reverse.
    """
    stored = _stored_config(run_dir)
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
    if bool(task.has_pairs) == bool(stored.has_pairs):
        return
    if stored.has_pairs:
        wanted, given = "pairs of texts", "single texts"
        column = stored.text_pair_column or "COLUMN"
        remedy = f"Set --text_pair_column={column}."
    else:
        wanted, given = "single texts", "pairs of texts"
        remedy = "Omit --text_pair_column."
    raise UserError(
        f"{run_dir} was trained on {wanted}, so the task must have them too",
        received=f"--task={task.task} with {given}",
        remedy=remedy if task.task in KINDS else "",
    )


def _warn_of_other_lengths(
    stored: FinetuningConfig, config: FinetuningConfig, run_dir: str
) -> None:
    """Warns if texts are cut otherwise than in training."""
    changed = [
        f"--{name} was {before} and is {now}"
        for name in ("doc_stride", "max_query_length", "max_qa_length")
        for before in [getattr(stored.task, name)]
        for now in [getattr(config.task, name)]
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
            *(run_dir, "; ".join(changed)),
        )
