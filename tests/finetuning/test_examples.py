"""Files in the layouts of official ones and of one's own, and bad input."""

import json
import pathlib
import re

import numpy as np
import pyarrow.parquet
import pytest

from albert_tf.config.task import TaskConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.examples import read_examples
from albert_tf.records.questions import Answer


def write(directory, name, *lines, newline="\n", encoding="utf-8"):
    """Writes lines; in a TSV file, " | " stands for a tab."""
    path = pathlib.Path(directory, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = newline.join([*lines, ""])
    if path.suffix in (".tsv", ".txt") and "{" not in text:
        text = text.replace(" | ", "\t")
    path.write_bytes(text.encode(encoding))
    return str(path)


def read(directory, task, split, **settings):
    """The examples of official files."""
    config = TaskConfig(task=task, data_dir=str(directory), **settings)
    return read_examples(config, split)


def read_file(task, path, split="train", before=None, **columns):
    """The examples of a file of any name."""
    if task == "multiple_choice":
        columns.setdefault("choice_columns", ("x", "y"))
    config = TaskConfig(task=task, **{f"{split}_file": path}, **columns)
    return read_examples(config, split, before)


def names_of_labels(found):
    """Of each example, where it has several labels."""
    names = found.task.labels
    return [[names[i] for i in example.label] for example in found.examples]


# --- official files ----------------------------------------------------------

MRPC = "Quality | #1 ID | #2 ID | #1 String | #2 String"
STSB = "index | source1 | source2 | sentence1 | sentence2 | score"
QQP = "id | qid1 | qid2 | question1 | question2 | is_duplicate"
MNLI = "index | genre | sentence1 | sentence2 | label1 | gold_label"
RTE = "index | sentence1 | sentence2 | label"

# Task, split, file, its lines, and the examples.
GLUE = [
    # CoLA has a header only in its test file.
    (
        *("cola", "train", "train.tsv"),
        *('gj04 | 1 |  | "Sue" is ill.', "g | 0 | * | I."),
        [("0", '"Sue" is ill.', None, 1), ("1", "I.", None, 0)],
    ),
    (
        *("cola", "test", "test.tsv", "index | sentence", "7 | Bo ran."),
        [("7", "Bo ran.", None, None)],
    ),
    # Unclosed quotation marks and line separators of Unicode are characters.
    (
        *("sst2", "train", "train.tsv", "sentence | label"),
        *('a "bad film | 0', "good\u2028 \x85film  | 1"),
        [
            ("0", 'a "bad film', None, 0),
            ("1", "good\u2028 \x85film ", None, 1),
        ],
    ),
    (
        *("mrpc", "test", "test.tsv", MRPC.replace("Quality", "index")),
        *("5 | 13 | 14 | C. | D.", [("5", "C.", "D.", None)]),
    ),
    (
        *("stsb", "dev", "dev.tsv", STSB, "4 | x | y | A. | B. | 3.800"),
        [("4", "A.", "B.", 3.8)],
    ),
    # MNLI has two sets for evaluation.
    (
        *("mnli", "dev_mismatched", "dev_mismatched.tsv", MNLI),
        *("0 | g | He ran. | He moved. | neutral | entailment",),
        [("0", "He ran.", "He moved.", 1)],
    ),
    # The diagnostic set has a file with labels, and one without.
    (
        *("ax", "dev", "diagnostic-full.tsv"),
        "Logic | Domain | Premise | Hypothesis | Label",
        "Negation | News | It is. | It is not. | contradiction",
        [("0", "It is.", "It is not.", 0)],
    ),
    (
        *("ax", "test", "diagnostic.tsv", "index | sentence1 | sentence2"),
        *("0 | A | B", [("0", "A", "B", None)]),
    ),
]


@pytest.mark.parametrize("case", GLUE, ids=lambda case: " ".join(case[:2]))
def test_official_files_are_read(case, tmp_path):
    task, split, name, *lines, expected = case
    write(tmp_path, name, *lines)
    assert read(tmp_path, task, split).examples == expected


def race(**changes):
    passage = {
        "id": "high1.txt",
        "article": "Ann saw\na dog.",
        "questions": ["Ann saw _ .", "Who saw it?"],
        "options": [["a dog", "a cat", "Bo", "us"], ["Ann", "Bo", "I", "he"]],
        "answers": ["A", "C"],
    }
    return json.dumps(passage | changes)


def test_race_is_read_from_both_levels_or_one(tmp_path):
    for level in ("middle", "high"):
        write(tmp_path, f"RACE/dev/{level}/1.txt", race(id=level))
    both = read(tmp_path / "RACE", "race", "dev").examples
    assert [e.id for e in both] == ["middle-0", "middle-1", "high-0", "high-1"]
    assert both[3] == (
        *("high-1", "Ann saw\na dog.", "Who saw it?"),
        *(("Ann", "Bo", "I", "he"), 2),
    )
    # `score` reads the directory of a split, or that of a level.
    for path, expected in (("RACE/dev", both), ("RACE/dev/high", both[2:])):
        found = read_file("race", str(tmp_path / path), "dev")
        assert found.examples == expected
    with pytest.raises(UserError, match=r"must have files \*\.txt of RACE"):
        read(tmp_path / "RACE", "race", "train")


def squad(*entries, context="The dog barked."):
    paragraphs = [{"context": context, "qas": list(entries)}]
    return json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]})


def entry(number, answers=(), **more):
    return {
        "id": f"q{number}",
        "question": "Who barked?",
        "answers": [
            {"text": text, "answer_start": start} for text, start in answers
        ],
        **more,
    }


# By task, the header of its training file and a line of it.
TABLES = {
    "cola": ("gj04 | 1 |  | A.",),
    "sst2": ("sentence | label", "A. | 1"),
    "mrpc": (MRPC, "1 | 11 | 12 | A. | B."),
    "stsb": (STSB, "0 | x | y | A. | B. | 3.8"),
    "qqp": (QQP, "0 | 1 | 2 | A? | B? | 1"),
    "mnli": (MNLI, "0 | g | A. | B. | neutral | neutral"),
    "qnli": ("index | question | sentence | label", "0 | A? | B. | entailment"),
    "rte": (RTE, "0 | A. | B. | entailment"),
    "wnli": (RTE, "0 | A. | B. | 1"),
}


def test_a_task_refuses_the_training_file_of_every_other_task(tmp_path):
    """By its columns; where they are those of the task, by the labels.

    The one of RACE is a directory.
    """
    paths = {
        name: write(tmp_path, f"{name}.tsv", *lines)
        for name, lines in TABLES.items()
    }
    paths["squad_v1"] = write(
        tmp_path, "squad.json", squad(entry(1, [("dog", 4)]))
    )
    write(tmp_path, "race/1.txt", race())
    paths["race"] = str(tmp_path / "race")
    for task in paths:
        for name, path in paths.items():
            if name == task:
                assert read_file(task, path).examples
            else:
                with pytest.raises((UserError, IsADirectoryError), match=path):
                    read_file(task, path)


# --- files of one's own ------------------------------------------------------


def test_labels_of_ones_own_are_collected_from_the_training_file(tmp_path):
    """Labels of the same value have a fixed order."""
    train = write(
        tmp_path, "t.csv", "text,category", '"a, ""b""\nc",10', "d,9", "e,10"
    )
    dev = write(tmp_path, "d.csv", "text,category", "x,11")
    found = read_file("classification", train, label_column="category")
    assert found.task.labels == ("9", "10")
    assert found.examples[0] == ("0", 'a, "b"\nc', None, 1)
    with pytest.raises(UserError, match="'11' in line 2: not one of 9; 10"):
        read_file(
            "classification", dev, "dev", found.task, label_column="category"
        )
    rows = [f'text,"{label}"' for label in ("1", "01", "1 ", "0")]
    path = write(tmp_path, "t.csv", "text,label", *rows)
    found = read_file("classification", path)
    assert found.task.labels == ("0", "01", "1")


# By name: the cells of the labels, the classes, and the rows without a label.
CLASSES = {
    "SNLI in numbers": ([0, 2, 1, -1], ("0", "1", "2"), ["3"]),
    "no gold label": (["a", "b", "-", "NaN", None, " "], ("a", "b"), "2345"),
    "a missing number": ([1.0, 0.0, float("nan")], ("0.0", "1.0"), ["2"]),
    "three classes about 0": ([-1, 0, 1], ("-1", "0", "1"), []),
    "three classes, and none": ([-1, 0, 1, "NaN"], ("-1", "0", "1"), ["3"]),
    "minus one and one": ([-1, 1], ("-1", "1"), []),
    "plus and minus": (["+", "-"], ("+", "-"), []),
    "white space": (["pos ", "pos", "very\tgood\n"], ("pos", "very good"), []),
}


@pytest.mark.parametrize("case", CLASSES)
def test_what_a_class_is(case, tmp_path):
    cells, labels, left_out = CLASSES[case]
    rows = [json.dumps({"text": "a", "label": cell}) for cell in cells]
    path = write(tmp_path, "t.jsonl", *rows)
    found = read_file("classification", path)
    assert found.task.labels == labels
    lines = [f"line {int(number) + 1}" for number in left_out]
    assert found.bad == [(line, "no label") for line in lines]
    assert len(found.examples) == len(cells) - len(lines)
    # An array of objects holds the same.
    path = write(tmp_path, "t.json", f"[{', '.join(rows)}]")
    assert read_file("classification", path).examples == found.examples


def test_a_class_of_several_may_be_minus_one(tmp_path):
    rows = [f'a,"{cell}"' for cell in ("-1", "0", "1", "-1,1")]
    path = write(tmp_path, "t.csv", "text,label", *rows)
    found = read_file("classification", path, labels_are_lists=True)
    assert not found.bad
    assert names_of_labels(found) == [["-1"], ["0"], ["1"], ["-1", "1"]]


def test_similar_classes_are_warned_of(tmp_path, caplog):
    cells = ["Pos", "pos", "1", "1.0", "True", "x", "x\u200b", "é", "e\u0301"]
    path = write(tmp_path, "t.csv", "text,label", *(f"a,{c}" for c in cells))
    read_file("classification", path)
    assert "SIMILAR NAMES: 1 and 1.0 and True; Pos and pos; " in caplog.text
    assert "e\u0301 and é; x and x\u200b." in caplog.text


def test_quotes_of_pandas_are_read_in_a_table_of_ones_own(tmp_path):
    said = 'he said "no"'
    quoted = '"he said ""no"""'
    lines = ["text | label", "one | a", f"{quoted} | b", '"x\ty" | a']
    path = write(tmp_path, "t.tsv", *lines)
    found = read_file("classification", path)
    assert [e.text for e in found.examples] == ["one", said, "x\ty"]
    # Not all rows can be read so: a quotation mark is a character.
    path = write(tmp_path, "t.tsv", *lines[:3], '"Sue" is ill. | b')
    found = read_file("classification", path)
    texts = [e.text for e in found.examples]
    assert texts == ["one", quoted, '"Sue" is ill.']
    write(tmp_path, "train.tsv", "sentence | label", f"{quoted} | 0", "a | 1")
    assert read(tmp_path, "sst2", "train").examples[0].text == quoted


def test_choices_are_columns_or_a_list(tmp_path):
    table = write(tmp_path, "t.csv", "text,question,c0,c1,label", "p,q?,x,y,1")
    row = {"text": "p", "question": "q?", "cs": ["x", "y"], "label": "B"}
    lines = write(tmp_path, "t.jsonl", json.dumps(row))
    for path, columns in ((table, ("c0", "c1")), (lines, ("cs",))):
        found = read_file("multiple_choice", path, choice_columns=columns)
        assert found.examples == [("0", "p", "q?", ("x", "y"), 1)]
        assert found.task.num_choices == 2
    rows = [f"p,q,c,d,{label}" for label in ("b", "B", " a", "1")]
    path = write(tmp_path, "t.csv", "text,question,x,y,label", *rows)
    found = read_file("multiple_choice", path)
    assert [example.label for example in found.examples] == [1, 1, 0, 1]
    # One choice would always be right.
    path = write(tmp_path, "t.csv", "text,question,x,label", "p,q,c,0")
    with pytest.raises(UserError, match="1 choices instead of 2"):
        read_file("multiple_choice", path, choice_columns=("x",))


def test_questions_of_ones_own_are_read_from_tables(tmp_path):
    header = "text | question | answer | answer_start"
    path = write(
        tmp_path, "t.tsv", header, "A dog. | Who? | dog | 2", "A. | Who? |  | "
    )
    nested = {"text": ["dog"], "answer_start": [2]}
    row = {"text": "A dog.", "question": "Who?", "answer": nested}
    lines = write(tmp_path, "t.jsonl", json.dumps(row))
    first, second = read_file("question_answering", path).examples
    assert first.answers == (Answer("dog", 2),) and not first.is_impossible
    assert second.answers == () and second.is_impossible
    assert read_file("question_answering", lines).examples == [first]
    # JSON writes a year as a number.
    nested = {"text": [1905], "answer_start": [3]}
    row = {"text": "In 1905.", "question": "When?", "answer": nested}
    lines = write(tmp_path, "t.jsonl", json.dumps(row))
    (question,) = read_file("question_answering", lines).examples
    assert question.answers == (Answer("1905", 3),)


CONLL = (
    "-DOCSTART- -X- O",
    "",
    "EU NNP B-ORG",
    "rejects\tVBZ\tO",
    "",
    " ",
    "Peter NNP I-PER",
    "Blackburn NNP I-PER",
)
TAGS = ("B-ORG", "I-PER", "O")


def test_words_and_tags_are_columns_or_lists(tmp_path):
    """Of CoNLL-2003, whose spans begin with I-."""
    path = write(tmp_path, "t.conll", *CONLL)
    found = read_file("token_classification", path)
    assert found.task.labels == TAGS
    expected = [
        ("0", ("EU", "rejects"), (0, 2)),
        ("1", ("Peter", "Blackburn"), (1, 1)),
    ]
    assert found.examples == expected
    rows = [
        json.dumps({"words": words, "ner": [TAGS[tag] for tag in tags]})
        for _, words, tags in expected
    ]
    path = write(tmp_path, "t.jsonl", *rows)
    columns = {"text_column": "words", "label_column": "ner"}
    found = read_file("token_classification", path, **columns)
    assert found.examples == expected
    # Without tags, it is a test set.
    path = write(tmp_path, "t.txt", "EU", "rejects")
    (example,) = read_file("token_classification", path, "test").examples
    assert example == ("0", ("EU", "rejects"), None)


# Lines of "Bad Ischl lies", "Oda" with a place and a name, and settings.
COLUMNS = {
    "words, then tags": (["Bad B-L", "Ischl I-L", "lies O", "", "Oda B-P"], {}),
    "an index": (["1 Bad x B-L", "2 Ischl x I-L", "3 lies x O", ""], {}),
    "two numbers": (["0 7 Bad B-L", "0 8 Ischl I-L", "0 9-10 lies O", ""], {}),
    "BILOU": (["Bad B-L", "Ischl L-L", "lies O", "", "Oda U-P"], {}),
    "BIOES": (["Bad B-L", "Ischl E-L", "lies O", "", "Oda S-P"], {}),
    "chunks": (["Bad B-NP B-L", "Ischl I-NP I-L", "lies O O", ""], {}),
    "nested": (
        ["1 Bad B-L B-L", "2 Ischl I-L O", "3 lies O O", ""],
        {"label_column": "3"},
    ),
    "tags first": (
        ["B-L Bad", "I-L Ischl", "O lies", ""],
        {"text_column": "2", "label_column": "1"},
    ),
    "a malformed text": (
        ["Bad x B-L", "Ischl x I-L", "lies x O", *["", "a x O"] * 20, "", "a"],
        {},
    ),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_columns_of_words_and_tags_are_found(case, tmp_path):
    lines, columns = COLUMNS[case]
    for mark in " \t":
        text = [line.replace(" ", mark) for line in lines]
        path = write(tmp_path, "t.txt", *text)
        found = read_file("token_classification", path, **columns)
        first, *others = found.examples
        assert first.words == ("Bad", "Ischl", "lies")
        labels = names_of_labels(found)
        assert labels[0] == ["B-L", "I-L", "O"]
        if others and case != "a malformed text":
            assert others[0].words == ("Oda",)
            assert labels[1] == ["B-P"]


def test_columns_of_words_and_tags_are_numbered_from_1(tmp_path):
    """Column 0 was the last one: words that are tags."""
    path = write(tmp_path, "t.txt", *COLUMNS["chunks"][0])
    for column in "text_column", "label_column":
        with pytest.raises(UserError, match="columns, numbered from 1"):
            read_file("token_classification", path, **{column: "0"})


def test_a_cell_between_tabs_may_have_blanks(tmp_path):
    path = write(tmp_path, "t.tsv", "Bad Ischl\tB-L", "lies\tO")
    (example,) = read_file("token_classification", path).examples
    assert example.words == ("Bad Ischl", "lies")


def test_a_text_can_have_several_classes_or_none(tmp_path):
    lists = {"joy,fear": (1, 0), "": (), "joy": (1,)}
    table = write(
        tmp_path, "t.csv", "text,label", *(f'a,"{cell}"' for cell in lists)
    )
    rows = [
        json.dumps({"text": "a", "label": cell.split(",") if cell else []})
        for cell in lists
    ]
    rows.append('{"text": "a", "label": null}')
    for path in table, write(tmp_path, "t.jsonl", *rows):
        found = read_file("classification", path, labels_are_lists=True)
        assert found.task.kind == "multi_label_classification"
        assert found.task.labels == ("fear", "joy")
        assert [e.label for e in found.examples] == [*lists.values()]
        assert names_of_labels(found) == [["joy", "fear"], [], ["joy"]]
    assert found.bad == [("line 4", "no label")]


# Cells of lists, as tables have them: each text has joy and food.
LISTS = (
    """['joy', 'food']""",
    """['joy',"food"]""",
    """ ["joy", "food"]""",
    "joy, food",
)


def test_lists_of_tables_are_read_as_those_of_json(tmp_path):
    for cell in LISTS:
        quoted = cell.replace('"', '""')
        rows = f'a,"{quoted}"', "b,[]", "c,food"
        path = write(tmp_path, "t.csv", "text,label", *rows)
        found = read_file("classification", path, labels_are_lists=True)
        assert names_of_labels(found) == [["joy", "food"], [], ["food"]]


# Labels of two texts that are no names.
NO_NAMES = (
    "[[0, 1, 1], [1, 0, 0]]",
    "[[0.0, 1.0], [1.0, 0.0]]",
    "[[false, true], [true, true]]",
    "[[0.2, 0.1, 0.1], [0.5, 0.25, 0.25]]",
    '["0,1,0", "1,0,0"]',
    '["[0, 1, 0]", "[1, 0, 0]"]',
    # As NumPy writes them.
    """["['joy' 'food']", "['joy']"]""",
    """["{'joy'", "{'joy', food}"]""",
)


@pytest.mark.parametrize("cells", NO_NAMES)
def test_labels_that_are_no_names_are_refused(cells, tmp_path):
    rows = [json.dumps({"text": "a", "label": c}) for c in json.loads(cells)]
    path = write(tmp_path, "t.jsonl", *rows)
    with pytest.raises(UserError, match=r"label of .* names"):
        read_file("classification", path, labels_are_lists=True)


def test_names_with_a_separator_are_warned_of(tmp_path, caplog):
    for mark in "|;/ ":
        rows = [f"a,joy{mark}food", "b,food", "c,new york", "d,rock & roll"]
        path = write(tmp_path, "t.csv", "text,label", *rows)
        caplog.clear()
        read_file("classification", path, labels_are_lists=True)
        assert f"MAY BE SEVERAL: joy{mark}food. Separate" in caplog.text


QUESTIONS = "text,question,answer,answer_start,is_impossible"


def test_impossible_questions_are_marked(tmp_path):
    """In JSON also by numbers and truth values."""
    for true, false in (("True", "False"), ("TRUE", "false"), ("1", "0")):
        rows = f"a dog,who?,dog,2,{false}", f"a dog,why?,,,{true}"
        path = write(tmp_path, "t.csv", QUESTIONS, *rows)
        found = read_file("question_answering", path)
        assert [q.is_impossible for q in found.examples] == [False, True]
        assert not found.bad
    row = {"text": "a dog", "question": "who?", "answer": "dog"}
    row["answer_start"] = 2
    lines = [json.dumps({**row, "is_impossible": v}) for v in (False, 0)]
    path = write(tmp_path, "t.jsonl", *lines)
    found = read_file("question_answering", path)
    assert [q.is_impossible for q in found.examples] == [False] * 2


# --- files that do not fit ---------------------------------------------------

REGRESSION_ROW = ("regression", "t.csv", "text,label")
CHOICE_ROW = ("multiple_choice", "t.csv", "text,question,x,y,label")
SPAN_ROW = ("question_answering", "t.csv", QUESTIONS)
KEYS = "text,question,answer,answer_start,key"
ROWS = [f"text {number},{number % 2}" for number in range(50)]
SQUAD_2 = ("squad_v2", "t.json")
NO_ANSWERS = {n: v for n, v in entry(1).items() if n != "answers"}
POSSIBLE = entry(7, [("dog", 4)], is_impossible=False)

# Task, file, its lines, and the error.
REFUSED = [
    (*REGRESSION_ROW, "a,abc", r"label of .*t\.csv.*number.*'abc' in line 2"),
    (*REGRESSION_ROW, "a,inf", "must be a finite number"),
    (*REGRESSION_ROW, "a,1e39", "must be a finite number"),
    ("stsb", "t.tsv", STSB, "4 | x | y | A. | B. | nan", "line 2: no label"),
    (*CHOICE_ROW, "a,b,c,d,1st", "number of a choice from 0, or a let.*'1st'"),
    (*CHOICE_ROW, "a,b,c,d,AB", "or a letter from A.*'AB'"),
    (*SPAN_ROW, "a,who?,a,second,0", "answer of .*, with a number as.*second"),
    *(
        (
            *SPAN_ROW,
            f"a,who?,a,0,{value}",
            f"is_impossible, .*line 2: '{value}'",
        )
        for value in ("no", "", "2")
    ),
    ("classification", "t.csv", "text,label", "a,1", "b,1", "two classes"),
    ("rte", "t.tsv", *TABLES["sst2"], r"sentence1.*line 2: no sentence1"),
    # CoLA has no header; the number of columns differs.
    ("cola", "t.tsv", *TABLES["sst2"], "--task=cola.*2 columns instead of 4"),
    (
        "rte",
        "t.tsv",
        RTE,
        "0 | A | B | neutral",
        "'neutral' in line 2: not one of entail",
    ),
    ("classification", "t.parquet", "", r"complete Parquet file"),
    (*SQUAD_2, '{"data": [{"context_text": "a"}]}', "no 'paragraphs'. SQuAD "),
    *(
        ("classification", "t.jsonl", row, message)
        for row, message in (
            ('{"text": "a", "label": ["joy"]}', r"one name or number.*'joy'"),
            ('{"text": "a", "label": {"b": 1}}', "one name or number"),
            ('{"text": "a", "label": 1, "label": 2}', "more than once"),
        )
    ),
    *(
        ("token_classification", "t.conll", *rows, message)
        for *rows, message in (
            ("EU NNP", "or I- and the name of a kind of spans.*: NNP. Write"),
            ("EU 3", "is 0", "Received: 0; 3. Numbers are indices of names"),
            ("EU B-A B-B", "is O B-A", "columns 2, 3.*--label_column=2"),
            ("EU\tO", "\tB-A", "line 1: an empty word"),
            ("EU B-ORG", "is O", "", "a", "b O", "lines of {1, 2} columns"),
            ("EU", "is", "line 1: no tags"),
        )
    ),
    *(
        ("token_classification", "t.jsonl", row, message)
        for row, message in (
            (
                '{"tokens": "EU", "tags": ["O"]}',
                "list of words.*tokens are 'EU'",
            ),
            ('{"tokens": ["EU"], "tags": "O"}', "tags of .* a list of tags"),
            ('{"tokens": ["EU"], "tags": [3]}', "kind of spans.*Received: 3"),
            (
                '{"tokens": ["EU", "is"], "tags": ["O"]}',
                "usable examples.*line 1: 1 tags for 2 words",
            ),
        )
    ),
    (
        *("token_classification", "t.csv", "Sentence #,Word,Tag", "1,EU,B-A"),
        r"each line.*t\.csv.*pandas",
    ),
    *(
        ("classification", "t.csv", "text,label", *rows, "one name or number")
        for rows in (["a,['joy']", "b,[]"], ['a,"[""joy""]"'], ["a,[0 1]"])
    ),
    # Only the last one would be read.
    ("classification", "t.csv", "text,text,label", *ROWS, "'text' more than"),
    # The rest of the file, up to the next mark, would be a part of a text.
    *(
        (
            *("classification", "t.csv", "text,label", *ROWS, '"c,1', *ROWS),
            *(*more, r"must enclose.* in the row that begins in line 52"),
        )
        for more in ((), ('"quoted, too",1',))
    ),
    # Answers with the same id would overwrite each other.
    (
        *("question_answering", "t.csv", KEYS),
        *("a dog,who?,dog,2,q7", "a dog,who?,dog,2,q7"),
        r"t\.csv must have different ids\. Received: q7, more than once",
    ),
    (*SQUAD_2, squad(POSSIBLE, POSSIBLE), "must have different ids.*q7"),
    (*SQUAD_2, '{"paragraphs": []}', "no 'data'"),
    (*SQUAD_2, '{"data": []}', "must have usable examples. Received: none"),
    (*SQUAD_2, '{"data": [{"paragraphs": [{"qas": [{}]}]}]}', "no 'id'"),
    (*SQUAD_2, "sentence\tlabel", "must be a JSON file in the format of SQuAD"),
    (*SQUAD_2, 100_000 * "[", "must be a JSON file in the format of SQuAD"),
    (
        *(*SQUAD_2, squad(POSSIBLE | {"answers": ["dog"]})),
        "answers of .* must be a text.* in q7",
    ),
    (
        *("squad_v1", "t.json", squad(entry(1, is_impossible=True))),
        r"in q1. Use --task=squad_v2",
    ),
    (
        "race",
        "1.txt",
        race(options=[["a"] * 3] * 2),
        "in high1.txt-0: 3 choices instead of 4",
    ),
    (
        "race",
        "1.txt",
        race(answers=["A", "E"]),
        "in high1.txt-1: there is no choice 4",
    ),
    (
        "race",
        "1.txt",
        race(answers=["A"]),
        "be a JSON file of RACE.*ValueError",
    ),
    ("race", "1.txt", race(questions=None), "must be a JSON file of RACE"),
]


@pytest.mark.parametrize("case", REFUSED, ids=range(len(REFUSED)))
def test_a_file_that_does_not_fit_is_refused(tmp_path, case):
    task, name, *lines, message = case
    path = write(tmp_path, name, *lines)
    columns = {"id_column": "key"} if KEYS in lines else {}
    with pytest.raises(UserError, match=message):
        read_file(task, str(tmp_path) if task == "race" else path, **columns)


def test_a_dev_set_without_labels_is_refused(tmp_path):
    """It is a test set."""
    for task, name, line, message in (
        (
            "squad_v2",
            "2.json",
            squad(NO_ANSWERS),
            "question, answers.*no answers",
        ),
        ("classification", "d.jsonl", '{"text": "a"}', "text, label.*no label"),
    ):
        path = write(tmp_path, name, line)
        with pytest.raises(UserError, match=rf"{message}.*--test_file"):
            read_file(task, path, "dev")
        found = read_file(task, path, "test")
        assert len(found.examples) == 1 and not found.bad


def test_a_wrong_column_names_those_of_the_file(tmp_path):
    path = write(tmp_path, "t.csv", "title;class\n1;2")
    message = r"columns text, label.*the columns are 'title;class'"
    with pytest.raises(UserError, match=message):
        read_file("classification", path, "train")


def test_the_index_of_a_pandas_table_is_no_id(tmp_path):
    """Its column has the name ""; numbers repeat in a table of two."""
    rows = ",text,question,answer,answer_start", "0,a b,w,b,2", "0,c d,w,d,2"
    path = write(tmp_path, "t.csv", *rows)
    found = read_file("question_answering", path).examples
    assert [question.id for question in found] == ["0", "1"]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"t\.csv"):
        read_file("classification", str(tmp_path / "t.csv"))
    config = TaskConfig(task="classification", data_dir="glue_data")
    with pytest.raises(UserError, match="Set --dev_file"):
        read_examples(config, "dev")
    write(tmp_path, "dev_mismatched.tsv", *TABLES["mnli"])
    with pytest.raises(FileNotFoundError, match=r"dev_matched\.tsv"):
        read(tmp_path, "mnli", "dev")


# --- bad examples ------------------------------------------------------------


def row(text, label, **more):
    return json.dumps({"text": text, "pair": "b", "label": label, **more})


LOST = "the document has 'og ' at answer_start 5, not the answer 'dog'"

# Task, file, its lines; the ids that are trained on, the further ids that get a
# prediction, and the bad examples.
BAD = {
    # Questions of QQP contain line breaks, which tear a line in two.
    "torn lines": (
        *("qqp", "t.tsv", QQP),
        *(f"{i} | 1 | 2 | how {i}? | why {i}? | 1" for i in range(30)),
        *("30 | 1 | 2 | how", "do I? | why? | 0"),
        *(list(map(str, range(30))), []),
        [
            ("line 32", "4 columns instead of 6"),
            ("line 33", "3 columns instead of 6"),
        ],
    ),
    # The annotators did not agree.
    "no gold label": (
        *("mnli", "t.tsv", MNLI, "0 | g | A. | B. | neutral | entailment"),
        *("1 | g | A. | C. | neutral | -", ["0"], []),
        [("line 3", "no label")],
    ),
    "an empty text": (
        *("rte", "t.tsv", RTE, "0 | A |  | entailment"),
        *("1 | A | B | entailment", ["1"], ["0"]),
        [("line 2", "a text is empty")],
    ),
    # It does not make a class with an empty name.
    "no label": (
        *("classification", "t.csv", "text,pair,label", "fine,,pos", "meh,,"),
        *("bad,,neg", "so so,, ", ["0", "2"], []),
        [("line 3", "no label"), ("line 5", "no label")],
    ),
    "null as label": (
        *("classification", "t.jsonl", row("fine", True), row("meh", None)),
        *(row("bad", False), row("so so", ""), ["0", "2"], []),
        [("line 2", "no label"), ("line 4", "no label")],
    ),
    "an object without columns": (
        *("classification", "t.jsonl"),
        *(row("x", label) for label in [True, False] * 5),
        *('{"text": "x", "pair": "b"}', [*map(str, range(10))], []),
        [("line 11", "no label")],
    ),
    # JSON can encode a surrogate, but it has no UTF-8.
    "a surrogate": (
        *("classification", "t.jsonl"),
        row("\U0001f600", 1, note="\ud800"),  # no column of the task
        *(row("\ud83d", 1), row("c", 0), ["0", "2"], []),
        [("line 2", "unpaired surrogate U+D83D")],
    ),
    "a surrogate of SQuAD": (
        *("squad_v1", "t.json"),
        squad(entry(1, [("dog", 4)]), entry(2, [("\ud83d", 2)])),
        *(["q1"], [], [("q2", "unpaired surrogate U+D83D")]),
    ),
    "a lost answer": (
        *("squad_v1", "t.json"),
        squad(
            entry(1, [("dog", 5)]), entry(2, [("dog", 4)]), entry(3, [(" ", 3)])
        ),
        *(["q2"], ["q1", "q3"]),
        [("q1", LOST), ("q3", "the answer is empty")],
    ),
    "a row of several lines": (
        *("classification", "t.csv", "text,label", '"a\nb",1', ""),
        *('"c\nd",1,2', *ROWS[:9], "e,1"),
        *(["0", *map(str, range(2, 12))], []),
        [("line 5", "3 columns instead of 2")],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_examples_are_listed_and_not_trained_on(name, tmp_path):
    """They get a prediction where that is possible; or they are an error."""
    task, file, *lines, kept, predicted, bad = BAD[name]
    path = write(tmp_path, file, *lines)
    train, dev = (read_file(task, path, split) for split in ("train", "dev"))
    assert [example.id for example in train.examples] == kept
    ids = sorted(example.id for example in dev.examples)
    assert ids == sorted([*kept, *predicted])
    assert train.bad == dev.bad == bad
    assert (
        f"{len(bad)} bad examples: {': '.join(bad[0])}" in (train.describe()[1])
    )


def test_a_line_that_is_nested_too_deeply_is_malformed(tmp_path):
    lines = [row("x", n % 2) for n in range(20)]
    path = write(tmp_path, "t.jsonl", *lines, 100_000 * '{"a": ')
    ((line, reason),) = read_file("classification", path).bad
    # "Stack overflow" from Python 3.14 on.
    assert line == "line 21" and re.search("recursion|overflow", reason)


# --- tables as spreadsheets and people write them ----------------------------


def test_parquet_is_read(tmp_path):
    """Bytes that are not UTF-8 matter only in a column that is used."""
    table = {
        "text": [b"A caf\xc3\xa9.", b"B.", b"C \xe9."],
        "label": ["x", "y", "x"],
        "image": [b"\xff\xd8"] * 3,
    }
    path = str(tmp_path / "t.parquet")
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    found = read_file("classification", path)
    texts = [(example.text, example.label) for example in found.examples]
    assert texts == [("A café.", 0), ("B.", 1)]
    assert found.bad == [("row 2", "unpaired surrogate U+DCE9")]


def test_a_long_document_is_read(tmp_path):
    """The csv module by default refuses more than 131,072 characters."""
    text = f'"{"word " * 40_000}",1'
    path = write(tmp_path, "t.csv", "text,label", text, "a,0")
    found = read_file("classification", path)
    assert [len(e.text) for e in found.examples] == [200_000, 1]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(("name", "mark"), [("t.tsv", "\t"), ("t.csv", ",")])
def test_examples_are_numbered_by_their_row(tmp_path, name, mark, end):
    """A row of empty fields and a malformed row count, an empty line does
    not, also in a file of one column."""
    rows = ["text,pair", "", "a,b", ",", "", "malformed", "c,d", *["e,f"] * 9]
    rows = [row.replace(",", mark) for row in rows]
    path = write(tmp_path, name, *rows, newline=end)
    found = read_file("regression", path, "test", text_pair_column="pair")
    assert [(e.id, e.text) for e in found.examples[:3]] == [
        ("0", "a"),
        ("1", ""),
        ("3", "c"),
    ]
    assert found.bad == [
        ("line 6", "1 columns instead of 2"),
        ("line 4", "a text is empty"),
    ]
    path = write(tmp_path, name, "text", "a", "", " ", "b", newline=end)
    found = read_file("regression", path, "test").examples
    assert [(e.id, e.text) for e in found] == [
        ("0", "a"),
        ("1", " "),
        ("2", "b"),
    ]


# --- TensorFlow Datasets -----------------------------------------------------


@pytest.mark.tfds
def test_splits_of_tensorflow_datasets_are_read_as_files_are(
    tmp_path, monkeypatch
):
    import tensorflow_datasets as tfds

    def store(name, features, **splits):
        tfds.dataset_builders.store_as_tfds_dataset(
            name=name,
            version="1.0.0",
            data_dir=tmp_path,
            features=tfds.features.FeaturesDict(features),
            split_datasets={
                split: list(enumerate(rows)) for split, rows in splits.items()
            },
        )

    monkeypatch.setattr(
        tfds.core.constants, "DATA_DIR", str(tmp_path), raising=True
    )
    text = tfds.features.Text()
    store(
        "rte_like",
        {"a": text, "b": text, "label": tfds.features.ClassLabel(names="yn")},
        train=[{"a": "Zoé", "b": "I", "label": i} for i in (1, 0)],
        test=[{"a": "She", "b": "II", "label": -1}],
    )
    columns = {"text_column": "a", "text_pair_column": "b"}
    task = "classification"
    train = read_file(task, "tfds:rte_like:train", **columns)
    assert train.task.labels == ("n", "y")
    assert {e.label for e in train.examples} == {0, 1}
    assert train.examples[0][:3] == ("0", "Zoé", "I")
    test = read_file(task, "tfds:rte_like:test", "test", train.task, **columns)
    assert test.examples == [("0", "She", "II", None)]
    for source, message in (
        ("tfds:rte_like:dev", r"followed by :SPLIT.*:dev. It has test, train"),
        ("tfds:rte_lik:train", r"tfds must name.*rte_lik, .*TFDS_DATA_DIR"),
    ):
        with pytest.raises(UserError, match=message):
            read_file(task, source, **columns)

    names = tfds.features.ClassLabel(names=["O", "B-L"])
    sequences = map(tfds.features.Sequence, (text, names))
    store(
        "conll_like",
        dict(zip(("tokens", "tags"), sequences, strict=True)),
        train=[{"tokens": ["In", "Ischl"], "tags": [0, 1]}],
    )
    found = read_file("token_classification", "tfds:conll_like:train")
    assert found.examples[0].words == ("In", "Ischl")
    assert names_of_labels(found) == [["O", "B-L"]]

    answers = tfds.features.Sequence({"text": text, "answer_start": np.int32})
    row = {"context": "It is red.", "question": "What?", "id": "q"}
    store(
        "squad_like",
        {"id": text, "context": text, "question": text, "answers": answers},
        train=[{**row, "answers": {"text": ["red"], "answer_start": [6]}}],
    )
    (question,) = read_file(
        *("question_answering", "tfds:squad_like:train"),
        **{"text_column": "context", "label_column": "answers"},
        id_column="id",
    ).examples
    assert (question.id, question.answers) == ("q", (Answer("red", 6),))
