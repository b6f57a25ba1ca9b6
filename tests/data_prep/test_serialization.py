import numpy as np
import tensorflow as tf

from data_prep.builder.serialization import serialize_examples


def test_bytes_equal_those_of_tensorflow():
    """For numbers of one to nine bytes, extreme and random."""
    rng = np.random.default_rng(0)
    features = {
        "zeros": np.zeros((7, 5), np.int32),
        "borders": np.array([[0, 1, 127, 128, 16383, 16384, 2**18 - 1]] * 7),
        "large": np.array([[0, 2**18, 2**21 - 1, 2**21, 2**35, 2**63 - 1]] * 7),
        "growing": np.arange(2**18 - 3, 2**18 + 4)[:, np.newaxis],
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
