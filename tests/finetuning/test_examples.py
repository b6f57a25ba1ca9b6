"""Files in the layouts of official ones and of one's own, and bad input."""

import csv
import json
import pathlib

import pytest

from albert_tf.config.task import TaskConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.examples import read_examples
from albert_tf.records.documents import Answer


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


def read_own(task, path, split="train", before=None, **columns):
    """The examples of a file of one's own."""
    if task == "multiple_choice":
        columns.setdefault("choice_columns", ("x", "y"))
    config = TaskConfig(task=task, **{f"{split}_file": path}, **columns)
    return read_examples(config, split, before)


# --- GLUE --------------------------------------------------------------------

MRPC = "Quality | #1 ID | #2 ID | #1 String | #2 String"
STSB = "index | source1 | source2 | sentence1 | sentence2 | score"

# Task, file, its lines, and the examples of its split.
GLUE = [
    # CoLA has a header only in its test file.
    (
        *("cola", "train.tsv", 'gj04 | 1 |  | "Sue" is ill.', "g | 0 | * | I."),
        [("0", '"Sue" is ill.', None, 1), ("1", "I.", None, 0)],
    ),
    (
        *("cola", "test.tsv", "index | sentence", "7 | Bo ran."),
        [("7", "Bo ran.", None, None)],
    ),
    # Unclosed quotation marks and line separators of Unicode are characters.
    (
        *("sst2", "train.tsv", "sentence | label"),
        *('a "bad film | 0', "good\u2028 \x85film  | 1"),
        [
            ("0", 'a "bad film', None, 0),
            ("1", "good\u2028 \x85film ", None, 1),
        ],
    ),
    (
        *("mrpc", "train.tsv", MRPC, "1 | 11 | 12 | A b. | B a."),
        [("0", "A b.", "B a.", 1)],
    ),
    (
        *("mrpc", "test.tsv", MRPC.replace("Quality", "index")),
        *("5 | 13 | 14 | C. | D.", [("5", "C.", "D.", None)]),
    ),
    (
        *("stsb", "dev.tsv", STSB, "4 | x | y | A. | B. | 3.800"),
        [("4", "A.", "B.", 3.8)],
    ),
    # The diagnostic set has a file with labels, and one without.
    (
        *("ax", "diagnostic-full.tsv"),
        "Logic | Domain | Premise | Hypothesis | Label",
        "Negation | News | It is. | It is not. | contradiction",
        [("0", "It is.", "It is not.", 0)],
    ),
    (
        *("ax", "diagnostic.tsv", "index | sentence1 | sentence2"),
        *("0 | A | B", [("0", "A", "B", None)]),
    ),
]


@pytest.mark.parametrize("case", GLUE, ids=lambda case: " ".join(case[:2]))
def test_official_files_are_read(case, tmp_path):
    task, name, *lines, expected = case
    write(tmp_path, name, *lines)
    split = {"diagnostic-full": "dev", "diagnostic": "test"}
    split = split.get(name.removesuffix(".tsv"), name.removesuffix(".tsv"))
    assert read(tmp_path, task, split).examples == expected


def test_broken_lines_are_left_out_and_listed(tmp_path):
    """Questions of QQP contain line breaks, which tear a line in two."""
    good = [f"{i} | 1 | 2 | how {i}? | why {i}? | 1" for i in range(30)]
    write(
        tmp_path,
        "train.tsv",
        "id | qid1 | qid2 | question1 | question2 | is_duplicate",
        *good,
        "30 | 1 | 2 | how",
        "do I? | why? | 0",
    )
    found = read(tmp_path, "qqp", "train")
    assert len(found.examples) == 30
    assert found.examples[29] == ("29", "how 29?", "why 29?", 1)
    assert found.bad == [
        ("line 32", "4 columns instead of 6"),
        ("line 33", "3 columns instead of 6"),
    ]
    assert "2 bad examples: line 32: 4 columns" in found.describe()[1]
    with pytest.raises(UserError, match=r"line 32: 4 columns.*on_bad_example"):
        read(tmp_path, "qqp", "train", on_bad_example="error")


def test_mnli_has_two_sets_for_evaluation_and_lines_without_gold_label(
    tmp_path,
):
    write(
        tmp_path,
        "dev_mismatched.tsv",
        "index | genre | sentence1 | sentence2 | label1 | gold_label",
        "0 | g | He ran. | He moved. | neutral | entailment",
        "1 | g | He ran. | He sat. | neutral | -",
    )
    found = read(tmp_path, "mnli", "dev_mismatched")
    assert found.examples == [("0", "He ran.", "He moved.", 1)]
    assert found.bad == [("line 3", "no gold label")]
    with pytest.raises(UserError, match=r"must contain dev_matched.tsv"):
        read(tmp_path, "mnli", "dev")


def test_mrpc_is_read_in_the_layout_of_microsoft(tmp_path):
    """A byte order mark, CR LF, labels in the test file; the ids of GLUE say
    which lines are for evaluation."""
    write(
        tmp_path,
        "msr_paraphrase_train.txt",
        MRPC,
        "1 | 11 | 12 | A b. | B a.",
        "0 | 21 | 22 | E. | F.",
        newline="\r\n",
        encoding="utf-8-sig",
    )
    write(tmp_path, "msr_paraphrase_test.txt", MRPC, "1 | 13 | 14 | C. | D.")
    assert len(read(tmp_path, "mrpc", "train").examples) == 2
    with pytest.raises(UserError, match=r"dev_ids.tsv must exist to split"):
        read(tmp_path, "mrpc", "dev")
    write(tmp_path, "dev_ids.tsv", "21 | 22")
    assert read(tmp_path, "mrpc", "train").examples == [
        ("0", "A b.", "B a.", 1)
    ]
    assert read(tmp_path, "mrpc", "dev").examples == [("0", "E.", "F.", 0)]
    assert read(tmp_path, "mrpc", "test").examples == [("0", "C.", "D.", None)]


# By task, the header of its training file and a line of it.
TABLES = {
    "cola": ("", "gj04 | 1 |  | A."),
    "sst2": ("sentence | label", "A. | 1"),
    "mrpc": (MRPC, "1 | 11 | 12 | A. | B."),
    "stsb": (
        STSB,
        "0 | x | y | A. | B. | 3.8",
    ),
    "qqp": (
        "id | qid1 | qid2 | question1 | question2 | is_duplicate",
        "0 | 1 | 2 | A? | B? | 1",
    ),
    "mnli": (
        "index | genre | sentence1 | sentence2 | label1 | gold_label",
        "0 | g | A. | B. | neutral | neutral",
    ),
    "qnli": ("index | question | sentence | label", "0 | A? | B. | entailment"),
    "rte": (
        "index | sentence1 | sentence2 | label",
        "0 | A. | B. | entailment",
    ),
    "wnli": ("index | sentence1 | sentence2 | label", "0 | A. | B. | 1"),
}


@pytest.mark.parametrize("task", TABLES)
def test_a_task_refuses_the_training_file_of_every_other_task(task, tmp_path):
    """By its columns; where they are those of the task, by the labels."""
    for name, lines in TABLES.items():
        path = write(tmp_path, f"{name}.tsv", *filter(None, lines))
        config = TaskConfig(task=task, train_file=path)
        if name == task:
            assert len(read_examples(config, "train").examples) == 1
            continue
        with pytest.raises(UserError, match=f"{name}.tsv must (have|be)"):
            read_examples(config, "train")
    for path in (
        write(tmp_path, "squad.json", squad(entry(1, is_impossible=True))),
        write(tmp_path, "race/1.txt", json.dumps(race_passage())),
    ):
        with pytest.raises(UserError, match=path):
            read_examples(TaskConfig(task=task, train_file=path), "train")


def test_squad_and_race_refuse_files_and_directories_of_others(tmp_path):
    squad_file = write(tmp_path, "squad.json", squad(entry(1)))
    race_file = write(tmp_path, "race/1.txt", json.dumps(race_passage()))
    table = write(tmp_path, "sst2.tsv", *TABLES["sst2"])
    for task, path in (
        *(("race", path) for path in (squad_file, table)),
        *(
            ("squad_v1", path)
            for path in (race_file, table, str(tmp_path / "race"))
        ),
    ):
        with pytest.raises(UserError, match=f"{path} must"):
            read_examples(TaskConfig(task=task, train_file=path), "train")


def test_an_empty_text_is_not_trained_on_but_gets_a_prediction(tmp_path):
    header = "index | sentence1 | sentence2 | label"
    for name in ("train.tsv", "dev.tsv"):
        write(
            tmp_path,
            name,
            header,
            "0 | A |  | entailment",
            "1 | A | B | entailment",
        )
    train, dev = (read(tmp_path, "rte", s) for s in ("train", "dev"))
    assert [e.id for e in train.examples] == ["1"]
    assert [e.id for e in dev.examples] == ["0", "1"]
    assert train.bad == dev.bad == [("line 2", "a text is empty")]


# --- RACE --------------------------------------------------------------------


def race_passage(**changes):
    return {
        "id": "high1.txt",
        "article": "Ann saw\na dog.",
        "questions": ["Ann saw _ .", "Who saw it?"],
        "options": [["a dog", "a cat", "Bo", "us"], ["Ann", "Bo", "I", "he"]],
        "answers": ["A", "C"],
        **changes,
    }


def test_race_is_read_by_level(tmp_path):
    for level in ("middle", "high"):
        write(
            tmp_path,
            f"RACE/dev/{level}/1.txt",
            json.dumps(race_passage(id=level)),
        )
    both = read(tmp_path / "RACE", "race", "dev").examples
    assert [e.id for e in both] == ["middle-0", "middle-1", "high-0", "high-1"]
    high = read(tmp_path / "RACE", "race_high", "dev").examples
    assert high == both[2:]
    assert high[1] == (
        "high-1",
        "Ann saw\na dog.",
        "Who saw it?",
        ("Ann", "Bo", "I", "he"),
        2,
    )
    with pytest.raises(UserError, match=r"RACE/train/middle must have files"):
        read(tmp_path / "RACE", "race", "train")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": [["a"] * 3] * 2}, "must have 4 choices.*3 in high1.txt-0"),
        ({"answers": ["A", "E"]}, "choice 4, counted from 0, in high1.txt-1"),
        ({"answers": ["A"]}, "must be a JSON file of RACE.*ValueError"),
        ({"questions": None}, "must be a JSON file of RACE"),
    ],
)
def test_a_malformed_passage_of_race_is_named(tmp_path, changes, message):
    write(tmp_path, "dev/high/1.txt", json.dumps(race_passage(**changes)))
    with pytest.raises(UserError, match=message):
        read(tmp_path, "race_high", "dev")


# --- SQuAD -------------------------------------------------------------------


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


def test_squad_2_has_questions_without_answer(tmp_path):
    write(
        tmp_path,
        "dev-v2.0.json",
        squad(
            entry(1, [("The dog", 0), ("dog", 4)], is_impossible=False),
            entry(2, is_impossible=True, plausible_answers=[]),
        ),
    )
    first, second = read(tmp_path, "squad_v2", "dev").examples
    assert first.answers == (Answer("The dog", 0), Answer("dog", 4))
    assert (second.answers, second.is_impossible) == ((), True)


def test_the_files_of_the_two_squads_are_not_confused(tmp_path):
    one = write(tmp_path, "one.json", squad(entry(1, [("dog", 4)])))
    two = write(tmp_path, "two.json", squad(entry(1, is_impossible=True)))
    with pytest.raises(UserError, match=r"is_impossible.*--task=squad_v1"):
        read(tmp_path, "squad_v2", "dev", dev_file=one)
    with pytest.raises(UserError, match=r"in q1. Use --task=squad_v2"):
        read(tmp_path, "squad_v1", "dev", dev_file=two)


def test_an_answer_that_is_not_in_its_document_is_named(tmp_path):
    content = squad(
        entry(1, [("dog", 5)]), entry(2, [("dog", 4)]), entry(3, [(" ", 3)])
    )
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        write(tmp_path, name, content)
    train = read(tmp_path, "squad_v1", "train")
    assert [e.id for e in train.examples] == ["q2"]
    assert train.bad == [
        (
            "q1",
            "the document has 'og ' at answer_start 5, not the answer 'dog'",
        ),
        ("q3", "the answer is empty"),
    ]
    dev = read(tmp_path, "squad_v1", "dev")
    assert len(dev.examples) == 3 and dev.bad == train.bad
    with pytest.raises(UserError, match="q1: the document has 'og '"):
        read(tmp_path, "squad_v1", "train", on_bad_example="error")


def test_a_dev_set_without_answers_is_refused(tmp_path):
    path = write(tmp_path, "dev-v1.1.json", squad(entry(1)))
    with pytest.raises(UserError, match=r"must have answers.*--test_file"):
        read(tmp_path, "squad_v1", "dev")
    found = read(tmp_path, "squad_v1", "test", test_file=path)
    assert len(found.examples) == 1 and not found.bad
    without = entry(1)
    del without["answers"]
    write(tmp_path, "dev-v2.0.json", squad(without))
    with pytest.raises(
        UserError, match=r"question, answers.*'id', 'question'.*--test_file"
    ):
        read(tmp_path, "squad_v2", "dev")
    path = write(tmp_path, "d.jsonl", '{"text": "a"}')
    with pytest.raises(UserError, match=r"text, label.*: 'text'. .*test_file"):
        read_own("classification", path, "dev")


NO_DICTIONARIES = squad(entry(1, is_impossible=False) | {"answers": ["dog"]})
SAME_IDS = squad(*[entry(7, [("dog", 4)], is_impossible=False)] * 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"paragraphs": []}', "no 'data'"),
        ('{"data": []}', "must have usable examples. Received: none"),
        ('{"data": [{"paragraphs": [{"qas": [{}]}]}]}', "no 'context'"),
        ("sentence\tlabel", "must be a JSON file in the format of SQuAD"),
        (100_000 * "[", "must be a JSON file in the format of SQuAD"),
        (NO_DICTIONARIES, "answers of .* must be a text.* in q1"),
        (SAME_IDS, "must have different ids.*q7"),
    ],
    ids=range(7),
)
def test_a_file_that_is_not_squad_is_refused(tmp_path, content, message):
    write(tmp_path, "dev-v2.0.json", content)
    with pytest.raises(UserError, match=message):
        read(tmp_path, "squad_v2", "dev")


# --- files of one's own ------------------------------------------------------


def test_labels_of_ones_own_are_collected_from_the_training_file(tmp_path):
    """Labels of the same value have a fixed order."""
    train = write(
        tmp_path, "t.csv", "text,category", '"a, ""b""\nc",10', "d,9", "e,10"
    )
    dev = write(tmp_path, "d.csv", "text,category", "x,11")
    found = read_own("classification", train, label_column="category")
    assert found.task.labels == ("9", "10")
    assert found.examples[0] == ("0", 'a, "b"\nc', None, 1)
    with pytest.raises(UserError, match=r"9; 10.*'11' in line 2"):
        read_own(
            "classification", dev, "dev", found.task, label_column="category"
        )
    rows = [f'text,"{label}"' for label in ("1", "01", "1 ", "0")]
    found = read_own(
        "classification", write(tmp_path, "t.csv", "text,label", *rows)
    )
    assert found.task.labels == ("0", "01", "1", "1 ")


def test_json_lines_have_named_columns(tmp_path):
    """A line that is nested too deeply is malformed, like one without label."""
    path = write(
        tmp_path,
        "t.jsonl",
        *(
            json.dumps({"a": "x", "b": "y", "label": label, "n": n})
            for n, label in enumerate([True, False] * 10)
        ),
        '{"a": "no label"}',
        100_000 * "[",
    )
    found = read_own(
        "classification",
        path,
        text_column="a",
        text_pair_column="b",
        id_column="n",
    )
    assert found.task.labels == ("False", "True")
    assert found.examples[1] == ("1", "x", "y", 0)
    first, (line, reason) = found.bad
    assert first == ("line 21", "no b, label, n")
    assert line == "line 22" and "recursion" in reason


def test_choices_are_columns_or_a_list(tmp_path):
    table = write(tmp_path, "t.csv", "text,question,c0,c1,label", "p,q?,x,y,1")
    lines = write(
        tmp_path,
        "t.jsonl",
        json.dumps(
            {"text": "p", "question": "q?", "cs": ["x", "y"], "label": "B"}
        ),
    )
    for path, columns in ((table, ("c0", "c1")), (lines, ("cs",))):
        found = read_own("multiple_choice", path, choice_columns=columns)
        assert found.examples == [("0", "p", "q?", ("x", "y"), 1)]
        assert found.task.num_choices == 2


@pytest.mark.parametrize(
    ("label", "index"), [("b", 1), ("B", 1), (" a", 0), ("1", 1)]
)
def test_a_choice_is_a_letter_of_any_case_or_a_number(tmp_path, label, index):
    path = write(
        tmp_path, "t.csv", "text,question,x,y,label", f"p,q,c,d,{label}"
    )
    assert read_own("multiple_choice", path).examples[0].label == index


def test_questions_of_ones_own_are_read_from_tables(tmp_path):
    header = "text | question | answer | answer_start"
    path = write(
        tmp_path, "t.tsv", header, "A dog. | Who? | dog | 2", "A. | Who? |  | "
    )
    nested = {"text": ["dog"], "answer_start": [2]}
    lines = write(
        tmp_path,
        "t.jsonl",
        json.dumps({"text": "A dog.", "question": "Who?", "answer": nested}),
    )
    first, second = read_own("question_answering", path).examples
    assert first.answers == (Answer("dog", 2),) and not first.is_impossible
    assert second.answers == () and second.is_impossible
    assert read_own("question_answering", lines).examples == [first]


QUESTIONS = "text,question,answer,answer_start,is_impossible"


@pytest.mark.parametrize(
    ("true", "false"), [("True", "False"), ("TRUE", "false"), ("1", "0")]
)
def test_impossible_questions_are_marked(tmp_path, true, false):
    """In JSON also by numbers and truth values."""
    rows = f"a dog,who?,dog,2,{false}", f"a dog,why?,,,{true}"
    path = write(tmp_path, "t.csv", QUESTIONS, *rows)
    found = read_own("question_answering", path)
    assert [q.is_impossible for q in found.examples] == [False, True]
    assert not found.bad
    row = {"text": "a dog", "question": "who?", "answer": "dog"}
    lines = [
        json.dumps({**row, "answer_start": 2, "is_impossible": value})
        for value in (false, False, 0)
    ]
    path = write(tmp_path, "t.jsonl", *lines)
    found = read_own("question_answering", path)
    assert [q.is_impossible for q in found.examples] == [False] * 3


@pytest.mark.parametrize(
    ("task", "lines", "message"),
    [
        (
            "regression",
            ("text,label", "a,abc"),
            r"label of .*t\.csv must be a finite number\. "
            "Received: 'abc' in line 2",
        ),
        ("regression", ("text,label", "a,inf"), "must be a finite number"),
        (
            "stsb",
            (STSB, "4 | x | y | A. | B. | nan"),
            r"score of .*t\.tsv.*'nan' in line 2",
        ),
        (
            "multiple_choice",
            ("text,question,x,y,label", "a,b,c,d,1st"),
            "must be the number of a choice from 0, or a letter from A.*'1st'",
        ),
        (
            "multiple_choice",
            ("text,question,x,y,label", "a,b,c,d,AB"),
            "or a letter from A.*'AB'",
        ),
        (
            "question_answering",
            ("text,question,answer,answer_start", "a dog,who?,dog,second"),
            "answer of .* must be a text, with a number as.*'second'",
        ),
        *(
            (
                "question_answering",
                (QUESTIONS, f"a dog,who?,dog,2,{value}"),
                f"true, false, 1 or 0. Received: '{value}' in line 2",
            )
            for value in ("no", "", "2")
        ),
        (
            "classification",
            ("text,label", "a,1", "b,1"),
            "at least two classes",
        ),
        ("rte", TABLES["sst2"], r"sentence1.*'sentence', 'label'"),
        # CoLA has no header; the number of columns differs.
        ("cola", TABLES["sst2"], "--task=cola.*2 columns instead of 4"),
        (
            "rte",
            ("index | sentence1 | sentence2 | label", "0 | A | B | neutral"),
            r"entailment.*'neutral' in line 2",
        ),
    ],
)
def test_a_training_file_that_does_not_fit_is_refused(
    tmp_path, task, lines, message
):
    name = "t.tsv" if " | " in lines[0] else "t.csv"
    with pytest.raises(UserError, match=message):
        read_own(task, write(tmp_path, name, *lines))


@pytest.mark.parametrize("split", ["train", "dev"])
@pytest.mark.parametrize(
    ("name", "lines", "line"),
    [
        ("t.csv", ("text,label", "fine,pos", "meh,", "bad,neg", "so so, "), 3),
        (
            "t.jsonl",
            [
                json.dumps({"text": text, "label": label})
                for text, label in (
                    ("fine", "pos"),
                    ("meh", None),
                    ("bad", "neg"),
                    ("so so", ""),
                )
            ],
            2,
        ),
    ],
)
def test_an_example_without_label_is_left_out(
    tmp_path, split, name, lines, line
):
    """It does not make a class with an empty name."""
    path = write(tmp_path, name, *lines)
    found = read_own("classification", path, split)
    assert found.task.labels == ("neg", "pos")
    assert [e.text for e in found.examples] == ["fine", "bad"]
    assert found.bad == [
        (f"line {line}", "no label"),
        (f"line {line + 2}", "no label"),
    ]
    with pytest.raises(UserError, match=f"line {line}: no label"):
        read_own("classification", path, split, on_bad_example="error")


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
    path = write(tmp_path, "t.jsonl", *map(json.dumps, [good, bad, good]))
    columns = {"choice_columns": ("choices",)}
    found = read_own("multiple_choice", path, split, **columns)
    assert [example.id for example in found.examples] == ["0", "2"]
    code = "U+DFFF" if column == "choices" else "U+D83D"
    assert found.bad == [("line 2", f"unpaired surrogate {code}")]
    with pytest.raises(UserError, match="line 2: unpaired surrogate"):
        read_own(
            "multiple_choice", path, split, on_bad_example="error", **columns
        )


def test_a_surrogate_in_a_file_of_squad_is_named_by_its_question(tmp_path):
    content = squad(entry(1, [("dog", 4)]), entry(2, [("\ud83d", 2)]))
    write(tmp_path, "train-v1.1.json", content)
    found = read(tmp_path, "squad_v1", "train")
    assert [example.id for example in found.examples] == ["q1"]
    assert found.bad == [("q2", "unpaired surrogate U+D83D")]


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_questions_with_the_same_id_are_refused(tmp_path, split):
    """Their answers would overwrite each other in files of predictions."""
    rows = [f"a dog,who?,dog,2,{key}" for key in ("q7", "q8", "q7")]
    path = write(
        tmp_path, "t.csv", "text,question,answer,answer_start,key", *rows
    )
    assert len(read_own("question_answering", path, split).examples) == 3
    message = r"t\.csv must have different ids\. Received: q7, more than once"
    with pytest.raises(UserError, match=message):
        read_own("question_answering", path, split, id_column="key")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"t.csv must be a readable file"):
        read_own("classification", str(tmp_path / "t.csv"))
    with pytest.raises(UserError, match="Set --dev_file"):
        read_examples(TaskConfig(task="classification"), "dev")
    with pytest.raises(UserError, match=r"end in .tsv, .csv or .jsonl"):
        read_own("classification", "t.parquet")


# --- tables as spreadsheets and people write them ----------------------------

ROWS = [f"text {number},{number % 2}" for number in range(50)]


def read_rows(directory, *rows):
    return read_own(
        "classification", write(directory, "t.csv", "text,label", *rows)
    )


@pytest.mark.parametrize("rest", [ROWS, [*ROWS, '"quoted, too",1']])
def test_an_unclosed_quotation_mark_is_refused_with_its_line(tmp_path, rest):
    """The rest of the file, up to the next mark, would be a part of a text."""
    message = r"t\.csv must enclose.* in the row that begins in line 52"
    with pytest.raises(UserError, match=message):
        read_rows(tmp_path, *ROWS, '"c,1', *rest)


def test_a_row_of_several_lines_is_named_by_its_first_line(tmp_path):
    found = read_rows(tmp_path, '"a\nb",1', "", '"c\nd",1,2', *ROWS, 'e "f",1')
    assert found.bad == [("line 5", "3 columns instead of 2")]
    assert found.examples[0].text == "a\nb"
    assert found.examples[-1].text == 'e "f"'


def test_a_long_document_is_read(tmp_path):
    """The csv module by default refuses more than 131,072 characters."""
    limit = csv.field_size_limit()
    found = read_rows(tmp_path, f'"{"word " * 40_000}",1', "a,0")
    assert [len(e.text) for e in found.examples] == [200_000, 1]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(("name", "mark"), [("t.tsv", "\t"), ("t.csv", ",")])
def test_examples_are_numbered_by_their_row(tmp_path, name, mark, end):
    """A row of empty fields and a malformed row count, an empty line does
    not."""
    rows = ["text,pair", "", "a,b", ",", "", "malformed", "c,d", *["e,f"] * 9]
    rows = [row.replace(",", mark) for row in rows]
    path = write(tmp_path, name, *rows, newline=end)
    found = read_own("regression", path, "test", text_pair_column="pair")
    assert [(e.id, e.text) for e in found.examples[:3]] == [
        ("0", "a"),
        ("1", ""),
        ("3", "c"),
    ]
    assert found.bad == [
        ("line 6", "1 columns instead of 2"),
        ("line 4", "a text is empty"),
    ]


@pytest.mark.parametrize("name", ["t.tsv", "t.csv"])
def test_an_empty_line_is_no_row_of_one_column(tmp_path, name):
    path = write(tmp_path, name, "text", "a", "", " ", "b")
    found = read_own("regression", path, "test")
    assert [tuple(e)[:2] for e in found.examples] == [
        ("0", "a"),
        ("1", " "),
        ("2", "b"),
    ]
