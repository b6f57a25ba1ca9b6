"""Labels in the forms that files have, and labels that do not fit the task."""

import dataclasses
import json

import pytest

from albert_tf.config.task import TaskConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.examples import read_examples


@pytest.mark.parametrize(
    ("kind", "header", "row", "message"),
    [
        (
            "regression",
            "text,label",
            "a,abc",
            r"label of .*t\.csv must be a finite number\. "
            "Received: 'abc' in line 2",
        ),
        ("regression", "text,label", "a,inf", "must be a finite number"),
        (
            "multiple_choice",
            "text,question,x,y,label",
            "a,b,c,d,1st",
            "must be the number of a choice from 0, or a letter from A.*'1st'",
        ),
        (
            "question_answering",
            "text,question,answer,answer_start",
            "a dog,who?,dog,second",
            "answer of .* must be a text, with a number as.*'second'",
        ),
    ],
)
def test_a_wrong_label_is_refused_with_what_was_wanted(
    tmp_path, kind, header, row, message
):
    path = tmp_path / "t.csv"
    path.write_text(f"{header}\n{row}\n")
    columns = {"choice_columns": ("x", "y")} if "choice" in kind else {}
    with pytest.raises(UserError, match=message):
        read_examples(
            TaskConfig(task=kind, train_file=str(path), **columns), "train"
        )


def read_train(path, task, content, **columns):
    path.write_text(content, encoding="utf-8")
    config = TaskConfig(task=task, train_file=str(path), **columns)
    return read_examples(config, "train")


QUESTIONS = "text,question,answer,answer_start,is_impossible\n"


@pytest.mark.parametrize(
    ("true", "false"), [("True", "False"), ("TRUE", "false"), ("1", "0")]
)
def test_a_table_marks_impossible_questions(tmp_path, true, false):
    rows = f"a dog,who?,dog,2,{false}\na dog,why?,,,{true}\n"
    found = read_train(
        tmp_path / "t.csv", "question_answering", QUESTIONS + rows
    )
    assert [q.is_impossible for q in found.examples] == [False, True]
    assert not found.bad


@pytest.mark.parametrize("value", [False, 0, "false", "False", "0"])
def test_json_lines_mark_impossible_questions(tmp_path, value):
    row = {
        "text": "a dog",
        "question": "who?",
        "answer": "dog",
        "answer_start": 2,
        "is_impossible": value,
    }
    found = read_train(
        tmp_path / "t.jsonl", "question_answering", json.dumps(row)
    )
    assert [q.is_impossible for q in found.examples] == [False]


@pytest.mark.parametrize("value", ["no", "", "2"])
def test_another_value_of_is_impossible_is_refused(tmp_path, value):
    row = f"a dog,who?,dog,2,{value}\n"
    message = f"must be true, false, 1 or 0. Received: '{value}' in line 2"
    with pytest.raises(UserError, match=message):
        read_train(tmp_path / "t.csv", "question_answering", QUESTIONS + row)


@pytest.mark.parametrize("split", ["train", "dev"])
@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("t.csv", "text,label\nfine,pos\nmeh,\nbad,neg\nso so, \n", 3),
        (
            "t.jsonl",
            '{"text": "fine", "label": "pos"}\n'
            '{"text": "meh", "label": null}\n'
            '{"text": "bad", "label": "neg"}\n'
            '{"text": "so so", "label": ""}\n',
            2,
        ),
    ],
)
def test_an_example_without_label_is_left_out(
    tmp_path, split, name, content, line
):
    """It does not make a class with an empty name."""
    path = tmp_path / name
    path.write_text(content)
    config = TaskConfig(task="classification", **{f"{split}_file": str(path)})
    found = read_examples(config, split)
    assert found.task.labels == ("neg", "pos")
    assert [e.text for e in found.examples] == ["fine", "bad"]
    assert found.bad == [
        (f"line {line}", "no label"),
        (f"line {line + 2}", "no label"),
    ]
    error = dataclasses.replace(config, on_bad_example="error")
    with pytest.raises(UserError, match=f"line {line}: no label"):
        read_examples(error, split)


def test_labels_of_the_same_value_have_a_fixed_order(tmp_path):
    rows = [f'text {i},"{label}"' for i, label in enumerate(["1", "01", "1 "])]
    content = "\n".join(["text,label", *rows, "text,0"])
    found = read_train(tmp_path / "t.csv", "classification", content)
    assert found.task.labels == ("0", "01", "1", "1 ")


@pytest.mark.parametrize(
    ("label", "index"), [("b", 1), ("B", 1), (" a", 0), ("1", 1)]
)
def test_a_choice_is_a_letter_of_any_case_or_a_number(tmp_path, label, index):
    content = f"text,question,x,y,label\np,q,c,d,{label}\n"
    columns = {"choice_columns": ("x", "y")}
    path = tmp_path / "t.csv"
    found = read_train(path, "multiple_choice", content, **columns)
    assert found.examples[0].label == index
    several = content.replace(f",{label}\n", ",AB\n")
    with pytest.raises(UserError, match=r"or a letter from A.*'AB'"):
        read_train(path, "multiple_choice", several, **columns)


def test_a_deeply_nested_line_is_malformed(tmp_path):
    lines = [f'{{"text": "a", "label": "{i % 2}"}}\n' for i in range(20)]
    nested = 100_000 * "["
    path = tmp_path / "t.jsonl"
    found = read_train(path, "classification", "".join([*lines, nested]))
    assert len(found.examples) == 20
    ((line, reason),) = found.bad
    assert line == "line 21" and "recursion" in reason
    path = tmp_path / "t.json"
    with pytest.raises(UserError, match=r"JSON file in the format of SQuAD"):
        read_train(path, "question_answering", nested)


@pytest.mark.parametrize("split", ["train", "dev", "test"])
@pytest.mark.parametrize("column", ["text", "choices"])
def test_an_unpaired_surrogate_makes_a_bad_example(tmp_path, split, column):
    """JSON can encode it, but it has no UTF-8, so it cannot be tokenized."""
    good = {
        "text": "\U0001f600",  # a pair of surrogates in JSON
        "question": "who?",
        "choices": ["a", "b"],
        "label": 1,
        "note": "\ud800",  # no column of the task
    }
    bad = {
        **good,
        column: ["a", "b \udfff"] if column == "choices" else "\ud83d",
    }
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, [good, bad, good])))
    config = TaskConfig(
        task="multiple_choice",
        choice_columns=("choices",),
        **{f"{split}_file": str(path)},
    )
    found = read_examples(config, split)
    assert [example.id for example in found.examples] == ["0", "2"]
    code = "U+DFFF" if column == "choices" else "U+D83D"
    assert found.bad == [("line 2", f"unpaired surrogate {code}")]
    error = dataclasses.replace(config, on_bad_example="error")
    with pytest.raises(UserError, match="line 2: unpaired surrogate"):
        read_examples(error, split)


def test_a_surrogate_in_a_file_of_squad_is_named_by_its_question(tmp_path):
    def question(name, answer):
        answers = [{"text": answer, "answer_start": 2}]
        return {"id": name, "question": "who?", "answers": answers}

    questions = [question("q1", "dog"), question("q2", "\ud83d")]
    paragraph = {"context": "a dog", "qas": questions}
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    config = TaskConfig(task="squad_v1", train_file=str(path))
    found = read_examples(config, "train")
    assert [example.id for example in found.examples] == ["q1"]
    assert found.bad == [("q2", "unpaired surrogate U+D83D")]


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_questions_with_the_same_id_are_refused(tmp_path, split):
    """Their answers would overwrite each other in files of predictions."""
    header = "text,question,answer,answer_start,key"
    rows = [f"a dog,who?,dog,2,{key}" for key in ("q7", "q8", "q7")]
    path = tmp_path / "t.csv"
    path.write_text("\n".join([header, *rows, ""]))
    config = TaskConfig(
        task="question_answering", **{f"{split}_file": str(path)}
    )
    assert len(read_examples(config, split).examples) == 3
    config = dataclasses.replace(config, id_column="key")
    message = r"t\.csv must have different ids\. Received: q7, more than once"
    with pytest.raises(UserError, match=message):
        read_examples(config, split)


def test_questions_of_squad_with_the_same_id_are_refused(tmp_path):
    question = {
        "id": "q7",
        "question": "who?",
        "answers": [{"text": "dog", "answer_start": 2}],
        "is_impossible": False,
    }
    paragraph = {"context": "a dog", "qas": [question, question]}
    path = tmp_path / "dev-v2.0.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    config = TaskConfig(task="squad_v2", data_dir=str(tmp_path))
    with pytest.raises(UserError, match=r"must have different ids.*q7"):
        read_examples(config, "dev")
