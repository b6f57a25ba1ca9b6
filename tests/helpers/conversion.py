"""Converts models in tests, and checks what a refused conversion leaves."""

import json
import shutil
import tarfile

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import ConvertConfig
from albert_tf.errors import UserError
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
    assert weights.config == expected.config
    assert weights.sentence_objective == expected.sentence_objective
    assert weights.step == expected.step
    for kind in ("values", "slots"):
        found, wanted = getattr(weights, kind), getattr(expected, kind)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value)


def write_published(weights, directory):
    """Writes a model as google-research/albert does, for tests of reading."""
    tensors = {
        weight.google_albert: weights.values[weight.path]
        for weight in weights.list_weights()
    }
    directory.mkdir()
    prefix = f"model.ckpt-{weights.step}"
    tf.raw_ops.SaveV2(
        prefix=str(directory / prefix),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )
    config = weights.config.to_dict()
    for ours in ("parameter_sharing", "layers_to_keep"):
        del config[ours]
    (directory / "albert_config.json").write_text(json.dumps(config))
    (directory / "checkpoint").write_text(
        f'model_checkpoint_path: "{prefix}"\n'
    )
    if weights.vocabulary:
        shutil.copy(weights.vocabulary, directory / "30k-clean.model")


def make_archive(path, directory):
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as tar:
        tar.add(directory, arcname=f"./{directory.name}")
    return path


def refused(source, tmp_path, match, **more):
    """Asserts that conversion to any format fails and writes nothing."""
    before = sorted(tmp_path.rglob("*"))
    for to_format in ("run", "hugging_face"):
        with pytest.raises(UserError, match=match):
            converted(source, tmp_path / "out", to_format, **more)
        assert sorted(tmp_path.rglob("*")) == before
