"""Scores, and files of predictions."""

import dataclasses
import json
import math
import pathlib

import numpy as np
import pytest

from albert_tf.config.task import TaskConfig
from albert_tf.finetuning.examples import read_examples
from albert_tf.finetuning.kinds import KINDS, ExampleSet, TextExample
from albert_tf.finetuning.scores import score_answers, write_answers
from albert_tf.finetuning.tasks import TASKS
from albert_tf.records.questions import (
    Answer,
    Candidate,
    Question,
    QuestionAnswer,
)
from tests.finetuning.conftest import EXCERPTS
from tests.helpers.make_squad_scores import (
    SCORES_FILE,
    make_predictions,
    read_questions,
    without_some,
)

# --- scores of classes and values --------------------------------------------


LABELS = [1, 1, 1, 0, 0, 0, 0, 1]
PREDICTIONS = [1, 1, 0, 0, 0, 1, 0, 0]
# 2 true and 1 false positives, 3 true and 2 false negatives.


def score(examples, found):
    return KINDS[examples.task.kind].score(examples, np.array(found), 0.0)


def score_labels(task, labels, found):
    rows = [TextExample(str(i), "a", "b", v) for i, v in enumerate(labels)]
    return score(ExampleSet(task, "dev", "a file", rows), found)


def write_predictions(directory, examples, found):
    return KINDS[examples.task.kind].write(str(directory), examples, found, 0.0)


def test_scores_of_classes_equal_their_definitions():
    expected = {
        "accuracy": 5 / 8,
        "f1": 2 * 2 / (2 * 2 + 1 + 2),
        "f1_macro": (4 / 7 + 6 / 9) / 2,
        "matthews": (2 * 3 - 1 * 2) / math.sqrt(3 * 4 * 4 * 5),
    }
    task = dataclasses.replace(TASKS["mrpc"], metrics=tuple(expected))
    scores = score_labels(task, LABELS, PREDICTIONS)
    assert scores == pytest.approx(expected | {"total": 8}, abs=1e-12)


def test_correlations_equal_their_definitions():
    labels = np.array([0.0, 1, 2, 3, 5])
    predictions = np.array([1.0, 0, 2, 9, 4])
    scores = score_labels(TASKS["stsb"], labels, predictions)
    x, y = labels - labels.mean(), predictions - predictions.mean()
    pearson = (x @ y) / math.sqrt((x @ x) * (y @ y))
    assert scores["pearson"] == pytest.approx(pearson, abs=1e-12)
    # Ranks of the predictions: 2, 1, 3, 5, 4.
    spearman = 1 - 6 * (1 + 1 + 0 + 1 + 1) / (5 * 24)
    assert scores["spearman"] == pytest.approx(spearman, abs=1e-12)


def test_constant_predictions_score_0():
    """JSON has no NaN, and a run must go on."""
    constant = [1] * 8
    assert score_labels(TASKS["stsb"], LABELS, constant)["pearson"] == 0
    assert score_labels(TASKS["stsb"], LABELS, constant)["spearman"] == 0
    assert score_labels(TASKS["cola"], LABELS, constant)["matthews"] == 0


def test_every_task_has_scores():
    for task in TASKS.values():
        if task.kind != "question_answering":
            scores = score_labels(task, LABELS, PREDICTIONS)
            assert scores[task.metrics[0]] < 1


# --- answers -----------------------------------------------------------------


def question(name, *answers):
    golds = tuple(Answer(text, 0) for text in answers)
    return Question(name, "?", "", golds, not answers)


def test_version_1_has_neither_unanswered_questions_nor_null_odds():
    asked = [question("q", "dog"), question("r", "cat")]
    scores = score_answers(
        asked, {"q": "dog", "o": "x"}, {"x": 1.0}, may_be_unanswerable=False
    )
    assert scores == {"exact": 50, "f1": 50, "total": 2}


def test_two_answers_without_words_differ_between_the_versions():
    """Version 1.1: equal, but no shared word. Version 2.0: both mean that
    there is no answer, though the question counts as answerable."""
    asked, predictions = [question("q", "The")], {"q": "a"}
    one = score_answers(asked, predictions, may_be_unanswerable=False)
    two = score_answers(asked, predictions)
    assert (one["exact"], one["f1"]) == (100, 0)
    assert (two["exact"], two["f1"], two["HasAns_total"]) == (100, 100, 1)
    # A right answer without words counts only if there is no other one.
    asked = [question("q", "The", "dog")]
    assert score_answers(asked, {"q": ""})["exact"] == 0


@pytest.mark.parametrize(
    ("answer", "gold", "exact", "f1"),
    [
        # Chinese, with its punctuation; by characters, as KorQuAD's script.
        ("莱茵河畔。", "莱茵河畔", 100, 100),
        ("莱茵河", "莱茵河畔", 0, 100 * 6 / 7),
        ("1661年", "成立于1661年", 0, 100 * 4 / 7),
        ("서울", "서울이다", 0, 100 * 4 / 6),
        ("แม่น้ำไรน์", "แม่น้ำไรน์", 100, 100),
        # Elsewhere, as SQuAD's script: other punctuation stays.
        ("“old” town", "old town", 0, 50),
    ],
)
def test_answers_are_compared_by_words_or_characters(answer, gold, exact, f1):
    asked = [question("q", gold)]
    found = score_answers(asked, {"q": answer}, may_be_unanswerable=False)
    assert found == {"exact": exact, "f1": pytest.approx(f1), "total": 1}


OFFICIAL = json.loads(SCORES_FILE.read_text())


@pytest.mark.parametrize("seed", range(len(OFFICIAL)))
def test_awkward_predictions_score_as_with_the_official_scripts(seed, squad):
    """Real questions; empty answers, articles, punctuation, Unicode, ties of
    null odds, and, for version 1.1, questions without a prediction."""
    predictions, null_odds = make_predictions(read_questions(), seed)
    answerable, kept = without_some(read_questions(), predictions, seed)
    names = {question["id"] for question in answerable}

    scores = {
        "1.1": score_answers(
            [question for question in squad.examples if question.id in names],
            kept,
            may_be_unanswerable=False,
        ),
        "2.0": score_answers(squad.examples, predictions),
        "2.0 with null odds": score_answers(
            squad.examples, predictions, null_odds
        ),
    }

    assert scores.keys() == OFFICIAL[seed].keys()
    for version, expected in OFFICIAL[seed].items():
        assert scores[version] == pytest.approx(expected, rel=1e-12), version


# --- files of predictions ----------------------------------------------------


QNLI = str(EXCERPTS / "qnli-excerpt.tsv")


@pytest.fixture
def answers(squad):
    """Right answers to all answerable questions, and wrong ones to others."""
    return [
        QuestionAnswer(
            question.id,
            (Candidate(text, 0, 5, 1.5, 1.0),),
            0.0,
            -2.0 if question.answers else 3.0,
        )
        for question in squad.examples
        for text in [question.answers[0].text if question.answers else "wrong"]
    ]


def test_written_answers_are_scored(tmp_path, answers, squad):
    def written():
        found = json.loads((tmp_path / "predictions.json").read_text())
        return score_answers(squad.examples, found)

    write_answers(str(tmp_path), answers)
    scores = written()
    assert (scores["HasAns_exact"], scores["NoAns_exact"]) == (100, 0)
    assert scores["exact"] == pytest.approx(100 * 55 / 114)
    (nbest,) = json.loads((tmp_path / "nbest.json").read_text())[answers[0].id]
    values = {"begin": 0, "end": 5, "score": 1.5, "probability": 1.0}
    assert nbest == {"text": answers[0].text(), **values}
    write_answers(str(tmp_path), answers, null_threshold=0.0)
    assert written()["exact"] == 100


def test_predictions_of_classes_are_written_and_scored(tmp_path):
    examples = read_examples(TaskConfig(task="qnli", dev_file=QNLI), "dev")
    labels = np.array([example.label for example in examples.examples])
    predictions = labels.copy()
    predictions[:5] = 1 - predictions[:5]
    path = pathlib.Path(write_predictions(tmp_path, examples, predictions))
    assert path.name == "dev.tsv"
    assert path.read_text().splitlines()[:2] == [
        "index\tprediction",
        "0\tnot_entailment",
    ]
    assert score(examples, predictions) == {"accuracy": 0.75, "total": 20}


@pytest.mark.parametrize(
    ("task", "predictions", "expected"),
    [
        # As in label_column: a letter, or a number from 0.
        (
            dataclasses.replace(TASKS["race"], num_choices=28),
            [25, 26, 27],
            "Z\n1\t26\n2\t27",
        ),
        # Values of STS-B are within its range.
        (TASKS["stsb"], [-0.3, 2.12345, 5.7], "0.000\n1\t2.123\n2\t5.000"),
        (
            dataclasses.replace(TASKS["stsb"], name="regression"),
            [-0.3, 2, 5.7],
            "-0.300\n1\t2.000\n2\t5.700",
        ),
    ],
)
def test_choices_and_values_are_written(task, predictions, expected, tmp_path):
    rows = [TextExample(str(i), "a", "b", None) for i in range(3)]
    examples = ExampleSet(task, "test", "f", examples=rows)
    path = pathlib.Path(write_predictions(tmp_path, examples, predictions))
    assert path.read_text() == f"index\tprediction\n0\t{expected}\n"


TOKENS = (
    *("EU B-ORG", "rejects O", "Peter B-PER", "Blackburn I-PER", ""),
    *("Bonn B-LOC", "."),
)


def test_spans_count_if_both_ends_and_the_kind_are_right(tmp_path):
    """One of 3 right spans is found, and of 3 predicted ones one is right."""
    lines = [
        line if " " in line or not line else f"{line} O" for line in TOKENS
    ]
    data = tmp_path / "dev.conll"
    data.write_text("\n".join(lines) + "\n")
    config = TaskConfig(task="token_classification", dev_file=str(data))
    examples = read_examples(config, "dev")
    tags = [["B-ORG", "O", "B-PER", "O"], ["B-ORG", "O"]]
    path = pathlib.Path(write_predictions(tmp_path, examples, tags))
    rows = map(json.loads, path.read_text().splitlines())
    assert list(rows) == [
        {"id": example.id, "tokens": list(example.words), "tags": found}
        for example, found in zip(examples.examples, tags, strict=True)
    ]
    expected = {"f1": 1 / 3, "precision": 1 / 3, "recall": 1 / 3}
    expected |= {"accuracy": 4 / 6, "total": 2}
    scores = KINDS[examples.task.kind].score(examples, tags, 0.0)
    assert scores == pytest.approx(expected)


def test_lists_of_classes_are_scored_by_class_and_by_label(tmp_path):
    """joy is found 1 of 2 times, fear 1 of 1, and anger is wrong."""
    data = tmp_path / "dev.csv"
    data.write_text('text,label\na,"joy,fear"\nb,joy\nc,\nd,anger\n')
    config = TaskConfig(
        task="classification", dev_file=str(data), labels_are_lists=True
    )
    examples = read_examples(config, "dev")
    assert examples.task.labels == ("anger", "fear", "joy")
    found = np.array([[0, 1, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]]) > 0
    f1 = [2 / 3, 1, 0]
    expected = {"f1_micro": 4 / 7, "f1_macro": sum(f1) / 3}
    expected |= {"accuracy": 2 / 4, "total": 4}
    assert score(examples, found) == pytest.approx(expected)
    path = pathlib.Path(write_predictions(tmp_path, examples, found))
    lines = ["index\tprediction", '0\t["fear", "joy"]', '1\t["anger"]']
    assert path.read_text().splitlines()[:3] == lines


def test_a_predicted_class_may_be_missing_from_the_data_file(tmp_path):
    """F1 of pos and neutral: 4 / 5 and 0."""
    train, dev = tmp_path / "train.csv", tmp_path / "dev.csv"
    train.write_text("text,label\na,pos\nb,neg\nc,neutral\n")
    dev.write_text("text,label\na,pos\nb,pos\nc,pos\n")
    config = TaskConfig(
        task="classification", train_file=str(train), dev_file=str(dev)
    )
    task = read_examples(config, "train").task
    assert task.labels == ("neg", "neutral", "pos")
    examples = read_examples(config, "dev", task)
    assert score(examples, [2, 1, 2]) == {
        "accuracy": pytest.approx(2 / 3),
        "f1_macro": pytest.approx(2 / 5),
        "total": 3,
    }
