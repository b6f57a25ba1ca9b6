import numpy as np
import pytest
import tensorflow as tf

from albert_tf.modeling.attention import SelfAttention
from albert_tf.modeling.attention_bias import attention_bias
from albert_tf.modeling.dropout import Dropout, Masks, keep_prob
from albert_tf.modeling.kernels import attention
from albert_tf.modeling.target import DEFAULT_TARGET
from tests.helpers import tiny_model

CONFIG = tiny_model.CONFIG
SEED = tf.constant([3, 4])


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_attention_is_that_of_the_paper(rate):
    """In NumPy, query by query: softmax, then dropout, then the sum."""
    random = np.random.default_rng(0)
    batch, queries, keys, heads, size = 2, 5, 7, 3, 4
    lengths = {"query": queries, "key": keys, "value": keys}
    projected = {
        name: (random.normal(size=(batch, n, 12)), random.normal(size=12))
        for name, n in lengths.items()
    }
    bias = np.where(np.arange(keys) == 6, -10_000.0, 0.0)
    masks = Masks()
    keep = np.ones((batch, heads, queries, keys))
    if rate:
        masks = Dropout(0.1, rate, SEED).attention_masks(2, DEFAULT_TARGET)
        keep = masks.keep(tf.constant(keep.shape)).numpy() / keep_prob(rate)

    arguments = [
        tuple(tf.constant(x, tf.float32) for x in projected[name])
        for name in lengths
    ]
    found = attention(
        *arguments,
        tf.constant(bias, tf.float32),
        masks,
        heads,
        target=DEFAULT_TARGET,
    )

    q, k, v = (product + bias for product, bias in projected.values())
    for example, head, query in np.ndindex(batch, heads, queries):
        own = slice(head * size, (head + 1) * size)
        scores = k[example, :, own] @ q[example, query, own] / 2 + bias
        odds = np.exp(scores - scores.max())
        weights = odds / odds.sum() * keep[example, head, query]
        np.testing.assert_allclose(
            found[example, query, own], weights @ v[example, :, own], atol=1e-5
        )


def test_a_position_of_a_packed_row_attends_to_its_own_example():
    """A change of a token changes the outputs of its example only.

    With `output_positions`, outputs are those of all positions at these places.
    Outputs of padding are finite.
    """
    rng = np.random.default_rng(0)
    layer = SelfAttention(CONFIG, "attention", "float32")
    layer.build()
    numbers = tf.constant([[1, 1, 1, 2, 2, 0, 0], [1, 2, 2, 2, 3, 3, 3]])
    bias = attention_bias(numbers, packed=True)
    hidden = rng.normal(size=(2, 7, 24)).astype(np.float32)
    before = layer(tf.constant(hidden), bias).numpy()
    assert np.isfinite(before).all()

    positions = tf.constant([[4, 0, 6], [6, 0, 2]])
    chosen = layer(tf.constant(hidden), bias, output_positions=positions)
    np.testing.assert_allclose(
        chosen,
        np.take_along_axis(before, positions.numpy()[..., None], 1),
        atol=1e-6,
    )
    for row, position in np.ndindex(2, 7):
        changed = hidden.copy()
        changed[row, position] += 3.0
        difference = np.abs(layer(tf.constant(changed), bias) - before)
        same = numbers.numpy() == numbers[row, position].numpy()
        same &= np.arange(2)[:, None] == row
        assert (difference.max(axis=-1)[same] > 1e-4).all()
        assert difference.max(axis=-1)[~same].max() < 1e-6
