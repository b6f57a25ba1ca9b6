import math

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.modeling.attention import (
    SelfAttention,
    mix_positions,
    visible_keys_bias,
)
from albert_tf.modeling.dropout import Dropout, kept_share

CONFIG = ModelConfig(
    vocab_size=61,
    embedding_size=16,
    hidden_size=24,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=19,
)
SEED = tf.constant([3, 4])

on_both = pytest.mark.parametrize("on_tpu", [False, True])


def test_a_rate_of_zero_leaves_no_random_operation():
    attention = SelfAttention(CONFIG, "attention", "float32")
    attention.build()

    def random_operations(rate):
        @tf.function
        def mix(hidden, seed):
            dropout = Dropout(rate, rate, seed)
            return attention(hidden, tf.zeros([1]), dropout=dropout)

        hidden = tf.ones((2, 5, CONFIG.hidden_size))
        graph = mix.get_concrete_function(hidden, SEED).graph
        names = [op.type for op in graph.get_operations()]
        for function in graph.as_graph_def().library.function:
            names += [node.op for node in function.node_def]
        return [name for name in names if "Random" in name]

    assert not random_operations(0.0)
    assert random_operations(0.1)


def attention_by_the_book(query, key, value, bias, keep, rate):
    """Softmax first, then dropout, then the sum; differentiated by TF."""
    scores = tf.einsum("bnqd,bnkd->bnqk", query, key) + bias
    probabilities = tf.nn.softmax(scores)
    if rate:
        kept = kept_share(rate)
        probabilities = tf.where(keep, probabilities / kept, 0.0)
    return tf.einsum("bnqk,bnkd->bnqd", probabilities, value)


@on_both
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_attention_and_its_gradients_are_those_of_the_book(rate, on_tpu):
    """With a bias that hides a key, and another length of queries."""
    random = np.random.default_rng(0)

    def normal(*shape):
        return tf.constant(random.normal(size=shape), tf.float32)

    arguments = normal(2, 3, 5, 4), normal(2, 3, 7, 4), normal(2, 3, 7, 4)
    bias = tf.constant(np.where(np.arange(7) == 6, -10_000.0, 0.0), tf.float32)
    upstream = normal(2, 3, 5, 4)
    masks = Dropout(0.1, rate, SEED, on_tpu).of_attention(2)
    keep = masks.keep(tf.constant([2, 3, 5, 7])) if rate else None

    def run(function):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            result = function(*arguments)
        return [result, *tape.gradient(result, arguments, upstream)]

    def mix(*qkv):
        if not on_tpu:
            return mix_positions(*qkv, bias, masks)
        query, key, value = (tf.linalg.matrix_transpose(x) for x in qkv)
        return tf.linalg.matrix_transpose(
            mix_positions(query, key, value, bias, masks, on_tpu)
        )

    # What is for a TPU is for XLA.
    found = tf.function(lambda: run(mix), jit_compile=on_tpu)()
    expected = run(lambda *qkv: attention_by_the_book(*qkv, bias, keep, rate))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
    assert np.abs(found[2][..., 6, :]).max() == 0  # of the hidden key


@on_both
def test_self_attention_has_the_gradients_of_the_book(on_tpu):
    """Of hidden states, kernels and biases, through the split into heads."""
    random = np.random.default_rng(0)
    attention = SelfAttention(CONFIG, "attention", "float32")
    attention.build()
    for weight in attention.trainable_variables:
        weight.assign(weight + random.normal(size=weight.shape, scale=0.3))
    hidden = tf.constant(random.normal(size=(2, 7, 24)), tf.float32)
    upstream = tf.constant(random.normal(size=(2, 7, 24)), tf.float32)
    bias = tf.zeros([2, 1, 1, 7])

    def by_the_book(hidden):
        def heads(dense):
            projected = hidden @ dense.kernel.value + dense.bias.value
            return tf.reshape(projected, [2, 7, 3, 8])

        scores = tf.einsum(
            "bqnd,bknd->bnqk", heads(attention.query), heads(attention.key)
        )
        shares = tf.nn.softmax(scores / math.sqrt(8))
        context = tf.einsum("bnqk,bknd->bqnd", shares, heads(attention.value))
        output = attention.output_dense
        output = tf.reshape(context, [2, 7, 24]) @ output.kernel + output.bias
        mean, variance = tf.nn.moments(hidden + output, [-1], keepdims=True)
        norm = attention.layer_norm
        normed = (hidden + output - mean) / tf.sqrt(variance)
        return normed * norm.gamma.value + norm.beta.value

    def run(function):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            result = function(hidden)
        weights = [v.value for v in attention.trainable_variables]
        return [result, *tape.gradient(result, [hidden, *weights], upstream)]

    found = tf.function(
        lambda: run(
            lambda hidden: attention(
                hidden, bias, dropout=Dropout(on_tpu=on_tpu)
            )
        ),
        jit_compile=on_tpu,
    )()
    for one, other in zip(found, run(by_the_book), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_kernels_start_truncated_at_two_deviations_each_its_own():
    """Standard deviation of a normal cut at 2: 0.87963 of the uncut one."""
    attention = SelfAttention(
        ModelConfig(hidden_size=240), "attention", "float32"
    )
    attention.build()
    query, key = attention.query.kernel.numpy(), attention.key.kernel.numpy()

    assert 0.0395 < np.abs(query).max() <= 0.04
    # n = 57,600: the deviation of the estimate is below 0.3 %.
    assert query.std() == pytest.approx(0.02 * 0.87963, rel=0.012)
    assert np.abs(np.corrcoef(query.ravel(), key.ravel())[0, 1]) < 0.02
    assert not attention.query.bias.numpy().any()


def test_padding_is_hidden_from_attention():
    """A real key changes the real positions' outputs, a padded one none."""
    rng = np.random.default_rng(0)
    attention = SelfAttention(CONFIG, "attention", "float32")
    attention.build()
    mask = np.array([[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0]])
    bias = visible_keys_bias(tf.constant(mask))
    hidden = rng.normal(size=(2, 7, 24)).astype(np.float32)

    def attend(position):
        changed = hidden.copy()
        changed[0, position] += 3.0
        return attention(tf.constant(changed), bias).numpy()

    plain = attention(tf.constant(hidden), bias).numpy()
    np.testing.assert_array_equal(bias[:, 0, 0], -10_000.0 * (1 - mask))
    np.testing.assert_allclose(attend(5)[0, :4], plain[0, :4], atol=1e-6)
    assert np.abs(attend(3)[0, :3] - plain[0, :3]).max() > 1e-4
    np.testing.assert_allclose(attend(3)[1], plain[1], atol=1e-6)
