"""Fine-tuning end to end, on real files, with a tiny model."""

import json

import pytest

from albert_tf.errors import UserError
from albert_tf.finetuning.objective import Finetuning
from albert_tf.finetuning.run import run
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


def printed(capsys):
    """The JSON objects of the command's output."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "head"),
    [*((kind, "plain") for kind in PERFECT), ("question_answering", "beam")],
)
def test_a_tiny_model_learns_examples_by_heart(
    kind, head, tiny_tasks, tmp_path, capsys
):
    # A value needs more steps than a class.
    steps = 200 if kind == "regression" else 150
    config = tiny_task.make_config(
        kind, tiny_tasks, tmp_path, squad_head=head, num_train_steps=steps
    )

    assert run(config) == 0

    (scores,) = printed(capsys)
    for name, value in PERFECT[kind].items():
        assert scores[name] == pytest.approx(value, abs=0.02), name
    kinds = [event["event"] for event in read_events(str(tmp_path))]
    assert kinds.count("start") == 1
    assert "loss_at_chance" not in kinds


def lines_of(run_dir):
    return [
        {n: v for n, v in line.items() if n not in TIMING_METRICS}
        for line in read_metrics(str(run_dir))
    ]


SHORT = {
    "num_train_steps": 6,
    "steps_per_loop": 2,
    "save_checkpoints_steps": 2,
    "eval_every_n_steps": 2,
    "num_warmup_steps": 2,
}


@pytest.mark.slow
def test_a_run_that_was_killed_resumes_exactly(
    tiny_tasks, tmp_path, monkeypatch
):
    """With dropout; the second process finds the features of the first."""

    def config(name):
        return tiny_task.make_config(
            "classification",
            tiny_tasks,
            tmp_path / name,
            dropout=0.1,
            classifier_dropout=0.1,
            **SHORT,
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
    (shard,) = (tmp_path / "killed/features/train").glob("train-*")
    written = shard.stat().st_mtime_ns

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


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"gradient_accumulation_steps": 3},
        {"strategy": "mirrored", "num_logical_cpus": 2},
    ],
    ids=["micro_batches", "replicas"],
)
def test_micro_batches_and_replicas_train_as_one_batch(
    changes, tiny_tasks, tmp_path
):
    """The scores too, so predictions of all replicas come in order."""
    settings = {**SHORT, "squad_head": "beam", "epsilon": 0.1}
    for name, more in (("one", {}), ("other", changes)):
        config = tiny_task.make_config(
            "question_answering",
            tiny_tasks,
            tmp_path / name,
            **settings,
            **more,
        )
        assert run(config) == 0
    one, other = lines_of(tmp_path / "one"), lines_of(tmp_path / "other")
    for line, expected in zip(other, one, strict=True):
        del line["split"], expected["split"]
        assert line == pytest.approx(expected, rel=1e-3, abs=1e-5)


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
def test_a_head_is_kept_for_the_same_labels_and_replaced_for_others(
    tiny_tasks, tmp_path
):
    """As RTE starts from MNLI."""
    first = tiny_task.make_config(
        "classification", tiny_tasks, tmp_path / "first", **SHORT
    )
    assert run(first) == 0
    two_labels = tmp_path / "two.jsonl"
    two_labels.write_text(
        "".join(
            json.dumps(example) + "\n"
            for example in tiny_task.classification()
            if example["label"] != "blue"
        )
    )
    kept, replaced = (
        tiny_task.make_config(
            "classification",
            tiny_tasks,
            tmp_path / name,
            init_checkpoint=str(tmp_path / "first"),
            train_file=str(file),
            dev_file=str(file),
            **SHORT,
        )
        for name, file in (
            ("kept", tiny_tasks / "classification.jsonl"),
            ("replaced", two_labels),
        )
    )
    assert run(kept) == run(replaced) == 0
    reports = [
        json.loads((tmp_path / name / "warm_start.json").read_text())
        for name in ("first", "kept", "replaced")
    ]
    head = ["albert/classifier/bias", "albert/classifier/kernel"]
    assert [
        (sorted(report["initialized"]), sorted(report["replaced"]))
        for report in reports
    ] == [(head, []), ([], []), ([], head)]
    assert read_weights(str(tmp_path / "replaced")).head.labels == (
        "green",
        "red",
    )


@pytest.mark.slow
def test_several_runs_are_summarized_and_the_best_one_predicts(
    tiny_tasks, tmp_path, capsys
):
    config = tiny_task.make_config(
        "classification",
        tiny_tasks,
        tmp_path,
        num_runs=3,
        mode="train_and_predict",
        test_file=str(tiny_tasks / "classification.jsonl"),
        checkpoint="best",
        **SHORT,
    )

    assert run(config) == 0

    (summary,) = printed(capsys)
    accuracies = [scores["accuracy"] for scores in summary["runs"]]
    assert summary["median"]["accuracy"] == sorted(accuracies)[1]
    assert summary["best"]["accuracy"] == max(accuracies)
    losses = [scores["loss"] for scores in summary["runs"]]
    assert len(set(losses)) == 3  # other seeds
    best = accuracies.index(max(accuracies)) + 1
    path = tmp_path / f"run-{best}" / "predictions" / "test.tsv"
    assert len(path.read_text().splitlines()) == 1 + 18


def test_without_a_model_it_refuses(tiny_tasks, tmp_path):
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
    tiny_tasks, tmp_path, capsys
):
    """It is stored, and decides which questions of a prediction are empty."""
    config = tiny_task.make_config(
        "question_answering",
        tiny_tasks,
        tmp_path,
        null_holdout_fraction=0.4,
        mode="train_and_predict",
        **SHORT,
    )

    assert run(config) == 0

    features = json.loads(
        (tmp_path / "features/train/metadata.json").read_text()
    )
    counts = {
        name: sum(shards.values())
        for name, shards in features["splits"].items()
    }
    assert counts["train"] + counts["holdout"] == counts["dev"] == 12
    assert min(counts.values()) > 0
    stored = json.loads((tmp_path / "null_threshold.json").read_text())
    threshold = stored["null_threshold"]
    odds, answers = (
        json.loads((tmp_path / "predictions" / f"{name}.json").read_text())
        for name in ("null_odds", "predictions")
    )
    assert len(odds) == 12
    for name, value in odds.items():
        assert (answers[name] == "") == (value > threshold)
    capsys.readouterr()

    # The scores of mode=eval use it, too.
    assert run(tiny_task.replace(config, mode="eval")) == 0

    (scores,) = printed(capsys)
    empty = sum(not answer for answer in answers.values())
    assert scores["split"] == "dev"
    assert scores["NoAns_exact"] <= 100 * empty / 6
