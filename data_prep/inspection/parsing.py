"""Serialized `tf.train.Example` messages -> batches of arrays.

The protobuf runtime parses the messages by the schema of `tf.train.Example`,
without TensorFlow, so that worker processes start quickly.

Reference:
    https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/example.proto
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
)
from google.protobuf.message import DecodeError

from albert_tf.records.features import Feature

_SCHEMA = """
name: "example.proto" package: "data_prep" syntax: "proto3"
message_type {
  name: "Example"
  field { name: "features" number: 1 type_name: "Features" }
}
message_type {
  name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED
          type_name: "FeatureEntry" }
  nested_type {
    name: "FeatureEntry"
    options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type_name: "Feature" }
  }
}
message_type {
  name: "Feature"
  oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: "BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: "FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: "Int64List" oneof_index: 0 }
}
message_type {
  name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES }
}
message_type {
  name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT }
}
message_type {
  name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 }
}
"""

_DTYPES = {
    "bytes_list": "bytes",
    "float_list": "float32",
    "int64_list": "int64",
    None: "no list",
}


class ParsedExamples(NamedTuple):
    """The features of a batch of messages.

    Attributes:
        rows: int64, `(parsed,)`, indices of the messages that are as declared.
        features: float32 or int64 arrays, `(parsed, length)`, by name.
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
    columns = {
        f.name: np.empty((len(contents), lengths[f.name]), f.dtype)
        for f in features
    }
    for row, content in enumerate(contents):
        lists = _read_lists(content)
        if fault := _find_fault(content, lists, features, lengths):
            faults[row] = fault
            continue
        for name, column in columns.items():
            column[len(rows)] = lists[name][1]
        rows.append(row)
    return ParsedExamples(
        np.array(rows, np.int64),
        {name: column[: len(rows)] for name, column in columns.items()},
        faults,
    )


def count_values(content: bytes) -> dict[str, int]:
    """Number of values of each feature; empty if `content` is not a message."""
    lists = _read_lists(content)
    return {name: len(values) for name, (_, values) in lists.items()}


def _read_lists(content: bytes) -> dict[str, tuple[str, Any]]:
    """Type and values of each feature; empty if `content` is not a message."""
    try:
        example = _example_class().FromString(content)
    except DecodeError:
        return {}
    lists = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        lists[name] = (
            _DTYPES[kind],
            getattr(feature, kind).value if kind else (),
        )
    return lists


def _find_fault(
    content: bytes,
    lists: Mapping[str, tuple[str, Any]],
    features: Sequence[Feature],
    lengths: Mapping[str, int],
) -> str:
    """Compares names, types and lengths with the declaration."""
    if not lists:
        return (
            "must be a tf.train.Example. "
            f"Received: {len(content)} bytes that cannot be decoded"
        )
    names = [feature.name for feature in features]
    if lists.keys() != set(names):
        missing = [f"{n} missing" for n in sorted(set(names) - lists.keys())]
        extra = [f"{n} in addition" for n in sorted(lists.keys() - set(names))]
        return (
            f"must hold the features {', '.join(names)}. "
            f"Received: {', '.join(missing + extra)}"
        )
    for feature in features:
        dtype, values = lists[feature.name]
        wanted = f"{lengths[feature.name]} values of type {feature.dtype}"
        received = f"{len(values)} values of type {dtype}"
        if received != wanted:
            return f"{feature.name} must hold {wanted}. Received: {received}"
    return ""


@functools.cache
def _example_class() -> Any:
    schema = text_format.Parse(_SCHEMA, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(schema)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("data_prep.Example")
    )
