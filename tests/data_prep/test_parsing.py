"""Parsing of examples, compared with TensorFlow's parser."""

import numpy as np
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
