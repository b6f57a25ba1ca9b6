"""Fine-tuning end to end, on real files, with a tiny model."""

import dataclasses
import json
import math
import re

import pytest
from absl import flags as absl_flags

from albert_tf.cluster.strategy import make_strategy
from albert_tf.config import FinetuningConfig, TaskHeadConfig, flags
from albert_tf.errors import UserError
from albert_tf.finetuning import base_model
from albert_tf.finetuning.examples import read_examples
from albert_tf.finetuning.objective import Finetuning
from albert_tf.finetuning.predict import hold_out
from albert_tf.finetuning.run import _make_features, run
from albert_tf.finetuning.scores import score_answers
from albert_tf.interop.formats import read_weights
from albert_tf.runs.log import read_events, read_metrics
from albert_tf.training.progress import TIMING_METRICS
from tests.helpers import tiny_task

PERFECT = {
    "classification": {"accuracy": 1, "f1_macro": 1},
    "regression": {"pearson": 1, "mean_squared_error": 0},
    "multiple_choice": {"accuracy": 1},
    "question_answering": {"exact": 100, "f1": 100},
}

# Predictions of a perfect model.
RIGHT = {
    "classification": lambda: labels_of(tiny_task.classification()),
    "regression": lambda: labels_of(tiny_task.regression()),
    "multiple_choice": lambda: [
        "ABC"[label] for label in labels_of(tiny_task.multiple_choice())
    ],
    "question_answering": lambda: [
        example["answer"] for example in tiny_task.question_answering()
    ],
}


def labels_of(examples):
    return [example["label"] for example in examples]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "head"),
    [*((kind, "plain") for kind in PERFECT), ("question_answering", "beam")],
)
def test_a_tiny_model_learns_examples_by_heart(
    kind, head, tiny_tasks, tmp_path, printed
):
    """And predicts their labels, values, choices or answers."""
    # A value needs more steps than a class.
    steps = 200 if kind == "regression" else 150
    config = tiny_task.make_config(
        kind,
        tiny_tasks,
        tmp_path,
        squad_head=head,
        num_train_steps=steps,
        mode="train_and_predict",
    )

    assert run(config) == 0

    # The summary of the training, and the scores of the predictions.
    scores, predicted = printed()
    assert predicted["split"] == "dev"
    for name, value in PERFECT[kind].items():
        assert scores[name] == pytest.approx(value, abs=0.02), name
        assert predicted[name] == pytest.approx(scores[name]), name
    assert read_predictions(tmp_path / "predictions", kind) == RIGHT[kind]()
    kinds = [event["event"] for event in read_events(str(tmp_path))]
    assert kinds.count("start") == 1
    assert "loss_at_chance" not in kinds


def read_predictions(directory, kind):
    """The predicted label, choice, value or answer of each example."""
    if kind == "question_answering":
        text = (directory / "predictions.json").read_text()
        return list(json.loads(text).values())
    header, *lines = (directory / "dev.tsv").read_text().splitlines()
    assert header == "index\tprediction"
    numbers, values = zip(*(line.split("\t") for line in lines), strict=True)
    assert numbers == tuple(map(str, range(len(lines))))
    if kind == "regression":
        return [round(float(value)) for value in values]
    return list(values)


def lines_of(run_dir):
    return [
        {n: v for n, v in line.items() if n not in TIMING_METRICS}
        for line in read_metrics(str(run_dir))
    ]


@pytest.mark.slow
def test_an_interrupted_run_resumes_exactly(tiny_tasks, tmp_path, monkeypatch):
    """With dropout. An exception ends the first run at an evaluation. The
    second run reuses its features, which a refused command does not change."""

    def config(name, **changes):
        return tiny_task.make_config(
            "classification",
            tiny_tasks,
            tmp_path / name,
            dropout=0.1,
            classifier_dropout=0.1,
            **tiny_task.SHORT,
            **changes,
        )

    class Killed(BaseException):
        pass

    def kill(self, metrics, records):
        raise Killed

    assert run(config("alone")) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Finetuning, "describe_evaluation", kill)
        with pytest.raises(Killed):
            run(config("killed"))
    (shard,) = (tmp_path / "killed/features").glob("train-*/train-*")
    written = shard.stat().st_mtime_ns
    with pytest.raises(UserError, match="must resume with its own settings"):
        run(config("killed", max_seq_length=8))

    assert run(config("killed")) == 0

    assert shard.stat().st_mtime_ns == written
    assert lines_of(tmp_path / "killed") == lines_of(tmp_path / "alone")
    assert len({line["loss"] for line in lines_of(tmp_path / "alone")}) == 6
    ours, theirs = (
        read_weights(str(tmp_path / name)).values
        for name in ("killed", "alone")
    )
    for path, values in theirs.items():
        assert ours[path].tobytes() == values.tobytes(), path


def span_config(tiny_tasks, run_dir, **changes):
    settings = {
        **tiny_task.SHORT,
        "squad_head": "beam",
        "epsilon": 0.1,
        **changes,
    }
    return tiny_task.make_config(
        "question_answering", tiny_tasks, run_dir, **settings
    )


@pytest.fixture(scope="module")
def span_lines(tiny_tasks, tmp_path_factory):
    """Losses and scores of a run on one device, in float32."""
    run_dir = tmp_path_factory.mktemp("span")
    assert run(span_config(tiny_tasks, run_dir)) == 0
    return lines_of(run_dir)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({"gradient_accumulation_steps": 3}, 1e-3),
        ({"strategy": "mirrored", "num_logical_cpus": 2}, 1e-3),
        ({"precision": "mixed_bfloat16"}, 0.05),
    ],
    ids=["micro_batches", "replicas", "bfloat16"],
)
def test_other_ways_to_compute_a_step_give_its_result(
    changes, tolerance, tiny_tasks, span_lines, tmp_path
):
    """In float32, scores agree too, so predictions of replicas keep their
    order."""
    assert run(span_config(tiny_tasks, tmp_path, **changes)) == 0

    lines = lines_of(tmp_path)
    if changes.get("precision"):
        losses, expected = (
            [line["loss"] for line in each] for each in (lines, span_lines)
        )
        assert losses == pytest.approx(expected, rel=tolerance)
        assert losses != pytest.approx(expected, rel=1e-6)  # other precision
        return
    for line, expected in zip(lines, span_lines, strict=True):
        numbers = {n: v for n, v in expected.items() if n != "split"}
        del line["split"]
        assert line == pytest.approx(numbers, rel=tolerance, abs=1e-5)


def test_answers_that_windows_cut_are_named_and_counted(
    tiny_tasks, tmp_path, caplog
):
    """So are answers that the document does not have."""
    caplog.set_level("INFO", "absl")
    example = tiny_task.question_answering()[0]
    document = example["text"]
    lines = [example]
    for answer in (document, "Atlantis"):  # cut by each window, and absent
        lines.append({**example, "answer": answer, "answer_start": 0})
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    config = tiny_task.make_config(
        "question_answering",
        tiny_tasks,
        tmp_path,
        train_file=str(path),
        max_query_length=8,
        max_seq_length=16,
        doc_stride=2,
    )
    config = dataclasses.replace(
        config, head=TaskHeadConfig("question_answering")
    )
    caplog.set_level("INFO")
    sets = {"train": read_examples(config.task, "train")}
    base = base_model.find(config, [str(tmp_path)])
    files = _make_features(
        config, base, config.head, sets, make_strategy(config.distribution)
    )
    assert "train: 2 bad examples: 2: the document has" in caplog.text
    assert "; 1: no window has all of the answer" in caplog.text
    assert files.records("train").num_records


def test_the_remedies_of_the_dry_run_are_flags_of_the_command():
    """Those of pretraining, e.g. --holdout_fraction, are not."""
    values = absl_flags.FlagValues()
    flags.define(FinetuningConfig, values)
    named = re.findall(r"--(\w+)", " ".join(Finetuning.remedies.values()))
    assert named and set(named) <= set(values)


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


@pytest.mark.slow
def test_several_runs_are_summarized_and_the_best_one_predicts(
    tiny_tasks, tmp_path, printed
):
    config = tiny_task.make_config(
        "classification",
        tiny_tasks,
        tmp_path,
        num_runs=3,
        mode="train_and_predict",
        test_file=str(tiny_tasks / "classification.jsonl"),
        checkpoint="best",
        **tiny_task.SHORT | {"eval_every_n_steps": 6, "steps_per_loop": 6},
        learning_rate=1e-9,
    )

    assert run(config) == 0

    (summary,) = printed()
    accuracies = [scores["accuracy"] for scores in summary["runs"]]
    assert summary["median"]["accuracy"] == sorted(accuracies)[1]
    assert summary["best"]["accuracy"] == max(accuracies)
    losses = [scores["loss"] for scores in summary["runs"]]
    assert len(set(losses)) == 3  # other seeds
    best = accuracies.index(max(accuracies)) + 1
    path = tmp_path / f"run-{best}" / "predictions" / "test.tsv"
    assert len(path.read_text().splitlines()) == 1 + 18
    # Nothing is learned at this rate.
    for number in range(1, 4):
        events = read_events(str(tmp_path / f"run-{number}"))
        (event,) = (e for e in events if e["event"] == "loss_at_chance")
        assert event["constant_loss"] == pytest.approx(math.log(3))


def test_several_runs_that_predict_need_a_development_set(tiny_tasks, tmp_path):
    config = tiny_task.make_config(
        "classification",
        tiny_tasks,
        tmp_path,
        dev_file="",
        test_file=str(tiny_tasks / "classification.jsonl"),
        num_runs=2,
        mode="train_and_predict",
    )
    with pytest.raises(UserError, match="must have a development set"):
        run(config)


def test_fine_tuning_without_a_model_is_refused(tiny_tasks, tmp_path):
    config = tiny_task.make_config(
        "classification", tiny_tasks, tmp_path, init_checkpoint=""
    )
    with pytest.raises(
        UserError, match=r"--init_checkpoint is required.*scratch"
    ):
        run(config)
    assert not list(tmp_path.iterdir())


def test_another_vocabulary_is_refused(tiny_tasks, tmp_path):
    config = tiny_task.make_config(
        "classification",
        tiny_tasks,
        tmp_path,
        init_vocabulary="tests/testdata/self-contained-500.model",
    )
    with pytest.raises(UserError, match="must be the vocabulary of"):
        run(config)


@pytest.mark.slow
def test_held_out_documents_choose_the_null_threshold(
    tiny_tasks, tmp_path, printed
):
    """It is stored, and decides which questions of a prediction are empty. The
    features have 64 tokens, too few for a question of max_query_length."""
    config = tiny_task.make_config(
        "question_answering",
        tiny_tasks,
        tmp_path,
        max_query_length=64,
        null_holdout_fraction=0.4,
        null_threshold=-1e3,
        mode="train_and_predict",
    )

    assert run(config) == 0

    (path,) = tmp_path.glob("features/train-*/metadata.json")
    features = json.loads(path.read_text())
    assert features["max_seq_length"] == 64
    counts = {
        name: sum(shards.values())
        for name, shards in features["splits"].items()
    }
    assert counts["train"] + counts["holdout"] == counts["dev"] == 12
    assert min(counts.values()) > 0

    def predicted(name):
        path = tmp_path / "predictions" / f"{name}.json"
        return json.loads(path.read_text())

    # The development set is the training set, held-out documents included.
    examples = read_examples(config.task, "train")
    parts = hold_out(examples, 0.4)
    held_out = parts["holdout"]
    held_out.report_bad("a question", "its context is too long")
    assert not parts["train"].bad  # each example counts in its own part
    odds = predicted("null_odds")
    best = {
        name: found[0]["text"] for name, found in predicted("nbest").items()
    }
    stored = json.loads((tmp_path / "null_threshold.json").read_text())
    expected = score_answers(
        held_out.examples,
        best,
        {question.id: odds[question.id] for question in held_out.examples},
    )
    assert expected["best_f1_thresh"] != 0
    assert stored["null_threshold"] == expected["best_f1_thresh"]
    # The summary of the training has the scores at that threshold.
    summary, evaluation = printed()
    assert summary["f1"] == pytest.approx(evaluation["f1"])
    assert summary["HasAns_exact"] > 0  # --null_threshold answers nothing

    # Another stored threshold leaves eight questions unanswered.
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
    empty = sum(not answers[q.id] for q in examples.examples if q.is_impossible)
    assert scores["NoAns_exact"] == pytest.approx(100 * empty / 6)
