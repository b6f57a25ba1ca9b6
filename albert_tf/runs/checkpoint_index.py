"""Checks the index of a TensorFlow checkpoint before TensorFlow reads it.

TensorFlow ends the process if the index of a checkpoint (`PREFIX.index`) has
correct checksums but impossible contents, as a hostile file may have.

The index is a table of TensorFlow, whose format is that of LevelDB: blocks of
sorted entries, each block followed by a byte for its compression and a masked
CRC32C; a block that lists these blocks; and a footer of 48 bytes. The entry of
a variable is a `BundleEntryProto`, with its place in `PREFIX.data-*`; the entry
with the empty name is the `BundleHeaderProto`.

References:
    https://github.com/google/leveldb/blob/main/doc/table_format.md
    tensorflow/core/protobuf/tensor_bundle.proto
"""

import math
import posixpath
import struct
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from google.protobuf import message
from tensorflow.core.protobuf import tensor_bundle_pb2

from albert_tf.io.tfrecord import masked_crc32c

_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER_BYTES = 48
_UNCOMPRESSED = 0
_CHECKSUM = struct.Struct("<BI")
_UINT32 = struct.Struct("<I")

# Bytes of all names and entries; the index of ALBERT-xxlarge has 10 kB.
_MAX_BYTES = 64 << 20


def check_index(prefix: str) -> None:
    """Checks that TensorFlow can read the index of a checkpoint.

    Args:
        prefix: Of the files of the checkpoint, e.g. `.../model.ckpt-best`.

    Raises:
        ValueError: If the index is damaged, or names bytes that the data files
            do not have.
        tf.errors.OpError: If a file cannot be read.
    """
    with tf.io.gfile.GFile(f"{prefix}.index", "rb") as file:
        content = file.read()
    try:
        _check_entries(prefix, dict(_read_table(content)))
    except (struct.error, IndexError):
        reason = "it ends within an entry"
    except (message.DecodeError, TypeError):
        reason = "an entry is not that of a variable"
    except ValueError as error:
        reason = str(error)
    else:
        return
    raise ValueError(f"{posixpath.basename(prefix)}.index is damaged: {reason}")


def _check_entries(prefix: str, entries: dict[bytes, bytes]) -> None:
    header = tensor_bundle_pb2.BundleHeaderProto()
    header.ParseFromString(entries.pop(b"", b""))
    if header.endianness != header.LITTLE or header.num_shards < 1:
        raise ValueError("it has no header")
    sizes: dict[int, int] = {}
    for name, value in entries.items():
        entry = tensor_bundle_pb2.BundleEntryProto()
        entry.ParseFromString(value)
        shard = entry.shard_id
        if not 0 <= shard < header.num_shards:
            raise ValueError(f"{name!r} is in file {shard}, which is missing")
        if shard not in sizes:
            data = f"{prefix}.data-{shard:05d}-of-{header.num_shards:05d}"
            sizes[shard] = tf.io.gfile.stat(data).length
        if not 0 <= entry.offset <= entry.offset + entry.size <= sizes[shard]:
            raise ValueError(f"{name!r} is beyond the end of its file")
        _check_shape(name, entry)


def _check_shape(name: bytes, entry: Any) -> None:
    """Checks the shape and dtype of a variable against its size in bytes."""
    dtype = tf.as_dtype(entry.dtype)  # raises TypeError for unknown ones
    sizes = [dimension.size for dimension in entry.shape.dim]
    if entry.shape.unknown_rank or any(size < 0 for size in sizes):
        raise ValueError(f"{name!r} has no shape")
    if entry.slices:
        raise ValueError(f"{name!r} is stored in parts")
    if dtype != tf.string and entry.size != math.prod(sizes) * dtype.size:
        raise ValueError(f"{name!r} has {entry.size} bytes for shape {sizes}")


def _read_table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the entries of a table, and checks all checksums."""
    footer = content[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or not footer.endswith(_MAGIC):
        raise ValueError("it has no footer")
    _offset, place = _read_varint(footer, 0)
    _size, place = _read_varint(footer, place)
    num_bytes = 0
    for _last_name, handle in _read_block(content, footer[place:]):
        for name, entry in _read_block(content, handle):
            num_bytes += len(name) + len(entry)
            if num_bytes > _MAX_BYTES:
                raise ValueError(f"its names have more than {_MAX_BYTES} bytes")
            yield name, entry


def _read_block(content: bytes, handle: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the entries of the block at a handle: offset and size."""
    offset, place = _read_varint(handle, 0)
    size, _ = _read_varint(handle, place)
    if offset + size + _CHECKSUM.size > len(content):
        raise ValueError("it ends within a block")
    compression, checksum = _CHECKSUM.unpack_from(content, offset + size)
    if masked_crc32c(content[offset : offset + size + 1]) != checksum:
        raise ValueError("a checksum is wrong")
    if compression != _UNCOMPRESSED:
        raise ValueError("it is compressed")
    block = content[offset : offset + size]
    (num_restarts,) = _UINT32.unpack_from(block, len(block) - _UINT32.size)
    end = len(block) - _UINT32.size * (1 + num_restarts)
    place, key = 0, b""
    while place < end:
        shared, place = _read_varint(block, place)
        unshared, place = _read_varint(block, place)
        length, place = _read_varint(block, place)
        if shared > len(key) or place + unshared + length > end:
            raise ValueError("it ends within an entry")
        key = key[:shared] + block[place : place + unshared]
        place += unshared
        yield key, block[place : place + length]
        place += length


def _read_varint(content: bytes, place: int) -> tuple[int, int]:
    """A number of seven bits in each byte, and the place after it."""
    number = 0
    for shift in range(0, 64, 7):
        byte = content[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
    raise ValueError("a number has more than 64 bits")
