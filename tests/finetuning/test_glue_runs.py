"""Fine-tuning of GLUE tasks, whose files and labels the task names."""

import dataclasses
import json
import operator

import pytest

from albert_tf.errors import UserError
from albert_tf.finetuning import base_model
from albert_tf.finetuning.run import run
from albert_tf.interop.formats import read_weights
from tests.helpers import tiny_task

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
    mnli = ("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv")
    write_glue(tmp_path / "mnli", mnli, MNLI, "gold_label")
    write_glue(tmp_path / "ax", ["diagnostic.tsv"], MNLI, "unused")
    write_glue(tmp_path / "rte", ["train.tsv", "dev.tsv"], RTE, "label")
    first, second = tmp_path / "run", tmp_path / "second"

    assert run(glue_config(tiny_tasks, "mnli", first)) == 0
    printed()
    assert run(glue_config(tiny_tasks, "mnli", first, mode="eval")) == 0
    evaluations = printed()
    assert [e["split"] for e in evaluations] == ["dev", "dev_mismatched"]
    assert evaluations[0]["accuracy"] == evaluations[1]["accuracy"]

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
    report = base_model.plan_start(config, weights).report
    assert (report["initialized"], report["replaced"]) == ([], [])


def test_a_task_that_starts_from_mnli_says_so(tiny_tasks, tmp_path, caplog):
    write_glue(tmp_path / "rte", ["train.tsv", "dev.tsv"], RTE, "label")
    config = glue_config(
        tiny_tasks,
        "rte",
        tmp_path / "run",
        strategy="mirrored",
        num_logical_cpus=2,
        global_batch_size=7,
    )
    # Ends before the training, but after the warning.
    with pytest.raises(UserError, match="global_batch_size must be divisible"):
        run(config)
    assert "the paper fine-tunes on mnli before rte" in caplog.text


def test_a_missing_file_to_predict_is_named_before_the_training(
    tiny_tasks, tmp_path
):
    write_glue(tmp_path / "rte", ["train.tsv", "dev.tsv"], RTE, "label")
    settings = {"mode": "train_and_predict", "dev_file": ""}
    config = glue_config(tiny_tasks, "rte", tmp_path / "run", **settings)
    with pytest.raises(UserError, match=r"must contain test.tsv, the test"):
        run(config)
    config = tiny_task.make_config(
        "classification", tiny_tasks, tmp_path / "run", **settings
    )
    with pytest.raises(UserError, match="must have a file for dev"):
        run(config)
    assert not (tmp_path / "run").exists()
