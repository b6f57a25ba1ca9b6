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
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import google_crc32c

_BUFFER_BYTES = 4 << 20

_HEAD = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")


class TFRecordWriter:
    """Writes records to an open file, a few megabytes at a time.

    The caller opens and closes the file. The end of the `with` block, or
    `flush`, writes the records that are still in memory.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._digest = hashlib.sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        if error_type is None:
            self.flush()

    def write(self, record: bytes) -> None:
        """Appends a record."""
        length = len(record)
        checksum = _CHECKSUM.pack(masked_crc32c(record))
        self._waiting += (_head(length), record, checksum)
        self._waiting_bytes += length + _HEAD.size + _CHECKSUM.size
        if self._waiting_bytes >= _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes all records in memory to the file."""
        if not self._waiting:
            return
        block = b"".join(self._waiting)
        self._digest.update(block)
        self._file.write(block)
        self._waiting = []
        self._waiting_bytes = 0

    def sha256(self) -> str:
        """Flushes all records; returns the hexadecimal SHA-256 of all bytes."""
        self.flush()
        return self._digest.hexdigest()


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
    where the file ends within a record. Memory use is the longest record and a
    few megabytes.

    Example:
        >>> import io
        >>> file = io.BytesIO()
        >>> with TFRecordWriter(file) as writer:
        ...     writer.write(b"first")
        >>> list(read_records(io.BytesIO(file.getvalue())))
        [StoredRecord(number=0, offset=0, content=b'first', fault='')]
        >>> cut = io.BytesIO(file.getvalue()[:-1])
        >>> next(read_records(cut)).fault
        'must have 21 bytes, but the file ends after 20'
    """
    block = file.read(_BUFFER_BYTES)
    begin = 0
    offset = number = 0
    while True:
        available = len(block) - begin
        length = 0
        if available >= _HEAD.size:
            length, checksum = _HEAD.unpack_from(block, begin)
            head = block[begin : begin + 8]
            if masked_crc32c(head) != checksum:
                fault = (
                    f"its length, {length}, does not match the checksum of the "
                    "length; the records after it are unreadable"
                )
                if head.startswith(b"\x1f\x8b") and not number:
                    fault = "the file is compressed: unpack it with gzip -d"
                yield StoredRecord(number, offset, b"", fault)
                return
        wanted = _HEAD.size + length + _CHECKSUM.size
        if available < wanted:
            # Block by block: a wrong length may have a matching checksum, and
            # its bytes must not all be requested at once.
            blocks = [block[begin:]]
            while available < wanted and (more := file.read(_BUFFER_BYTES)):
                blocks.append(more)
                available += len(more)
            ended = len(blocks) == 1
            block, begin = b"".join(blocks), 0
            if ended and available:
                # The length of a record with an incomplete head is unknown.
                what = f"{wanted} bytes" if available >= _HEAD.size else "more"
                fault = f"must have {what}, but the file ends after {available}"
                yield StoredRecord(number, offset, b"", fault)
            if ended:
                return
            continue
        middle = begin + _HEAD.size
        end = middle + length
        content = block[middle:end]
        (checksum,) = _CHECKSUM.unpack_from(block, end)
        if masked_crc32c(content) == checksum:
            yield StoredRecord(number, offset, content)
        else:
            fault = "its content does not match the checksum of the content"
            yield StoredRecord(number, offset, b"", fault)
        begin = end + _CHECKSUM.size
        offset += wanted
        number += 1


def masked_crc32c(content: bytes) -> int:
    """The stored form of a CRC32C: rotated, with a constant added."""
    checksum = google_crc32c.value(content)
    rotated = checksum >> 15 | checksum << 17
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF


@functools.lru_cache(maxsize=65536)
def _head(length: int) -> bytes:
    encoded = length.to_bytes(8, "little")
    return _HEAD.pack(length, masked_crc32c(encoded))
