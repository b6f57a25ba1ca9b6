"""TFRecord files, written and read without TensorFlow.

A record on disk is, all numbers little-endian:

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
from types import TracebackType
from typing import Any, NamedTuple, Self

import google_crc32c

_BUFFER_BYTES = 4 << 20

_HEAD = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")


class TFRecordWriter:
    """Writes records to an open file, some megabytes at a time.

    The file is the caller's to open and close; leaving the `with` block, or
    `flush`, writes what is still in memory.

    Args:
        file: Open for writing bytes.

    Attributes:
        num_records, num_bytes: Written so far.
    """

    def __init__(self, file: Any) -> None:
        self.num_records = 0
        self.num_bytes = 0
        self._file = file
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._digest = hashlib.sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error_type is None:
            self.flush()

    def write(self, record: bytes) -> None:
        """Appends a record."""
        length = len(record)
        checksum = _CHECKSUM.pack(_mask(google_crc32c.value(record)))
        self._waiting += (_head(length), record, checksum)
        self.num_records += 1
        self._waiting_bytes += length + _HEAD.size + _CHECKSUM.size
        if self._waiting_bytes >= _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hands all records over to the file."""
        if not self._waiting:
            return
        block = b"".join(self._waiting)
        self._digest.update(block)
        self._file.write(block)
        self.num_bytes += len(block)
        self._waiting = []
        self._waiting_bytes = 0

    def sha256(self) -> str:
        """Hexadecimal digest of the file, all records flushed."""
        self.flush()
        return self._digest.hexdigest()


class StoredRecord(NamedTuple):
    """A record as a file holds it.

    Attributes:
        number: Records before it in the file.
        offset: Bytes before it.
        content: The record; empty where `fault` is not.
        fault: What is wrong with it; empty if nothing is.
    """

    number: int
    offset: int
    content: bytes
    fault: str = ""


def read_records(file: Any) -> Iterator[StoredRecord]:
    """The records of a file, and those that are damaged.

    A record with a damaged content is followed by the next. A damaged
    length, or the end of the file within a record, is the last that is
    reported: where the next one begins is not known.

    Args:
        file: Open for reading bytes.

    Yields:
        Records in order. Memory is that of the longest record and a few
        megabytes.
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
            if _mask(google_crc32c.value(head)) != checksum:
                fault = (
                    f"its length, {length}, and the checksum of the length "
                    "must agree; all behind it is unreadable"
                )
                yield StoredRecord(number, offset, b"", fault)
                return
        wanted = _HEAD.size + length + _CHECKSUM.size
        if available < wanted:
            # In steps, since a length may be wrong for all its checksum.
            parts = [block[begin:]]
            while available < wanted and (part := file.read(_BUFFER_BYTES)):
                parts.append(part)
                available += len(part)
            ended = len(parts) == 1
            block, begin = b"".join(parts), 0
            if ended and available:
                # Of an incomplete head, nothing but that is known.
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
        if _mask(google_crc32c.value(content)) == checksum:
            yield StoredRecord(number, offset, content)
        else:
            fault = "its content and the checksum of the content must agree"
            yield StoredRecord(number, offset, b"", fault)
        begin = end + _CHECKSUM.size
        offset += wanted
        number += 1


def _mask(checksum: int) -> int:
    """A checksum as stored, so that checksums can be checksummed well."""
    rotated = checksum >> 15 | checksum << 17
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF


@functools.lru_cache(maxsize=65536)
def _head(length: int) -> bytes:
    encoded = length.to_bytes(8, "little")
    return _HEAD.pack(length, _mask(google_crc32c.value(encoded)))
