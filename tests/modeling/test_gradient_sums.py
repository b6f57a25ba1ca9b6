import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf.modeling.gradient_sums import GradientSums
from albert_tf.modeling.target import ProgramTarget
from tests.helpers import tiny_model

NUM_LAYERS = 3


@pytest.fixture
def variables():
    random = np.random.default_rng(0)
    return [
        keras.Variable(random.normal(size=shape), dtype="float32")
        for shape in [(4, 4), (4, 4), (4,)]
    ]


def model_gradients(variables, so_far, joins_reads, compute_dtype="float32"):
    """Gradients of layers that share the first variable, plus `so_far`.

    The second variable is read once, and the third by an addition.
    """
    shared, single, bias = variables
    random = np.random.default_rng(1)
    x = tf.constant(random.normal(size=(5, 4)), compute_dtype)

    @tf.function(jit_compile=True)
    def program(so_far):
        total = GradientSums(variables, so_far, joins_reads)
        target = ProgramTarget(gradient_sums=total)
        with tf.GradientTape() as tape:
            y = tf.matmul(x, target.read(single, compute_dtype))
            for _ in range(NUM_LAYERS):
                kernel = target.read(shared, compute_dtype)
                y = tf.tanh(tf.matmul(y, kernel))
            loss = tf.reduce_sum(tf.cast(y, tf.float32) ** 2 + bias)
        gradients = tape.gradient(loss, [v.value for v in variables])
        return total.complete(gradients)

    return [gradient.numpy() for gradient in program(so_far)]


@pytest.fixture
def so_far():
    random = np.random.default_rng(2)
    shapes = [(4, 4), (4, 4), (4,)]
    return [tf.constant(random.normal(size=s), tf.float32) for s in shapes]


@pytest.mark.parametrize("starts", ["from zeros", "from other gradients"])
def test_chains_have_the_gradients_of_separate_reads(variables, so_far, starts):
    so_far = so_far if starts == "from other gradients" else None
    expected = model_gradients(variables, so_far, joins_reads=False)
    found = model_gradients(variables, so_far, joins_reads=True)
    for i, (one, other) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(one, other, rtol=1e-5, err_msg=str(i))


def test_bfloat16_gradients_are_added_in_float32(variables, so_far):
    """A sum in bfloat16 would lose a gradient of 2**-10 of the sum."""
    large = [1024 * gradient for gradient in so_far]
    found, exact = (
        model_gradients(variables, start, joins_reads=True, compute_dtype=dtype)
        for start, dtype in [(large, "bfloat16"), (None, "float32")]
    )
    for total, own, former in zip(found, exact, large, strict=True):
        assert total.dtype == np.float32
        # Each bfloat16 product is rounded; a lost one would be 100 % off.
        size = np.abs(own).max()
        np.testing.assert_allclose(total - former, own, atol=0.1 * size)


def barriers(joins_reads):
    """Number of barriers in the gradients of the tiny model for a TPU."""
    model, batch = tiny_model.build("mixed_bfloat16"), tiny_model.make_batch()

    @tf.function
    def program():
        total = GradientSums(model.trainable_variables, None, joins_reads)
        target = dataclasses.replace(tiny_model.TPU, gradient_sums=total)
        with tf.GradientTape() as tape:
            outputs = model(batch, target=target)
            loss = tf.reduce_sum(outputs["mlm_logits"] ** 2)
        values = [v.value for v in model.trainable_variables]
        tape.gradient(loss, values)

    graph = program.get_concrete_function().graph.as_graph_def()
    operations = [
        *graph.node,
        *(node for f in graph.library.function for node in f.node_def),
    ]
    return sum(node.op == "XlaOptimizationBarrier" for node in operations)


def test_each_further_layer_adds_to_the_sum_of_each_kernel():
    """A block has six kernels; the sum of the last layer needs no barrier."""
    further_layers = tiny_model.CONFIG.num_hidden_layers - 1
    assert barriers(True) - barriers(False) == 6 * further_layers
