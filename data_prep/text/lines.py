"""Reads the lines of text files in bounded memory.

Files are local or gs://. The suffix names the compression: .gz, .bz2, .zst.
Lines end at LF, CR LF or CR.
"""

import bz2
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import zstandard

from albert_tf.errors import UserError
from albert_tf.io.files import open_existing

BLOCK_BYTES = 1 << 20

COMPRESSIONS = (".gz", ".bz2", ".zst")

OnStored = Callable[[bytes], Any]

_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


class Line(NamedTuple):
    """A line, or a part of a very long line.

    Attributes:
        number: Line number in the file, from 1.
        offset: Offset in the decompressed file, in bytes.
        content: Bytes of the line, without its line ending.
    """

    number: int
    offset: int
    content: bytes


def read_blocks(path: str, on_stored: OnStored) -> Iterator[bytes]:
    """Yields the decompressed content of a file, block by block.

    Args:
        on_stored: Called with each block of stored (compressed) bytes.

    Raises:
        UserError: For a damaged or incomplete compressed file.
    """
    with open_existing(path, "rb") as stored:
        observed = _ObservedFile(stored, on_stored)
        try:
            if path.endswith(".gz"):
                with gzip.GzipFile(fileobj=observed, mode="rb") as file:
                    yield from _blocks_of(file)
            elif path.endswith(".bz2"):
                with bz2.BZ2File(observed) as file:
                    yield from _blocks_of(file)
            elif path.endswith(".zst"):
                yield from _decompress_zstd(observed)
            else:
                yield from _blocks_of(observed)
        except (EOFError, zlib.error, zstandard.ZstdError, OSError) as error:
            if not path.endswith(COMPRESSIONS) or (
                isinstance(error, OSError) and error.errno
            ):
                raise
            raise UserError(
                f"{path} must be a complete {path.rpartition('.')[2]} file",
                received=str(error),
            ) from None


def read_lines(path: str, on_stored: OnStored, longest: int) -> Iterator[Line]:
    """Yields the lines of a file, without a UTF-8 byte order mark.

    Args:
        on_stored: See `read_blocks`.
        longest: Longest line in bytes. Longer lines are cut into parts, after
            a space if possible, else between characters.

    Raises:
        UserError: For a damaged file, and for UTF-16.
    """
    number, offset = 1, 0
    rest = b""
    after_cr = False
    for block in read_blocks(path, on_stored):
        if not offset and not rest:
            if block.startswith(_UTF16_BOMS):
                raise UserError(
                    f"{path} must be UTF-8",
                    received="a UTF-16 byte order mark in line 1",
                    remedy="Convert the file, e.g. with iconv -f UTF-16.",
                )
            if block.startswith(_BOM):
                block, offset = block[len(_BOM) :], len(_BOM)
        if after_cr and block.startswith(b"\n"):
            # The CR at the end of the previous block has ended the line.
            block, offset = block[1:], offset + 1
        after_cr = block.endswith(b"\r")
        lines = _split(rest + block if rest else block)
        rest = lines.pop()[0]
        for content, ending in lines:
            for part in _cut(content, longest):
                yield Line(number, offset, part)
                offset += len(part)
            offset += ending
            number += 1
        while len(rest) > 2 * longest:
            part = next(_cut(rest, longest))
            yield Line(number, offset, part)
            offset += len(part)
            rest = rest[len(part) :]
    if rest:
        for part in _cut(rest, longest):
            yield Line(number, offset, part)
            offset += len(part)


def _split(block: bytes) -> list[tuple[bytes, int]]:
    """Returns lines, each with the length of its ending.

    The last line has no ending; it may continue in the next block.
    """
    parts = block.split(b"\n")
    if b"\r" not in block:
        lines = [(part, 1) for part in parts]
        return lines
    lines = []
    last = len(parts) - 1
    for number, part in enumerate(parts):
        ending = 1
        if number < last and part.endswith(b"\r"):
            part, ending = part[:-1], 2
        *others, end = part.split(b"\r")
        lines += [(other, 1) for other in others]
        lines.append((end, ending))
    return lines


def _cut(content: bytes, longest: int) -> Iterator[bytes]:
    """Yields the content in parts of at most `longest` bytes."""
    begin = 0
    while len(content) - begin > longest:
        end = content.rfind(b" ", begin, begin + longest) + 1
        if not end:
            end = begin + longest
            # Bytes 10xxxxxx continue a character; it has at most 3 of them.
            for _ in range(3):
                if content[end] & 0xC0 == 0x80:
                    end -= 1
        yield content[begin:end]
        begin = end
    yield content[begin:]


def _blocks_of(file: Any) -> Iterator[bytes]:
    while block := file.read(BLOCK_BYTES):
        yield block


def _decompress_zstd(file: Any) -> Iterator[bytes]:
    """Yields the content of all frames.

    The readers of zstandard ignore an incomplete last frame.

    Raises:
        EOFError: If the file ends within a frame.
    """
    decompressor = zstandard.ZstdDecompressor()
    frame = None
    for stored in _blocks_of(file):
        while stored:
            if frame is None:
                frame = decompressor.decompressobj()
            if block := frame.decompress(stored):
                yield block
            stored = b""
            if frame.eof:
                stored, frame = frame.unused_data, None
    if frame is not None:
        raise EOFError("the file ended within a frame")


class _ObservedFile(io.RawIOBase):
    """A file that passes all bytes read to a callback."""

    def __init__(self, file: Any, on_stored: OnStored) -> None:
        self._file = file
        self._on_stored = on_stored

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self._on_stored(content)
        return content

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)
