"""Fine-tuning end to end, on real files, with a tiny model."""

import dataclasses
import json
import operator

import numpy as np
import pytest

from albert_tf.config import TaskHeadConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.examples import read_examples
from albert_tf.finetuning.objective import (
    Finetuning,
    find_base_model,
    plan_start,
)
from albert_tf.finetuning.run import run
from albert_tf.interop.convert import write_run
from albert_tf.interop.formats import read_weights
from albert_tf.runs.directory import load_config, write_config
from albert_tf.runs.log import read_events, read_metrics
from tests.helpers import conversion, tiny_albert, tiny_run, tiny_task
from tests.helpers.run_processes import lines_without_timing


def test_a_run_starts_from_a_model_of_any_format(tiny_tasks, tmp_path):
    """With the same weights, architecture and vocabulary."""
    model = tiny_tasks / "model"
    published, folder = tmp_path / "published", tmp_path / "folder"
    conversion.write_published(read_weights(str(model)), published)
    conversion.converted(model, folder, "hugging_face")
    first, *others = (
        find_base_model(
            tiny_task.make_config(
                *("classification", tiny_tasks, tmp_path / "run"),
                init_checkpoint=str(source),
            )
        )
        for source in (model, published, folder)
    )
    for found in others:
        assert found.config == first.config
        assert found.tokenizer.sha256 == first.tokenizer.sha256
        assert found.tokenizer.do_lower_case
        for path, values in first.weights.values.items():
            np.testing.assert_array_equal(found.weights.values[path], values)


# By kind, the head, scores of a perfect model, and its predictions.
# test_a_run_of_mnli_predicts_ax_and_starts_rte learns classes.
PERFECT = {
    "regression": (
        "plain",
        {"pearson": 1, "mean_squared_error": 0},
        [example["label"] for example in tiny_task.regression()],
    ),
    "multiple_choice": (
        "plain",
        {"accuracy": 1},
        ["ABC"[example["label"]] for example in tiny_task.multiple_choice()],
    ),
    # test_the_null_threshold_decides_which_answers_are_empty: the plain head.
    "question_answering": (
        "beam",
        {"exact": 100, "f1": 100},
        [example["answer"] for example in tiny_task.question_answering()],
    ),
    "token_classification": (
        "plain",
        {"f1": 1, "precision": 1, "recall": 1, "accuracy": 1},
        [example["tags"] for example in tiny_task.token_classification()],
    ),
    "multi_label_classification": (
        "plain",
        {"f1_micro": 1, "f1_macro": 1, "accuracy": 1},
        [
            json.dumps(sorted(example["label"]))
            for example in tiny_task.multi_label_classification()
        ],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PERFECT)
def test_a_tiny_model_learns_examples_by_heart(
    kind, tiny_tasks, tmp_path, printed
):
    """And predicts their labels, values, choices, tags or answers; questions,
    whose predictions have an order, on two replicas."""
    head, right_scores, right = PERFECT[kind]
    # A value, or several classes, need more steps than a class.
    steps = {"regression": 200, "multi_label_classification": 300}
    changes = {"num_train_steps": steps.get(kind, 150)}
    if kind == "question_answering":
        changes |= {"strategy": "mirrored", "num_logical_cpus": 2}
    config = tiny_task.make_config(
        kind,
        tiny_tasks,
        tmp_path,
        squad_head=head,
        mode="train_and_predict",
        **changes,
    )

    assert run(config) == 0

    # The summary of the training, and the scores of the predictions.
    scores, predicted = printed()
    assert predicted["split"] == "dev"
    for name, value in right_scores.items():
        assert scores[name] == pytest.approx(value, abs=0.02), name
        assert predicted[name] == pytest.approx(scores[name]), name
    assert read_predictions(tmp_path / "predictions", kind) == right
    kinds = [event["event"] for event in read_events(str(tmp_path))]
    assert kinds.count("start") == 1


def read_predictions(directory, kind):
    """The predicted label, choice, value or answer of each example."""
    if kind == "question_answering":
        text = (directory / "predictions.json").read_text()
        return list(json.loads(text).values())
    if kind == "token_classification":
        lines = (directory / "dev.jsonl").read_text().splitlines()
        return [json.loads(line)["tags"] for line in lines]
    header, *lines = (directory / "dev.tsv").read_text().splitlines()
    assert header == "index\tprediction"
    numbers, values = zip(*(line.split("\t") for line in lines), strict=True)
    assert numbers == tuple(map(str, range(len(lines))))
    if kind == "regression":
        return [round(float(value)) for value in values]
    return list(values)


# A command with these settings ends after the features and before training.
UNTRAINABLE = {
    "strategy": "mirrored",
    "num_logical_cpus": 2,
    "global_batch_size": 7,
}


@pytest.mark.jax
@pytest.mark.slow
def test_a_run_by_jax_is_that_by_tensorflow(tiny_tasks, tmp_path):
    """With dropout, evaluations, and predictions."""
    kind = "token_classification"
    configs = {
        runtime: tiny_task.make_config(
            *(kind, tiny_tasks, tmp_path / runtime),
            **tiny_task.SHORT,
            strategy="auto",
            mode="train_and_predict",
            runtime=runtime,
            jit_compile=True,
        )
        for runtime in ("tensorflow", "pjrt")
    }
    lines = []
    for runtime, config in configs.items():
        with tiny_run.eagerly(runtime == "tensorflow"):
            assert run(config) == 0
        lines.append(lines_without_timing(tmp_path / runtime))
    for wanted, found in zip(*lines, strict=True):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            if not isinstance(value, str):
                value = pytest.approx(value, rel=1e-5, abs=1e-6)
            assert found[name] == value, name
    found, wanted = (
        read_predictions(tmp_path / runtime / "predictions", kind)
        for runtime in configs
    )
    assert found == wanted


@pytest.mark.usefixtures("eager")
@pytest.mark.slow
def test_an_interrupted_run_resumes_exactly_with_its_own_settings(
    tiny_tasks, tmp_path, monkeypatch
):
    """With dropout. An exception ends the first run at an evaluation."""

    def config(name):
        return tiny_task.make_config(
            *("classification", tiny_tasks, tmp_path / name),
            dropout=0.1,
            classifier_dropout=0.1,
            **tiny_task.SHORT,
        )

    def losses(name):
        return [line["loss"] for line in read_metrics(str(tmp_path / name))]

    class Killed(BaseException):
        pass

    def kill(self, metrics, records):
        raise Killed

    assert run(config("run")) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Finetuning, "describe_evaluation", kill)
        with pytest.raises(Killed):
            run(config("killed"))
    with pytest.raises(UserError, match="must resume with its own settings"):
        run(config("killed").replace(max_seq_length=8))
    begun = len(losses("killed"))
    assert run(config("killed")) == 0
    assert 0 < begun < len(losses("run"))
    assert losses("killed") == losses("run")
    # Exports cut texts at the length that was given, not at that of training.
    data = load_config(str(tmp_path / "run")).data
    assert (data.max_seq_length, data.text_length) == (64, 96)


@pytest.mark.usefixtures("eager")
@pytest.mark.slow
def test_a_dry_run_checks_and_leaves_no_file(tiny_tasks, tmp_path, capsys):
    config = tiny_task.make_config(
        "multiple_choice", tiny_tasks, tmp_path / "run", dry_run=True
    )

    assert run(config) == 0

    table = capsys.readouterr().out
    assert "starting from the weights of" in table
    assert "albert/classifier" in table  # newly initialised
    assert "multiple choice" in table
    assert not (tmp_path / "run").exists()


AX = {"task": "ax", "train_file": "", "dev_file": ""}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init_checkpoint": ""}, r"--init_checkpoint is required.*scratch"),
        (
            {"init_vocabulary": "tests/testdata/self-contained-500.model"},
            "must be the vocabulary of",
        ),
        (
            {"mode": "train_and_predict", "dev_file": ""},
            "must have a file for dev",
        ),
        ({"mode": "predict", "checkpoint": "best"}, "config.json must exist"),
        *(
            (AX | source, "--task=ax has no training set. Train on --task=mnli")
            for source in (
                {"train_file": "a.tsv"},
                {"data_dir": "AX"},
            )
        ),
    ],
)
def test_settings_that_cannot_be_trained_are_refused(
    changes, message, tiny_tasks, tmp_path
):
    """Before the run has a directory."""
    config = tiny_task.make_config(
        "classification", tiny_tasks, tmp_path / "run"
    )
    with pytest.raises(UserError, match=message):
        run(config.replace(**changes))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_null_threshold_decides_which_answers_are_empty(
    tiny_tasks, tmp_path, printed
):
    """One that an earlier version stored in the run comes first. The features
    have 64 tokens, too few for a question of max_query_length."""
    config = tiny_task.make_config(
        "question_answering",
        tiny_tasks,
        tmp_path,
        max_query_length=64,
        null_threshold=-1e3,
        mode="train_and_predict",
    )

    assert run(config) == 0

    (path,) = tmp_path.glob("features/train-*/metadata.json")
    assert json.loads(path.read_text())["max_seq_length"] == 64
    summary, evaluation = printed()
    assert summary["f1"] == pytest.approx(evaluation["f1"])
    assert summary["HasAns_exact"] == 0  # --null_threshold answers nothing
    assert summary["best_f1"] > summary["f1"]

    def predicted(name):
        path = tmp_path / "predictions" / f"{name}.json"
        return json.loads(path.read_text())

    odds = predicted("null_odds")
    threshold = sorted(odds.values())[3]
    (tmp_path / "null_threshold.json").write_text(
        json.dumps({"null_threshold": threshold})
    )
    assert run(config.replace(mode="predict")) == 0
    answers = predicted("predictions")
    assert {n for n in odds if not answers[n]} == {
        name for name, value in odds.items() if value > threshold
    }
    scores = printed()[-1]
    questions = read_examples(config.task, "train").examples
    empty = sum(not answers[q.id] for q in questions if q.is_impossible)
    assert scores["NoAns_exact"] == pytest.approx(100 * empty / 6)


# --- GLUE --------------------------------------------------------------------


# The labels of MNLI and of RTE, in place of colours.
MNLI = {"red": "neutral", "green": "entailment", "blue": "contradiction"}
RTE = {"green": "entailment", "red": "not_entailment"}


def write_glue(directory, names, labels, column):
    """Writes GLUE files about colours of houses; `column` has the labels."""
    directory.mkdir()
    for name in names:
        lines = [f"index\tsentence1\tsentence2\t{column}"]
        lines += [
            f"{i}\t{example['text']}\tA house.\t{labels[example['label']]}"
            for i, example in enumerate(tiny_task.classification())
            if example["label"] in labels
        ]
        (directory / name).write_text("\n".join(lines) + "\n")


def glue_config(tiny_tasks, task, run_dir, **changes):
    """Settings of a task whose files are in a directory next to the run."""
    config = tiny_task.make_config(
        "classification",
        tiny_tasks,
        run_dir,
        task=task,
        train_file="",
        dev_file="",
        data_dir=str(run_dir.parent / task),
    )
    return config.replace(**tiny_task.SHORT | changes)


@pytest.mark.slow
def test_a_run_of_mnli_predicts_ax_and_starts_rte(
    tiny_tasks, tmp_path, printed
):
    """The head of MNLI has three outputs, so RTE needs a new head."""
    names = ("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv")
    write_glue(tmp_path / "mnli", names, MNLI, "gold_label")
    write_glue(tmp_path / "ax", ["diagnostic.tsv"], MNLI, "unused")
    write_glue(tmp_path / "rte", ["train.tsv", "dev.tsv"], RTE, "label")
    first, second = tmp_path / "run", tmp_path / "second"

    steps = {"num_train_steps": 80, "steps_per_loop": 40}
    steps |= {"eval_every_n_steps": 40, "checkpoint": "best"}
    mnli = glue_config(tiny_tasks, "mnli", first, **steps)
    assert run(mnli) == 0
    printed()
    assert run(mnli.replace(mode="eval")) == 0
    evaluations = printed()
    assert [e["split"] for e in evaluations] == ["dev", "dev_mismatched"]
    assert evaluations[0]["accuracy"] == evaluations[1]["accuracy"] > 0.9

    assert run(glue_config(tiny_tasks, "ax", first, mode="predict")) == 0
    header, *lines = (first / "predictions/AX.tsv").read_text().splitlines()
    assert header == "index\tprediction"
    numbers, labels = zip(*(line.split("\t") for line in lines), strict=True)
    assert numbers == tuple(str(i) for i in range(18))
    assert set(labels) <= set(MNLI.values())
    right = [MNLI[example["label"]] for example in tiny_task.classification()]
    accuracy = sum(map(operator.eq, labels, right)) / 18
    assert accuracy == pytest.approx(evaluations[0]["accuracy"])

    rte = glue_config(tiny_tasks, "rte", second, init_checkpoint=str(first))
    assert run(rte) == 0
    head = ["albert/classifier/bias", "albert/classifier/kernel"]
    report = json.loads((second / "warm_start.json").read_text())
    assert (report["initialized"], sorted(report["replaced"])) == ([], head)
    assert read_weights(str(second)).head.labels == tuple(RTE.values())

    # The head of the same labels is kept.
    weights = read_weights(str(first))
    config = dataclasses.replace(rte, model=weights.config, head=weights.head)
    report = plan_start(config, weights).report
    assert (report["initialized"], report["replaced"]) == ([], [])


def test_a_task_that_starts_from_mnli_says_so(tiny_tasks, tmp_path, caplog):
    caplog.set_level("INFO", "absl")
    write_glue(tmp_path / "rte", ["train.tsv", "dev.tsv"], RTE, "label")
    config = glue_config(tiny_tasks, "rte", tmp_path / "run", **UNTRAINABLE)
    with pytest.raises(UserError, match="global_batch_size must be divisible"):
        run(config)
    assert "the paper fine-tunes on mnli before rte" in caplog.text
    assert "train: 12 examples of" in caplog.text


# --- runs that are trained ---------------------------------------------------


def write_settings(run_dir, config, **head):
    """The settings that a run with this configuration stores."""
    head = TaskHeadConfig(**{"kind": config.task.task, **head})
    write_config(str(run_dir), dataclasses.replace(config, head=head))


@pytest.mark.usefixtures("eager")
@pytest.mark.slow
def test_a_converted_run_takes_the_number_of_choices_from_the_data(
    tiny_tasks, tmp_path, printed
):
    """transformers does not store it, and the weights score any number."""
    weights = tiny_albert.random_weights(
        tiny_task.MODEL,
        "none",
        vocabulary=str(tiny_tasks / "model" / "spiece.model"),
        head=TaskHeadConfig("multiple_choice", num_choices=2),
    )
    run_dir = str(tmp_path / "run")
    write_run(weights, run_dir, run_dir)
    config = tiny_task.make_config("multiple_choice", tiny_tasks, run_dir)

    assert run(config.replace(mode="eval")) == 0

    (scores,) = printed()
    assert scores["total"] == 18

    with pytest.raises(UserError, match="checkpoint=best needs a checkpoint"):
        run(config.replace(mode="eval", checkpoint="best"))

    # A run that is trained here knows it.
    write_settings(run_dir, config, num_choices=2)
    with pytest.raises(UserError, match="3 choices instead of 2"):
        run(config.replace(mode="eval"))


@pytest.mark.parametrize(("trained", "given"), [("pair", ""), ("", "pair")])
def test_a_run_of_pairs_predicts_pairs_only(
    tiny_tasks, tmp_path, trained, given
):
    config = tiny_task.make_config("regression", tiny_tasks, tmp_path)
    config = config.replace(text_pair_column=trained)
    write_settings(tmp_path, config)
    message = "trained on pairs" if trained else "trained on single texts"
    with pytest.raises(UserError, match=message):
        run(config.replace(mode="eval", text_pair_column=given))
