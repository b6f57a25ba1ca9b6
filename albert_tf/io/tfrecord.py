"""TFRecord files, written and read without TensorFlow.

The layout of a record on disk, with little-endian numbers:

    uint64  length of the content
    uint32  masked CRC32C of these eight bytes
    bytes   content
    uint32  masked CRC32C of the content

Reference:
    https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

import functools
import hashlib
import itertools
import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import google_crc32c

# Records written at a time. On gs://, each write takes microseconds.
_BATCH_SIZE = 1024
# Bytes read at a time: a wrong length must not allocate all of them.
_BLOCK_BYTES = 4 << 20

_HEAD = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")


def write_records(file: Any, records: Iterable[bytes]) -> str:
    """Writes records to an open file; the hexadecimal SHA-256 of all bytes."""
    digest = hashlib.sha256()
    framed = (
        b"".join((_head(len(r)), r, _CHECKSUM.pack(masked_crc32c(r))))
        for r in records
    )
    while block := b"".join(itertools.islice(framed, _BATCH_SIZE)):
        digest.update(block)
        file.write(block)
    return digest.hexdigest()


class StoredRecord(NamedTuple):
    """A record of a file, intact or damaged."""

    number: int  # of records before it in the file
    offset: int  # in bytes
    content: bytes  # empty if it is damaged
    fault: str = ""  # how it is damaged


def read_records(file: Any) -> Iterator[StoredRecord]:
    """Reads the records of a file, and reports damaged ones.

    Reading continues after a record with damaged content. It ends after a
    damaged length, since the start of the next record is then unknown, and
    where the file ends within a record.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> digest = write_records(file, [b"first"])
        >>> list(read_records(io.BytesIO(file.getvalue())))
        [StoredRecord(number=0, offset=0, content=b'first', fault='')]
        >>> cut = io.BytesIO(file.getvalue()[:-1])
        >>> next(read_records(cut)).fault
        'must have 21 bytes, but the file ends after 20'
    """
    offset = 0
    for number in itertools.count():
        head = _read(file, _HEAD.size)
        if not head:
            return
        if len(head) < _HEAD.size:
            fault = f"must have more, but the file ends after {len(head)}"
            yield StoredRecord(number, offset, b"", fault)
            return
        length, checksum = _HEAD.unpack(head)
        if masked_crc32c(head[:8]) != checksum:
            fault = (
                f"its length, {length}, does not match the checksum of the "
                "length; the records after it are unreadable"
            )
            if head.startswith(b"\x1f\x8b") and not number:
                fault = "the file is compressed: unpack it with gzip -d"
            yield StoredRecord(number, offset, b"", fault)
            return
        rest = _read(file, length + _CHECKSUM.size)
        wanted = _HEAD.size + length + _CHECKSUM.size
        found = _HEAD.size + len(rest)
        if found < wanted:
            fault = f"must have {wanted} bytes, but the file ends after {found}"
            yield StoredRecord(number, offset, b"", fault)
            return
        content = rest[:length]
        (checksum,) = _CHECKSUM.unpack(rest[length:])
        if masked_crc32c(content) == checksum:
            yield StoredRecord(number, offset, content)
        else:
            fault = "its content does not match the checksum of the content"
            yield StoredRecord(number, offset, b"", fault)
        offset += wanted


def _read(file: Any, size: int) -> bytes:
    """Reads so many bytes, or up to the end of the file."""
    blocks = []
    while size and (block := file.read(min(size, _BLOCK_BYTES))):
        blocks.append(block)
        size -= len(block)
    return b"".join(blocks)


def masked_crc32c(content: bytes) -> int:
    """The stored form of a CRC32C: rotated, with a constant added."""
    checksum = google_crc32c.value(content)
    rotated = checksum >> 15 | checksum << 17
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF


@functools.lru_cache(maxsize=65536)
def _head(length: int) -> bytes:
    encoded = length.to_bytes(8, "little")
    return _HEAD.pack(length, masked_crc32c(encoded))
