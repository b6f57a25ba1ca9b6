"""Text files, JSON lines, and sentences."""

import bz2
import collections
import dataclasses
import gzip
import io
import json
import lzma
import re
import tarfile
import textwrap
import time
import unittest.mock

import hypothesis
import pyarrow.parquet
import pytest
import sentencex
import zstandard
from hypothesis import strategies as st

from albert_tf.errors import UserError
from albert_tf.io import tables
from albert_tf.records.tokenization import Tokenizer
from data_prep import text as reader
from data_prep.config import CorpusConfig
from data_prep.text import break_line, break_sentences, find_inputs, read_lines
from tests.data_prep.conftest import DEMO, read_text
from tests.helpers.small_builds import VOCABULARY

COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.compress,
    ".xz": lzma.compress,
}


def read(*paths, **settings):
    """Documents, and counts of what was skipped."""
    config = CorpusConfig(input_file=tuple(map(str, paths)), **settings)
    return read_text(config)[1:]


# --- lines --------------------------------------------------------------------


def lines_of(content, block_bytes, longest=1 << 20):
    begins = range(0, len(content), block_bytes)
    blocks = [content[begin : begin + block_bytes] for begin in begins]
    return list(read_lines(blocks, longest))


@hypothesis.settings(max_examples=400, deadline=None)
@hypothesis.given(
    content=st.lists(
        st.sampled_from(
            [b"a", b"bc", b" ", b"\n", b"\r", b"\r\n", b"\x1c", b"\xc2\x85"]
        )
    ).map(b"".join),
    block_bytes=st.integers(1, 9),
)
def test_lines_are_those_of_a_regular_expression(content, block_bytes):
    """For every line ending, and any end of a block. Other separators of
    Unicode end no line."""
    expected = re.split(rb"\r\n|\r|\n", content)
    if not expected[-1]:
        expected.pop()
    lines = lines_of(content, block_bytes)
    assert lines == list(enumerate(expected, 1))


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    text=st.text(st.sampled_from("ab é漢😀\n"), max_size=80),
    block_bytes=st.integers(1, 30),
    longest=st.integers(4, 9),
)
def test_long_lines_are_cut_between_characters(text, block_bytes, longest):
    parts = {}
    for number, part in lines_of(text.encode(), block_bytes, longest):
        assert len(part) <= longest
        part.decode()  # no character is cut in two
        parts.setdefault(number, []).append(part)
    for number, line in enumerate(text.encode().split(b"\n"), start=1):
        assert b"".join(parts.get(number, [b""])) == line


# --- documents ----------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"One a.\nTwo b.\n\nThree \xc3\xa7.\n\nFour d.\n",
        # Empty documents are dropped, also at the beginning and the end.
        b"\n\n \nOne a.\n  Two b.\t\n\n \n\nThree \xc3\xa7.\n\nFour d.",
        # A byte order mark, and line endings of Windows.
        b"\xef\xbb\xbfOne a.\r\nTwo b.\r\n\r\nThree \xc3\xa7.\r\n\r\n"
        b"Four d.\r\n",
    ],
)
def test_blank_lines_separate_documents(tmp_path, content):
    """And the end of a file."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(content)
    documents, skipped = read(tmp_path / "*.txt")
    assert documents == [["One a.", "Two b."], ["Three ç."], ["Four d."]] * 2
    assert not skipped


def test_the_lines_of_wrapped_paragraphs_are_joined(tmp_path):
    """A heading, a list and the end of a paragraph end their lines."""
    with gzip.open(DEMO, "rt") as file:
        paragraphs = [line.strip() for line in file if len(line) > 200][:40]
    items = ["A list", "of items", "stays a list"]
    path = tmp_path / "wrapped.txt"
    wrapped = "\n\n".join(textwrap.fill(text, 72) for text in paragraphs)
    path.write_text("\n".join([wrapped, "", *items]))
    documents, skipped = read(path)
    expected = [[" ".join(text.split())] for text in paragraphs]
    assert documents == [*expected, items]
    assert skipped[reader.JOINED_LINES] == wrapped.count("\n") - 2 * 39

    path.write_text("\n".join(paragraphs))
    documents, skipped = read(path)
    assert [len(lines) for lines in documents] == [40]
    assert not skipped


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_wrapped_lines_may_follow_a_long_list_of_contents(tmp_path, compress):
    contents = "\n".join(f"Chapter {number}" for number in range(400))
    paragraph = textwrap.fill("A sentence of several lines. " * 20, 72)
    book = "\n\n".join([contents, *[paragraph] * 200])
    path = tmp_path / "book.txt"
    path.write_bytes(compress(book.encode()))
    assert len(contents) > reader._STORED_BYTES
    documents, _ = read(path)
    assert [len(lines) for lines in documents] == [400, *[1] * 200]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_text_reads_as_plain_text(tmp_path, suffix):
    """A file of several archives, as parallel compressors write it; one of
    them has many blocks. Its name does not matter."""
    path = tmp_path / "part-00000"
    long = "A line that repeats."
    parts = (b"One a.\nTw", b"o b.\n\n", f"{long}\n".encode() * 200_000, b"End")
    path.write_bytes(b"".join(COMPRESS[suffix](part) for part in parts))
    documents, _ = read(path)
    assert documents[0] == ["One a.", "Two b."]
    lines = [line for document in documents[1:] for line in document]
    assert lines == [long] * 200_000 + ["End"]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_damaged_compressed_files_are_refused(tmp_path, suffix):
    """The readers of the standard library end without an error at some damages
    of later archives."""
    path = tmp_path / f"a.txt{suffix}"
    first, second, third = (
        COMPRESS[suffix](b"Line %d.\n" % number * 99) for number in range(3)
    )
    for content in (
        first[:-9],
        first + second[:20],
        first + bytes([second[0] ^ 1]) + second[1:] + third,
        first + second[20:] + third,
        first + bytes(9),
    ):
        path.write_bytes(content)
        for on_bad_utf8 in ("error", "skip"):
            with pytest.raises(
                UserError,
                match=rf"a.txt{suffix} must be a complete {suffix[1:]} file",
            ):
                read(path, on_bad_utf8=on_bad_utf8)


def test_zstd_files_of_the_longest_windows_are_read(tmp_path):
    """zstd --long=31 writes them."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        1, window_log=31, enable_ldm=True
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    archive = compressor.compressobj()
    path = tmp_path / "a.txt.zst"
    path.write_bytes(archive.compress(b"One.") + archive.flush())
    assert read(path)[0] == [["One."]]


def test_long_lines_and_documents_are_cut(tmp_path, monkeypatch):
    """With limits of 10 bytes per line and 10 characters per document."""
    monkeypatch.setattr(reader, "LONGEST_DOCUMENT", 10)
    path = tmp_path / "a.txt"
    path.write_text("abc def ghi jkl\nmn\n\nop", encoding="utf-8")
    documents, skipped = read(path)
    assert documents == [["abc def"], ["ghi jkl", "mn"], ["op"]]
    assert skipped == {reader.CUT_DOCUMENTS: 1}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "abcdefghijkl\nmn"}))
    documents, skipped = read(path)
    assert documents == [["abcdefghij"], ["kl", "mn"]]
    assert skipped == {reader.CUT_DOCUMENTS: 1}


# The name of a file and its content, the refusal, the documents with
# --on_bad_utf8=replace, and with skip.
BAD_UTF8 = {
    "third line": (
        "a.txt",
        b"\xef\xbb\xbfGood.\nA\nIl\xe9gal\xe2\x82.\nC\n",
        r"line 3 of .*a\.txt.* must be UTF-8.*0xe9 at character 2",
        [["Good.", "A", "Il\ufffdgal\ufffd.", "C"]],
        [["Good.", "A", "C"]],
    ),
    # An incomplete character at the end of the file.
    "end": (
        "a.txt",
        b"A\n\xc3",
        "line 2 of .*0xc3 at character 0",
        [["A", "\ufffd"]],
        [["A"]],
    ),
    "JSON": (
        "a.jsonl",
        b'{"text": "A"}\n{"text": "Il\xe9gal"}',
        "line 2 of .*0xe9 at character 2",
        [["A"], ["Il\ufffdgal"]],
        [["A"]],
    ),
    "CSV": (
        "a.csv",
        b"text\nA\nIl\xe9gal\n",
        "line 3 of .*0xe9 at character 2",
        [["A"], ["Il\ufffdgal"]],
        [["A"]],
    ),
    # JSON encodes U+1F600 as a pair, and can encode half of a pair.
    "surrogate": (
        "a.jsonl",
        rb'{"text": "\ud83d\ude00"}' + b"\n" + rb'{"text": "b \ud83d c"}',
        r"line 2 of .*U\+D83D.*character 2",
        [["\U0001f600"], ["b \ufffd c"]],
        [["\U0001f600"]],
    ),
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("case", BAD_UTF8)
def test_bad_utf8_is_named_replaced_or_skipped(tmp_path, case, compressed):
    name, content, message, replaced, kept = BAD_UTF8[case]
    path = tmp_path / f"{name}{'.gz' if compressed else ''}"
    path.write_bytes(gzip.compress(content) if compressed else content)
    with pytest.raises(UserError, match=message):
        read(path)
    documents, skipped = read(path, on_bad_utf8="replace")
    assert (documents, skipped) == (replaced, {})
    documents, skipped = read(path, on_bad_utf8="skip")
    is_text = name.endswith("txt")
    reason = reader.SKIPPED_LINES if is_text else reader.SKIPPED_TEXTS
    assert (documents, skipped) == (kept, {reason: 1})


def tar_of(name):
    """A tar archive of a file of text."""
    stored = io.BytesIO()
    with tarfile.open(fileobj=stored, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = 7
        archive.addfile(info, io.BytesIO(b"One a.\n"))
    return stored.getvalue()


def parquet_of(texts, kind=None):
    """A Parquet file with two rows in a group."""
    column = pyarrow.array(texts, kind)
    stored = io.BytesIO()
    pyarrow.parquet.write_table(
        pyarrow.table({"id": range(len(texts)), "text": column}),
        stored,
        row_group_size=2,
    )
    return stored.getvalue()


# Of a file's name and content, the refusal, whatever --on_bad_utf8 says.
UTF16 = "byte order mark of UTF-16"
OBJECT = r"line 2 of .*must be an object with a string"
REFUSED = [
    ("a.txt", "One a.\n".encode("utf-16"), UTF16),
    ("a.txt.gz", gzip.compress("One a.\n".encode("utf-16"), mtime=0), UTF16),
    # Without a byte order mark, ASCII text is valid UTF-8.
    (
        "a.txt",
        "One a.\n".encode("utf-16-le"),
        r"line 1 of .*a zero byte at byte 1\..*iconv",
    ),
    (
        "a.txt",
        b"One a.\r\n" * 200_000 + b"Two\0 b.\n",
        r"line 200001 of .*a\.txt must be.*zero byte at byte 3\..*tr -d",
    ),
    (
        "a.jsonl",
        b"{'text': 1}",
        r"line 1 of .*a.jsonl must be a complete JSON object",
    ),
    (
        "a.jsonl",
        b'{"text": "A"}\n{"text": "a"',
        r"line 2 of .*at character 12.*--input_format=text",
    ),
    ("a.jsonl", b'{"text": "A"}\n{"text": 7}', OBJECT),
    ("a.jsonl", b'{"text": "A"}\n{"body": "A"}', OBJECT + ".*--text_field"),
    ("a.json", b'[{"text": "A"},\n {"text": "B"', "line 2 of .*complete JSON"),
    ("a.json", b'[{"text": "A"},\n {"text": 2}]', OBJECT),
    ("a.jsonl", b'{"text": "A"}\n["text"]', "line 2 of .*complete JSON"),
    ("a.json", b'[{"text": "A"},', "line 1 of .*list without an end"),
    ("a.json", b'{"text": "A", "text": "B"}', "line 1 .*a name more than once"),
    (
        "a.jsonl",
        '{"text": "A"}'.encode("utf-16-le"),
        "line 1 .*zero byte.*iconv",
    ),
    ("a.txt", b"", r"a.txt, 0 bytes"),
    (
        "a.txt.gz",
        gzip.compress(gzip.compress(b"A", mtime=0), mtime=0),
        "gzip -d",
    ),
    ("a.tgz", gzip.compress(tar_of("a.txt"), mtime=0), "tar archive.*tar -xf"),
    ("a", b"PAR1\x15\x04\x15", "complete Parquet file"),
    ("a", parquet_of(["a"])[:-30] + bytes(30), "complete Parquet file"),
    ("a", parquet_of([1, 2]), "column of text of .*columns are id, text"),
    ("a.txt", b"PK\x03\x04\x14", "zip archive.*unzip"),
    ("a.txt", "One a.\n".encode("utf-32"), "UTF-32.*iconv"),
    ("a", b"%PDF-1.7\nOne", "PDF.*pdftotext"),
    ("a.txt", b"\n<!DOCTYPE html><html>", "HTML.*lynx"),
    ("a.txt", b"{\\rtf1\\ansi One.}", "RTF.*plain text"),
    ("a", b'text,label\n"One, two",1\n', r"table.*--input_format=csv"),
    ("a", b"1\tOne a.\n2\tTwo b.\n3\tThree", "table"),
    ("a.csv", b"One a.\n", "column of text of .*columns are One a"),
    ("a.csv", b"id,text\n1,A\n2\n", "line 3 .*1 columns instead of 2"),
    ("a.csv", b"id;text\n1;A; b\n", "line 2 .*3 columns instead of 2.*quot"),
    ("a.tsv", b"id\ttext\n1\tA.\tB.\n", "line 2 .*3 columns instead of 2"),
    ("a.csv", b"text,text\nA,B\n", "'text' more than once"),
    ("a.csv", b"id,text\n1,A\0\n", "line 2 .*zero byte at byte 3"),
    ("a.csv", b"sep=;\nid;text\n1;A\n", "line 1 .*names of the columns.*tail"),
    ("a.csv", b'text\n"A\n', "quotation marks.*row that begins in line 2"),
    ("a.tsv", b"id\ttext\r1\tA\r2\tB\r", "carriage returns.*tr "),
    ("a", b"ORC\x0a", "ORC.*pyarrow.orc"),
    ("a", b"ARROW1\0\0", "Arrow file.*write_table"),
    ("a", b"PARE\x15", "encrypted Parquet"),
    ("a.parquet.gz", gzip.compress(parquet_of(["a"]), mtime=0), "by gzip"),
    ("a", b'{"body": "A"}\n', "line 1.*--text_field.*--input_format=text"),
]
# Text that only looks like another format.
TEXTS = [
    b"[1] The mill.\n",
    b"{{Infobox}}\nA mill.\n",
    b"<s> starts a text.\nAnd so on.\n",
    b"<3 is a heart.\n",
    b"Yes, no\nWell, yes\n",
    b"One, two, three.\nFour, five, six.\n",
    b"Tab\there.\nNone here.\n",
    b"BZ is a code.\n",
]


@pytest.mark.parametrize("content", TEXTS)
def test_prose_is_read_as_text(tmp_path, content):
    (tmp_path / "a").write_bytes(content)
    lines = [line.strip() for line in content.decode().splitlines()]
    assert read(tmp_path / "a")[0] == [lines]


@pytest.mark.parametrize(("name", "content", "message"), REFUSED)
def test_text_that_cannot_be_read_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    for on_bad_utf8 in ("error", "skip"):
        with pytest.raises(UserError, match=message):
            read(tmp_path / name, on_bad_utf8=on_bad_utf8)


def test_json_lines_are_documents(tmp_path):
    path = tmp_path / "a.jsonl"
    texts = ["One a.\n\nTwo b.", "", "Three\0 ç."]
    path.write_text(
        "\n".join(json.dumps({"id": 1, "body": t}) for t in texts) + "\n\n"
    )
    documents, skipped = read(path, text_field="body")
    assert documents == [["One a.", "Two b."], ["Three\0 ç."]]
    assert skipped == {reader.EMPTY_TEXTS: 1}
    with pytest.raises(UserError, match=r'line 1 of .*"text".*--text_field'):
        read(path)
    # --input_format overrides the suffix. A suffix of compression may follow.
    other = tmp_path / "b.txt"
    other.write_bytes(path.read_bytes())
    settings = {"text_field": "body", "input_format": "jsonl"}
    assert read(other, **settings)[0] == documents
    assert read(path, input_format="text")[0] != documents
    packed = tmp_path / "c.jsonl.zst"
    packed.write_bytes(zstandard.compress(path.read_bytes()))
    assert read(packed, text_field="body")[0] == documents


CELL = 'A "b".\n,;| \tC\u2028d.'


def csv_of(mark):
    cell = CELL.replace('"', '""').replace("\n", "\r\n\n")
    rows = ('\ufeff"id"', "text"), ("1", f'"{cell}"'), ("2", '""'), ("3", "D")
    return "\r\n".join(map(mark.join, rows)).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((f"a{mark!r}.csv", csv_of(mark)) for mark in ",\t;|"),
        ("a.TSV.gz", gzip.compress(csv_of("\t"), mtime=0)),
        *(
            (
                "part-00000",
                parquet_of([CELL, None, "D"], kind),
            )
            for kind in (
                pyarrow.string(),
                pyarrow.large_string(),
                pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
            )
        ),
    ],
)
def test_rows_of_tables_are_documents(tmp_path, name, content, monkeypatch):
    """Cells may have several lines; without text, they are no document."""
    monkeypatch.setattr(reader, "BLOCK_BYTES", 50)
    monkeypatch.setattr(tables, "_ROWS_AT_A_TIME", 1)
    (tmp_path / name).write_bytes(content)
    documents, skipped = read(tmp_path / name)
    assert documents == [CELL.split("\n"), ["D"]]
    assert skipped == {reader.EMPTY_TEXTS: 1}


@pytest.mark.parametrize(
    "content",
    [
        b'{"text": "A b.\tC."}\n{"text": null}\n{"text": "D"}',
        b'[{"text": "A b.\tC."}, {"text": NaN},\n{"text": "D"}]',
        b'{\n "text": "A b.\tC."\n}\n{"text": null} {"text": "D"}\n',
        b'\xef\xbb\xbf{"text": "A b.\tC."}\n\xef\xbb\xbf{"text": ""}\n'
        b'{"text": "\\u200b\\ufeff\\r\\u200e"}\n{"text": "D"}',
    ],
)
def test_forms_of_json_give_the_same_documents(tmp_path, content):
    """JSON lines, a list, objects on several lines, byte order marks. Tabs need
    no escape; null and invisible characters are no text."""
    for name in ("a.json", "part-00000"):
        (tmp_path / name).write_bytes(content)
        documents, skipped = read(tmp_path / name)
        assert documents == [["A b.\tC."], ["D"]]
        assert skipped == {reader.EMPTY_TEXTS: content.count(b"200b") + 1}


def test_a_list_is_read_in_blocks(tmp_path, monkeypatch):
    """A document may be cut between blocks, also within a character."""
    monkeypatch.setattr(reader, "BLOCK_BYTES", 7)
    monkeypatch.setattr(reader, "_STORED_BYTES", 30)
    values = [{"text": f"Zeile {i} ö [{{]}}", "n": [i]} for i in range(9)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(values, ensure_ascii=False, indent=1))
    assert read(path)[0] == [[value["text"]] for value in values]
    path.write_text(json.dumps(values)[:-9])
    with pytest.raises(UserError, match=r"line 1 of .*complete JSON object"):
        read(path)
    path.write_text('{"text": "A"}\n{"text": "B" "C"}\n' + "{}\n" * 99)
    with pytest.raises(UserError, match=r"line 2 of .*complete JSON object"):
        read(path)
    path.write_text("\n" * 3 + json.dumps(values))
    monkeypatch.setattr(tables, "LONGEST_CELL", 20)
    with pytest.raises(UserError, match=r"line 4 .*more than 20 .*split it"):
        read(path)
    path.write_text('{"text": "A"}\n{"text":"' + "b" * 50 + '"}')
    with pytest.raises(UserError, match=r"line 2 .*more than 20 .*split it"):
        read(path)


def test_the_same_characters_end_lines_in_text_and_in_json(tmp_path):
    text = "A.\rB.\r\nC.\n\u200b\ufeff\nD.\x0bE"
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "a.json").write_text(json.dumps({"text": text}))
    expected = [["A.", "B.", "C."], ["D.\x0bE"]]
    assert read(tmp_path / "a.txt")[0] == expected
    assert read(tmp_path / "a.json")[0] == [expected[0] + expected[1]]


def test_files_without_text_and_files_of_the_command_are_passed_over(
    tmp_path, caplog
):
    """Empty parts and _SUCCESS of Spark."""
    for name, content in (("a", "One."), ("b", ""), ("_SUCCESS", "")):
        (tmp_path / name).write_text(content)
    (tmp_path / "model").write_text("Two.")
    config = CorpusConfig(input_file=(f"{tmp_path}/*",))
    (source,) = find_inputs(config, [f"{tmp_path}/../{tmp_path.name}/model"])
    assert source.name == f"{tmp_path}/a"
    assert "passing over 3 files" in caplog.text


def test_text_that_changes_after_the_check_is_refused(tmp_path):
    """A file that is cut at a line, one that grows, one of the same length."""
    path = tmp_path / "a.txt"
    config = CorpusConfig(input_file=(str(path),))
    for changed in ("One.\n\n", "One.\n\nTwo.\n\nThree.", "One.\n\nTen.\n"):
        path.write_text("One.\n\nTwo.\n")
        checked = reader.check_inputs(find_inputs(config), config)
        path.write_text(changed)
        with pytest.raises(UserError, match=r"a\.txt must not change"):
            list(checked.read_documents("reading", collections.Counter()))


def test_inputs_are_sorted_and_each_file_is_read_once(tmp_path, monkeypatch):
    """A glob, equal paths, a link, a name with brackets, and a directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "c.txt", "d.md", "e[1].txt"):
        (tmp_path / name).write_text("text")
    (tmp_path / "b.txt").symlink_to("c.txt")
    (tmp_path / "directory.txt").mkdir()
    paths = ("[a-d].txt", "./a.txt", f"{tmp_path}/a.txt", "e[1].txt")
    found = find_inputs(CorpusConfig(input_file=paths))
    assert [source.name for source in found] == ["./a.txt", "b.txt", "e[1].txt"]
    assert sum(source.num_bytes for source in found) == 12
    for missing, message in ((("a.txt", "b*.md"), r"b\*.md"), ((), "--input")):
        with pytest.raises(UserError, match=message):
            find_inputs(CorpusConfig(input_file=missing))


def test_digest_depends_on_content_and_format(tmp_path):
    """Not on names. The same bytes are a line of text or a JSON document."""
    digests = {}
    for name in ("a.txt", "b.txt", "a.jsonl", "b.json", "c.txt"):
        path = tmp_path / name
        path.write_text('{"text": "One."}' if name != "c.txt" else "One.")
        form = "text" if path.suffix == ".txt" else "auto"
        config = CorpusConfig(input_file=(str(path),), input_format=form)
        checked = reader.check_inputs(find_inputs(config), config)
        (digests[name],) = checked.digests.values()
    assert digests["a.txt"] == digests["b.txt"]
    assert digests["a.jsonl"] == digests["b.json"]
    assert len(set(digests.values())) == 3


# --- sentences ----------------------------------------------------------------

BREAKING = CorpusConfig(sentence_breaker="sentencex")


def split(lines, config):
    return break_sentences(lines, config, collections.Counter())


def test_paragraphs_are_broken_into_sentences():
    """By default, a line is a sentence."""
    paragraphs = [
        "Dr. Watson came at 3 p.m. on Monday.  He stayed!",
        "“Why?” she asked. Nobody knew",
    ]
    assert split(paragraphs, CorpusConfig()) == paragraphs
    assert split(paragraphs, BREAKING) == [
        "Dr. Watson came at 3 p.m. on Monday.",
        "He stayed!",
        "“Why?” she asked.",
        "Nobody knew",
    ]


def test_language_decides_where_sentences_end():
    config = dataclasses.replace(BREAKING, language="de")
    sentences = ["Am 3. Mai kam er.", "Sie ging."]
    assert split([" ".join(sentences)], config) == sentences


@pytest.mark.parametrize("language", ["", "DE", "de-DE", "german", "de\n"])
def test_other_forms_of_language_codes_are_refused(language):
    with pytest.raises(UserError, match=r"language must be .*two or three"):
        CorpusConfig(language=language)


def test_most_sentence_ends_of_real_text_are_found():
    """In a line of 1,990 sentences, 300,000 characters. As one window, 57 % of
    their ends are found."""
    with gzip.open(DEMO, "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file.read(300_000).split("\n")]
    lines = [line for line in lines if line][:1990]
    wanted = ends_of(lines)
    found = ends_of(split([" ".join(lines)], BREAKING))
    assert len(wanted & found) / len(wanted) > 0.95
    assert len(wanted & found) / len(found) > 0.93


def ends_of(sentences):
    """Number of letters up to the end of each sentence."""
    ends, count = set(), 0
    for sentence in sentences:
        count += len("".join(sentence.split()))
        ends.add(count)
    return ends


@hypothesis.settings(max_examples=500, deadline=None)
@hypothesis.given(
    words=st.lists(
        st.sampled_from(["A", "b.", "C!", "“D.", "E.”", "(", "", "。"])
    ),
    separator=st.sampled_from([" ", "", "\t", "\xa0", "\u3000"]),
    window=st.integers(1, 12),
)
def test_windows_lose_and_change_no_text(words, separator, window):
    line = separator.join(words)
    with unittest.mock.patch.object(reader, "WINDOW_CHARACTERS", window):
        parts = list(break_line("en", line))
    assert "".join(parts) == line
    if len(line) <= window:
        with_spaces = line.replace("\xa0", " ").replace("\u3000", " ")
        expected = sentencex.segment("en", with_spaces)
        assert list(map(len, parts)) == list(map(len, expected))


@pytest.mark.parametrize("space", ["\xa0", "\u202f", "\u3000", "\x85"])
def test_white_space_beyond_ascii_breaks_as_a_space(space):
    """sentencex 1.0.32 panics at the single letter before the full stop."""
    config = dataclasses.replace(BREAKING, language="fr")
    text = f"Il{space}prend la vitamine C{space}. Puis il dort. Le{space}soir !"
    found = split([text], config)
    expected = split([text.replace(space, " ")], config)
    assert len(expected) > 1
    assert [s.replace(space, " ") for s in found] == expected


def test_a_sentence_longer_than_the_largest_window_stays_complete(monkeypatch):
    monkeypatch.setattr(reader, "WINDOW_CHARACTERS", 30)
    monkeypatch.setattr(reader, "_LARGEST_WINDOW", 60)
    sentences = ["He " + "really " * 90 + "came.", "She left.", "Why?"] * 3
    assert split([" ".join(sentences)], BREAKING) == sentences


def test_text_of_any_form_takes_linear_time():
    """Open quotes, marks that a sort puts in order, words of unknown letters:
    each took 10 s or more."""
    tokenizer = Tokenizer(VOCABULARY)
    began = time.process_time()
    for text, cuts in (
        ("“a \u2018b " * 30_000, {}),
        ("a" + "\u0301\u0316" * 75_000, {reader.CUT_WORDS: 9}),
        ("中" * 300_000, {reader.CUT_WORDS: 18}),
    ):
        skipped = collections.Counter()
        sentences = break_sentences([text], BREAKING, skipped)
        assert "".join(sentences).replace(" ", "") == text.replace(" ", "")
        tokenizer.encode_batch(sentences)
        assert skipped == cuts
    tokenizer.encode_batch(["a" + "\u0301\u0316" * 75_000])
    assert time.process_time() - began < 8
