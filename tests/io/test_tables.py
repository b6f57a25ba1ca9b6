"""What csv, json and pyarrow write is read back; what is odd is named."""

import csv
import io
import json

import hypothesis
import pyarrow.parquet
import pytest
from hypothesis import strategies as st

from albert_tf.errors import UserError
from albert_tf.io import tables

NAMES = ("text", "label")

MARKS = "ab,;|\t\"'\n\r é漢😀[]{}:\\\u2028"
CELLS = st.text(st.sampled_from(MARKS), max_size=9)

ROWS = st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5)


def blocks_of(content, size):
    return [content[i : i + size] for i in range(0, len(content), size)]


def read_csv(content, size=1 << 20, is_csv=True):
    lines = tables.read_lines(blocks_of(content, size), "a.csv")
    return list(tables.open_table(lines, "a.csv", is_csv, wanted=NAMES).rows)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(
    rows=ROWS,
    size=st.integers(1, 30),
    mark=st.sampled_from(",;|\t"),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    bom=st.booleans(),
)
def test_what_csv_writes_is_read(rows, size, mark, end, bom):
    stored = io.StringIO(newline="")
    writer = csv.writer(
        stored, delimiter=mark, lineterminator=end, quoting=csv.QUOTE_ALL
    )
    writer.writerows([NAMES, *rows])
    content = stored.getvalue().encode("utf-8-sig" if bom else "utf-8")
    found = [values for _, values in read_csv(content, size)]
    assert found == [dict(zip(NAMES, row, strict=True)) for row in rows]


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(
    rows=ROWS,
    size=st.integers(1, 30),
    indent=st.sampled_from([None, 1]),
    is_list=st.booleans(),
    ascii_only=st.booleans(),
)
def test_what_json_writes_is_read(rows, size, indent, is_list, ascii_only):
    objects = [{"text": a, "more": [{"b": b}]} for a, b in rows]
    settings = {"indent": indent, "ensure_ascii": ascii_only}
    content = "\n".join(json.dumps(o, **settings) for o in objects)
    if is_list:
        content = json.dumps(objects, **settings)
    found = tables.read_json(blocks_of(content.encode(), size), "a")
    assert [values for _, values in found] == objects


@pytest.mark.parametrize(
    "kind",
    [
        pyarrow.string(),
        pyarrow.large_string(),
        pyarrow.string_view(),
        pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
        pyarrow.json_(pyarrow.string()),
        pyarrow.null(),
    ],
)
def test_what_pyarrow_writes_is_read(tmp_path, kind):
    texts = ['"a"', None, '"b\\n"'] * 50
    if kind == pyarrow.null():
        texts = [None] * 150
    path = str(tmp_path / "a")
    table = {"text": pyarrow.array(texts, kind), "n": range(150)}
    pyarrow.parquet.write_table(pyarrow.table(table), path, row_group_size=40)
    found = tables.open_parquet(path)
    assert found.columns == {"text": True, "n": False}
    assert found.num_rows == 150
    assert list(found.rows) == [
        (f"row {n}", {"text": text, "n": n}) for n, text in enumerate(texts)
    ]
    only = list(tables.open_parquet(path, ["n"]).rows)
    assert only[7] == ("row 7", {"n": 7})


def test_damaged_and_odd_parquet_is_refused(tmp_path):
    """A page with other bytes than its checksum says, equal names, and bytes
    that are not UTF-8."""
    texts = [f"Concert {n} began." for n in range(40)]
    path = str(tmp_path / "a.parquet")
    pyarrow.parquet.write_table(
        pyarrow.table({"text": texts}),
        path,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    with open(path, "rb") as file:
        content = file.read()
    damaged = content.replace(b"Concert 17", b"Konzert 17")
    assert damaged != content
    for changed in (damaged, content[:-20]):
        with open(path, "wb") as file:
            file.write(changed)
        with pytest.raises(UserError, match="must be a complete Parquet file"):
            list(tables.open_parquet(path).rows)
    twice = pyarrow.Table.from_arrays([texts, texts], names=["text", "text"])
    pyarrow.parquet.write_table(twice, path)
    with pytest.raises(UserError, match="'text' more than once"):
        tables.open_parquet(path)
    pyarrow.parquet.write_table(pyarrow.table({"text": [b"A", b"\xe9"]}), path)
    texts = [values["text"] for _, values in tables.open_parquet(path).rows]
    assert texts == ["A", "\udce9"]


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        # A mark in a text makes a cell of its own.
        (
            b"text;label\nA; b;1\nC;0\n",
            ["3 columns instead of 2", {"text": "C", "label": "0"}],
        ),
        # Names with a line break, and a last line of a blank.
        (b'text,label\nA,"b\nc"\n \n', [{"text": "A", "label": "b\nc"}]),
        # The delimiter is that of the wanted columns.
        (b"text|label\nA,b|1\n", [{"text": "A,b", "label": "1"}]),
        (b"text,label\rA,1\r", [{"text": "A", "label": "1"}]),
        (b"text,label\n,\n\n", [{"text": "", "label": ""}]),
        (b"text,label\n", []),
        (b"", []),
    ],
)
def test_rows_of_csv_are_counted_cells(content, rows):
    assert [values for _, values in read_csv(content)] == rows


def test_quotes_of_tsv_are_characters():
    """Unless they are doubled, and all rows fit with them."""
    content = b'text\tlabel\n"We waited, he wrote.\t1\nIt rained."\t0\n'
    lines = content.decode().split("\n")
    assert not tables.has_quotes(lines, "a.tsv")
    rows = read_csv(content, is_csv=False)
    assert rows[0] == (
        "line 2",
        {"text": '"We waited, he wrote.', "label": "1"},
    )
    doubled = ["text\tlabel", '"Say ""a"",', 'b."\t1']
    assert tables.has_quotes(doubled, "a.tsv")
    assert not tables.has_quotes([*doubled, 'c "" d\te\tf'], "a.tsv")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'text,label\nA,1\n"B,1\n', r"quotation marks in a\.csv.* line 3"),
        (b"text,label\n" + b"a" * 60, r"line 2 of a\.csv.*at most 50"),
        (b'text,label\n"' + b"a\n" * 60, "begins in line 2: a cell.*at most"),
        (b"text,label\nA\0,1\n", "line 2 of a.csv .*zero byte at byte 1"),
        (b"text,label\nA,1\n\xe9,1\n", "line 3 of a.csv must be UTF-8.*iconv"),
        (b"text,label,text\n", "'text' more than once.*Rename"),
        (b"sep=;\ntext;label\n", "names of the columns.*tail"),
    ],
)
def test_a_damaged_table_is_refused_by_line(content, message, monkeypatch):
    monkeypatch.setattr(tables, "LONGEST_CELL", 50)
    limit = csv.field_size_limit()  # of the process
    with pytest.raises(UserError, match=message):
        read_csv(content, 20)
    csv.field_size_limit(limit)


def test_reading_of_json_goes_on_after_a_malformed_line():
    content = b'{"a": 1}\n{"a": 1, "a": 2}\n{"a" 3}\n[5]\n{"a": "x\n{"a": 4}\n'
    found = dict(tables.read_json(blocks_of(content, 7), "a"))
    assert found["line 1"] == {"a": 1}
    assert "a name more than once in ['a', 'a']" in found["line 2"]
    assert "Expecting ':' delimiter" in found["line 3"]
    assert found["line 4"] == "5 instead of a JSON object"
    assert "Expecting" in found["line 5"]
    assert found["line 6"] == {"a": 4}


def test_a_list_of_json_must_end():
    (_, first), last = tables.read_json([b'\n[{"a": 1},\n'], "a")
    assert first == {"a": 1} and last == ("line 3", "a list without an end")


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"PARE", "encrypted Parquet.*without encryption"),
        (b"ORC", r"ORC.*pyarrow\.orc\.read_table"),
        (b"ARROW1\0\0", r"Arrow file.*pyarrow\.feather\.read_table"),
        (b"\xff\xff\xff\xff\x88", "stream of Arrow.*open_stream"),
        (b"\xff\xfea\0", "UTF-16.*iconv"),
        (b"PK\x03\x04", "Excel.*as CSV"),
        (b" " * 257 + b"ustar", "tar archive"),
    ],
)
def test_other_formats_are_named(head, message):
    with pytest.raises(UserError, match=message):
        tables.check_format(head, "a")
