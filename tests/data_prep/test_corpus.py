import bz2
import collections
import gzip
import json

import pytest
import zstandard

from albert_tf.errors import UserError
from data_prep.config import CorpusConfig
from data_prep.text import corpus, sources

SENTENCES = [["One a.", "Two b."], ["Three ç."], ["Four d."]]

COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.compress,
}


def read(paths, on_bad_utf8="error", **settings):
    """Documents, counts of what was skipped, and bytes reported.

    The first pass must refuse unreadable input.
    """
    config = CorpusConfig(
        input_file=tuple(str(p) for p in paths),
        on_bad_utf8=on_bad_utf8,
        **settings,
    )
    found = corpus.find_inputs(config)
    checked, sizes = [], []
    corpus.check_and_digest(found, config, checked.append)
    skipped = collections.Counter()
    try:
        documents = list(
            corpus.read_documents(found, config, sizes.append, skipped)
        )
    except UserError as error:
        raise AssertionError("the first pass has not found it") from error
    assert sum(sizes) == sum(checked)
    return documents, skipped, sum(sizes)


@pytest.mark.parametrize(
    "content",
    [
        b"One a.\nTwo b.\n\nThree \xc3\xa7.\n\nFour d.\n",
        # Empty documents are dropped, also at the beginning and the end.
        b"\n\n \nOne a.\n  Two b.\t\n\n \n\nThree \xc3\xa7.\n\nFour d.",
        # Line endings of old Macs.
        b"One a.\rTwo b.\r\rThree \xc3\xa7.\r\rFour d.\r",
        # A byte order mark, and line endings of Windows.
        b"\xef\xbb\xbfOne a.\r\nTwo b.\r\n\r\nThree \xc3\xa7.\r\n\r\n"
        b"Four d.\r\n",
    ],
)
def test_blank_lines_separate_documents(tmp_path, content):
    plain = tmp_path / "a.txt"
    plain.write_bytes(content)
    documents, skipped, num_bytes = read([plain])
    assert documents == SENTENCES
    assert not skipped
    assert num_bytes == len(content)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_text_reads_as_plain_text(tmp_path, suffix):
    """A file of several archives, as parallel compressors write it."""
    path = tmp_path / f"a.txt{suffix}"
    parts = (b"One a.\nTw", b"o b.\n\nThr", b"ee c.")
    path.write_bytes(b"".join(COMPRESS[suffix](part) for part in parts))
    documents, _, num_bytes = read([path])
    assert documents == [["One a.", "Two b."], ["Three c."]]
    assert num_bytes == path.stat().st_size


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("on_bad_utf8", ["error", "skip"])
def test_damaged_compressed_files_are_refused(tmp_path, suffix, on_bad_utf8):
    """Truncated, truncated in the second archive, and not an archive."""
    path = tmp_path / f"cut.txt{suffix}"
    complete = COMPRESS[suffix](b"One.\nTwo.\n" * 99)
    expected = rf"cut.txt{suffix} must be a complete {suffix[1:]} file"
    for content in (
        complete[:-9],
        complete + complete[:20],
        b"something else" * 9,
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=expected):
            read([path], on_bad_utf8)


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("damage", ["changed", "dropped", "zeroed", "all zero"])
def test_a_damaged_begin_of_a_later_archive_is_refused(
    tmp_path, suffix, damage
):
    """The readers of the standard library end there without an error."""
    first, second, third = (
        COMPRESS[suffix](b"Line %d.\n" % number * 9) for number in range(3)
    )
    later = {
        "changed": bytes([second[0] ^ 1]) + second[1:] + third,
        "dropped": second[20:] + third,
        "zeroed": bytes(16) + second[16:] + third,
        "all zero": bytes(999),
    }[damage]
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(first + later)
    with pytest.raises(UserError, match=rf"complete {suffix[1:]} file"):
        read([path])


@pytest.mark.parametrize("suffix", COMPRESS)
def test_zero_bytes_that_fill_a_sector_are_ignored(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    archive = COMPRESS[suffix](b"One.")
    path.write_bytes(archive + bytes(511))
    documents, _, num_bytes = read([path])
    assert documents == [["One."]]
    assert num_bytes == len(archive) + 511
    for content in (archive + bytes(512), archive + bytes(9) + archive):
        path.write_bytes(content)
        with pytest.raises(UserError, match="zero bytes"):
            read([path])


@pytest.mark.parametrize("window_log", [27, 31])
def test_zstd_files_of_long_windows_are_read(tmp_path, window_log):
    """zstd --long=31 writes the longest."""
    parameters = zstandard.ZstdCompressionParameters.from_level(
        1, window_log=window_log, enable_ldm=True
    )
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    archive = compressor.compressobj()
    path = tmp_path / "a.txt.zst"
    path.write_bytes(archive.compress(b"One.") + archive.flush())
    assert read([path])[0] == [["One."]]


def test_other_separators_of_unicode_end_no_line(tmp_path):
    """`str.splitlines` would split there."""
    path = tmp_path / "a.txt"
    line = "One\x85two\u2028three\x1cfour."
    path.write_text(line, encoding="utf-8")
    assert read([path])[0] == [[line]]


def test_the_end_of_a_file_ends_its_document(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"Sentence of {name}.\n")
    documents, _, _ = read([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert documents == [["Sentence of a.txt."], ["Sentence of b.txt."]]


def test_long_lines_and_documents_are_cut(tmp_path, monkeypatch):
    """With limits of 10 bytes per line and 10 characters per document."""
    for module in (corpus, sources):
        monkeypatch.setattr(module, "LONGEST_DOCUMENT", 10)
    path = tmp_path / "a.txt"
    path.write_text("abc def ghi jkl\nmn\n\nop", encoding="utf-8")
    documents, skipped, _ = read([path])
    assert documents == [["abc def"], ["ghi jkl", "mn"], ["op"]]
    assert skipped == {corpus.CUT_DOCUMENTS: 1}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "abcdefghijkl\nmn"}))
    documents, skipped, _ = read([path])
    assert documents == [["abcdefghij"], ["kl", "mn"]]
    assert skipped == {corpus.CUT_DOCUMENTS: 1}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    ("content", "message", "replaced", "kept"),
    [
        # The bad byte follows 3 bytes of the byte order mark, lines of 6 and 2
        # bytes, and 2 bytes of its own line.
        (
            b"\xef\xbb\xbfGood.\nA\nIl\xe9gal\nC\n",
            "0xe9 in line 3, at byte offset 13",
            ["Good.", "A", "Il\ufffdgal", "C"],
            ["Good.", "A", "C"],
        ),
        # On the first line, the offset also counts the byte order mark.
        (
            b"\xef\xbb\xbfIl\xe9gal\nC",
            "0xe9 in line 1, at byte offset 5",
            ["Il\ufffdgal", "C"],
            ["C"],
        ),
        # An incomplete character at the end of the file.
        (b"A\n\xc3", "in line 2, at byte offset 2", ["A", "\ufffd"], ["A"]),
        # CESU-8: two surrogates of three bytes encode U+1F600.
        (
            b"A\n\xed\xa0\xbd\xed\xb8\x80",
            "0xed in line 2, at byte offset 2",
            ["A", 6 * "\ufffd"],
            ["A"],
        ),
    ],
)
def test_bad_utf8_is_named_replaced_or_its_line_skipped(
    tmp_path, content, message, replaced, kept, compressed
):
    path = tmp_path / f"a.txt{'.gz' if compressed else ''}"
    path.write_bytes(gzip.compress(content) if compressed else content)
    with pytest.raises(UserError, match=rf"a\.txt.* must be UTF-8.*{message}"):
        read([path])
    documents, skipped, _ = read([path], "replace")
    assert (documents, skipped) == ([replaced], {})
    documents, skipped, _ = read([path], "skip")
    assert (documents, skipped) == ([kept], {sources.SKIPPED_LINES: 1})


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl"])
@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("utf-16", "UTF-16 byte order mark in line 1"),
        ("utf-16-le", r"zero byte in line 1, at byte offset 1\..*iconv"),
        ("utf-16-be", r"zero byte in line 1, at byte offset 0\..*iconv"),
    ],
)
def test_utf16_is_refused(tmp_path, name, encoding, message):
    """Without a byte order mark, ASCII text is valid UTF-8."""
    path = tmp_path / name
    content = '{"text": "One a."}\n'.encode(encoding)
    path.write_bytes(gzip.compress(content) if ".gz" in name else content)
    with pytest.raises(UserError, match=message):
        read([path], "skip")


def test_a_zero_byte_is_refused_and_its_escape_in_json_is_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"One a.\r\n" * 200_000 + b"Two\0 b.\n")
    message = r"a\.txt must be.*line 200001, at byte offset 1600003\..*tr -d"
    for on_bad_utf8 in ("error", "skip"):
        with pytest.raises(UserError, match=message):
            read([path], on_bad_utf8)
    path = tmp_path / "a.jsonl"
    path.write_text(r'{"text": "Two\u0000 b."}')
    assert read([path])[0] == [["Two\0 b."]]


def test_json_lines_are_documents(tmp_path):
    path = tmp_path / "a.jsonl"
    texts = ["One a.\n\nTwo b.", "", "Three ç."]
    path.write_text(
        "\n".join(json.dumps({"id": 1, "body": t}) for t in texts) + "\n\n"
    )
    documents, skipped, _ = read([path], text_field="body")
    assert documents == [["One a.", "Two b."], ["Three ç."]]
    assert skipped == {sources.EMPTY_TEXTS: 1}
    with pytest.raises(UserError, match=r'line 1 of .*"text".*--text_field'):
        read([path])
    # --input_format overrides the suffix. A suffix of compression may follow.
    other = tmp_path / "b.txt"
    other.write_bytes(path.read_bytes())
    settings = {"text_field": "body", "input_format": "jsonl"}
    assert read([other], **settings)[0] == documents
    assert read([path], input_format="text")[0] != documents
    packed = tmp_path / "c.jsonl.zst"
    packed.write_bytes(zstandard.compress(path.read_bytes()))
    assert read([packed], text_field="body")[0] == documents


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{'text': 1}", r"line 2 of .*a.jsonl must be a complete JSON object"),
        ('{"text": "a"', r"line 2 of .*at character 12.*--input_format=text"),
        ('{"text": 7}', r"line 2 of .*must be an object with a string"),
        ('["text"]', r"line 2 of .*must be an object with a string"),
    ],
)
def test_bad_json_is_refused(tmp_path, line, expected):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "Good."}\n' + line)
    with pytest.raises(UserError, match=expected):
        read([path], "skip")


@pytest.mark.parametrize(
    ("second", "message", "replaced", "kind"),
    [
        # JSON encodes U+1F600 as a pair, and can encode half of a pair.
        (
            rb"b \ud83d c",
            r"line 2 of .*U\+D83D.*character 2",
            "b \ufffd c",
            sources.SKIPPED_TEXTS,
        ),
        (
            b"Il\xe9gal",
            r"0xe9 in line 2, at byte offset 39",
            "Il\ufffdgal",
            sources.SKIPPED_LINES,
        ),
    ],
)
def test_bad_text_in_json_lines_follows_on_bad_utf8(
    tmp_path, second, message, replaced, kind
):
    path = tmp_path / "a.jsonl"
    lines = rb'{"text": "a \ud83d\ude00"}', b'{"text": "%b"}' % second
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(UserError, match=message):
        read([path])
    assert read([path], "replace")[0] == [["a \U0001f600"], [replaced]]
    documents, skipped, _ = read([path], "skip")
    assert (documents, skipped) == ([["a \U0001f600"]], {kind: 1})


def test_inputs_are_sorted_and_each_file_is_read_once(tmp_path, monkeypatch):
    """A glob, equal paths, a link, a name with brackets, and a directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "c.txt", "d.md", "e[1].txt"):
        (tmp_path / name).write_text("text")
    (tmp_path / "b.txt").symlink_to("c.txt")
    (tmp_path / "directory.txt").mkdir()
    paths = ("[a-d].txt", "./a.txt", f"{tmp_path}/a.txt", "e[1].txt")
    found = corpus.find_inputs(CorpusConfig(input_file=paths))
    assert [source.name for source in found] == ["./a.txt", "b.txt", "e[1].txt"]
    assert sum(source.num_bytes for source in found) == 12


def test_missing_or_empty_inputs_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UserError, match=r"b\*.txt"):
        read([tmp_path / "*.txt", tmp_path / "b*.txt"])
    (tmp_path / "none.txt").write_text("")
    with pytest.raises(UserError, match=r"none.txt, 0 bytes"):
        read([tmp_path / "*.txt"])
    with pytest.raises(UserError, match="--input_file or --tfds"):
        read([])


def digest(*paths):
    config = CorpusConfig(input_file=tuple(map(str, paths)))
    return sorted(
        corpus.check_and_digest(
            corpus.find_inputs(config), config, lambda num_bytes: None
        )
    )


def test_digest_depends_on_content_and_format(tmp_path):
    """Not on names. The same bytes are a line of text or a JSON document."""
    names = ("a.txt", "b.txt", "a.jsonl", "b.json")
    paths = [tmp_path / name for name in names]
    for path in paths:
        path.write_text('{"text": "One."}')
    text, same_text, jsonl, same_jsonl = map(digest, paths)
    assert text == same_text
    assert jsonl == same_jsonl
    assert text != jsonl
    paths[0].write_text("One.")
    assert digest(*paths[:2]) == digest(*paths[1::-1]) != digest(*paths[1:3])
