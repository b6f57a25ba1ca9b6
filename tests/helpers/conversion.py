"""Models to convert, conversions, and changes of what they write."""

import json
import shutil

import numpy as np
import tensorflow as tf

from albert_tf.config import ConvertConfig
from albert_tf.interop import formats
from albert_tf.interop.convert import convert


def converted(source, target, to_format="auto", **more):
    convert(
        ConvertConfig(
            from_=str(source), to=str(target), to_format=to_format, **more
        )
    )
    return formats.read_weights(str(target))


def assert_same(weights, expected):
    """Equality of what every format holds."""
    for fact in "config", "sentence_objective", "head":
        assert getattr(weights, fact) == getattr(expected, fact)
    assert weights.values.keys() == expected.values.keys()
    for path, value in expected.values.items():
        np.testing.assert_array_equal(weights.values[path], value, path)


def save_tensors(prefix, tensors):
    """Writes a checkpoint of TensorFlow 1 with any tensors."""
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )


def write_published(weights, directory):
    """Writes a model as google-research/albert does, for tests of reading."""
    directory.mkdir()
    prefix = f"model.ckpt-{weights.step}"
    save_tensors(
        directory / prefix,
        {
            w.google_albert: weights.values[w.path]
            for w in weights.list_weights()
        },
    )
    config = weights.config.to_dict()
    del config["parameter_sharing"]  # is not in that schema
    (directory / "albert_config.json").write_text(json.dumps(config))
    (directory / "checkpoint").write_text(
        f'model_checkpoint_path: "{prefix}"\n'
    )
    if weights.vocabulary:
        shutil.copy(weights.vocabulary, directory / "30k-clean.model")


def change_json(path, **changes):
    """Replaces values of an object; None removes one."""
    content = json.loads(path.read_text()) | changes
    kept = {name: value for name, value in content.items() if value is not None}
    path.write_text(json.dumps(kept))
