"""Input files -> documents, each a list of sentences.

A line is a sentence, a blank line ends a document, and so does the end of a
file. Files are read block by block, local or gs://, plain or .gz.
"""

# TensorFlow is imported where it is used: the worker processes of
# `build_tfrecords` import this module, too, and must not pay for it.

import collections
import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from albert_tf.errors import UserError

_BLOCK_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"

SKIPPED_LINES = "lines that are not UTF-8"


def find_inputs(patterns: Sequence[str]) -> list[str]:
    """The files that globs match, in order, each once.

    Raises:
        UserError: If a pattern matches no file, or a file is empty.
    """
    import tensorflow as tf

    paths: set[str] = set()
    for pattern in patterns:
        matches = [
            path
            for path in tf.io.gfile.glob(pattern)
            if not tf.io.gfile.isdir(path)
        ]
        if not matches:
            raise UserError(
                "input_file must match at least one file", received=pattern
            )
        paths.update(matches)
    for path in sorted(paths):
        if count_bytes([path]) == 0:
            raise UserError(
                "input files must hold text", received=f"{path}, 0 bytes"
            )
    return sorted(paths)


def count_bytes(paths: Sequence[str]) -> int:
    """Size of files together, as stored."""
    import tensorflow as tf

    return sum(tf.io.gfile.stat(path).length for path in paths)


def digest_inputs(
    paths: Sequence[str], on_bytes: Callable[[int], Any]
) -> list[str]:
    """Digests of the files' content, sorted, so that names do not matter.

    Args:
        paths: The files.
        on_bytes: Called with the number of bytes at every step.
    """
    import tensorflow as tf

    digests = []
    for path in paths:
        digest = hashlib.sha256()
        with tf.io.gfile.GFile(path, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                on_bytes(len(block))
        digests.append(digest.hexdigest())
    return sorted(digests)


def read_documents(
    paths: Sequence[str],
    on_bad_utf8: str,
    on_bytes: Callable[[int], Any],
    skipped: collections.Counter[str],
) -> Iterator[list[str]]:
    """Documents of files, in order; none is empty.

    Args:
        paths: The files.
        on_bad_utf8: "error", "replace" or "skip", see `CorpusConfig`.
        on_bytes: Called with the number of stored bytes read at every step.
        skipped: Where lines left out are counted.

    Yields:
        The stripped sentences of a document.

    Raises:
        UserError: For bytes that are not UTF-8, or a damaged .gz file.
    """
    for path in paths:
        sentences: list[str] = []
        for line in _read_lines(path, on_bad_utf8, on_bytes, skipped):
            if line:
                sentences.append(line)
            elif sentences:
                yield sentences
                sentences = []
        if sentences:
            yield sentences


def _read_lines(
    path: str,
    on_bad_utf8: str,
    on_bytes: Callable[[int], Any],
    skipped: collections.Counter[str],
) -> Iterator[str]:
    """Stripped lines of a file; blank ones are kept."""
    offset = 0
    for number, line in enumerate(_split_lines(path, on_bytes), start=1):
        text = line.removeprefix(_BOM) if number == 1 else line
        try:
            yield text.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            if on_bad_utf8 == "error":
                bad = len(line) - len(text) + error.start
                raise UserError(
                    f"{path} must be UTF-8",
                    received=f"byte 0x{line[bad]:02x} in line {number}, at "
                    f"byte offset {offset + bad}",
                    remedy="Convert the file, e.g. with iconv, or set "
                    "--on_bad_utf8=replace or --on_bad_utf8=skip.",
                ) from None
            if on_bad_utf8 == "replace":
                yield text.decode("utf-8", errors="replace").strip()
            else:
                skipped[SKIPPED_LINES] += 1
        offset += len(line) + 1


def _split_lines(path: str, on_bytes: Callable[[int], Any]) -> Iterator[bytes]:
    """Lines of a file, without what ends them."""
    unfinished: list[bytes] = []
    for block in _read_blocks(path, on_bytes):
        first, *others = block.split(b"\n")
        unfinished.append(first)
        if others:
            yield b"".join(unfinished)
            yield from others[:-1]
            unfinished = [others[-1]]
    if last := b"".join(unfinished):
        yield last


def _read_blocks(path: str, on_bytes: Callable[[int], Any]) -> Iterator[bytes]:
    """Content of a file, decompressed, block by block."""
    import tensorflow as tf

    with tf.io.gfile.GFile(path, "rb") as stored:
        counted = _CountedFile(stored, on_bytes)
        if not path.endswith(".gz"):
            while block := counted.read(_BLOCK_BYTES):
                yield block
            return
        try:
            with gzip.GzipFile(fileobj=counted, mode="rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    yield block
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UserError(
                f"{path} must be a whole gzip file", received=str(error)
            ) from None


class _CountedFile(io.RawIOBase):
    """A file to read that reports how many bytes were read."""

    def __init__(self, file: Any, on_bytes: Callable[[int], Any]) -> None:
        self._file = file
        self._on_bytes = on_bytes

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self._on_bytes(len(content))
        return content
