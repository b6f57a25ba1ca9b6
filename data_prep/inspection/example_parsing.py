"""Serialized `tf.train.Example` messages -> batches of arrays.

The protobuf runtime parses the messages, without TensorFlow, and NumPy decodes
the values of a batch at once. The schema below has the encoding of
`tf.train.Example`, with one difference: the value of a map entry is declared
as bytes and parsed separately, so that a fault names the damaged feature.

Reference:
    https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/example.proto
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from albert_tf.records.features import Feature

_PACKAGE = "data_prep.inspection"

# Message -> its fields: name, number and type. A map has the encoding of a
# repeated message with key and value. Concatenating the values of one entry
# merges them, as protobuf does with a message that occurs repeatedly.
_FIELDS: Mapping[str, tuple[tuple[str, int, str], ...]] = {
    "Example": (("features", 1, "Features"),),
    "Features": (("feature", 1, "repeated Entry"),),
    "Entry": (("key", 1, "string"), ("value", 2, "repeated bytes")),
    "Feature": (
        ("bytes_list", 1, "BytesList"),
        ("float_list", 2, "FloatList"),
        ("int64_list", 3, "Int64List"),
    ),
    "BytesList": (("value", 1, "repeated bytes"),),
    "FloatList": (("value", 1, "repeated float"),),
    "Int64List": (("value", 1, "repeated int64"),),
    # A list of numbers as encoded: little-endian floats, or varints.
    "Packed": (("value", 1, "bytes"),),
}

_DTYPES = {
    "bytes_list": "bytes",
    "float_list": "float32",
    "int64_list": "int64",
}


class _List(NamedTuple):
    """The values of a feature.

    Attributes:
        length: Number of values.
        packed: The values as little-endian floats, or as varints.
    """

    dtype: str = "no list"
    length: int = 0
    packed: bytes = b""


class _ExampleError(Exception):
    """The message is not an example as declared."""


class ParsedExamples(NamedTuple):
    """The features of a batch of messages.

    Attributes:
        rows: int64, `(parsed,)`, indices of the messages that are as declared.
        features: Arrays `(parsed, length)` by name: float32, int64, or uint8
            if all values are below 128.
        faults: Descriptions of the faults of the other messages, by index.
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
        contents: Serialized `tf.train.Example` messages.
        lengths: Number of values of each feature, by name.
    """
    faults: dict[int, str] = {}
    rows: list[int] = []
    examples: list[dict[str, _List]] = []
    for row, content in enumerate(contents):
        try:
            example = _read_lists(content)
            _check_declared(example, features, lengths)
        except _ExampleError as error:
            faults[row] = str(error)
        else:
            rows.append(row)
            examples.append(example)
    columns = {}
    for name, dtype in ((f.name, f.dtype) for f in features):
        packed = b"".join(example[name].packed for example in examples)
        values = (
            np.frombuffer(packed, "<f4")
            if dtype == "float32"
            else _decode_varints(packed)
        )
        columns[name] = values.reshape(len(examples), lengths[name])
    return ParsedExamples(np.array(rows, np.int64), columns, faults)


def count_values(content: bytes) -> dict[str, int]:
    """Number of values of each feature; empty if `content` is not a message."""
    try:
        example = _read_lists(content)
    except _ExampleError:
        return {}
    return {name: values.length for name, values in example.items()}


def _read_lists(content: bytes) -> dict[str, _List]:
    """The features of a message, by name."""
    classes = _message_classes()
    try:
        message = classes["Example"].FromString(content)
    except DecodeError:
        raise _ExampleError(
            "must be a tf.train.Example. "
            f"Received: {len(content)} bytes that cannot be decoded"
        ) from None
    found = {}
    for entry in message.features.feature:
        encoded = b"".join(entry.value)
        try:
            feature = classes["Feature"].FromString(encoded)
        except DecodeError:
            raise _ExampleError(
                f"{entry.key} must hold a list of values. "
                f"Received: {len(encoded)} bytes that cannot be decoded"
            ) from None
        found[entry.key] = _List()
        if kind := feature.WhichOneof("kind"):
            values = getattr(feature, kind)
            # Serializing the values again packs those that were not packed.
            packed = classes["Packed"].FromString(values.SerializeToString())
            found[entry.key] = _List(
                _DTYPES[kind], len(values.value), packed.value
            )
    return found


def _check_declared(
    example: Mapping[str, _List],
    features: Sequence[Feature],
    lengths: Mapping[str, int],
) -> None:
    """Compares names, types and lengths with the declaration.

    Raises:
        _ExampleError: For the first difference.
    """
    names = [feature.name for feature in features]
    if example.keys() != set(names):
        missing = ", ".join(sorted(set(names) - example.keys()))
        extra = ", ".join(sorted(example.keys() - set(names)))
        received = [
            *([f"{missing} missing"] if missing else []),
            *([f"{extra} in addition"] if extra else []),
        ]
        raise _ExampleError(
            f"must hold the features {', '.join(names)}. "
            f"Received: {'; '.join(received)}"
        )
    for feature in features:
        dtype, length, _ = example[feature.name]
        if dtype != feature.dtype:
            raise _ExampleError(
                f"{feature.name} must be of type {feature.dtype}. "
                f"Received: {dtype}"
            )
        if length != lengths[feature.name]:
            raise _ExampleError(
                f"{feature.name} must hold {lengths[feature.name]} values. "
                f"Received: {length}"
            )


def _decode_varints(encoded: bytes) -> np.ndarray:
    """Decodes well-formed varints; uint8 or int64, `(values,)`.

    A varint has 7 bits in each byte, low ones first. The high bit is set in
    all bytes but the last one.
    """
    digits = np.frombuffer(encoded, np.uint8)
    ends = np.flatnonzero(digits < 0x80)
    if len(ends) == len(digits):
        return digits
    begins = np.append(0, ends[:-1] + 1)
    num_digits = ends + 1 - begins
    values = np.zeros(len(ends), np.uint64)
    for i in range(num_digits.max()):
        longer = np.flatnonzero(num_digits > i)
        digit = digits[begins[longer] + i].astype(np.uint64) & np.uint64(0x7F)
        values[longer] |= digit << np.uint64(7 * i)
    return values.view(np.int64)


@functools.cache
def _message_classes() -> dict[str, Any]:
    """The class of each message, by name."""
    field_proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="example.proto", package=_PACKAGE, syntax="proto3"
    )
    for message_name, fields in _FIELDS.items():
        message = file.message_type.add(name=message_name)
        for name, number, declared in fields:
            *repeated, type_name = declared.split()
            field = message.field.add(name=name, number=number)
            field.label = (
                field_proto.LABEL_REPEATED
                if repeated
                else field_proto.LABEL_OPTIONAL
            )
            if type_name in _FIELDS:
                field.type_name = f".{_PACKAGE}.{type_name}"
                field.type = field_proto.TYPE_MESSAGE
            else:
                field.type = field_proto.Type.Value(f"TYPE_{type_name.upper()}")
            if message_name == "Feature":
                field.oneof_index = 0
        if message_name == "Feature":
            message.oneof_decl.add(name="kind")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
        )
        for name in _FIELDS
    }
