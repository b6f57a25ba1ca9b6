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
    TESTDATA,
    build_model,
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


@pytest.mark.parametrize("name", CASES)
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

    assert set(ours) == set(stored["outputs"])
    for key, values in stored["outputs"].items():
        np.testing.assert_allclose(
            ours[key], values, rtol=1e-5, atol=1e-5, err_msg=key
        )
