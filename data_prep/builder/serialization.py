"""Batches of arrays -> bytes of `tf.train.Example` messages.

The bytes are those that TensorFlow's own deterministic serialization gives,
made from whole arrays at once and without importing TensorFlow: about a
hundred times as fast, and worker processes start in a fraction of a second.

Reference:
    https://protobuf.dev/programming-guides/encoding
"""

import functools
from collections.abc import Mapping

import numpy as np

# Tags of the messages: field number << 3 | wire type 2, "length-delimited".
_FIRST_FIELD = b"\x0a"
_FEATURE_OF_ENTRY = b"\x12"
_FLOAT_LIST = b"\x12"
_INT64_LIST = b"\x1a"

# Varints of larger numbers are not in a table.
_TABLE_BITS = 21


def serialize_examples(features: Mapping[str, np.ndarray]) -> list[bytes]:
    """Serialized `tf.train.Example`s.

    Args:
        features: Arrays `(examples, values)` by name, float32, or integers
            from 0 to below 2**21, as pieces, positions and flags are.

    Returns:
        A message for each example, features in the order of their names.

    Raises:
        ValueError: For larger integers.
    """
    columns = [
        _serialize_feature(name, features[name]) for name in sorted(features)
    ]
    examples = []
    for entries in zip(*columns, strict=True):
        content = b"".join(entries)
        examples.append(_FIRST_FIELD + _length(len(content)) + content)
    return examples


def _serialize_feature(name: str, values: np.ndarray) -> list[bytes]:
    """The map entry "name: values" of each row."""
    if values.dtype == np.float32:
        list_tag = _FLOAT_LIST
        payloads = [row.tobytes() for row in values.astype("<f4")]
    else:
        list_tag = _INT64_LIST
        payloads = _varints(values)
    return [_entry_head(name, list_tag, len(p)) + p for p in payloads]


@functools.lru_cache(maxsize=65536)
def _entry_head(name: str, list_tag: bytes, payload_length: int) -> bytes:
    """What stands before the packed values of a map entry."""
    values = _FIRST_FIELD + _length(payload_length)
    packed = list_tag + _length(len(values) + payload_length) + values
    key = _FIRST_FIELD + _length(len(name)) + name.encode()
    feature_length = _length(len(packed) + payload_length)
    head = key + _FEATURE_OF_ENTRY + feature_length + packed
    return _FIRST_FIELD + _length(len(head) + payload_length) + head


@functools.lru_cache(maxsize=65536)
def _length(value: int) -> bytes:
    """One varint: 7 bits a byte, low ones first, high bit on all but last."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _varints(values: np.ndarray) -> list[bytes]:
    """The varints of each row, one after another."""
    largest = int(values.max(initial=0))
    if largest < 0x80:
        content = values.astype(np.uint8).tobytes()
        lengths = np.full(len(values), values.shape[1])
    else:
        if largest >= 1 << _TABLE_BITS:
            raise ValueError(f"integers must be below 2**21, got {largest}")
        varints, are_used, num_bytes = _varint_table(largest.bit_length())
        used = are_used.take(values).view(bool).reshape(-1)
        content = varints.take(values).view(np.uint8).reshape(-1)[used]
        content = content.tobytes()
        lengths = num_bytes.take(values).sum(axis=1)
    ends = np.cumsum(lengths).tolist()
    begins = [0, *ends[:-1]]
    return [content[b:e] for b, e in zip(begins, ends, strict=True)]


@functools.lru_cache
def _varint_table(num_bits: int) -> tuple[np.ndarray, ...]:
    """The varints of all numbers of so many bits.

    Returns:
        The four bytes of each number, low ones first; which of them are
        used; how many. The four are one uint32, which is fast to look up:
        each `(numbers,)`.
    """
    numbers = np.arange(1 << num_bits, dtype=np.int64)
    digits = numbers[:, np.newaxis] >> np.arange(0, 28, 7)
    num_bytes = np.maximum(1, (digits > 0).sum(axis=1))
    are_used = np.arange(4) < num_bytes[:, np.newaxis]
    has_more = np.arange(1, 5) < num_bytes[:, np.newaxis]
    varints = (digits & 0x7F | has_more << 7).astype(np.uint8)
    return (
        varints.view(np.uint32)[:, 0].copy(),
        are_used.view(np.uint32)[:, 0].copy(),
        num_bytes,
    )
