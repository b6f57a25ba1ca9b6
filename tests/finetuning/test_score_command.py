"""`python -m albert_tf.finetuning.score`, and the files that it reads."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
from absl import flags as absl_flags

from albert_tf.config import flags
from albert_tf.config.task import ColumnsConfig, ScoreConfig, TaskConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.examples import ExampleSet, TextExample, read_examples
from albert_tf.finetuning.predictions import (
    read_predictions,
    read_values,
    write_answers,
    write_predictions,
)
from albert_tf.finetuning.score import compute_scores
from albert_tf.finetuning.tasks import TASKS
from albert_tf.records.documents import Candidate, QuestionAnswer
from tests.finetuning.conftest import EXCERPTS

SQUAD = str(EXCERPTS / "squad-v2.0-excerpt.json")
QNLI = str(EXCERPTS / "qnli-excerpt.tsv")


def scores_of(task, data_file, predictions_file, **settings):
    return compute_scores(
        ScoreConfig(
            task=ColumnsConfig(task=task),
            data_file=str(data_file),
            predictions_file=str(predictions_file),
            **settings,
        )
    )


@pytest.fixture
def answers(squad):
    """Right answers to all answerable questions, and wrong ones to others."""
    return [
        QuestionAnswer(
            question.id,
            (
                Candidate(
                    question.answers[0].text if question.answers else "wrong",
                    0,
                    5,
                    1.5,
                    1.0,
                ),
            ),
            0.0,
            -2.0 if question.answers else 3.0,
        )
        for question in squad.examples
    ]


def test_written_answers_are_scored(tmp_path, answers):
    write_answers(str(tmp_path), answers)
    scores = scores_of("squad_v2", SQUAD, tmp_path / "predictions.json")
    assert (scores["HasAns_exact"], scores["NoAns_exact"]) == (100, 0)
    assert scores["exact"] == pytest.approx(100 * 55 / 114)
    with_odds = scores_of(
        "squad_v2",
        SQUAD,
        tmp_path / "predictions.json",
        null_odds_file=str(tmp_path / "null_odds.json"),
    )
    assert with_odds["exact"] == with_odds["best_f1"] == 100
    assert with_odds["best_f1_thresh"] == -2
    (nbest,) = json.loads((tmp_path / "nbest.json").read_text())[answers[0].id]
    assert nbest == {
        "text": answers[0].text(),
        "begin": 0,
        "end": 5,
        "score": 1.5,
        "probability": 1.0,
    }


def test_the_null_threshold_applies_to_the_written_predictions(
    tmp_path, answers
):
    write_answers(str(tmp_path), answers, null_threshold=0.0)
    scores = scores_of("squad_v2", SQUAD, tmp_path / "predictions.json")
    assert scores["exact"] == 100


def test_predictions_of_classes_are_written_and_scored(tmp_path):
    config = TaskConfig(task="qnli", dev_file=QNLI)
    examples = read_examples(config, "dev")
    labels = np.array([example.label for example in examples.examples])
    predictions = labels.copy()
    predictions[:5] = 1 - predictions[:5]
    path = tmp_path / "QNLI.tsv"
    write_predictions(str(path), examples, predictions)
    assert path.read_text().splitlines()[:2] == [
        "index\tprediction",
        "0\tnot_entailment",
    ]
    assert scores_of("qnli", QNLI, path) == {"accuracy": 0.75, "total": 20}


def test_a_choice_after_z_is_called_by_its_number(tmp_path):
    """As in label_column: a letter, or a number from 0."""
    task = dataclasses.replace(TASKS["race"], num_choices=28)
    rows = [TextExample(str(i), "a", "b", None) for i in range(3)]
    examples = ExampleSet(task, "test", "f", examples=rows)
    path = str(tmp_path / "p.tsv")
    write_predictions(path, examples, np.array([25, 26, 27]))
    assert read_values(path, examples) == ["Z", "26", "27"]
    assert read_predictions(path, examples).tolist() == [25, 26, 27]


def test_values_of_stsb_are_written_within_its_range(tmp_path):
    rows = [TextExample(str(i), "a", "b", None) for i in range(3)]
    examples = ExampleSet(TASKS["stsb"], "test", "f", examples=rows)
    write_predictions(
        str(tmp_path / "p.tsv"), examples, np.array([-0.3, 2.12345, 5.7])
    )
    assert (tmp_path / "p.tsv").read_text() == (
        "index\tprediction\n0\t0.000\n1\t2.123\n2\t5.000\n"
    )
    own = dataclasses.replace(TASKS["stsb"], name="regression")
    examples = ExampleSet(own, "test", "f", examples=rows[:1])
    write_predictions(str(tmp_path / "p.tsv"), examples, np.array([-0.3]))
    assert (tmp_path / "p.tsv").read_text().endswith("0\t-0.300\n")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("index\tprediction\n0\tentailment\n", "1 is missing; 2 is missing"),
        ("id,label\n", "two columns, index and prediction.*'id,label'"),
        (
            "index\tprediction\n" + "".join(f"{i}\tyes\n" for i in range(20)),
            "must be one of entailment, not_entailment. Received: 'yes'",
        ),
        (
            "index\tprediction\n"
            + "".join(f"{i}\tentailment\n" for i in range(21)),
            "20 is unknown",
        ),
        (
            "index\tprediction\n3\tentailment\n"
            + "".join(f"{i}\tnot_entailment\n" for i in range(20)),
            "3 is repeated",
        ),
    ],
)
def test_predictions_for_other_examples_are_refused(tmp_path, content, message):
    path = tmp_path / "p.tsv"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        scores_of("qnli", QNLI, path)


@pytest.mark.parametrize(
    ("labels", "accuracy", "f1_macro"),
    [
        # F1 of pos, neg and neutral: 1, 0 and 0.
        (("pos", "neg", "pos"), 2 / 3, 1 / 3),
        # F1 of pos and neutral: 4 / 5 and 0.
        (("pos", "pos", "pos"), 2 / 3, 2 / 5),
    ],
)
def test_a_predicted_class_may_be_missing_from_the_data_file(
    tmp_path, labels, accuracy, f1_macro
):
    data, predictions = tmp_path / "dev.csv", tmp_path / "p.tsv"
    rows = [f"text {number},{label}" for number, label in enumerate(labels)]
    data.write_text("\n".join(["text,label", *rows, ""]))
    lines = ["index\tprediction", "0\tpos", "1\tneutral", "2\tpos", ""]
    predictions.write_text("\n".join(lines))
    assert scores_of("classification", data, predictions) == {
        "accuracy": pytest.approx(accuracy),
        "f1_macro": pytest.approx(f1_macro),
        "total": 3,
    }
    predictions.write_text("\n".join(lines).replace("neutral", ""))
    with pytest.raises(UserError, match=r"prediction in .* must be one of"):
        scores_of("classification", data, predictions)


def test_predictions_that_are_no_object_are_refused(tmp_path):
    path = tmp_path / "p.json"
    path.write_text("[]")
    with pytest.raises(UserError, match=r"p.json must be a JSON object"):
        scores_of("squad_v2", SQUAD, path)


def test_the_command_has_the_flags_that_it_reads():
    """Files, task and columns; no training file, lengths or windows."""
    flag_values = absl_flags.FlagValues()
    flags.define(ScoreConfig, flag_values)
    names = {name for name in flag_values if not name.endswith("_column")}
    assert names == {
        *("task", "data_file", "predictions_file", "choice_columns"),
        *("null_odds_file", "best_answers_file", "na_prob_thresh"),
    }


def test_empty_answers_with_null_odds_are_warned_of(tmp_path, answers, caplog):
    """A threshold may have replaced them already. The warning names the flag
    for the answers without it."""
    odds = str(tmp_path / "null_odds.json")

    def score():
        caplog.clear()
        path = tmp_path / "predictions.json"
        scores_of("squad_v2", SQUAD, path, null_odds_file=odds)
        return caplog.text

    write_answers(str(tmp_path), answers)
    assert "--best_answers_file" not in score()
    write_answers(str(tmp_path), answers, null_threshold=0.0)
    assert "--best_answers_file" in score()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "best_answers_file needs null_odds_file"),
        (
            {"null_odds_file": "n.json", "na_prob_thresh": 2.0},
            "na_prob_thresh must not be combined with best_answers_file",
        ),
    ],
)
def test_settings_that_best_answers_exclude_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        ScoreConfig(best_answers_file="b.json", **settings)


@pytest.mark.slow
def test_the_command_prints_one_json_object(tmp_path, answers):
    write_answers(str(tmp_path), answers)
    command = [
        *(sys.executable, "-m", "albert_tf.finetuning.score"),
        *("--task=squad_v2", f"--data_file={SQUAD}"),
        f"--predictions_file={tmp_path}/predictions.json",
    ]
    output = subprocess.run(command, capture_output=True, check=True).stdout
    assert json.loads(output)["HasAns_exact"] == 100
    command[-1] += "x"
    failed = subprocess.run(
        command, capture_output=True, check=False, text=True
    )
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: ") and "must exist" in failed.stderr


def test_predictions_for_both_levels_of_race_are_scored(tmp_path):
    """The command reads the directory of a split, or that of a level."""
    race = tmp_path / "RACE"
    for level, answer in {"middle": "C", "high": "A"}.items():
        (race / "dev" / level).mkdir(parents=True)
        passage = {
            "id": level,
            "article": "Tom fell into the river.",
            "questions": ["How is he?"],
            "options": [["dry", "glad", "wet", "old"]],
            "answers": [answer],
        }
        (race / "dev" / level / "1.txt").write_text(json.dumps(passage))
    path = tmp_path / "dev.tsv"
    path.write_text("index\tprediction\nmiddle-0\tC\nhigh-0\tB\n")
    expected = {"accuracy": 0.5, "total": 2}
    assert scores_of("race", race / "dev", path) == expected

    path.write_text("index\tprediction\nhigh-0\tA\n")
    expected = {"accuracy": 1.0, "total": 1}
    assert scores_of("race_high", race / "dev", path) == expected
    assert scores_of("race_high", race / "dev/high", path) == expected
    with pytest.raises(UserError, match="must have files") as refused:
        scores_of("race", race, path)
    assert "--data_dir" not in str(refused.value)  # a flag of another command
