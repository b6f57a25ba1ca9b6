"""Predictions of a run: scores, files for leaderboards, the null threshold.

RUN/predictions/MRPC.tsv                 for the GLUE leaderboard
RUN/predictions/predictions.json, ...    for the scripts of SQuAD
RUN/null_threshold.json                  null odds above which "" is predicted
"""

import copy
import dataclasses
import json
import posixpath
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.cluster.strategy import per_replica_batch_size
from albert_tf.cluster.watchdog import guarded
from albert_tf.cluster.workers import is_chief
from albert_tf.config import FinetuningConfig
from albert_tf.config.task import QUESTION_ANSWERING, REGRESSION
from albert_tf.errors import UserError
from albert_tf.finetuning import predictions, scores
from albert_tf.finetuning.base_model import BaseModel
from albert_tf.finetuning.examples import ExampleSet
from albert_tf.finetuning.features import FeatureFiles
from albert_tf.finetuning.objective import Finetuning
from albert_tf.finetuning.tasks import DEV
from albert_tf.io.files import write_json
from albert_tf.io.ownership import Owner
from albert_tf.records.documents import (
    Question,
    QuestionAnswer,
    WindowMaker,
    find_answers,
)
from albert_tf.runs.checkpoint_files import BEST_DIR
from albert_tf.runs.checkpoints import CheckpointStore
from albert_tf.runs.directory import NULL_THRESHOLD_FILE
from albert_tf.runs.log import RunLog
from albert_tf.runs.trained_model import restore_model
from albert_tf.training.evaluate import Evaluator

HOLDOUT = "holdout"  # part of train, used to choose the null threshold
PREDICTIONS_DIR = "predictions"

Arrays = Mapping[str, np.ndarray]


class Scorer:
    """Scores the predictions for a split.

    Args:
        config: Settings, with the length that windows are cut to, which may
            exceed that of the features.
        null_threshold: Null odds above which a question has no answer.
    """

    def __init__(
        self,
        config: FinetuningConfig,
        examples: ExampleSet,
        base: BaseModel,
        null_threshold: float,
    ) -> None:
        self._config = config
        self.examples = examples
        self._tokenizer = base.tokenizer
        self.null_threshold = null_threshold

    def at(self, null_threshold: float) -> "Scorer":
        """This scorer with another null threshold."""
        scorer = copy.copy(self)
        scorer.null_threshold = null_threshold
        return scorer

    def __call__(self, collected: Arrays) -> dict[str, float]:
        """Computes the scores of the task.

        Args:
            collected: `Finetuning.predictions` of all records, in order.
        """
        task = self.examples.task
        if task.kind == QUESTION_ANSWERING:
            return self.score_answers(self.find_answers(collected))
        return scores.score(
            task,
            [example.label for example in self.examples.examples],
            self.labels_of(collected),
        )

    def labels_of(self, collected: Arrays) -> np.ndarray:
        """The predicted class or choice, or value: `(examples,)`."""
        logits = collected["logits"]
        if self.examples.task.kind == REGRESSION:
            return logits[:, 0]
        return logits.argmax(axis=-1)

    def find_answers(self, collected: Arrays) -> list[QuestionAnswer]:
        """The answers to all questions."""
        maker = WindowMaker(
            self._tokenizer,
            self._config.task,
            self._config.data.max_seq_length,
        )
        return list(find_answers(self.examples.examples, maker, collected))

    def score_answers(self, found: list[QuestionAnswer]) -> dict[str, float]:
        """The scores of the official script."""
        may_be_null = self.examples.task.may_be_unanswerable
        return scores.score_answers(
            self.examples.examples,
            {answer.id: answer.text() for answer in found},
            {a.id: a.null_odds for a in found} if may_be_null else None,
            self.null_threshold,
            may_be_unanswerable=may_be_null,
        )


class Inputs(NamedTuple):
    """What trainings and predictions need.

    Attributes:
        config: Complete settings, with model, head, lengths and files.
        base: The vocabulary, and the initial weights.
        files: The features of the splits.
        scorers: Of the splits.
    """

    config: FinetuningConfig
    base: BaseModel
    files: FeatureFiles
    scorers: Mapping[str, Scorer]


class Predictor:
    """The model of a run, restored from a checkpoint."""

    def __init__(
        self, inputs: Inputs, strategy: tf.distribute.Strategy
    ) -> None:
        config = inputs.config
        per_replica_batch_size(
            "eval_batch_size",
            config.data.eval_batch_size,
            strategy.num_replicas_in_sync,
        )
        self._config = config
        self._files = inputs.files
        self._strategy = strategy
        self._objective = Finetuning(config, inputs.files, inputs.base)
        with (
            guarded(config.distribution, strategy) as watchdog,
            watchdog.limit("the start of the prediction"),
            strategy.scope(),
        ):
            self._model = self._objective.make_model()
            self.step = restore_model(
                config.training.output_dir, self._model, _wanted_step(config)
            )

    def predict(self, split: str) -> tuple[dict[str, float], Arrays]:
        """Predicts a split.

        Returns:
            The loss and accuracy, and the predictions, by name.
        """
        with guarded(self._config.distribution, self._strategy) as watchdog:
            evaluator = Evaluator(
                self._strategy,
                self._model,
                self._objective,
                self._files.records(split),
                self._config,
                watchdog=watchdog,
            )
            collected = evaluator.collect()
        assert collected is not None, "no stop flag was given"
        sums, found = collected
        return self._objective.evaluate(sums, found), found


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


def run(inputs: Inputs, strategy: tf.distribute.Strategy) -> None:
    """Evaluates or predicts splits with the model of a run.

    Prints a JSON object for each split with labels. Unless the mode is eval,
    also writes the predictions.
    """
    training = inputs.config.training
    predictor = Predictor(inputs, strategy)
    for split, scorer in inputs.scorers.items():
        metrics, collected = predictor.predict(split)
        if not is_chief(strategy):
            continue
        if scorer.examples.has_labels:
            metrics |= scorer(collected)
            line = {"split": split, "step": predictor.step, **metrics}
            print(json.dumps(line))
        if training.mode != "eval":
            _write(training.output_dir, split, scorer, collected)


def _write(run_dir: str, split: str, scorer: Scorer, collected: Arrays) -> None:
    directory = posixpath.join(run_dir, PREDICTIONS_DIR)
    task = scorer.examples.task
    if task.kind == QUESTION_ANSWERING:
        predictions.write_answers(
            directory, scorer.find_answers(collected), scorer.null_threshold
        )
        logging.info("wrote predictions to %s", directory)
        return
    submission = task.splits[split].submission if split in task.splits else ""
    path = posixpath.join(directory, submission or f"{split}.tsv")
    predictions.write_predictions(
        path, scorer.examples, scorer.labels_of(collected)
    )
    logging.info("wrote predictions to %s", path)


# --- the null threshold -----------------------------------------------------


def hold_out(train: ExampleSet, fraction: float) -> dict[str, ExampleSet]:
    """Splits training examples by document.

    Args:
        train: Questions.
        fraction: Fraction of the documents to hold out.

    Returns:
        The sets "train" and `HOLDOUT`.
    """
    limit = fraction * 2**32
    kept = dataclasses.replace(train, examples=[], bad=[*train.bad])
    held_out = dataclasses.replace(train, split=HOLDOUT, examples=[], bad=[])
    for example in train.examples:
        assert isinstance(example, Question)
        is_held_out = zlib.crc32(example.document.encode()) < limit
        (held_out if is_held_out else kept).examples.append(example)
    if not (kept.examples and held_out.examples):
        raise UserError(
            "null_holdout_fraction must leave documents to train on and "
            "documents to hold out",
            received=f"{fraction:g} of {train.source}",
        )
    return {train.split: kept, HOLDOUT: held_out}


def choose_null_threshold(
    inputs: Inputs, strategy: tf.distribute.Strategy
) -> None:
    """Writes the threshold that gives the best F1 on held-out documents.

    If there is a development set, also logs its scores at that threshold, as
    the last evaluation of the run.
    """
    scorers, predictor = inputs.scorers, Predictor(inputs, strategy)
    _, collected = predictor.predict(HOLDOUT)
    run_dir, threshold = inputs.config.training.output_dir, 0.0
    if is_chief(strategy):
        found = scorers[HOLDOUT].find_answers(collected)
        held_out = scorers[HOLDOUT].score_answers(found)
        threshold = best_threshold(held_out, [a.null_odds for a in found])
        write_json(
            posixpath.join(run_dir, NULL_THRESHOLD_FILE),
            {"null_threshold": threshold, "f1": held_out["best_f1"]},
        )
        logging.info("null threshold from held-out documents: %.4g", threshold)
    if DEV not in scorers:
        return
    metrics, collected = predictor.predict(DEV)
    if is_chief(strategy):
        of_dev = scorers[DEV].at(threshold)(collected)
        run_log = RunLog(run_dir, Owner())
        run_log.write("eval", predictor.step, metrics | of_dev)
        run_log.finish()


def best_threshold(
    scores: Mapping[str, float], null_odds: Sequence[float]
) -> float:
    """The null odds above which a question has no answer, for the best F1.

    If it is best to answer no question, the official script gives 0, but
    questions with negative odds would be answered. Then the threshold is below
    all odds.
    """
    of_no_answers = 100.0 * scores.get("NoAns_total", 0) / scores["total"]
    if scores["best_f1"] > of_no_answers:
        return scores["best_f1_thresh"]
    return min(null_odds) - 1
