r"""Score a file of predictions, of this project or of another.

    python -m albert_tf.finetuning.score --task=squad_v2 \
      --data_file=dev-v2.0.json --predictions_file=predictions.json \
      --null_odds_file=null_odds.json --best_answers_file=best_answers.json

The command prints one JSON object: for SQuAD, with the keys and values of the
official scripts; for other tasks, with the scores of the paper. Predictions of
other tasks are TSV files with the columns index and prediction, as for GLUE's
leaderboard. The command does not need TensorFlow.
"""

import dataclasses
import json

from absl import logging

from albert_tf.config import flags
from albert_tf.config.task import (
    CLASSIFICATION,
    QUESTION_ANSWERING,
    ScoreConfig,
    TaskConfig,
)
from albert_tf.errors import UserError, name_faults
from albert_tf.finetuning.examples import ExampleSet, read_examples
from albert_tf.finetuning.predictions import read_predictions, read_values
from albert_tf.finetuning.scores import score, score_answers
from albert_tf.finetuning.tasks import DEV, Task
from albert_tf.io.files import load_json


def compute_scores(config: ScoreConfig) -> dict[str, float]:
    """Scores the predictions that the settings name.

    Raises:
        UserError: If a file is missing, or belongs to another task or file.
    """
    config.require("data_file", "predictions_file")
    columns = dataclasses.asdict(config.task)
    data = TaskConfig(**columns, dev_file=config.data_file)
    examples = read_examples(data, DEV)
    if examples.task.name == CLASSIFICATION:
        task = _add_labels(examples, config.predictions_file)
        examples = read_examples(data, DEV, task)
    if examples.task.kind != QUESTION_ANSWERING:
        labels = [example.label for example in examples.examples]
        predictions = read_predictions(config.predictions_file, examples)
        return score(examples.task, labels, predictions)
    return _score_answers(config, examples)


def _score_answers(
    config: ScoreConfig, examples: ExampleSet
) -> dict[str, float]:
    """The scores of the answers and, with null odds, of all thresholds."""
    may_be_unanswerable = examples.task.may_be_unanswerable
    predictions = _load_object(config.predictions_file)
    if not config.null_odds_file:
        return score_answers(
            examples.examples,
            predictions,
            may_be_unanswerable=may_be_unanswerable,
        )
    best_answers = predictions
    if config.best_answers_file:
        best_answers = _load_object(config.best_answers_file)
    elif not all(predictions.values()):
        logging.warning(
            "%s has empty answers. If a null threshold has replaced answers "
            "there, the scores are wrong: give the best answers as "
            "--best_answers_file",
            config.predictions_file,
        )
    scores = score_answers(
        examples.examples,
        best_answers,
        _load_object(config.null_odds_file),
        config.na_prob_thresh,
        may_be_unanswerable=may_be_unanswerable,
    )
    if config.best_answers_file:
        scores |= score_answers(
            examples.examples,
            predictions,
            may_be_unanswerable=may_be_unanswerable,
        )
    return scores


def _add_labels(examples: ExampleSet, predictions_file: str) -> Task:
    """The task with the labels of both files.

    A model may predict a class of its training set that the data file lacks.
    """
    task = examples.task
    predicted = filter(None, read_values(predictions_file, examples))
    others = sorted(set(predicted) - set(task.labels))
    if others:
        logging.warning(
            "%s has predictions of classes that %s lacks: %s",
            predictions_file,
            examples.source,
            name_faults(others),
        )
    return dataclasses.replace(task, labels=(*task.labels, *others))


def _load_object(path: str) -> dict:
    content = load_json(path)
    if not isinstance(content, dict):
        raise UserError(
            f"{path} must be a JSON object with a value for each question id",
            received=type(content).__name__,
        )
    return content


def main(config: ScoreConfig) -> None:
    """Prints the scores of the predictions that the flags name."""
    print(json.dumps(compute_scores(config), indent=2))


if __name__ == "__main__":
    flags.run(main, ScoreConfig)
