"""Predictions of a run: scores, files for leaderboards, the null threshold.

RUN/predictions/MRPC.tsv                 for the GLUE leaderboard
RUN/predictions/predictions.json, ...    for the scripts of SQuAD
RUN/null_threshold.json                  null odds above which "" is predicted
"""

import dataclasses
import json
import posixpath
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.cluster.host import connect
from albert_tf.cluster.strategy import per_replica_batch_size
from albert_tf.cluster.workers import is_chief
from albert_tf.config import FinetuningConfig
from albert_tf.config.task import QUESTION_ANSWERING, REGRESSION
from albert_tf.errors import UserError
from albert_tf.finetuning import score
from albert_tf.finetuning.base_model import BaseModel
from albert_tf.finetuning.examples import ExampleSet
from albert_tf.finetuning.features import FeatureFiles
from albert_tf.finetuning.objective import Finetuning
from albert_tf.finetuning.tasks import DEV
from albert_tf.io.files import write_json
from albert_tf.io.ownership import Owner
from albert_tf.records.documents import WindowMaker, find_answers
from albert_tf.runs.checkpoint_files import BEST_DIR
from albert_tf.runs.checkpoints import CheckpointStore
from albert_tf.runs.directory import NULL_THRESHOLD_FILE
from albert_tf.runs.log import RunLog
from albert_tf.runs.trained_model import restore_model
from albert_tf.training.evaluate import Evaluator

HOLDOUT = "holdout"  # part of train, used to choose the null threshold
PREDICTIONS_DIR = "predictions"

Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Scores the predictions for a split.

    Attributes:
        examples: The examples of the split.
        maker: Makes the windows of questions; None for other kinds.
        null_threshold: Null odds above which a question has no answer.
    """

    examples: ExampleSet
    maker: WindowMaker | None
    null_threshold: float

    def __call__(self, collected: Arrays) -> dict[str, float]:
        """Computes the scores of the task.

        Args:
            collected: `Finetuning.predictions` of all records, in order.
        """
        task, found = self.examples.task, self.find(collected)
        if task.kind != QUESTION_ANSWERING:
            labels = [example.label for example in self.examples.examples]
            return score.score(task, labels, found)
        may_be_null = task.may_be_unanswerable
        return score.score_answers(
            self.examples.examples,
            {answer.id: answer.text() for answer in found},
            {a.id: a.null_odds for a in found} if may_be_null else None,
            self.null_threshold,
            may_be_unanswerable=may_be_null,
        )

    def find(self, collected: Arrays) -> Any:
        """The `QuestionAnswer` of each question, or the class or value."""
        if self.maker is not None:
            return list(
                find_answers(self.examples.examples, self.maker, collected)
            )
        logits = collected["logits"]
        is_value = self.examples.task.kind == REGRESSION
        return logits[:, 0] if is_value else logits.argmax(axis=-1)


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
        self._inputs, self._strategy = inputs, strategy
        self._objective = Finetuning(config, inputs.files, inputs.base)
        with (
            connect(config.distribution, strategy) as host,
            host.watchdog.limit("the start of the prediction"),
            strategy.scope(),
        ):
            self._model = self._objective.make_model()
            self.step = restore_model(
                config.training.output_dir, self._model, wanted_step(config)
            )

    def predict(self, split: str) -> tuple[dict[str, float], Arrays]:
        """Returns the loss and accuracy of a split, and the predictions."""
        config = self._inputs.config
        with connect(config.distribution, self._strategy) as host:
            evaluator = Evaluator(
                host,
                self._model,
                self._objective,
                self._inputs.files.records(split),
                config,
            )
            collected = evaluator.collect()
        assert collected is not None, "no stop flag was given"
        return self._objective.evaluate(*collected), collected[1]


def wanted_step(config: FinetuningConfig) -> int:
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
            path = posixpath.join(training.output_dir, PREDICTIONS_DIR)
            _write(path, split, scorer, collected)


def _write(path: str, split: str, scorer: Scorer, collected: Arrays) -> None:
    task, found = scorer.examples.task, scorer.find(collected)
    if task.kind == QUESTION_ANSWERING:
        score.write_answers(path, found, scorer.null_threshold)
    else:
        known = task.splits.get(split)
        name = known.submission if known else ""
        path = posixpath.join(path, name or f"{split}.tsv")
        score.write_predictions(path, scorer.examples, found)
    logging.info("wrote predictions to %s", path)


# --- the null threshold -----------------------------------------------------


def hold_out(train: ExampleSet, fraction: float) -> dict[str, ExampleSet]:
    """Holds out a fraction of the documents of questions.

    Returns:
        The sets "train" and `HOLDOUT`.
    """
    parts: tuple[list[Any], list[Any]] = ([], [])
    for question in train.examples:
        share = zlib.crc32(question.document.encode()) / 2**32
        parts[share < fraction].append(question)
    if not all(parts):
        raise UserError(
            "null_holdout_fraction must leave documents to train on and "
            "documents to hold out",
            received=f"{fraction:g} of {train.source}",
        )
    kept = dataclasses.replace(train, examples=parts[0], bad=[*train.bad])
    held_out = dataclasses.replace(
        train, split=HOLDOUT, examples=parts[1], bad=[]
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
    run_dir, threshold = inputs.config.training.output_dir, 0.0
    _, collected = predictor.predict(HOLDOUT)
    if is_chief(strategy):
        held_out = scorers[HOLDOUT](collected)
        found = scorers[HOLDOUT].find(collected)
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
        scorer = dataclasses.replace(scorers[DEV], null_threshold=threshold)
        run_log = RunLog(run_dir, Owner())
        run_log.write("eval", predictor.step, metrics | scorer(collected))
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
