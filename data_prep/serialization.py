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


def serialize_examples(features: Mapping[str, np.ndarray]) -> list[bytes]:
    """Serialized `tf.train.Example`s.

    Args:
        features: Arrays `(examples, values)` by name, integers of at least 0
            or float32.

    Returns:
        A message for each example, features in the order of their names.
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
    if values.max(initial=0) < 0x80:
        return [row.tobytes() for row in values.astype(np.uint8)]
    num_bytes = 1
    while values.max() >> 7 * num_bytes:
        num_bytes += 1
    digits = np.stack(
        [values >> 7 * i & 0x7F for i in range(num_bytes)], axis=-1
    )
    is_used = np.ones(digits.shape, bool)
    for i in range(1, num_bytes):
        is_used[..., i] = values >> 7 * i > 0
    # All but the last byte of a number have their high bit set.
    digits[..., :-1][is_used[..., 1:]] |= 0x80
    content = digits.astype(np.uint8)[is_used].tobytes()
    ends = np.cumsum(is_used.sum(axis=(1, 2))).tolist()
    begins = [0, *ends[:-1]]
    return [content[b:e] for b, e in zip(begins, ends, strict=True)]
