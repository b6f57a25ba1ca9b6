"""Evaluation and prediction with runs that are trained."""

import dataclasses
import json

import numpy as np
import pytest

from albert_tf.config import TaskHeadConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.run import best_run, run, summarize, task_of_run
from albert_tf.finetuning.tasks import TASKS, Task, find_task
from albert_tf.interop.convert import write_run
from albert_tf.interop.model_weights import ModelWeights
from albert_tf.interop.weight_names import list_weights
from albert_tf.runs.directory import write_config
from tests.helpers import tiny_task


def write_settings(run_dir, config, **head):
    """The settings that a run with this configuration stores."""
    head = TaskHeadConfig(**{"kind": config.task.task, **head})
    write_config(str(run_dir), dataclasses.replace(config, head=head))


def write_scores(run_dir, config, labels, **scores):
    """The settings and the last evaluation of a run."""
    write_settings(run_dir, config, kind="classification", labels=labels)
    line = json.dumps({"split": "eval", "step": 9, **scores})
    (run_dir / "metrics.jsonl").write_text(line + "\n")


def test_the_best_run_of_mnli_predicts_ax(tiny_tasks, tmp_path):
    """The runs have the accuracy of MNLI, not the score of AX."""
    labels = TASKS["mnli"].labels
    runs = tiny_task.make_config(
        "classification", tiny_tasks, tmp_path / "runs", num_runs=3
    )
    config, ax = runs.replace(task="mnli"), runs.replace(task="ax")
    for number, accuracy in enumerate((0.5, 0.75, 0.25), 1):
        write_scores(
            tmp_path / f"runs/run-{number}", config, labels, accuracy=accuracy
        )
    assert best_run(ax) == str(tmp_path / "runs/run-2")

    write_scores(tmp_path / "runs/run-3", config, labels, loss=1.0)
    with pytest.raises(UserError, match=r"no accuracy in .*runs/run-3"):
        best_run(ax)


@pytest.mark.parametrize(
    "source", [{"train_file": "a.tsv"}, {"data_dir": "AX"}, {"tfds": "glue/ax"}]
)
def test_ax_is_not_trained_on(source, tmp_path):
    config = tiny_task.make_config("classification", tmp_path, tmp_path)
    files = {"task": "ax", "train_file": "", "dev_file": "", **source}
    with pytest.raises(
        UserError,
        match=r"--task=ax has no training set. Train on --task=mnli",
    ):
        run(config.replace(**files))


def test_the_best_squared_error_is_the_smallest(tmp_path):
    scores = [(0.5, 2.0), (0.75, 1.0), (0.25, 4.0)]
    for number, (pearson, error) in enumerate(scores):
        (tmp_path / str(number)).mkdir()
        line = {"split": "eval", "step": 9, "pearson": pearson}
        (tmp_path / str(number) / "metrics.jsonl").write_text(
            json.dumps(line | {"mean_squared_error": error}) + "\n"
        )
    directories = [str(tmp_path / str(number)) for number in range(3)]
    task = Task(
        "regression", "regression", metrics=("pearson", "mean_squared_error")
    )
    summary = summarize(directories, task)
    assert summary["best"] == {"pearson": 0.75, "mean_squared_error": 1.0}
    assert summary["median"] == {"pearson": 0.5, "mean_squared_error": 2.0}


@pytest.mark.slow
def test_a_converted_run_takes_the_number_of_choices_from_the_data(
    tiny_tasks, tmp_path, printed
):
    """transformers does not store it, and the weights score any number."""
    head = TaskHeadConfig("multiple_choice", num_choices=2)
    rng = np.random.default_rng(0)
    values = {
        weight.path: rng.normal(size=weight.shape).astype(np.float32)
        for weight in list_weights(tiny_task.MODEL, head=head)
    }
    vocabulary = str(tiny_tasks / "model" / "spiece.model")
    weights = ModelWeights(
        tiny_task.MODEL, "none", values, vocabulary=vocabulary, head=head
    )
    run_dir = str(tmp_path / "run")
    write_run(weights, run_dir, run_dir)
    config = tiny_task.make_config("multiple_choice", tiny_tasks, run_dir)

    assert run(config.replace(mode="eval")) == 0

    (scores,) = printed()
    assert scores["total"] == 18

    # A run that is trained here knows it.
    write_settings(run_dir, config, num_choices=2)
    with pytest.raises(UserError, match=r"must have 2 choices. Received: 3"):
        run(config.replace(mode="eval"))


@pytest.mark.parametrize("mode", ["predict", "eval"])
@pytest.mark.parametrize(("trained", "given"), [("pair", ""), ("", "pair")])
def test_a_run_of_pairs_predicts_pairs_only(
    tiny_tasks, tmp_path, mode, trained, given
):
    config = tiny_task.make_config("regression", tiny_tasks, tmp_path)
    config = config.replace(text_pair_column=trained)
    write_settings(tmp_path, config)
    message = (
        "trained on pairs of texts, .* Set --text_pair_column=pair"
        if trained
        else "trained on single texts, .* Omit --text_pair_column"
    )
    with pytest.raises(UserError, match=message):
        run(config.replace(mode=mode, text_pair_column=given))


def test_texts_that_are_cut_otherwise_than_in_training_are_named(
    tiny_tasks, tmp_path, caplog
):
    config = tiny_task.make_config("question_answering", tiny_tasks, tmp_path)
    write_settings(tmp_path, config)
    same = config.replace(max_seq_length=512, max_qa_length=99)
    task_of_run(same, find_task(config.task), str(tmp_path))
    assert "otherwise" not in caplog.text

    other = config.replace(max_seq_length=64, doc_stride=7, max_query_length=9)
    task_of_run(other, find_task(config.task), str(tmp_path))

    assert (
        "--doc_stride was 128 and is 7; --max_query_length was 16 and is 9; "
        "sequences had up to 96 tokens and --max_seq_length is 64"
    ) in caplog.text
