import bz2
import gzip
import re
import unittest.mock

import hypothesis
import pytest
from hypothesis import strategies as st

from data_prep.text.lines import read_blocks, read_lines

BLOCK_BYTES = "data_prep.text.lines.BLOCK_BYTES"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("text") / "a.txt"


def read(path, content, block_bytes=1 << 20, longest=1 << 20):
    path.write_bytes(content)
    with unittest.mock.patch(BLOCK_BYTES, block_bytes):
        return list(read_lines(str(path), lambda block: None, longest))


@hypothesis.settings(max_examples=400, deadline=None)
@hypothesis.given(
    content=st.lists(
        st.sampled_from([b"a", b"bc", b" ", b"\n", b"\r", b"\r\n", b"\xff"])
    ).map(b"".join),
    block_bytes=st.integers(1, 9),
)
def test_lines_are_those_of_a_regular_expression(path, content, block_bytes):
    """For every line ending, and any end of a block."""
    expected = re.split(rb"\r\n|\r|\n", content)
    if not expected[-1]:
        expected.pop()
    lines = read(path, content, block_bytes)
    assert [line.content for line in lines] == expected
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    for line in lines:
        end = line.offset + len(line.content)
        assert content[line.offset : end] == line.content
        assert content[end : end + 1] in (b"\r", b"\n", b"")


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(
    text=st.text(st.sampled_from("ab é漢😀\n"), max_size=80),
    block_bytes=st.integers(1, 30),
    longest=st.integers(4, 9),
)
def test_long_lines_are_cut_between_characters(
    path, text, block_bytes, longest
):
    lines = read(path, text.encode(), block_bytes, longest)
    parts = {}
    for line in lines:
        assert len(line.content) <= longest
        line.content.decode()  # no character is cut in two
        parts.setdefault(line.number, []).append(line.content)
        end = line.offset + len(line.content)
        assert text.encode()[line.offset : end] == line.content
    expected = text.encode().split(b"\n")
    for number, line in enumerate(expected, start=1):
        assert b"".join(parts.get(number, [b""])) == line


def test_long_line_is_yielded_before_it_is_read_completely(path):
    """Its first part is yielded after a few of 500 blocks."""
    path.write_bytes(b"word " * 1000)
    blocks = []
    with unittest.mock.patch(BLOCK_BYTES, 10):
        lines = read_lines(str(path), blocks.append, longest=20)
        for number in range(1, 200):
            next(lines)
            assert len(blocks) <= 2 * number + 5


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".bz2", bz2.compress), (".gz", gzip.compress)]
)
def test_blocks_are_small_however_well_they_are_compressed(
    tmp_path, suffix, compress
):
    content = bytes(3_000_001)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(compress(content))
    assert path.stat().st_size < 5000
    blocks = list(read_blocks(str(path), len))
    assert b"".join(blocks) == content
    assert max(map(len, blocks)) <= 1 << 20


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".bz2", bz2.compress), (".gz", gzip.compress)]
)
@pytest.mark.parametrize("rest", [b"Next.\n", b""])
def test_bytes_after_an_archive_of_several_blocks_are_read(
    tmp_path, suffix, compress, rest
):
    """A single read holds the end of the archive and what follows it: another
    archive, or zero bytes."""
    content = b"A line that repeats.\n" * 125_000
    path = tmp_path / f"a{suffix}"
    path.write_bytes(compress(content) + (compress(rest) if rest else bytes(9)))
    assert path.stat().st_size < 1 << 17
    assert b"".join(read_blocks(str(path), len)) == content + rest
