"""Serialized `tf.train.Example` messages, without TensorFlow.

Serializing complete arrays is about a hundred times as fast as TensorFlow's
messages, and worker processes start in a fraction of a second.

Reference:
    https://protobuf.dev/programming-guides/encoding
"""

import functools
import itertools
from collections.abc import Mapping

import numpy as np

# Tags of protocol buffers: field number << 3 | wire type 2, "length-delimited".
_FIRST_FIELD = b"\x0a"
_FEATURE_OF_ENTRY = b"\x12"
_FLOAT_LIST = b"\x12"
_INT64_LIST = b"\x1a"

# Largest number of bits of the numbers for which varints are tabulated.
_TABLE_BITS = 18


def serialize_examples(features: Mapping[str, np.ndarray]) -> list[bytes]:
    r"""Returns a serialized `tf.train.Example` for each row of the features.

    Args:
        features: Arrays `(rows, values)` by name: float32, or integers that
            are not negative.

    Example:
        >>> serialize_examples({"ids": np.array([[2, 300]])})
        [b'\n\x10\n\x0e\n\x03ids\x12\x07\x1a\x05\n\x03\x02\xac\x02']
    """
    columns = [
        _serialize_feature(name, features[name]) for name in sorted(features)
    ]
    examples = map(b"".join, zip(*columns, strict=True))
    return [_FIRST_FIELD + _length(len(e)) + e for e in examples]


def _serialize_feature(name: str, values: np.ndarray) -> list[bytes]:
    """Returns the map entry "name: values" of each example."""
    if values.dtype == np.float32:
        list_tag = _FLOAT_LIST
        payloads = [row.tobytes() for row in values.astype("<f4")]
    else:
        list_tag = _INT64_LIST
        payloads = _varints(values)
    return [_entry_head(name, list_tag, len(p)) + p for p in payloads]


@functools.lru_cache(maxsize=65536)
def _entry_head(name: str, list_tag: bytes, payload_length: int) -> bytes:
    """Returns the bytes before the packed values of a map entry."""
    values = _FIRST_FIELD + _length(payload_length)
    packed = list_tag + _length(len(values) + payload_length) + values
    key = _FIRST_FIELD + _length(len(name)) + name.encode()
    feature_length = _length(len(packed) + payload_length)
    head = key + _FEATURE_OF_ENTRY + feature_length + packed
    return _FIRST_FIELD + _length(len(head) + payload_length) + head


@functools.lru_cache(maxsize=65536)
def _length(value: int) -> bytes:
    """Encodes a varint: 7 bits per byte, low bits first.

    The high bit is set in all bytes but the last.
    """
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _varints(values: np.ndarray) -> list[bytes]:
    """Returns the concatenated varints of each row."""
    largest = int(values.max(initial=0))
    if largest < 0x80:
        content = values.astype(np.uint8).tobytes()
        lengths = np.full(len(values), values.shape[1])
    elif largest < 1 << _TABLE_BITS:
        varints, are_used, num_bytes = _varint_table(largest.bit_length())
        used = are_used.take(values).view(bool).reshape(-1)
        content = varints.take(values).view(np.uint8).reshape(-1)[used]
        content = content.tobytes()
        lengths = num_bytes.take(values).sum(axis=1)
    else:
        varints, used = _encode_varints(values, -(-largest.bit_length() // 7))
        content = varints[used].tobytes()
        lengths = used.sum(axis=(1, 2))
    ends = [0, *np.cumsum(lengths).tolist()]
    return [content[b:e] for b, e in itertools.pairwise(ends)]


@functools.lru_cache
def _varint_table(num_bits: int) -> tuple[np.ndarray, ...]:
    """Returns the varints of all numbers of at most `num_bits` bits.

    They are three arrays `(numbers,)`: four bytes, packed into one uint32,
    which is fast to look up; a flag per byte, True if the byte is used, also
    packed into one uint32; and the number of used bytes.
    """
    varints, are_used = _encode_varints(np.arange(1 << num_bits), 4)
    return (
        varints.view(np.uint32)[:, 0].copy(),
        are_used.view(np.uint32)[:, 0].copy(),
        are_used.sum(axis=1),
    )


def _encode_varints(
    numbers: np.ndarray, num_bytes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Encodes numbers below 2**(7 * num_bytes).

    Returns:
        uint8 and bool, each `(*shape of numbers, num_bytes)`: the bytes, and
        whether each byte belongs to the varint.
    """
    numbers = numbers.astype(np.int64)[..., np.newaxis]
    digits = numbers >> np.arange(0, 7 * num_bytes, 7)
    are_used = digits > 0
    are_used[..., 0] = True
    has_more = np.zeros_like(are_used)
    has_more[..., :-1] = are_used[..., 1:]
    varints = (digits & 0x7F | has_more.astype(np.int64) << 7).astype(np.uint8)
    return varints, are_used
