"""TSV and CSV files as spreadsheets and people write them."""

import csv

import pytest

from albert_tf.config.task import TaskConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.examples import read_examples

ROWS = [f"text {number},{number % 2}" for number in range(50)]


def read_rows(path, *rows):
    path.write_text("\n".join(["text,label", *rows, ""]))
    config = TaskConfig(task="classification", train_file=str(path))
    return read_examples(config, "train")


@pytest.mark.parametrize("rest", [ROWS, [*ROWS, '"quoted, too",1']])
def test_an_unclosed_quotation_mark_is_refused_with_its_line(tmp_path, rest):
    """The rest of the file, up to the next mark, would be a part of a text."""
    message = r"t\.csv must enclose.* in the row that begins in line 52"
    with pytest.raises(UserError, match=message):
        read_rows(tmp_path / "t.csv", *ROWS, '"c,1', *rest)


def test_a_row_of_several_lines_is_named_by_its_first_line(tmp_path):
    found = read_rows(
        tmp_path / "t.csv", '"a\nb",1', "", '"c\nd",1,2', *ROWS, 'e "f",1'
    )
    assert found.bad == [("line 5", "3 columns instead of 2")]
    assert found.examples[0].text == "a\nb"
    assert found.examples[-1].text == 'e "f"'


def test_a_long_document_is_read(tmp_path):
    """The csv module by default refuses more than 131,072 characters."""
    limit = csv.field_size_limit()
    found = read_rows(tmp_path / "t.csv", f'"{"word " * 40_000}",1', "a,0")
    assert [len(e.text) for e in found.examples] == [200_000, 1]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(("name", "mark"), [("t.tsv", "\t"), ("t.csv", ",")])
def test_examples_are_numbered_by_their_row(tmp_path, name, mark, end):
    """A row of empty fields and a malformed row count, an empty line does
    not."""
    rows = ["text,pair", "", "a,b", ",", "", "malformed", "c,d", *["e,f"] * 9]
    path = tmp_path / name
    path.write_bytes(end.join([*rows, ""]).replace(",", mark).encode())
    found = read_examples(
        TaskConfig(
            task="regression", test_file=str(path), text_pair_column="pair"
        ),
        "test",
    )
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
    path = tmp_path / name
    path.write_text("text\na\n\n \nb\n")
    config = TaskConfig(task="regression", test_file=str(path))
    found = read_examples(config, "test")
    assert [tuple(e)[:2] for e in found.examples] == [
        ("0", "a"),
        ("1", " "),
        ("2", "b"),
    ]
