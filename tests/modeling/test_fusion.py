import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf.cluster.strategy import device_type, fuses
from albert_tf.config import DistributionConfig, ModelConfig
from albert_tf.modeling import fusion
from albert_tf.modeling.dropout import Dropout
from albert_tf.modeling.pretrainer import AlbertPretrainer

CONFIG = ModelConfig(
    vocab_size=61,
    embedding_size=16,
    hidden_size=24,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=19,
    initializer_range=0.3,
)


def make_gradients(dtype, remat, fuse, on_tpu=False, num_layers=2):
    """A program giving the loss and the gradients of all weights."""
    keras.utils.set_random_seed(0)
    config = dataclasses.replace(CONFIG, num_hidden_layers=num_layers)
    model = AlbertPretrainer(config, dtype=dtype, remat=remat)
    model.build()
    rng = np.random.default_rng(0)
    arrays = {
        "input_ids": rng.integers(5, 61, (5, 11)),
        "input_mask": np.arange(11) < [[11], [9], [4], [11], [1]],
        "segment_ids": rng.integers(0, 2, (5, 11)),
        # With position 0 they fill a TPU's registers, so that none is added,
        # and masks of dropout are the same.
        "masked_lm_positions": rng.integers(0, 11, (5, 7)),
    }
    batch = {k: tf.constant(v, tf.int32) for k, v in arrays.items()}

    @tf.function(jit_compile=on_tpu)
    def gradients(seed):
        with fusion.fusing(fuse), tf.GradientTape() as tape:
            outputs = model(batch, dropout=Dropout(0.3, 0.3, seed, on_tpu))
            loss = sum(
                tf.reduce_sum(tf.nn.log_softmax(outputs[name])[..., 1])
                for name in ("mlm_logits", "sentence_logits")
            )
            weights = [v.value for v in model.trainable_variables]
            found = [loss, *tape.gradient(loss, weights)]
        paths = ["loss", *(v.path for v in model.trainable_variables)]
        return {
            path: tf.convert_to_tensor(value)
            for path, value in zip(paths, found, strict=True)
            # Of a key's bias there is nothing but rounding.
            if not path.endswith("key/bias")
        }

    return gradients


def functions_of(program):
    """The function definitions of a program, by name."""
    graph = program.get_concrete_function(tf.constant([1, 2])).graph
    library = graph.as_graph_def().library.function
    return {f.signature.name: f for f in library}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "remat", "tolerance"),
    [
        ("float32", False, 1e-5),
        ("float32", True, 1e-5),
        ("mixed_bfloat16", False, 0.05),
    ],
)
def test_a_fused_program_computes_what_one_compiled_as_a_whole_does(
    dtype, remat, tolerance
):
    """With dropout, whose masks both compute from the entries' numbers."""
    seed = tf.constant([3, 4])
    fused = make_gradients(dtype, remat, fuse=True)(seed)
    whole = make_gradients(dtype, remat, fuse=False, on_tpu=True)(seed)
    for path, expected in whole.items():
        atol = tolerance * np.abs(expected).max()
        np.testing.assert_allclose(
            fused[path], expected, rtol=0, atol=atol, err_msg=path
        )


def test_products_are_left_to_tensorflow():
    """All that XLA compiles is elementwise, or a sum over a row."""
    program = make_gradients("float32", False, fuse=True)
    bodies = functions_of(program).values()
    compiled = [f for f in bodies if f.attr["_XlaMustCompile"].b]
    operations = {node.op for f in compiled for node in f.node_def}
    assert {"Exp", "Sigmoid", "Rsqrt"} <= operations
    assert not {op for op in operations if "MatMul" in op or "Einsum" in op}


def test_layers_of_the_same_shape_are_compiled_once():
    """Places of dropout differ between them, and are arguments."""

    def count(num_layers):
        program = make_gradients("float32", False, True, num_layers=num_layers)
        bodies = functions_of(program).values()
        return sum(f.attr["_XlaMustCompile"].b for f in bodies)

    assert count(3) == count(2) > 0


def test_nothing_is_compiled_elsewhere():
    program = make_gradients("float32", False, fuse=False)
    bodies = functions_of(program).values()
    assert not any(f.attr["_XlaMustCompile"].b for f in bodies)


def test_cpus_fuse_unless_told_not_to():
    config = DistributionConfig()
    assert fuses(config, "CPU")
    assert not fuses(config, "TPU")
    assert not fuses(config, "GPU")
    assert not fuses(DistributionConfig(fuse_on_cpu=False), "CPU")
    assert not fuses(DistributionConfig(jit_compile=True), "CPU")


def test_the_devices_of_a_strategy_tell_what_they_are(mirrored_two):
    one = tf.distribute.OneDeviceStrategy("CPU:0")
    for strategy in one, mirrored_two:
        assert device_type(strategy) == "CPU"
