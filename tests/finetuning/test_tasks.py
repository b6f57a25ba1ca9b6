import dataclasses

import pytest

from albert_tf.config.task import TaskConfig, TaskHeadConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.kinds import find_task
from albert_tf.finetuning.tasks import TASKS


def test_labels_have_the_order_of_google_research_albert():
    """`get_labels` in its classifier_utils.py; the ids of fine-tuned
    checkpoints depend on it."""
    assert {
        name: task.labels for name, task in TASKS.items() if task.labels
    } == {
        "cola": ("0", "1"),
        "sst2": ("0", "1"),
        "mrpc": ("0", "1"),
        "qqp": ("0", "1"),
        "mnli": ("contradiction", "entailment", "neutral"),
        "qnli": ("entailment", "not_entailment"),
        "rte": ("entailment", "not_entailment"),
        "wnli": ("0", "1"),
        "ax": ("contradiction", "entailment", "neutral"),
    }


def test_the_paper_starts_three_tasks_from_mnli():
    """Section 4.2.2, as in the BERT and RoBERTa papers. AX has no training
    set, so a model of MNLI predicts it."""
    starts = {name for name, task in TASKS.items() if task.starts_from}
    assert starts == {"rte", "stsb", "mrpc", "ax"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "squad"}, r"squad_v2.*Received: 'squad'"),
        ({"task": "multiple_choice"}, "--choice_columns is required"),
    ],
)
def test_an_unknown_or_incomplete_task_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        find_task(TaskConfig(**settings))


def test_classes_of_one_name_are_refused():
    """Of a model of Hugging Face, one would be lost in the answers."""
    with pytest.raises(UserError, match=r"different names\. Received: a, b, a"):
        TaskHeadConfig(labels=("a", "b", "a"))


def test_official_tasks_have_pairs_as_in_their_columns():
    """An export reads the settings only, without the columns."""
    for task in TASKS.values():
        columns = [split.columns for split in task.splits.values()]
        has_pairs = task.layout == "table" and bool(columns[0].text_pair)
        assert TaskConfig(task=task.name).has_pairs == has_pairs, task.name
    own = TaskConfig(task="regression", text_pair_column="b")
    assert own.has_pairs
    assert not dataclasses.replace(own, text_pair_column="").has_pairs
