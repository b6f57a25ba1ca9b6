"""Fine-tuning from top to bottom: examples, model, features, runs, scores."""

import json
import posixpath
import tempfile
import time
from collections.abc import Mapping

import tensorflow as tf
from absl import logging

from albert_tf.cluster.strategy import make_strategy
from albert_tf.cluster.workers import check_agreement, is_chief
from albert_tf.config import FinetuningConfig
from albert_tf.config.task_head import KINDS
from albert_tf.errors import UserError
from albert_tf.finetuning import base_model, feature_files, predict
from albert_tf.finetuning.base_model import BaseModel
from albert_tf.finetuning.encoding import make_records
from albert_tf.finetuning.examples import ExampleSet, has_split, read_examples
from albert_tf.finetuning.feature_files import FeatureFiles
from albert_tf.finetuning.objective import Finetuning
from albert_tf.finetuning.predict import HOLDOUT, Scorer
from albert_tf.finetuning.tasks import DEV, TEST, TRAIN, Task, find_task
from albert_tf.finetuning.trained_runs import (
    best_run,
    run_dirs,
    summarize,
    task_of_run,
)
from albert_tf.records.features import sha256_of
from albert_tf.runs.directory import null_threshold
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
    mode = config.training.mode
    is_training = mode in ("train", "train_and_predict")
    if config.training.dry_run and not is_training:
        raise UserError("dry_run must be off with mode=eval and mode=predict")
    # All files are read first, so that their errors come before the training.
    task = find_task(config.task)
    if is_training:
        training_sets = _read_training_sets(config, task)
        task = training_sets[TRAIN].task
        if mode != "train" and config.training.num_runs > 1:
            _check_has_dev(config, training_sets)
    else:
        task = task_of_run(config, task, best_run(config))
    sets = {
        split: read_examples(config.task, split, task)
        for split in _splits(config, task)
    }
    strategy = make_strategy(config.distribution)
    if is_training:
        status = _train(config, training_sets, strategy, began)
        if status or not sets or config.training.dry_run:
            return status
    run_dir = best_run(config)
    base = base_model.of_run(run_dir)
    config = config.replace(
        model=base.config, head=base.head, output_dir=run_dir
    )
    num_choices = max(examples.task.num_choices for examples in sets.values())
    config = config.replace(num_choices=max(num_choices, 1))
    threshold = null_threshold(run_dir, config)
    scorers = {
        split: Scorer(config, examples, base, threshold)
        for split, examples in sets.items()
    }
    files = _make_features(
        config, sets, base, strategy, config.training.output_dir, "predict"
    )
    config = _with_lengths(config, files)
    predict.run(config, scorers, files, base, strategy)
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
    _warn_of_other_start(task, base)
    config = config.replace(
        model=base.config,
        kind=task.kind,
        labels=task.labels,
        num_choices=max(task.num_choices, 1),
    )
    scorers = {
        split: Scorer(config, examples, base, config.training.null_threshold)
        for split, examples in sets.items()
    }
    with tempfile.TemporaryDirectory(prefix="albert_tf_") as scratch:
        files = _make_features(
            config,
            sets,
            base,
            strategy,
            config.training.output_dir,
            "train",
            # A dry run leaves no files.
            scratch if config.training.dry_run else "",
        )
        config = _with_lengths(config, files)
        for index, directory in enumerate(directories):
            of_run = config.replace(
                output_dir=directory, seed=config.training.seed + index
            )
            objective = Finetuning(
                of_run, files, base, scorers.get(DEV), task.metrics[0]
            )
            if config.training.dry_run:
                return preflight.run(of_run, objective, strategy)
            status = train(of_run, objective, strategy, began)
            if status:
                return status
            if HOLDOUT in sets:
                predict.choose_null_threshold(
                    of_run, scorers, files, base, strategy
                )
            began = time.time()  # of the next run
    if DEV in sets and is_chief(strategy):
        print(json.dumps(summarize(directories, task)))
    return 0


# --- examples ---------------------------------------------------------------


def _read_training_sets(
    config: FinetuningConfig, task: Task
) -> dict[str, ExampleSet]:
    sets = {TRAIN: read_examples(config.task, TRAIN, task)}
    fraction = config.training.null_holdout_fraction
    if fraction:
        sets |= predict.hold_out(sets[TRAIN], fraction)
    if has_split(config.task, task, DEV):
        sets[DEV] = read_examples(config.task, DEV, sets[TRAIN].task)
    return sets


def _check_has_dev(
    config: FinetuningConfig, sets: Mapping[str, ExampleSet]
) -> None:
    """Refuses several runs without scores, since the best one predicts."""
    if DEV not in sets:
        remedy = "Set --dev_file"
        if config.task.tfds:
            remedy = "Give files instead of --tfds, with a --dev_file"
        raise UserError(
            "mode=train_and_predict with several runs must have a development "
            "set, which decides the run that predicts",
            received="none",
            remedy=f"{remedy}; or omit --num_runs.",
        )


def _splits(config: FinetuningConfig, task: Task) -> list[str]:
    """The splits to evaluate or predict, after the training if there is one."""
    mode = config.training.mode
    if mode == "train":
        return []
    if mode != "eval" and config.task.test_file:
        return [TEST]
    if task.name in KINDS:
        predicts_test = mode != "eval" and has_split(config.task, task, TEST)
        return [TEST if predicts_test else DEV]
    tests = [name for name in task.splits if name.startswith(TEST)]
    devs = [name for name in task.splits if name.startswith(DEV)]
    return tests if tests and mode != "eval" else devs


def _warn_of_other_start(task: Task, base: BaseModel) -> None:
    """Warns if a run starts from a pretrained model, unlike the paper.

    For some tasks, the paper starts from a model fine-tuned on another task.
    """
    weights = base.weights
    if task.starts_from and weights is not None and weights.head is None:
        logging.warning(
            "the paper fine-tunes on %s before %s, which gives higher scores; "
            "this run starts from a pretrained model. Give a run of "
            "--task=%s as --init_checkpoint",
            task.starts_from,
            task.name,
            task.starts_from,
        )


# --- features ---------------------------------------------------------------


def _make_features(
    config: FinetuningConfig,
    sets: Mapping[str, ExampleSet],
    base: BaseModel,
    strategy: tf.distribute.Strategy,
    parent: str,
    purpose: str,
    scratch: str = "",
) -> FeatureFiles:
    """Writes the features of examples, or finds those of an earlier command.

    Logs the examples, with those that cannot be used.

    Args:
        parent: Has the directory `FEATURES_DIR`, or will have it.
        scratch: Where to write features instead; "" for `parent`.
    """
    length = config.data.max_seq_length
    splits = {
        split: lambda examples=examples: make_records(
            examples, base.tokenizer, config.task, length
        )
        for split, examples in sets.items()
    }
    inputs = {
        "examples": {
            split: sha256_of("\n".join(map(repr, examples.examples)).encode())
            for split, examples in sets.items()
        },
        "vocabulary": base.describe_vocabulary(),
        "max_seq_length": length,
        "kind": config.head.kind,
        "doc_stride": config.task.doc_stride,
        "max_query_length": config.task.max_query_length,
        "max_qa_length": config.task.max_qa_length,
    }

    def make() -> FeatureFiles:
        return feature_files.find_or_write(
            posixpath.join(parent, FEATURES_DIR),
            purpose,
            splits,
            config.head,
            length,
            inputs,
            scratch,
        )

    files = make() if is_chief(strategy) else None
    # After `make`, which makes the windows and so finds more bad examples.
    for examples in sets.values():
        for line in examples.describe():
            logging.info("%s", line)
    check_agreement(strategy, 0)  # the other workers wait for the chief
    return files or make()


def _with_lengths(
    config: FinetuningConfig, files: FeatureFiles
) -> FinetuningConfig:
    """Settings with the length of the features and the names of the files."""
    return config.replace(
        max_seq_length=files.max_seq_length,
        input_file=files.names(TRAIN),
        eval_input_file=files.names(DEV),
    )
