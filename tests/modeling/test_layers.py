import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.modeling import layers
from tests.helpers import tiny_model

CONFIG = tiny_model.CONFIG


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
