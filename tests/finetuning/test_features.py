"""Records of each kind of task, and the files that hold them."""

import dataclasses

import numpy as np
import pytest

from albert_tf.config import FinetuningConfig, SequenceConfig, TaskHeadConfig
from albert_tf.config.task import TaskConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.examples import read_examples
from albert_tf.finetuning.features import (
    find_or_write,
    make_records,
    write,
)
from albert_tf.finetuning.kinds import (
    KINDS,
    ChoiceExample,
    ExampleSet,
    Reader,
    TextExample,
)
from albert_tf.finetuning.tasks import TASKS, Task
from albert_tf.records.questions import Answer, Question
from tests.finetuning.conftest import EXCERPTS

# --- text -> records ---------------------------------------------------------


def encode(tokenizer, name, *examples, length=16, split="train", **settings):
    """The records of examples of an official task."""
    examples = ExampleSet(TASKS[name], split, "a file", examples=list(examples))
    config = TaskConfig(**settings)
    return examples, list(
        make_records(examples, Reader(tokenizer, config, length))
    )


def pieces(tokenizer, input_ids):
    return [tokenizer.id_to_piece(i).strip("▁") for i in input_ids if i]


def test_the_longer_text_of_a_pair_is_cut_first(tokenizer):
    _, (record,) = encode(
        tokenizer,
        "rte",
        TextExample("x", "one two three four five six", "a b c", 1),
        length=10,
    )
    assert pieces(tokenizer, record["input_ids"]) == [
        *("[CLS]", "one", "two", "three", "four", "[SEP]"),
        *("a", "b", "c", "[SEP]"),
    ]
    assert record["segment_ids"].tolist() == [0] * 6 + [1] * 4
    assert record["label"].tolist() == [1]


def test_special_pieces_are_text_and_an_empty_text_keeps_its_separator(
    tokenizer,
):
    _, (record,) = encode(
        tokenizer, "sst2", TextExample("x", "[MASK] [SEP]", None, 0)
    )
    assert [i for i in record["input_ids"] if i in (2, 3, 4)] == [2, 3]
    _, (record,) = encode(tokenizer, "rte", TextExample("x", "one", "", 1))
    assert record["input_ids"][2:4].tolist() == [3, 3]
    assert record["input_mask"].tolist() == [1] * 4 + [0] * 12


def test_the_passage_is_cut_and_not_question_or_choice(tokenizer):
    example = ChoiceExample(
        "x",
        "one two three four five six",
        "who saw _ there",
        ("us", "two six two six two six two"),
        1,
    )
    task = dataclasses.replace(TASKS["race"], num_choices=2)
    examples = ExampleSet(task, "train", "a file", examples=[example])
    config = TaskConfig(max_qa_length=8)
    (record,) = make_records(examples, Reader(tokenizer, config, 12))
    first, second = np.split(record["input_ids"], 2)
    assert pieces(tokenizer, first) == [
        *("[CLS]", "one", "two", "three", "four", "five", "[SEP]"),
        *("who", "saw", "us", "there", "[SEP]"),
    ]
    # Above max_qa_length, question and choice lose their beginning.
    assert pieces(tokenizer, second) == [
        *("[CLS]", "one", "[SEP]"),
        *("two", "six", "two", "six", "two", "six", "two", "there", "[SEP]"),
    ]
    assert record["segment_ids"].tolist()[-12:] == [0] * 3 + [1] * 9

    # A question without gap stands before its choice.
    task = dataclasses.replace(TASKS["race"], num_choices=1)
    example = ChoiceExample("x", "one", "who ran", ("us",), 0)
    examples = ExampleSet(task, "train", "a file", examples=[example])
    (record,) = make_records(examples, Reader(tokenizer, TaskConfig(), 12))
    assert pieces(tokenizer, record["input_ids"])[3:] == [
        *("who", "ran", "us", "[SEP]")
    ]


# Longer than a sequence.
WORDS = "one " * 40
LOST = Question("lost", "Who?", WORDS, (Answer(WORDS, 0),), False)
FOUND = Question("found", "Who?", "The dog.", (Answer("dog", 4),), False)


def test_a_question_whose_answer_fits_no_window_is_not_trained_on(tokenizer):
    sizes = {"length": 32, "max_query_length": 8}
    for split, impossible in (("train", [0]), ("dev", [1, 1, 0])):
        examples, records = encode(
            *(tokenizer, "squad_v1", LOST, FOUND), split=split, **sizes
        )
        assert [r["is_impossible"][0] for r in records] == impossible
        assert [where for where, _ in examples.bad] == ["lost"]


@pytest.mark.parametrize(
    ("file", "settings", "num_examples"),
    [
        ("qnli-excerpt.tsv", {"task": "qnli"}, 20),
        (
            "banking77-excerpt.csv",
            {"task": "classification", "label_column": "category"},
            15,
        ),
        (
            "cosmosqa-excerpt.csv",
            {
                "task": "multiple_choice",
                "text_column": "context",
                "choice_columns": ("answer0", "answer1", "answer2", "answer3"),
            },
            8,
        ),
        ("squad-v2.0-excerpt.json", {"task": "squad_v2"}, 114),
    ],
)
def test_records_of_real_data_have_the_features_of_their_task(
    tokenizer, file, settings, num_examples
):
    """Names, lengths and types; nothing is lost."""
    config = TaskConfig(train_file=str(EXCERPTS / file), **settings)
    examples = read_examples(config, "train")
    assert len(examples.examples) == num_examples and not examples.bad
    shape = SequenceConfig(max_seq_length=256, max_predictions_per_seq=1)
    task = examples.task
    features = KINDS[task.kind].features(task)
    records = list(make_records(examples, Reader(tokenizer, config, 256)))
    assert len(records) >= num_examples
    for record in records:
        assert set(record) == {feature.name for feature in features}
        for feature in features:
            values = record[feature.name]
            assert values.dtype == feature.dtype
            assert values.shape == (feature.length(shape),)


# --- records -> files --------------------------------------------------------


def find(run_dir, tokenizer, value=0.5, **settings):
    """The features of one example, whose label is `value`."""
    task = Task("regression", "regression")
    rows = [TextExample("x", "one two", None, value)]
    sets = {"train": ExampleSet(task, "train", "a file", examples=rows)}
    config = FinetuningConfig().replace(
        output_dir=str(run_dir), max_seq_length=8
    )
    head = TaskHeadConfig("regression")
    return find_or_write(
        config, head, Reader(tokenizer, config.task, 8), sets, **settings
    )


def contents(directory):
    return {
        path.relative_to(directory): (path.read_bytes(), path.stat().st_mtime)
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_other_inputs_leave_features_as_they_are(tmp_path, tokenizer):
    """The run that reads them may be in training."""
    first = find(tmp_path, tokenizer)
    before = contents(tmp_path)

    other = find(tmp_path, tokenizer, value=1.5)

    assert other.checksums != first.checksums
    assert contents(tmp_path).items() > before.items()
    assert find(tmp_path, tokenizer) == first


def test_a_dry_run_uses_the_features_of_the_run_and_writes_elsewhere(
    tmp_path, tokenizer
):
    run, scratch = tmp_path / "run", str(tmp_path / "scratch")

    found = find(run, tokenizer, scratch=scratch)
    assert found.directory.startswith(scratch)
    assert not run.exists()
    written = find(run, tokenizer)
    assert find(run, tokenizer, scratch=scratch) == written


def test_a_set_without_a_usable_example_is_refused(tmp_path):
    """E.g. questions whose answers are longer than all windows."""
    head = TaskHeadConfig("question_answering")
    with pytest.raises(UserError, match="example of the train set must be"):
        write(str(tmp_path), {"train": []}, head, 64)
