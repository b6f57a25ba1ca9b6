import collections
import gzip

import pytest

from albert_tf.errors import UserError
from data_prep import corpus

SENTENCES = [["One a.", "Two b."], ["Three ç."], ["Four d."]]


def read(paths, on_bad_utf8="error"):
    skipped = collections.Counter()
    sizes = []
    documents = list(
        corpus.read_documents(
            [str(p) for p in paths], on_bad_utf8, sizes.append, skipped
        )
    )
    return documents, skipped, sum(sizes)


@pytest.mark.parametrize(
    "content",
    [
        b"One a.\nTwo b.\n\nThree \xc3\xa7.\n\nFour d.\n",
        # Empty documents vanish, also first and last.
        b"\n\n \nOne a.\n  Two b.\t\n\n \n\nThree \xc3\xa7.\n\nFour d.",
        # A byte-order mark, and lines as Windows ends them.
        b"\xef\xbb\xbfOne a.\r\nTwo b.\r\n\r\nThree \xc3\xa7.\r\n\r\n"
        b"Four d.\r\n",
    ],
)
def test_blank_lines_part_documents(tmp_path, content):
    plain = tmp_path / "a.txt"
    plain.write_bytes(content)
    documents, skipped, num_bytes = read([plain])
    assert documents == SENTENCES
    assert not skipped
    assert num_bytes == len(content)


def test_gzip_reads_as_plain_text(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"One a.\nTwo b.\n\nThree c."))
    documents, _, num_bytes = read([path])
    assert documents == [["One a.", "Two b."], ["Three c."]]
    assert num_bytes == path.stat().st_size


def test_the_end_of_a_file_ends_its_document(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"Sentence of {name}.\n")
    documents, _, _ = read([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert documents == [["Sentence of a.txt."], ["Sentence of b.txt."]]


def test_lines_longer_than_a_block_stay_whole(tmp_path):
    """A block is 1 MiB; these characters of 2 bytes are cut by its end."""
    lines = ["x" + "é" * 1_200_000, "y" * 7, "ü" * 600_000]
    path = tmp_path / "a.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    documents, _, _ = read([path])
    assert documents == [lines]


def test_bad_utf8_is_named_with_line_and_offset(tmp_path):
    """Bytes before the bad one: 3 of the mark, 6 and 2 of lines, 2."""
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"\xef\xbb\xbfGood.\nA\nIl\xe9gal\nC\n")
    with pytest.raises(
        UserError,
        match=r"latin1.txt must be UTF-8.*0xe9 in line 3, at byte offset 13",
    ):
        read([path])
    assert path.read_bytes()[13] == 0xE9
    path.write_bytes(b"\xef\xbb\xbfIl\xe9gal\n")
    with pytest.raises(UserError, match=r"line 1, at byte offset 5"):
        read([path])


def test_bad_utf8_is_replaced_or_its_line_skipped(tmp_path):
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"A\nIl\xe9gal\n\xff\nC\n")
    documents, skipped, _ = read([path], "replace")
    assert documents == [["A", "Il\ufffdgal", "\ufffd", "C"]]
    assert not skipped
    documents, skipped, _ = read([path], "skip")
    assert documents == [["A", "C"]]
    assert skipped == {corpus.SKIPPED_LINES: 2}


def test_a_damaged_gzip_file_is_named(tmp_path):
    path = tmp_path / "cut.txt.gz"
    path.write_bytes(gzip.compress(b"One.\nTwo.\n" * 99)[:-9])
    with pytest.raises(UserError, match=r"cut.txt.gz must be a whole gzip"):
        read([path])
    path.write_bytes(b"no gzip at all")
    with pytest.raises(UserError, match=r"cut.txt.gz must be a whole gzip"):
        read([path])


def test_inputs_are_found_in_order_and_once(tmp_path):
    for name in ("d.txt", "b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text("text")
    (tmp_path / "directory.txt").mkdir()
    found = corpus.find_inputs(
        [str(tmp_path / "*.txt"), str(tmp_path / "a.txt")]
    )
    assert found == [str(tmp_path / f"{name}.txt") for name in "abd"]
    assert corpus.count_bytes(found) == 12


def test_a_glob_without_files_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UserError, match=r"b\*.txt"):
        corpus.find_inputs([str(tmp_path / "*.txt"), str(tmp_path / "b*.txt")])


def test_an_empty_file_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "none.txt").write_text("")
    with pytest.raises(UserError, match=r"none.txt, 0 bytes"):
        corpus.find_inputs([str(tmp_path / "*.txt")])


def test_the_digest_is_of_content_not_of_names(tmp_path):
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("two")
    (tmp_path / "c").write_text("one")
    a, b, c = (str(tmp_path / name) for name in "abc")

    def digest(paths):
        return corpus.digest_inputs(paths, lambda size: None)

    assert digest([a, b]) == digest([b, c])
    assert digest([a, b]) != digest([a, c])
