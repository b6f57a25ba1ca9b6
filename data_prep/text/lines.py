"""Reads the lines of text files in bounded memory.

Files are local or gs://. The suffix names the compression: .gz, .bz2, .zst.
Lines end at LF, CR LF or CR.
"""

import bz2
import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import zstandard

from albert_tf.errors import UserError
from albert_tf.io.files import open_existing

BLOCK_BYTES = 1 << 20

# Size of the reads of a compressed file. A decompressor copies what follows the
# end of a stream, which is slow for large reads of many short streams.
_STORED_BYTES = 1 << 17

# Zero bytes at the end of a compressed file are ignored if they are fewer: they
# fill a sector of a disk or tape. More of them may be lost content.
_SECTOR_BYTES = 512

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
        suffix = next(filter(path.endswith, COMPRESSIONS), "")
        if not suffix:
            yield from _blocks_of(stored, BLOCK_BYTES, on_stored)
            return
        stored_blocks = _blocks_of(stored, _STORED_BYTES, on_stored)
        try:
            yield from _decompress(stored_blocks, _COMPRESSIONS[suffix])
        except (EOFError, zlib.error, zstandard.ZstdError, OSError) as error:
            if isinstance(error, OSError) and error.errno:
                raise
            raise UserError(
                f"{path} must be a complete {suffix[1:]} file",
                received=str(error),
            ) from None


def read_text_blocks(path: str, on_stored: OnStored) -> Iterator[bytes]:
    """Yields the content of a file of text; see `read_blocks`.

    Raises:
        UserError: For a damaged file, and for the byte order mark of UTF-16.
    """
    for number, block in enumerate(read_blocks(path, on_stored)):
        if not number and block.startswith(_UTF16_BOMS):
            raise UserError(
                f"{path} must be UTF-8",
                received="a UTF-16 byte order mark in line 1",
                remedy="Convert the file, e.g. with iconv -f UTF-16 -t UTF-8.",
            )
        yield block


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
    for block in read_text_blocks(path, on_stored):
        if not offset and not rest and block.startswith(_BOM):
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


def _blocks_of(file: Any, size: int, on_stored: OnStored) -> Iterator[bytes]:
    while block := file.read(size):
        on_stored(block)
        yield block


def _decompress(
    stored_blocks: Iterator[bytes], compression: "_Compression"
) -> Iterator[bytes]:
    """Yields the content of all streams of a file, which follow each other.

    The readers of bz2, gzip and zstandard end without an error at some damages
    of later streams.

    Raises:
        EOFError: If the file ends within a stream, or if a sector or more of
            zero bytes follows a stream.
        OSError, zlib.error, zstandard.ZstdError: For other bytes that are not a
            stream.
    """
    stream = compression.start()
    for stored in stored_blocks:
        while stored:
            if stream is None:
                if stored.startswith(b"\0"):
                    _check_padding(stored, stored_blocks)
                    return
                stream = compression.start()
            yield from filter(None, compression.read(stream, stored))
            stored = b""
            if stream.eof:
                stored, stream = stream.unused_data, None
    if stream is not None:
        raise EOFError("the file ended within a stream")


def _check_padding(stored: bytes, stored_blocks: Iterator[bytes]) -> None:
    size = 0
    for block in itertools.chain([stored], stored_blocks):
        size += len(block)
        if size >= _SECTOR_BYTES or block.strip(b"\0"):
            raise EOFError("zero bytes between or after its streams")


def _read_bz2(stream: bz2.BZ2Decompressor, stored: bytes) -> Iterator[bytes]:
    yield stream.decompress(stored, BLOCK_BYTES)
    while not (stream.eof or stream.needs_input):
        yield stream.decompress(b"", BLOCK_BYTES)


def _read_gzip(stream: Any, stored: bytes) -> Iterator[bytes]:
    # After the end of a stream, `unconsumed_tail` may repeat `unused_data`.
    while stored and not stream.eof:
        yield stream.decompress(stored, BLOCK_BYTES)
        stored = stream.unconsumed_tail


def _read_zstd(stream: Any, stored: bytes) -> Iterator[bytes]:
    yield stream.decompress(stored)


def _start_zstd() -> Any:
    # By default, zstandard refuses files of zstd --long=28 to --long=31.
    return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()


class _Compression(NamedTuple):
    """How to read a compressed file.

    Attributes:
        start: Makes the decompressor of one stream.
        read: Passes stored bytes to a decompressor, and yields their content,
            except for zstd in blocks of at most `BLOCK_BYTES`.
    """

    start: Callable[[], Any]
    read: Callable[[Any, bytes], Iterator[bytes]]


# The largest window of zlib, with the header and checksum of gzip.
_GZIP_WBITS = 16 + zlib.MAX_WBITS

_COMPRESSIONS = {
    ".gz": _Compression(lambda: zlib.decompressobj(_GZIP_WBITS), _read_gzip),
    ".bz2": _Compression(bz2.BZ2Decompressor, _read_bz2),
    ".zst": _Compression(_start_zstd, _read_zstd),
}

COMPRESSIONS = tuple(_COMPRESSIONS)
