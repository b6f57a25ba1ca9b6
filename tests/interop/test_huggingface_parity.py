"""Our forward pass and losses are those of Hugging Face's PyTorch ALBERT."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.training.pretraining import pretraining_sums
from tests.helpers.make_huggingface_arrays import (
    CASES,
    STORED,
    TESTDATA,
    build_model,
    random_batch,
    random_weights,
    run_huggingface,
    shapes_of,
)


def run_ours(config, weights, batch):
    model = build_model(config)
    for variable in model.variables:
        variable.assign(weights[variable.path])
    batch = {
        name: tf.constant(
            values,
            tf.float32 if values.dtype.kind == "f" else tf.int32,
        )
        for name, values in batch.items()
    }
    outputs = model(batch)
    everywhere = model.encode(batch)
    sums = pretraining_sums(outputs, batch)
    sentence_loss = sums["sentence_loss_sum"] / sums["sentence_weight_sum"]
    mlm_loss = sums["mlm_loss_sum"] / sums["mlm_weight_sum"]
    return {
        **everywhere,
        **outputs,
        "sentence_loss": sentence_loss,
        "total_loss": mlm_loss + sentence_loss,
    }


def assert_same(ours, theirs):
    assert set(ours) == set(theirs)
    for name, values in theirs.items():
        np.testing.assert_allclose(
            ours[name], values, rtol=1e-5, atol=1e-5, err_msg=name
        )


@pytest.mark.parametrize("name", STORED)
def test_the_model_agrees_with_stored_answers_of_hugging_face(name):
    """Hidden states, logits and losses, float32, to 1e-5."""
    path = os.path.join(TESTDATA, f"huggingface_{name}.npz")
    stored = {"weights": {}, "batch": {}, "outputs": {}}
    with np.load(path) as arrays:
        config = ModelConfig.from_dict(json.loads(str(arrays["config"])))
        for key in arrays.files:
            part, _, array_name = key.partition(":")
            if array_name:
                stored[part][array_name] = arrays[key]

    ours = run_ours(config, stored["weights"], stored["batch"])

    assert_same(ours, stored["outputs"])


@pytest.mark.interop
@pytest.mark.parametrize("name", CASES)
def test_the_model_agrees_with_hugging_face(name):
    """Each kind of sharing, with padding, to 1e-5, on new random weights."""
    config, seed = CASES[name], 7
    weights = random_weights(shapes_of(build_model(config)), seed)
    batch = random_batch(config, seed)

    theirs = run_huggingface(config, weights, batch)

    assert_same(run_ours(config, weights, batch), theirs)
    # The case that must change: the padding is seen.
    batch["input_mask"] = np.ones_like(batch["input_mask"])
    seen = run_ours(config, weights, batch)
    difference = np.abs(seen["sequence_output"] - theirs["sequence_output"])
    assert difference.max() > 1e-2
