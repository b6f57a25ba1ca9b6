"""Parsing of examples, compared with TensorFlow's parser."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf.message import DecodeError

from albert_tf.records.features import Feature
from data_prep.builder.serialization import serialize_examples
from data_prep.inspection.parsing import count_values, parse_examples

FEATURES = (
    Feature("ids", "int64", per_token=True),
    Feature("weights", "float32", per_prediction=True),
    Feature("label", "int64"),
)
LENGTHS = {"ids": 5, "weights": 3, "label": 1}
INTACT = {
    "ids": [1, 2, 300, 0, 70000],
    "weights": [1.0, 0.5, 0.0],
    "label": [1],
}


def make_example(**features):
    """A message of lists of bytes, integers or floats, made by TensorFlow."""
    example = tf.train.Example()
    for name, values in features.items():
        feature = example.features.feature[name]
        if isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
    return example.SerializeToString()


def parse(*contents):
    return parse_examples(contents, FEATURES, LENGTHS)


def test_parsing_reverses_serializing():
    """With integers of one to three bytes, mixed; and of one byte only."""
    rng = np.random.default_rng(0)
    features = {
        "ids": rng.integers(0, 2**21, (7, 5)) >> rng.integers(0, 21, (7, 5)),
        "weights": rng.normal(size=(7, 3)).astype(np.float32),
        "label": rng.integers(0, 2, (7, 1)),
    }
    parsed = parse(*serialize_examples(features))
    assert parsed.rows.tolist() == list(range(7))
    assert not parsed.faults
    for name, values in features.items():
        np.testing.assert_array_equal(parsed.features[name], values)


@pytest.mark.parametrize(
    "ids",
    [
        [0, 1, 127, 128, 16383],
        [2**28 - 1, 2**28, 2**31, 2**32, 2**35],
        [-1, -(2**63), 2**63 - 1, 0, 5],
    ],
)
def test_integers_of_any_size_are_parsed(ids):
    features = INTACT | {"ids": ids}
    parsed = parse(make_example(**INTACT), make_example(**features))
    assert parsed.features["ids"].tolist() == [INTACT["ids"], ids]


def join(entries):
    content = b"".join(entries)
    return b"\x0a" + bytes([len(content)]) + content


def make_entry(name, values):
    """A map entry: a message with one feature, without its two-byte header."""
    return make_example(**{name: values})[2:]


def test_features_may_come_in_any_order():
    contents = [
        join(make_entry(name, INTACT[name]) for name in names)
        for names in itertools.permutations(INTACT)
    ]
    assert len(set(contents)) == 6
    parsed = parse(*contents)
    for name, values in INTACT.items():
        assert parsed.features[name].tolist() == [values] * 6


def make_packed(name, list_tag, values):
    """A map entry whose list has the bytes `values` as packed values."""
    content = b"\x0a" + bytes([len(values)]) + values
    for tag in (list_tag, b"\x12"):
        content = tag + bytes([len(content)]) + content
    key = b"\x0a" + bytes([len(name)]) + name
    return b"\x0a" + bytes([len(key + content)]) + key + content


def make_split_entry():
    """A map entry for ids whose value is in two parts, to be merged."""
    lists = [
        make_packed(b"ids", b"\x1a", part)[7:]
        for part in (b"\x01\x02", b"\x03\x04\x05")
    ]
    content = b"\x0a\x03ids" + b"".join(lists)
    return b"\x0a" + bytes([len(content)]) + content


def test_unusual_encodings_are_parsed_as_tensorflow_parses_them():
    """Unpacked integers; a value before its key; a repeated feature, of which
    the last one counts; a list in two parts; unknown fields."""
    entries = [make_entry(name, values) for name, values in INTACT.items()]
    int64_list = b"".join(b"\x08" + bytes([i]) for i in (7, 8, 9, 1, 2))
    feature = b"\x1a" + bytes([len(int64_list)]) + int64_list
    entry = b"\x12" + bytes([len(feature)]) + feature + b"\x0a\x03ids"
    unusual = b"\x0a" + bytes([len(entry)]) + entry
    contents = {
        join([unusual, *entries[1:]]): [7, 8, 9, 1, 2],
        join([make_entry("ids", [9] * 5), *entries]): INTACT["ids"],
        join([*entries, make_entry("ids", [9] * 5)]): [9] * 5,
        join(entries) + b"\x78\x01": INTACT["ids"],
        join([make_split_entry(), *entries[1:]]): [1, 2, 3, 4, 5],
    }
    for content, ids in contents.items():
        example = tf.train.Example.FromString(content)
        assert example.features.feature["ids"].int64_list.value == ids
    parsed = parse(*contents)
    assert parsed.features["ids"].tolist() == list(contents.values())
    assert not parsed.faults


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        (make_packed(b"ids", b"\x1a", b"\x01\x02\x03\x04\x05\x80"), "ids"),
        (
            make_packed(b"ids", b"\x1a", b"\x01" * 4 + b"\x80" * 10 + b"\x01"),
            "ids",
        ),
        (make_packed(b"weights", b"\x12", bytes(13)), "weights"),
    ],
)
def test_broken_values_are_refused(entry, name):
    """Even if the declared number of complete values precedes the broken one.
    The next message is parsed."""
    intact = [
        make_entry(other, INTACT[other]) for other in INTACT if other != name
    ]
    broken = join([entry, *intact])
    with pytest.raises(DecodeError):
        tf.train.Example.FromString(broken)
    parsed = parse(make_example(**INTACT), broken, make_example(**INTACT))
    assert list(parsed.faults) == [1]
    assert parsed.faults[1].startswith("must be a tf.train.Example")
    assert parsed.features["ids"].tolist() == [INTACT["ids"]] * 2


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"label": None}, "label missing"),
        ({"more": [1]}, "more in addition"),
        ({"ids": [1, 2]}, "hold 5 values of type int64. Received: 2 values"),
        ({"weights": [1.0] * 4}, "values of type float32. Received: 4 values"),
        ({"weights": [1, 0, 0]}, "Received: 3 values of type int64"),
        ({"label": [0.0]}, "Received: 1 values of type float32"),
        ({"label": [b"0"]}, "Received: 1 values of type bytes"),
    ],
)
def test_difference_from_the_declaration_is_named(changes, fault):
    """The messages around it are parsed."""
    features = {
        name: values
        for name, values in (INTACT | changes).items()
        if values is not None
    }
    intact = make_example(**INTACT)
    parsed = parse(intact, make_example(**features), intact)
    assert list(parsed.faults) == [1]
    assert fault in parsed.faults[1]
    assert parsed.rows.tolist() == [0, 2]
    assert parsed.features["ids"].tolist() == [INTACT["ids"]] * 2


def test_damaged_messages_are_parsed_as_tensorflow_parses_them():
    """A message is cut at each byte, and each byte is changed or inserted.
    The result is that of TensorFlow: a fault, or the same values."""
    intact = make_example(**INTACT)
    contents = [intact[:size] for size in range(len(intact))]
    for place in range(len(intact)):
        for byte in range(0, 256, 3):
            changed = intact[:place] + bytes([intact[place] ^ byte])
            contents.append(changed + intact[place + 1 :])
            contents.append(changed + intact[place:])
    parsed = parse(*contents)
    num_equal = 0
    for row, content in enumerate(contents):
        try:
            features = tf.train.Example.FromString(content).features.feature
        except DecodeError:
            assert row in parsed.faults
            continue
        found = {
            "ids": list(features["ids"].int64_list.value),
            "weights": list(features["weights"].float_list.value),
            "label": list(features["label"].int64_list.value),
        }
        is_right = (
            len(features) == 3
            and {name: len(v) for name, v in found.items()} == LENGTHS
        )
        assert is_right == (row not in parsed.faults), content
        if is_right:
            place = np.searchsorted(parsed.rows, row)
            num_equal += 1
            for name, values in found.items():
                np.testing.assert_array_equal(
                    parsed.features[name][place], np.array(values)
                )
    assert num_equal > 500


def test_values_are_counted():
    intact = make_example(**INTACT)
    assert count_values(intact) == LENGTHS
    assert count_values(intact[:-1]) == {}
    assert count_values(b"") == {}
