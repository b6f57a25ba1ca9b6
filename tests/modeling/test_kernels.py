import functools

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.modeling import kernels
from albert_tf.modeling.attention_bias import ExampleNumbers, add_to_scores
from albert_tf.modeling.dropout import Dropout
from albert_tf.modeling.target import ProgramTarget
from tests.helpers import tiny_model

SEED = tf.constant([3, 4])


# --- The formulas as they stand in the papers ---------------------------------


def add_bias(product, bias):
    total = tf.cast(product, tf.float32) + tf.cast(bias, tf.float32)
    return tf.cast(total, product.dtype)


def bias_gelu(product, bias):
    x = tf.cast(product, tf.float32) + tf.cast(bias, tf.float32)
    return tf.cast(tf.nn.gelu(x, approximate=True), product.dtype)


def layer_norm(x, gamma, beta, epsilon):
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    return (x - mean) / tf.sqrt(variance + epsilon) * gamma + beta


def bias_dropout_add_norm(residual, product, bias, gamma, beta, epsilon, masks):
    output = tf.cast(product, tf.float32) + tf.cast(bias, tf.float32)
    total = tf.cast(residual, tf.float32) + masks.apply(output)
    return tf.cast(layer_norm(total, gamma, beta, epsilon), residual.dtype)


def attention(query, key, value, attention_bias, masks, num_heads):
    q, k, v = (
        kernels.split_heads(add_bias(*projected), num_heads)
        for projected in (query, key, value)
    )
    scores = tf.cast(tf.matmul(q, k, transpose_b=True), tf.float32)
    scores = add_to_scores(scores / q.shape[-1] ** 0.5, attention_bias)
    probabilities = masks.apply(tf.nn.softmax(scores))
    return kernels.join_heads(tf.matmul(tf.cast(probabilities, v.dtype), v))


FORMULAS = {
    formula.__name__: formula
    for formula in (
        add_bias,
        attention,
        bias_dropout_add_norm,
        bias_gelu,
        layer_norm,
    )
}
# --- Their kernels ------------------------------------------------------------

TARGETS = {
    "cpu": tiny_model.CPU,
    "fused": tiny_model.FUSED,
    "tpu": tiny_model.TPU,
}
# The distance from 1 to the next bfloat16 number.
BFLOAT16_ULP = 2.0**-7


def make_case(name, target, rate):
    """The shapes of the arguments with gradients, and a call with them."""
    dropout = Dropout(rate, rate, SEED)
    if "attention" in name:
        # A bias that masks the last key, and fewer queries than keys.
        bias = tf.constant(np.where(np.arange(7) == 6, -1e4, 0.0), tf.float32)
        if name == "packed_attention":
            bias = ExampleNumbers(
                queries=tf.constant([[1, 1, 1, 1, 0], [2, 2, 2, 0, 0]]),
                keys=tf.constant(
                    [[1, 1, 1, 1, 0, 0, 3], [1, 2, 2, 2, 0, 0, 3]]
                ),
            )
        masks = dropout.attention_masks(2, target)
        shapes = [(2, 5, 12), (12,), (2, 7, 12), (12,), (2, 7, 12), (12,)]

        def call(function, q, q_bias, k, k_bias, v, v_bias):
            projected = (q, q_bias), (k, k_bias), (v, v_bias)
            return function(*projected, bias, masks, 3)

        return shapes, call
    if name == "bias_dropout_add_norm":
        masks = dropout.hidden_masks(2, target)
        shapes = [(2, 7, 24), (2, 7, 24), (24,), (24,), (24,)]
        return shapes, lambda f, *arguments: f(*arguments, 1e-12, masks)
    if name == "layer_norm":
        shapes = [(2, 7, 24), (24,), (24,)]
        return shapes, lambda f, *arguments: f(*arguments, 1e-12)
    return [(2, 7, 24), (24,)], lambda f, *arguments: f(*arguments)


def bfloat16_tolerance(name, i):
    """The relative error, root mean square, that result i may have.

    Rounding a number once changes it by 0.2 to 0.3 ULPs on average. How often
    the operations of a CPU round depends on the CPU. The largest errors in ULPs
    of several seeds, on CPUs with and without AVX-512, are 0.75 without
    attention; 1.04 for context and values; 4.7 for queries and keys, whose
    gradients the kernel computes from the rounded context.
    """
    if "attention" not in name:
        return 0.75 * BFLOAT16_ULP
    return (5 if 1 <= i <= 4 else 1.25) * BFLOAT16_ULP


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("add_bias", 0.0),
        ("attention", 0.0),
        ("attention", 0.3),
        ("packed_attention", 0.0),
        ("bias_dropout_add_norm", 0.0),
        ("bias_dropout_add_norm", 0.3),
        ("bias_gelu", 0.0),
        ("layer_norm", 0.0),
    ],
)
def test_a_kernel_has_the_values_and_gradients_of_its_formula(
    name, rate, target, dtype
):
    """In bfloat16: those of the formula in float32, but for rounding."""
    if name == "layer_norm" and dtype == "bfloat16":
        pytest.skip("LayerNorm is float32 under every policy")
    shapes, call = make_case(name, target, rate)
    random = np.random.default_rng(0)
    # gamma and beta of LayerNorm are float32 in each case.
    num_norm = 2 if "norm" in name else 0
    dtypes = [dtype] * (len(shapes) - num_norm) + ["float32"] * num_norm
    arguments = [
        tf.cast(random.normal(size=shape), dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    upstream = tf.cast(random.normal(size=shapes[0]), dtypes[0])

    def run(function, arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            result = call(function, *arguments)
        d_result = tf.cast(upstream, result.dtype)
        return [result, *tape.gradient(result, arguments, d_result)]

    formula = FORMULAS[name.removeprefix("packed_")]
    kernel = getattr(kernels, formula.__name__)
    if formula is not layer_norm:
        kernel = functools.partial(kernel, target=target)
    found = tiny_model.compiled_for(target, lambda: run(kernel, arguments))()
    exact = run(formula, [tf.cast(x, tf.float32) for x in arguments])
    plain = run(formula, arguments)
    for i, expected in enumerate(exact):
        assert found[i].dtype == plain[i].dtype
        for values in found[i], plain[i]:
            if dtype == "float32":
                size = max(1.0, np.abs(expected).max())
                # Largest of six seeds: 2.1e-6, on a CPU without AVX-512.
                np.testing.assert_allclose(values, expected, atol=3e-6 * size)
                continue
            error = tf.norm(tf.cast(values, tf.float32) - expected)
            # In exact arithmetic, the gradients of all keys, and so the
            # gradient of their bias, add up to 0.
            is_key_bias = "attention" in name and i == 4
            size = tf.norm(exact[3] if is_key_bias else expected)
            assert error < bfloat16_tolerance(name, i) * size, f"result {i}"
    if "attention" in name:
        d_key = found[3].numpy()
        assert np.abs(d_key[:, 6]).max() == 0  # the masked key
        assert np.abs(d_key[:, 5]).max() > 0


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_gradient_of_a_bias_is_summed_in_float32(target):
    """In bfloat16, a sum of 8,192 numbers near 1 would end at 256."""
    random = np.random.default_rng(0)
    rows = tf.cast(random.uniform(0.5, 1.5, size=(64, 128, 3)), tf.bfloat16)
    exact = rows.numpy().astype(np.float64).sum(axis=(0, 1))
    found = kernels.bias_gradient(rows, target)
    assert found.dtype == tf.bfloat16
    np.testing.assert_allclose(
        tf.cast(found, tf.float64), exact, rtol=BFLOAT16_ULP
    )


def test_the_gradient_of_a_bias_on_a_gpu_is_a_float32_sum():
    """A CPU that computes it may add up bfloat16 as exactly."""
    target = ProgramTarget(device_type="GPU")
    rows = tf.ones([4, 5, 3], tf.bfloat16)
    program = tf.function(lambda: kernels.bias_gradient(rows, target))
    operations = program.get_concrete_function().graph.get_operations()
    (total,) = (op for op in operations if op.type == "Sum")
    assert total.inputs[0].dtype == tf.float32
    assert not [op for op in operations if op.type == "MatMul"]


# In bfloat16, rounding errors of all layers add up to 5.2 or 7.9 ULPs of a
# gradient's largest value, depending on the CPU.
MODEL_TOLERANCE = 10 * BFLOAT16_ULP


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "dtype", "tolerance"),
    [
        (tiny_model.FUSED, "mixed_bfloat16", MODEL_TOLERANCE),
        (tiny_model.TPU, "float32", 1e-5),
    ],
    ids=["bfloat16", "tpu"],
)
def test_a_model_has_the_same_gradients_on_all_devices(
    target, dtype, tolerance
):
    """With dropout, whose masks are the same in all compiled programs."""
    expected = tiny_model.gradients(tiny_model.FUSED)
    found = tiny_model.gradients(target, dtype=dtype)
    tiny_model.assert_same_gradients(found, expected, tolerance)


@pytest.mark.parametrize("fuse", [True, False])
def test_a_fused_program_stores_no_attention_bias_of_packed_rows(fuse):
    """An unfused program does.

    All heads of a row have the same bias, so its second size is 1.
    """
    target = tiny_model.FUSED if fuse else tiny_model.CPU
    model, batch = tiny_model.build(), tiny_model.make_batch()
    batch["input_mask"] *= tf.constant([[1] * 4 + [2] * 7])
    batch["next_sentence_positions"] = tf.constant([[0, 4]] * 5)
    gradients = tf.function(
        lambda: tiny_model.loss_gradients(
            model, batch, tf.constant([3, 4]), target
        )
    )
    operations = gradients.get_concrete_function().graph.get_operations()
    shapes = {
        tuple(x.shape) for op in operations for x in op.outputs if x.shape.rank
    }
    assert (5, 3, 11, 11) in shapes  # scores
    assert ((5, 1, 11, 11) in shapes) == (not fuse)


def compiled_functions(target, **settings):
    """The functions that XLA compiles within a program."""
    program = tiny_model.gradients_program(target, **settings)
    graph = program.get_concrete_function(SEED).graph
    library = graph.as_graph_def().library.function
    return [f for f in library if f.attr["_XlaMustCompile"].b]


def test_a_fused_program_compiles_elementwise_operations_once():
    """Products are left to TensorFlow.

    Layers of the same shapes share functions: seeds are arguments.
    """
    compiled = compiled_functions(tiny_model.FUSED)
    operations = {node.op for f in compiled for node in f.node_def}
    assert {"Exp", "Sigmoid", "Rsqrt"} <= operations
    assert not {op for op in operations if "MatMul" in op or "Einsum" in op}
    deeper = compiled_functions(tiny_model.FUSED, num_hidden_layers=3)
    assert len(deeper) == len(compiled)
    assert not compiled_functions(tiny_model.CPU)
