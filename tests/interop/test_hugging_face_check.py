"""Outputs of transformers are compared with those of albert_tf."""

import dataclasses
import sys

import numpy as np
import pytest

from albert_tf.errors import UserError
from albert_tf.interop import hugging_face
from albert_tf.interop.hugging_face_check import verify
from tests.helpers.hugging_face_folder import (
    MODELS,
    change_tensors,
    make_weights,
)


@pytest.mark.interop
@pytest.mark.parametrize(
    ("name", "objective"),
    [(name, "sop") for name in MODELS]
    + [("groups", "nsp"), ("groups", "none")],
)
def test_transformers_gives_the_same_outputs(tmp_path, name, objective):
    weights = make_weights(MODELS[name], objective)
    hugging_face.write(weights, str(tmp_path))
    assert max(verify(weights, str(tmp_path)).values()) < 1e-5


@pytest.mark.interop
def test_a_different_model_fails(folder):
    """One weight of the last feed-forward layer differs by 0.001."""
    directory, weights = folder
    path = "albert/encoder/group_1_inner_group_1_ffn/output/bias"
    changed = weights.values[path] + np.float32([0, 0, 1e-3, 0, 0, 0])
    other = dataclasses.replace(
        weights, values={**weights.values, path: changed}
    )
    with pytest.raises(UserError, match=r"which differ by up to .*(e-0|0\.0)"):
        verify(other, str(directory))
    nan = dataclasses.replace(
        weights, values={**weights.values, path: changed * np.float32("nan")}
    )
    with pytest.raises(UserError, match="which differ by up to nan"):
        verify(nan, str(directory))


def test_verify_needs_the_extra_and_a_local_folder(folder, monkeypatch):
    directory, weights = folder
    with pytest.raises(UserError, match=r"must be local\. Received: gs://"):
        verify(weights, "gs://bucket/folder")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match=r"torch .* installed.*\[interop\]"):
        verify(weights, str(directory))


@pytest.mark.interop
def test_missing_weights_that_transformers_would_initialize_are_refused(folder):
    directory, weights = folder
    change_tensors(directory, lambda t: t.pop("predictions.dense.bias"))
    with pytest.raises(UserError, match=r"missing_keys: predictions.dense"):
        verify(weights, str(directory))
