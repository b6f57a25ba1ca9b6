import numpy as np
import tensorflow as tf

from albert_tf.modeling.kernels import cross_entropy


def test_losses_and_gradients_are_those_of_tensorflow():
    """Of 14 rows, which is no multiple of 8; see `_sum_rows`."""
    random = np.random.default_rng(0)
    product = tf.constant(random.normal(size=(2, 7, 24)), tf.float32)
    bias = tf.constant(random.normal(size=24), tf.float32)
    labels = tf.constant(random.integers(24, size=(2, 7)), tf.int32)
    upstream = tf.constant(random.normal(size=(2, 7)), tf.float32)

    @tf.function(jit_compile=True)
    def run(function):
        with tf.GradientTape() as tape:
            tape.watch([product, bias])
            losses = function(product, bias, labels)
        return losses, *tape.gradient(losses, [product, bias], upstream)

    def of_tensorflow(product, bias, labels):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels, product + bias
        )

    for found, expected in zip(
        run(cross_entropy), run(of_tensorflow), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=3e-6)
