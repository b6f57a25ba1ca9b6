import numpy as np
import pytest
import tensorflow as tf

from data_prep.builder.serialization import serialize_examples


def test_bytes_equal_those_of_tensorflow():
    """For numbers of one, two and three bytes, extreme and random."""
    rng = np.random.default_rng(0)
    features = {
        "zeros": np.zeros((7, 5), np.int32),
        "borders": np.array([[0, 1, 127, 128, 16383, 16384, 2**21 - 1]] * 7),
        "mixed": rng.integers(0, 30000, (7, 300)).astype(np.int32),
        "weights": rng.normal(size=(7, 3)).astype(np.float32),
        "label": np.arange(7)[:, np.newaxis],
    }
    for row, serialized in enumerate(serialize_examples(features)):
        example = tf.train.Example()
        for name, values in features.items():
            feature = example.features.feature[name]
            if values.dtype == np.float32:
                feature.float_list.value.extend(values[row].tolist())
            else:
                feature.int64_list.value.extend(values[row].tolist())
        assert serialized == example.SerializeToString(deterministic=True)


def test_numbers_of_more_than_21_bits_are_refused():
    with pytest.raises(ValueError, match=r"2\*\*21, got 2097152"):
        serialize_examples({"a": np.array([[1, 2**21]])})
