import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.modeling import kernels, layers
from albert_tf.modeling.dropout import Dropout, Masks, keep_prob
from albert_tf.modeling.target import DEFAULT_TARGET
from tests.helpers import tiny_model

CONFIG = tiny_model.CONFIG
SEED = tf.constant([3, 4])


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_a_sublayer_ends_in_bias_dropout_residual_and_layer_norm(rate):
    """In NumPy."""
    random = np.random.default_rng(0)
    residual, product = random.normal(size=(2, 2, 7, 24))
    bias, gamma, beta = random.normal(size=(3, 24))
    masks, output = Masks(), product + bias
    if rate:
        masks = Dropout(rate, 0.1, SEED).hidden_masks(3, DEFAULT_TARGET)
        keep = masks.keep(tf.constant(output.shape)).numpy()
        output = output * keep / keep_prob(rate)

    arguments = [
        tf.constant(x, tf.float32)
        for x in (residual, product, bias, gamma, beta)
    ]
    found = kernels.bias_dropout_add_norm(
        *arguments, 1e-12, masks, target=DEFAULT_TARGET
    )

    total = residual + output
    total -= total.mean(-1, keepdims=True)
    expected = total / total.std(-1, keepdims=True) * gamma + beta
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "atol", "rtol"),
    [("float32", 2e-6, 3e-6), ("bfloat16", 1e-9, 2**-8)],
)
def test_gelu_of_a_sum_has_the_values_and_gradients_of_tensorflows(
    dtype, atol, rtol
):
    """In bfloat16, only the result is rounded.

    At -3, 1 + tanh in bfloat16 would be 0 or 0.0039, not 0.00243.
    """
    random = np.random.default_rng(0)
    product = tf.cast(random.normal(size=(7, 11, 5), scale=2.0), dtype)
    bias = tf.cast([-1.0, -0.25, 0.0, 0.125, 2.0], dtype)
    upstream = tf.cast(random.normal(size=product.shape), dtype)

    gelu = functools.partial(kernels.bias_gelu, target=DEFAULT_TARGET)

    def by_formula(product, bias):
        return tf.nn.gelu(product + bias, approximate=True)

    def run(function, dtype):
        arguments = tf.cast(product, dtype), tf.cast(bias, dtype)
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            result = function(*arguments)
        gradients = tape.gradient(result, arguments, tf.cast(upstream, dtype))
        return [tf.cast(x, tf.float64) for x in (result, *gradients)]

    *found, of_bias = run(gelu, dtype)
    *expected, of_bias_expected = run(by_formula, tf.float64)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=atol, rtol=rtol)
    # A sum of 77 such roundings, of numbers of about 1.
    np.testing.assert_allclose(of_bias, of_bias_expected, atol=20 * rtol + 2e-5)


def test_gradients_of_biases_are_summed_in_float32():
    """A bfloat16 sum of 4,096 rows stops growing long before its end."""
    rng = np.random.default_rng(0)
    hidden = tf.constant(rng.normal(size=(8, 512, 24)), tf.float32)
    weights = tf.constant(rng.normal(1.0, 1.0, (8, 512, 24)), tf.float32)

    def gradients(dtype):
        keras.utils.set_random_seed(2)
        block = layers.FeedForward(CONFIG, "ffn", dtype)
        block.build()
        with tf.GradientTape() as tape:
            answer = block(tf.cast(hidden, block.compute_dtype))
            total = tf.reduce_sum(tf.cast(answer, tf.float32) * weights)
        biases = [block.intermediate.bias, block.output_projection.bias]
        return tape.gradient(total, [bias.value for bias in biases])

    exact, rounded = gradients("float32"), gradients("mixed_bfloat16")
    for expected, answer in zip(exact, rounded, strict=True):
        error = tf.norm(answer - expected) / tf.norm(expected)
        assert error < 0.03


@pytest.mark.parametrize(
    ("dtype", "level", "atol"),
    [("float32", 30.0, 1e-3), ("mixed_bfloat16", 300.0, 0.03)],
)
def test_layer_norm_statistics_are_float32(dtype, level, atol):
    """bfloat16 has steps of 2 at 300, so a spread of 1 would be lost."""
    rng = np.random.default_rng(0)
    hidden = np.full((2, 5, 24), level)
    output = rng.normal(size=(2, 5, 24))
    norm = layers.AddAndNorm(24)
    norm.build()

    # The end of a sublayer, where LayerNorm gets either dtype.
    compute = tf.bfloat16 if dtype == "mixed_bfloat16" else tf.float32
    answer = norm(
        tf.constant(hidden, compute),
        tf.constant(output, compute),
        tf.zeros([24], compute),
    )

    expected = output - output.mean(-1, keepdims=True)
    expected /= output.std(-1, keepdims=True)
    assert answer.dtype == compute
    answer = tf.cast(answer, tf.float32)
    np.testing.assert_allclose(answer, expected, atol=atol)


def test_layer_norm_of_constant_and_of_small_rows():
    """With the published epsilon, 1e-12, a spread of 1e-4 is normalised."""
    norm = layers.LayerNorm(7)
    norm.build()
    norm.beta.assign(np.arange(7.0))
    signs = np.array([1, -1, 1, -1, 1, -1, 0])
    answer = norm(tf.constant([[0.1] * 7, 1e-4 * signs]))
    # Rounding makes the variance of seven times 0.1 negative. 0.1 minus its
    # mean is not 0 either: 7e-9, over a deviation of 1e-6.
    expected = [np.arange(7.0), np.arange(7.0) + signs * (7 / 6) ** 0.5]
    np.testing.assert_allclose(answer, expected, atol=0.01)


def test_embeddings_are_float32_in_a_bfloat16_model():
    """One segment's gradient sums 4,000 positions; bfloat16 stops at 256."""
    embeddings = layers.Embeddings(
        ModelConfig(vocab_size=61, max_position_embeddings=1000)
    )
    embeddings.build()
    ids = tf.zeros((4, 1000), tf.int32)
    with tf.GradientTape() as tape:
        embedded = tf.gather(embeddings.token_type_embeddings, ids)
    table = embeddings.token_type_embeddings
    gradient = tape.gradient(embedded, table.value)

    assert embeddings(ids, ids).dtype == tf.float32
    assert {v.dtype for v in embeddings.variables} == {"float32"}
    assert tf.convert_to_tensor(gradient)[0, 0] == 4000


def test_initial_weights_are_drawn_on_the_host():
    """Generators of devices differ: a TPU would draw other weights."""
    with tf.device("CPU:2"):
        drawn = layers.initializer(CONFIG)((3, 5))
        elsewhere = keras.initializers.TruncatedNormal()((3, 5))
    assert drawn.device.endswith("CPU:0")
    assert elsewhere.device.endswith("CPU:2")
