"""Bytes of `tf.train.Example` messages -> batches of arrays.

The reverse of `serialization.py`, for whoever has to look at every record of
a large set: whole batches at once and without importing TensorFlow. Messages
that are laid out as TensorFlow lays them out are read here, whatever the
order and the names of their features; the few that are not are handed to
TensorFlow's own parser, which knows all that is allowed.

Reference:
    https://protobuf.dev/programming-guides/encoding
"""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from albert_tf.records.features import Feature

_LONGEST_VARINT = 10  # bytes of a negative int64

# An Example is a Features message, which is a row of map entries: name, then
# a Feature of one list. The parts of an entry up to its packed values: its
# length, length of the name, name, length of the Feature, tag and length of
# the list, length of the values.
_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_EXAMPLE_HEAD = re.compile(rb"\x0a(" + _VARINT + rb")")
_ENTRY_HEAD = re.compile(
    rb"\x0a(V)\x0a([\x01-\x7f])(\w+)\x12(V)([\x12\x1a])(V)\x0a(V)".replace(
        b"V", _VARINT
    )
)
_DTYPES = {b"\x12": "float32", b"\x1a": "int64"}


# The list of a feature as stored: dtype, and varints or little-endian floats.
_Values = tuple[str, bytes]


class ParsedExamples(NamedTuple):
    """Some messages.

    Attributes:
        rows: int64, `(parsed,)`; the messages that are as declared.
        features: Arrays `(parsed, length)` by name: float32, or integers
            of a type wide enough for what they hold.
        faults: What is wrong with the others, by row.
    """

    rows: np.ndarray
    features: dict[str, np.ndarray]
    faults: dict[int, str]


def parse_examples(
    contents: Sequence[bytes],
    features: Sequence[Feature],
    lengths: Mapping[str, int],
) -> ParsedExamples:
    """Parses messages that must hold certain features and no others.

    Args:
        contents: Serialized `tf.train.Example`s.
        features: What each must hold.
        lengths: Values of each feature, by name.
    """
    faults: dict[int, str] = {}
    dtypes = {feature.name: feature.dtype for feature in features}
    rows: list[int] = []
    messages: list[dict[str, _Values]] = []
    for row, content in enumerate(contents):
        message = _split_message(content)
        if message is None:
            faults[row] = (
                "must be a tf.train.Example of integers and floats. "
                f"Received: {len(content)} bytes of something else"
            )
        elif fault := _compare_declared(message, dtypes):
            faults[row] = fault
        else:
            rows.append(row)
            messages.append(message)
    columns = {}
    are_right = np.ones(len(rows), bool)
    for name, dtype in dtypes.items():
        lists = [message[name][1] for message in messages]
        decode = _decode_floats if dtype == "float32" else _decode_varints
        columns[name], counts = decode(lists, lengths[name])
        for i in np.flatnonzero(are_right & (counts != lengths[name])):
            faults[rows[i]] = (
                f"{name} must hold {lengths[name]} values. Received: "
                + (str(counts[i]) if counts[i] >= 0 else "broken ones")
            )
        are_right &= counts == lengths[name]
    if not are_right.all():
        columns = {name: c[are_right] for name, c in columns.items()}
    return ParsedExamples(np.array(rows, int)[are_right], columns, faults)


def count_values(content: bytes) -> dict[str, int]:
    """Values of each feature of a message; empty if it is none."""
    counts = {}
    for name, (dtype, values) in (_split_message(content) or {}).items():
        decode = _decode_floats if dtype == "float32" else _decode_varints
        counts[name] = int(decode([values], 1)[1][0])
    return counts


def _compare_declared(
    message: Mapping[str, _Values], dtypes: Mapping[str, str]
) -> str:
    """What differs from the declaration; empty if nothing does."""
    if message.keys() != dtypes.keys():
        missing = sorted(dtypes.keys() - message.keys())
        others = sorted(message.keys() - dtypes.keys())
        return (
            f"must hold the features {', '.join(dtypes)}. Received: "
            + "; ".join(
                f"{what} {', '.join(names)}"
                for what, names in (("none of", missing), ("also", others))
                if names
            )
        )
    for name, (dtype, _) in message.items():
        if dtype != dtypes[name]:
            return f"{name} must be of type {dtypes[name]}. Received: {dtype}"
    return ""


def _split_message(content: bytes) -> dict[str, _Values] | None:
    """The lists of a message by name; None if it is no message."""
    found = _split_regular(content)
    return found if found is not None else _split_any(content)


def _split_regular(content: bytes) -> dict[str, _Values] | None:
    """As `_split_message`; None, too, if it is laid out in another way."""
    head = _EXAMPLE_HEAD.match(content)
    if head is None or head.end() + _varint(head[1]) != len(content):
        return None
    found = {}
    position = head.end()
    while position < len(content):
        entry = _ENTRY_HEAD.match(content, position)
        if entry is None or (parsed := _parse_entry_head(entry[0])) is None:
            return None
        name, dtype, size = parsed
        begin = entry.end()
        position = begin + size
        if position > len(content) or name in found:
            return None
        found[name] = (dtype, content[begin:position])
    return found


@functools.lru_cache(maxsize=65536)
def _parse_entry_head(head: bytes) -> tuple[str, str, int] | None:
    """Name, dtype and bytes of the values; None if lengths do not agree."""
    match = _ENTRY_HEAD.fullmatch(head)
    assert match is not None
    size = _varint(match[7])
    inner_lengths = ((1, _varint(match[1])), (4, _varint(match[4])))
    agree = len(match[3]) == match[2][0] and all(
        length == len(head) - match.end(group) + size
        for group, length in (*inner_lengths, (6, _varint(match[6])))
    )
    return (match[3].decode(), _DTYPES[match[5]], size) if agree else None


@functools.lru_cache(maxsize=65536)
def _varint(encoded: bytes) -> int:
    return sum((byte & 0x7F) << 7 * i for i, byte in enumerate(encoded))


def _split_any(content: bytes) -> dict[str, _Values] | None:
    """As `_split_message`, by TensorFlow, which writes it regularly."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.example import example_pb2

    try:
        example = example_pb2.Example.FromString(content)
    except DecodeError:
        return None
    example.DiscardUnknownFields()
    return _split_regular(example.SerializeToString(deterministic=True))


def _decode_floats(
    lists: Sequence[bytes], length: int
) -> tuple[np.ndarray, np.ndarray]:
    """As `_decode_varints`."""
    sizes = np.fromiter(map(len, lists), np.int64, len(lists))
    counts = np.where(sizes % 4, -1, sizes // 4)
    whole = [
        content if count == length else bytes(4 * length)
        for content, count in zip(lists, counts, strict=True)
    ]
    values = np.frombuffer(b"".join(whole), "<f4").reshape(-1, length)
    return values, counts


def _decode_varints(
    lists: Sequence[bytes], length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Decodes the packed integers of several messages.

    Args:
        lists: The varints of each message.
        length: Values that each should hold.

    Returns:
        The values, `(messages, length)`, zeros where there are not `length`
        values; and their numbers, int64, `(messages,)`, -1 for what does not
        consist of varints.
    """
    sizes = np.fromiter(map(len, lists), np.int64, len(lists))
    encoded = np.frombuffer(b"".join(lists), np.uint8)
    is_last = encoded < 0x80
    if is_last.all() and (sizes == length).all():
        return encoded.reshape(-1, length), sizes
    ends = np.cumsum(sizes)
    is_whole = sizes == 0
    is_whole[~is_whole] = is_last[ends[~is_whole] - 1]
    if not is_whole.all():
        # A varint must not go on in the list of the next message.
        return _decode_some(lists, is_whole, np.full(len(lists), -1), length)
    lasts = np.flatnonzero(is_last)
    counts = np.diff(np.searchsorted(lasts, ends), prepend=0)
    widths = np.diff(lasts, prepend=-1)
    too_long = lasts[widths > _LONGEST_VARINT]
    counts[np.searchsorted(ends, too_long, "right")] = -1
    if not (counts == length).all():
        return _decode_some(lists, counts == length, counts, length)
    num_bytes = int(widths.max(initial=1))
    wide = np.dtype(np.uint32 if num_bytes <= 4 else np.uint64)
    values = (encoded[lasts - widths + 1] & 0x7F).astype(wide)
    for i in range(1, num_bytes):
        longer = np.flatnonzero(widths > i)
        digits = encoded[lasts[longer] - widths[longer] + 1 + i] & 0x7F
        values[longer] |= digits.astype(wide) << wide.type(7 * i)
    signed = values.view(f"i{wide.itemsize}")
    return signed.reshape(-1, length), counts


def _decode_some(
    lists: Sequence[bytes], chosen: np.ndarray, counts: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """As `_decode_varints`, for lists of which some cannot be decoded."""
    values = np.zeros((len(lists), length), np.int64)
    kept = [lists[i] for i in np.flatnonzero(chosen).tolist()]
    if kept:
        values[chosen], counts[chosen] = _decode_varints(kept, length)
    return values, counts
