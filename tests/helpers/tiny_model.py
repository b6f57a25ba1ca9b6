"""A model small enough for any test, and programs for its gradients."""

import dataclasses
import functools

import keras
import numpy as np
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.modeling.dropout import Dropout
from albert_tf.modeling.models import AlbertPretrainer
from albert_tf.modeling.target import ProgramTarget

# Every dimension has another size.
CONFIG = ModelConfig(
    vocab_size=61,
    embedding_size=16,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=19,
)
# With weights so large that every gradient is far from 0.
SPREAD = dataclasses.replace(CONFIG, initializer_range=0.3)

CPU = ProgramTarget("CPU")
FUSED = ProgramTarget("CPU", fuse=True)
TPU = ProgramTarget("TPU")


def compiled_for(target, function):
    """The function as a program of that target; XLA compiles it for TPUs."""
    return tf.function(function, jit_compile=target.is_tpu)


def make_batch():
    """5 examples of up to 11 tokens, with 7 masked positions."""
    rng = np.random.default_rng(0)
    arrays = {
        "input_ids": rng.integers(5, 61, (5, 11)),
        "input_mask": np.arange(11) < [[11], [9], [4], [11], [1]],
        "segment_ids": rng.integers(0, 2, (5, 11)),
        "masked_lm_positions": rng.integers(0, 11, (5, 7)),
    }
    return {k: tf.constant(v, tf.int32) for k, v in arrays.items()}


def build(dtype="float32", remat=False, sentence_objective="sop", **settings):
    """The model with weights drawn from seed 0."""
    keras.utils.set_random_seed(0)
    config = dataclasses.replace(SPREAD, **settings)
    model = AlbertPretrainer(config, sentence_objective, dtype, remat)
    model.build()
    return model


def loss_gradients(model, batch, seed, target):
    """A loss of both heads under dropout of 0.3, and its gradients by path."""
    with tf.GradientTape() as tape:
        dropout = Dropout(0.3, 0.3, seed)
        outputs = model(batch, dropout=dropout, target=target)
        loss = sum(
            tf.reduce_sum(tf.nn.log_softmax(outputs[name])[..., 1])
            for name in ("mlm_logits", "sentence_logits")
        )
    variables = {v.path: v.value for v in model.trainable_variables}
    gradients = tape.gradient(loss, list(variables.values()))
    dense = [tf.convert_to_tensor(g) for g in gradients]
    return {"loss": loss, **dict(zip(variables, dense, strict=True))}


def gradients_program(target, **settings):
    """A program from a seed of dropout to `loss_gradients`."""
    model, batch = build(**settings), make_batch()
    return compiled_for(
        target, lambda seed: loss_gradients(model, batch, seed, target)
    )


@functools.cache
def gradients(target, **settings):
    """The result of `gradients_program` for one seed, computed once."""
    program = gradients_program(target, **settings)
    return {k: v.numpy() for k, v in program(tf.constant([3, 4])).items()}


def assert_same_gradients(found, expected, tolerance):
    """Equality up to a fraction of each gradient's largest value."""
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        # In exact arithmetic, the gradient of a key's bias is 0.
        if path.endswith("key/bias"):
            continue
        size = np.abs(value).max()
        assert size > 0, path
        np.testing.assert_allclose(
            found[path], value, rtol=0, atol=tolerance * size, err_msg=path
        )
