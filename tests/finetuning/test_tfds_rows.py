"""Datasets with the features of those that TensorFlow Datasets downloads."""

import dataclasses

import numpy as np
import pytest

from albert_tf.config import FinetuningConfig
from albert_tf.config.task import TaskConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.examples import read_examples
from albert_tf.finetuning.run import read_training_sets, splits_to_predict
from albert_tf.finetuning.tasks import find_task
from albert_tf.records.documents import Answer

pytestmark = pytest.mark.tfds


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Stores examples as a dataset, and returns its directory."""
    import tensorflow_datasets as tfds

    def store(name, features, **splits):
        directory = tmp_path_factory.mktemp("tfds")
        tfds.dataset_builders.store_as_tfds_dataset(
            name=name,
            version="1.0.0",
            data_dir=directory,
            features=tfds.features.FeaturesDict(features),
            split_datasets={
                split: list(enumerate(rows)) for split, rows in splits.items()
            },
        )
        return {"tfds": name, "tfds_data_dir": str(directory)}

    return store


def features(labels, *texts):
    import tensorflow_datasets as tfds

    return {
        "idx": np.int32,
        "label": tfds.features.ClassLabel(names=labels),
        **{name: tfds.features.Text() for name in texts},
    }


MNLI = ["entailment", "neutral", "contradiction"]


def test_classes_have_the_order_of_the_task_and_not_of_the_dataset(store):
    """There, entailment is the first class of MNLI."""
    where = store(
        "mnli_like",
        features(MNLI, "premise", "hypothesis"),
        validation_mismatched=[
            {"premise": "A", "hypothesis": "B", "label": 0, "idx": 7}
        ],
        test_matched=[
            {"premise": "C", "hypothesis": "D", "label": -1, "idx": 8}
        ],
    )
    config = TaskConfig(task="mnli", **where)
    dev = read_examples(config, "dev_mismatched")
    assert dev.examples == [("7", "A", "B", 1)]
    test = read_examples(config, "test")
    assert test.examples == [("8", "C", "D", None)]
    for changes, split, message in (
        (
            *({}, "train"),
            r"mnli_like must have the split train. Received: test_matched, "
            "validation_mismatched. Omit --tfds",
        ),
        ({"tfds": "mnli_lik"}, "train", "tfds must name.*mnli_lik,"),
        ({"task": "ax"}, "dev", "no split dev of --task=ax.*--data_dir"),
    ):
        with pytest.raises(UserError, match=message):
            read_examples(dataclasses.replace(config, **changes), split)


@pytest.mark.parametrize(
    ("task", "names", "labels", "expected"),
    [
        # Numbered classes keep their numbers.
        ("mrpc", ["not_equivalent", "equivalent"], ("0", "1"), [0, 1]),
        # Labels of one's own are the names of the classes.
        ("classification", ["red", "blue"], ("blue", "red"), [1, 0]),
    ],
)
def test_labels_are_numbers_or_names(task, names, labels, expected, store):
    texts = ("sentence1", "sentence2") if task == "mrpc" else ("text",)
    rows = [
        {**dict.fromkeys(texts, f"A{label}"), "label": label, "idx": label}
        for label in (0, 1)
    ]
    where = store(f"{task}_like", features(names, *texts), train=rows)
    found = read_examples(TaskConfig(task=task, **where), "train")
    assert found.task.labels == labels
    pairs = ["A0", "A1"] if task == "mrpc" else [None, None]
    assert found.examples == [
        (str(i), f"A{i}", pairs[i], expected[i]) for i in (0, 1)
    ]
    with pytest.raises(UserError, match=r"question, sentence.*: no question"):
        read_examples(TaskConfig(task="qnli", **where), "train")


COLOURS = [
    {"text": "A", "label": 0, "idx": 0},
    {"text": "B", "label": 1, "idx": 1},
]


@pytest.mark.parametrize(
    ("split", "training", "predicted"),
    [
        ("validation", ["train", "dev"], "dev"),
        ("test", ["train"], "test"),
        ("other", ["train"], "dev"),  # refused when it is read
    ],
)
def test_a_task_of_ones_own_has_the_splits_of_its_dataset(
    split, training, predicted, store
):
    """Those for evaluation are called validation and test."""
    splits = {"train": COLOURS, split: COLOURS}
    where = store(f"own_{split}", features(["red", "blue"], "text"), **splits)
    config = FinetuningConfig().replace(task="classification", **where)
    task = find_task(config.task)

    assert list(read_training_sets(config, task)) == training
    for mode, expected in (("predict", predicted), ("eval", "dev")):
        found = splits_to_predict(config.replace(mode=mode), task)
        assert found == [expected]


def test_questions_of_squad_have_answers_or_none(store):
    import tensorflow_datasets as tfds

    where = store(
        "squad_like",
        {
            "id": tfds.features.Text(),
            "context": tfds.features.Text(),
            "question": tfds.features.Text(),
            "answers": tfds.features.Sequence(
                {"text": tfds.features.Text(), "answer_start": np.int32}
            ),
        },
        validation=[
            {
                "id": "x",
                "context": "A dög.",
                "question": "Who?",
                "answers": {"text": ["dög", "A"], "answer_start": [2, 0]},
            },
            {
                "id": "y",
                "context": "A dög.",
                "question": "Why?",
                "answers": {"text": [], "answer_start": []},
            },
        ],
    )
    config = TaskConfig(task="squad_v2", **where)
    first, second = read_examples(config, "dev").examples
    assert first.answers == (Answer("dög", 2), Answer("A", 0))
    assert (first.id, second.id, second.is_impossible) == ("x", "y", True)


def test_passages_of_race_have_questions_and_options(store):
    import tensorflow_datasets as tfds

    text = tfds.features.Text()
    where = store(
        "race_like",
        {
            "example_id": text,
            "article": text,
            "questions": tfds.features.Sequence(text),
            "options": tfds.features.Sequence(tfds.features.Sequence(text)),
            "answers": tfds.features.Sequence(text),
        },
        dev=[
            {
                "example_id": "high1.txt",
                "article": "P.",
                "questions": ["Q _?", "R?"],
                "options": [["a", "b", "c", "d"], ["e", "f", "g", "h"]],
                "answers": ["B", "D"],
            }
        ],
    )
    examples = read_examples(TaskConfig(task="race", **where), "dev").examples
    assert examples == [
        ("high1.txt-0", "P.", "Q _?", ("a", "b", "c", "d"), 1),
        ("high1.txt-1", "P.", "R?", ("e", "f", "g", "h"), 3),
    ]
