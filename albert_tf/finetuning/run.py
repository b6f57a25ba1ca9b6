"""Fine-tuning from top to bottom: examples, features, training, predictions.

RUN/predictions/MRPC.tsv                 for the GLUE leaderboard
RUN/predictions/predictions.json, ...    for the scripts of SQuAD
"""

import dataclasses
import functools
import json
import math
import posixpath
import tempfile
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from absl import logging

from albert_tf.cluster.host import Host, connect
from albert_tf.cluster.strategy import make_strategy, per_replica_batch_size
from albert_tf.cluster.workers import wait_for_all
from albert_tf.config import FinetuningConfig, TaskHeadConfig
from albert_tf.config.task import OWN_TASKS
from albert_tf.errors import UserError
from albert_tf.finetuning import features
from albert_tf.finetuning.examples import has_split, read_examples
from albert_tf.finetuning.features import FeatureFiles
from albert_tf.finetuning.kinds import (
    KINDS,
    Arrays,
    ExampleSet,
    Kind,
    Reader,
    find_task,
)
from albert_tf.finetuning.objective import (
    BaseModel,
    Finetuning,
    base_model_of_run,
    find_base_model,
)
from albert_tf.finetuning.tasks import DEV, TEST, TRAIN, Task
from albert_tf.runs.checkpoints import BEST_DIR, CheckpointStore
from albert_tf.runs.directory import (
    load_config,
    null_threshold,
    restore_model,
)
from albert_tf.runs.log import read_metrics
from albert_tf.training import preflight
from albert_tf.training.evaluate import Evaluator
from albert_tf.training.train import train

PREDICTIONS_DIR = "predictions"

# Of a training whose number of steps is not set.
EPOCHS, FEWEST_STEPS = 3, 300


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Scores the predictions for a split.

    Attributes:
        examples: The examples of the split.
        reader: How their text became tokens.
        null_threshold: Null odds above which a question has no answer.
    """

    examples: ExampleSet
    reader: Reader
    null_threshold: float

    @property
    def _kind(self) -> Kind:
        return KINDS[self.examples.task.kind]

    def __call__(self, collected: Arrays) -> dict[str, float]:
        """Finds the predictions of all examples, and scores them."""
        return self.score(self.find(collected))

    def find(self, collected: Arrays) -> Any:
        """The prediction for each example, as `Kind.find`.

        Args:
            collected: `Finetuning.predictions` of all records, in order.
        """
        return self._kind.find(self.examples, collected, self.reader)

    def score(self, found: Any) -> dict[str, float]:
        """Computes the scores of the task."""
        return self._kind.score(self.examples, found, self.null_threshold)

    def write(self, found: Any, run_dir: str) -> None:
        """Writes the predictions of a split to a run."""
        directory = posixpath.join(run_dir, PREDICTIONS_DIR)
        path = self._kind.write(
            directory, self.examples, found, self.null_threshold
        )
        logging.info("wrote predictions to %s", path)


class Inputs(NamedTuple):
    """What trainings and predictions need."""

    config: FinetuningConfig  # complete: with model, head, lengths and files
    base: BaseModel
    files: FeatureFiles
    scorers: Mapping[str, Scorer]  # by split


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
    # All files are read first, so that their errors come before the training.
    task = find_task(config.task)
    if is_training:
        training_sets = {TRAIN: read_examples(config.task, TRAIN, task)}
        task = training_sets[TRAIN].task
        if has_split(config.task, task, DEV):
            training_sets[DEV] = read_examples(config.task, DEV, task)
    else:
        task = task_of_run(config, task)
    sets = {
        split: read_examples(config.task, split, task)
        for split in splits_to_predict(config, task)
    }
    host = Host(make_strategy(config.distribution))
    if is_training:
        status = _train(config, training_sets, host, began)
        if status or not sets or is_dry:
            return status
    base = base_model_of_run(config.training.output_dir)
    assert base.head is not None
    num_choices = max(examples.task.num_choices for examples in sets.values())
    head = dataclasses.replace(base.head, num_choices=max(num_choices, 1))
    _predict(_resolve(config, base, head, sets, host), host)
    return 0


def _train(
    config: FinetuningConfig,
    sets: Mapping[str, ExampleSet],
    host: Host,
    began: float,
) -> int:
    """Trains, and prints the last evaluation; returns the exit status."""
    task, is_dry = sets[TRAIN].task, config.training.dry_run
    base = find_base_model(config)
    if task.starts_from and base.weights and base.weights.head is None:
        logging.warning(
            "the paper fine-tunes on %s before %s, which gives higher scores; "
            "this run starts from a pretrained model. Give a run of "
            "--task=%s as --init_checkpoint",
            task.starts_from,
            task.name,
            task.starts_from,
        )
    head = dataclasses.replace(
        config.head,
        kind=task.kind,
        labels=task.labels,
        num_choices=max(task.num_choices, 1),
    )
    with tempfile.TemporaryDirectory(prefix="albert_tf_") as scratch:
        scratch = scratch if is_dry else ""  # a dry run leaves no files
        inputs = _resolve(config, base, head, sets, host, scratch)
        objective = Finetuning(
            inputs.config,
            inputs.files,
            base,
            inputs.scorers.get(DEV),
            (sets.get(DEV) or sets[TRAIN]).task.metrics[0],
        )
        if is_dry:
            return preflight.run(inputs.config, objective, host.strategy)
        status = train(inputs.config, objective, host.strategy, began)
    if status:
        return status
    if DEV in sets and host.is_chief:
        last: dict[str, Any] = {}
        for line in read_metrics(config.training.output_dir):
            last = line if line.pop("split", "") == "eval" else last
        print(json.dumps(last))
    return 0


# --- examples ---------------------------------------------------------------


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


def task_of_run(config: FinetuningConfig, task: Task) -> Task:
    """The task, with labels and number of choices of the run in `output_dir`.

    A converted run may not know the number of choices. Since its weights score
    any number, that of the task remains, or 0 for a task of your own.

    Raises:
        UserError: If the run was trained on a task of another kind or with
            other labels, or on single texts and the task has pairs, or the
            reverse.
    """
    run_dir = config.training.output_dir
    stored = load_config(run_dir, FinetuningConfig)
    assert isinstance(stored, FinetuningConfig)
    head = stored.head
    if head.kind != task.kind or task.labels not in ((), head.labels):
        raise UserError(
            f"{run_dir} must be a run of --task={task.name}, or of a task of "
            "the same kind with the same labels",
            received=f"a run of {stored.task.task}, {head.kind}"
            + (f" into {', '.join(head.labels)}" if head.labels else ""),
        )
    task = dataclasses.replace(task, labels=head.labels)
    if not stored.task.task:  # of a converted run
        return task
    had_pairs, has_pairs = stored.task.has_pairs, config.task.has_pairs
    if had_pairs != has_pairs:
        texts = "single texts", "pairs of texts"
        raise UserError(
            f"{run_dir} was trained on {texts[bool(had_pairs)]}, so the task "
            "must have them too",
            received=f"--task={task.name} with {texts[bool(has_pairs)]}",
            remedy="Set --text_pair_column as in the training."
            if task.name in OWN_TASKS
            else "",
        )
    return dataclasses.replace(task, num_choices=head.num_choices)


# --- features ----------------------------------------------------------------


def _resolve(
    config: FinetuningConfig,
    base: BaseModel,
    head: TaskHeadConfig,
    sets: Mapping[str, ExampleSet],
    host: Host,
    scratch: str = "",
) -> Inputs:
    """Writes or finds the features of examples, and completes the settings.

    `scratch` is where to write the features; "" for `output_dir`.
    """
    # Windows may be longer than the sequences of the features.
    length = config.data.max_seq_length
    reader = Reader(base.tokenizer, config.task, length)
    find_features = functools.partial(
        features.find_or_write, config, head, reader, sets, scratch
    )
    files = find_features() if host.is_chief else None
    # After the windows are made, which finds more bad examples.
    for examples in sets.values():
        for line in examples.describe():
            logging.info("%s", line)
    wait_for_all(host.strategy, 0)  # the other workers wait for the chief
    files = files or find_features()
    complete = config.replace(
        model=base.config,
        head=head,
        max_seq_length=files.max_seq_length,
        max_text_length=length,
        input_file=files.records(TRAIN).files,
        eval_input_file=files.records(DEV).files,
    )
    if TRAIN in sets:
        complete = choose_steps(complete, files.records(TRAIN).num_records)
    threshold = null_threshold(config.training.output_dir, config)
    scorers = {
        split: Scorer(examples, reader, threshold)
        for split, examples in sets.items()
    }
    return Inputs(complete, base, files, scorers)


def choose_steps(config: FinetuningConfig, num_rows: int) -> FinetuningConfig:
    """Fits steps, warm-up and evaluations to the data, where they are not set.

    Example:
        >>> config = choose_steps(FinetuningConfig(), num_rows=6400)
        >>> config.training.num_train_steps, config.optimizer.num_warmup_steps
        (600, 60)
    """
    num_steps = config.training.num_train_steps
    interval = config.training.eval_every_n_steps
    if not num_steps:
        epoch = math.ceil(num_rows / config.data.global_batch_size)
        num_steps = max(FEWEST_STEPS, EPOCHS * epoch)
        if config.data.eval_input_file:
            interval = interval or math.ceil(num_steps / 4)
    warmup = config.optimizer.num_warmup_steps
    return config.replace(
        num_train_steps=num_steps,
        eval_every_n_steps=interval,
        num_warmup_steps=num_steps // 10 if warmup < 0 else warmup,
    )


# --- predictions -------------------------------------------------------------


def _wanted_step(config: FinetuningConfig) -> int:
    """The step of the best checkpoint, if requested; 0 is the newest."""
    if config.training.checkpoint == "newest":
        return 0
    run_dir = config.training.output_dir
    best = CheckpointStore(run_dir, {}, writes=False).best_step()
    if best is None:
        raise UserError(
            "checkpoint=best needs a checkpoint in "
            f"{posixpath.join(run_dir, BEST_DIR)}",
            received="none",
            remedy="Train with --eval_every_n_steps, or use the newest one.",
        )
    return best


def _predict(inputs: Inputs, host: Host) -> None:
    """Evaluates or predicts splits with a checkpoint of a run.

    Prints a JSON object for each split with labels. Unless the mode is eval,
    also writes the predictions.
    """
    config, strategy = inputs.config, host.strategy
    training = config.training
    per_replica_batch_size(
        config.data, strategy.num_replicas_in_sync, "eval_batch_size"
    )
    objective = Finetuning(config, inputs.files, inputs.base)
    with connect(config.distribution, strategy) as connected:
        with (
            connected.watchdog.limit("the start of the prediction"),
            strategy.scope(),
        ):
            model = objective.make_model()
            step = restore_model(
                training.output_dir, model, _wanted_step(config)
            )
        for split, scorer in inputs.scorers.items():
            records = inputs.files.records(split)
            evaluator = Evaluator(connected, model, objective, records, config)
            collected = evaluator.collect()
            assert collected is not None, "no stop flag was given"
            if not host.is_chief:
                continue
            found = scorer.find(collected[1])
            if scorer.examples.has_labels:
                scores = objective.evaluate(*collected) | scorer.score(found)
                print(json.dumps({"split": split, "step": step, **scores}))
            if training.mode != "eval":
                scorer.write(found, training.output_dir)
