"""Converts models in tests, and checks what a refused conversion leaves."""

import tarfile

import numpy as np
import pytest

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


def make_archive(path, directory):
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as tar:
        tar.add(directory, arcname=f"./{directory.name}")
    return path


def refused(source, tmp_path, match, **more):
    """Asserts that conversion to any format fails and writes nothing."""
    before = sorted(tmp_path.rglob("*"))
    for to_format in ("run", "published", "hugging_face"):
        with pytest.raises(UserError, match=match):
            converted(source, tmp_path / "out", to_format, **more)
        assert sorted(tmp_path.rglob("*")) == before
