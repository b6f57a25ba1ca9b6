"""Files written here in the layouts of the official ones, and bad input."""

import json
import pathlib

import pytest

from albert_tf.config.task import TaskConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.examples import read_examples
from albert_tf.records.documents import Answer


def write(directory, name, *lines, newline="\n", encoding="utf-8"):
    path = pathlib.Path(directory, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((newline.join(lines) + newline).encode(encoding))
    return str(path)


def tabs(line):
    """One line of a TSV file, written with " | " for a tab."""
    return line.replace(" | ", "\t")


def write_tsv(directory, name, *lines, **options):
    return write(directory, name, *map(tabs, lines), **options)


def read(directory, task, split, **settings):
    config = TaskConfig(task=task, data_dir=str(directory), **settings)
    return read_examples(config, split)


def test_cola_has_a_header_only_in_its_test_file(tmp_path):
    write_tsv(
        tmp_path,
        "train.tsv",
        'gj04 | 1 |  | "Sue" is ill.',
        "gj04 | 0 | * | Sue ill.",
    )
    write_tsv(tmp_path, "test.tsv", "index | sentence", "7 | Bo ran.")
    train = read(tmp_path, "cola", "train").examples
    assert train == [
        ("0", '"Sue" is ill.', None, 1),
        ("1", "Sue ill.", None, 0),
    ]
    assert read(tmp_path, "cola", "test").examples == [
        ("7", "Bo ran.", None, None)
    ]


def test_a_quotation_mark_in_a_tsv_file_is_a_character(tmp_path):
    """So are an unclosed quotation mark and Unicode line separators."""
    write_tsv(
        tmp_path,
        "train.tsv",
        "sentence | label",
        'a "bad film | 0',
        "good\u2028 \x85film  | 1",
    )
    texts = [e.text for e in read(tmp_path, "sst2", "train").examples]
    assert texts == ['a "bad film', "good\u2028 \x85film "]


def test_broken_lines_are_left_out_and_listed(tmp_path):
    """Questions of QQP contain line breaks, which tear a line in two."""
    good = [f"{i} | 1 | 2 | how {i}? | why {i}? | 1" for i in range(30)]
    write_tsv(
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
    header = "index | genre | sentence1 | sentence2 | label1 | gold_label"
    write_tsv(
        tmp_path,
        "dev_mismatched.tsv",
        header,
        "0 | g | He ran. | He moved. | neutral | entailment",
        "1 | g | He ran. | He sat. | neutral | -",
    )
    found = read(tmp_path, "mnli", "dev_mismatched")
    assert found.examples == [("0", "He ran.", "He moved.", 1)]
    assert found.bad == [("line 3", "no gold label")]
    with pytest.raises(UserError, match=r"must contain dev_matched.tsv"):
        read(tmp_path, "mnli", "dev")


MRPC = "Quality | #1 ID | #2 ID | #1 String | #2 String"


def test_mrpc_is_read_in_the_layout_of_glue(tmp_path):
    write_tsv(tmp_path, "train.tsv", MRPC, "1 | 11 | 12 | A b. | B a.")
    write_tsv(
        tmp_path,
        "test.tsv",
        MRPC.replace("Quality", "index"),
        "5 | 13 | 14 | C. | D.",
    )
    assert read(tmp_path, "mrpc", "train").examples == [
        ("0", "A b.", "B a.", 1)
    ]
    assert read(tmp_path, "mrpc", "test").examples == [("5", "C.", "D.", None)]


def test_mrpc_is_read_in_the_layout_of_microsoft(tmp_path):
    """A byte order mark, CR LF, labels in the test file; the ids of GLUE say
    which lines are for evaluation."""
    write_tsv(
        tmp_path,
        "msr_paraphrase_train.txt",
        MRPC,
        "1 | 11 | 12 | A b. | B a.",
        "0 | 21 | 22 | E. | F.",
        newline="\r\n",
        encoding="utf-8-sig",
    )
    write_tsv(
        tmp_path, "msr_paraphrase_test.txt", MRPC, "1 | 13 | 14 | C. | D."
    )
    assert len(read(tmp_path, "mrpc", "train").examples) == 2
    with pytest.raises(UserError, match=r"dev_ids.tsv must exist to split"):
        read(tmp_path, "mrpc", "dev")
    write_tsv(tmp_path, "dev_ids.tsv", "21 | 22")
    assert read(tmp_path, "mrpc", "train").examples == [
        ("0", "A b.", "B a.", 1)
    ]
    assert read(tmp_path, "mrpc", "dev").examples == [("0", "E.", "F.", 0)]
    assert read(tmp_path, "mrpc", "test").examples == [("0", "C.", "D.", None)]


def test_stsb_has_values_as_labels(tmp_path):
    header = "index | source1 | source2 | sentence1 | sentence2 | score"
    path = write_tsv(tmp_path, "dev.tsv", header, "4 | x | y | A. | B. | 3.800")
    assert read(tmp_path, "stsb", "dev").examples == [("4", "A.", "B.", 3.8)]
    write_tsv(tmp_path, "dev.tsv", header, "4 | x | y | A. | B. | nan")
    with pytest.raises(UserError, match=rf"score of {path}.*'nan' in line 2"):
        read(tmp_path, "stsb", "dev")


def test_the_diagnostic_set_has_a_file_with_labels_and_one_without(tmp_path):
    write_tsv(
        tmp_path,
        "diagnostic-full.tsv",
        "Logic | Domain | Premise | Hypothesis | Label",
        "Negation | News | It is. | It is not. | contradiction",
    )
    write_tsv(
        tmp_path, "diagnostic.tsv", "index | sentence1 | sentence2", "0 | A | B"
    )
    assert read(tmp_path, "ax", "dev").examples == [
        ("0", "It is.", "It is not.", 0)
    ]
    assert read(tmp_path, "ax", "test").examples == [("0", "A", "B", None)]


def test_a_file_of_another_task_is_refused_with_its_columns(tmp_path):
    write_tsv(tmp_path, "train.tsv", "sentence | label", "good | 1")
    with pytest.raises(UserError, match=r"sentence1.*'sentence', 'label'"):
        read(tmp_path, "rte", "train")
    # CoLA has no header; the number of columns differs.
    with pytest.raises(UserError, match=r"source, label.*: 'sentence', 'label"):
        read(tmp_path, "cola", "train")


# By task, the header of its training file and a line of it.
TABLES = {
    "cola": ("", "gj04 | 1 |  | A."),
    "sst2": ("sentence | label", "A. | 1"),
    "mrpc": (MRPC, "1 | 11 | 12 | A. | B."),
    "stsb": (
        "index | source1 | source2 | sentence1 | sentence2 | score",
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
    """Where the columns are those of the task, it refuses the labels."""
    for name, lines in TABLES.items():
        path = write_tsv(tmp_path, f"{name}.tsv", *filter(None, lines))
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
    table = write_tsv(tmp_path, "sst2.tsv", *TABLES["sst2"])
    for task, path in (
        *(("race", path) for path in (squad_file, table)),
        *(
            ("squad_v1", path)
            for path in (race_file, table, str(tmp_path / "race"))
        ),
    ):
        with pytest.raises(UserError, match=f"{path} must"):
            read_examples(TaskConfig(task=task, train_file=path), "train")


def test_an_unknown_label_is_refused_with_its_line(tmp_path):
    header = "index | sentence1 | sentence2 | label"
    write_tsv(tmp_path, "train.tsv", header, "0 | A | B | neutral")
    with pytest.raises(UserError, match=r"entailment.*'neutral' in line 2"):
        read(tmp_path, "rte", "train")


def test_an_empty_text_is_not_trained_on_but_gets_a_prediction(tmp_path):
    header = "index | sentence1 | sentence2 | label"
    for name in ("train.tsv", "dev.tsv"):
        write_tsv(
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
        read_own("classification", "dev", path)


NO_DICTIONARIES = squad(entry(1, is_impossible=False) | {"answers": ["dog"]})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"paragraphs": []}', "no 'data'"),
        ('{"data": []}', "must have usable examples. Received: none"),
        ('{"data": [{"paragraphs": [{"qas": [{}]}]}]}', "no 'context'"),
        ("sentence\tlabel", "must be a JSON file in the format of SQuAD"),
        (NO_DICTIONARIES, "answers of .* must be a text.* in q1"),
    ],
)
def test_a_file_that_is_not_squad_is_refused(tmp_path, content, message):
    write(tmp_path, "dev-v2.0.json", content)
    with pytest.raises(UserError, match=message):
        read(tmp_path, "squad_v2", "dev")


def read_own(task, split, path, task_before=None, **columns):
    config = TaskConfig(task=task, **{f"{split}_file": path}, **columns)
    return read_examples(config, split, task_before)


def test_labels_of_ones_own_are_collected_from_the_training_file(tmp_path):
    train = write(
        tmp_path, "t.csv", "text,category", '"a, ""b""\nc",10', "d,9", "e,10"
    )
    dev = write(tmp_path, "d.csv", "text,category", "x,11")
    found = read_own("classification", "train", train, label_column="category")
    assert found.task.labels == ("9", "10")
    assert found.examples[0] == ("0", 'a, "b"\nc', None, 1)
    with pytest.raises(UserError, match=r"9; 10.*'11' in line 2"):
        read_own(
            "classification", "dev", dev, found.task, label_column="category"
        )


def test_json_lines_have_named_columns(tmp_path):
    path = write(
        tmp_path,
        "t.jsonl",
        *(
            json.dumps({"a": "x", "b": "y", "label": label, "n": n})
            for n, label in enumerate([True, False] * 10)
        ),
        '{"a": "no label"}',
    )
    found = read_own(
        "classification",
        "train",
        path,
        text_column="a",
        text_pair_column="b",
        id_column="n",
    )
    assert found.task.labels == ("False", "True")
    assert found.examples[1] == ("1", "x", "y", 0)
    assert found.bad == [("line 21", "no b, label, n")]


def test_a_training_file_with_one_class_is_refused(tmp_path):
    path = write(tmp_path, "t.csv", "text,label", "a,1", "b,1")
    with pytest.raises(UserError, match="at least two classes"):
        read_own("classification", "train", path)


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
        found = read_own(
            "multiple_choice", "train", path, choice_columns=columns
        )
        assert found.examples == [("0", "p", "q?", ("x", "y"), 1)]
        assert found.task.num_choices == 2


def test_questions_of_ones_own_are_read_from_tables(tmp_path):
    header = "text | question | answer | answer_start"
    path = write_tsv(
        tmp_path, "t.tsv", header, "A dog. | Who? | dog | 2", "A. | Who? |  | "
    )
    nested = {"text": ["dog"], "answer_start": [2]}
    lines = write(
        tmp_path,
        "t.jsonl",
        json.dumps({"text": "A dog.", "question": "Who?", "answer": nested}),
    )
    first, second = read_own("question_answering", "train", path).examples
    assert first.answers == (Answer("dog", 2),) and not first.is_impossible
    assert second.answers == () and second.is_impossible
    assert read_own("question_answering", "train", lines).examples == [first]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"t.csv must be a readable file"):
        read_own("classification", "train", str(tmp_path / "t.csv"))
    with pytest.raises(UserError, match="Set --dev_file"):
        read_examples(TaskConfig(task="classification"), "dev")
    with pytest.raises(UserError, match=r"end in .tsv, .csv or .jsonl"):
        read_own("classification", "train", "t.parquet")
