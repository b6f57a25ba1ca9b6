import collections
import dataclasses
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.modeling.attention_bias import attention_bias
from albert_tf.modeling.backbone import AlbertBackbone, Encoder
from albert_tf.modeling.dropout import NO_DROPOUT, Dropout, Masks
from albert_tf.modeling.models import AlbertPretrainer
from tests.helpers import tiny_model

CONFIG = tiny_model.CONFIG


def test_initial_weights_are_drawn_in_an_order_that_does_not_change():
    """By hand: the seeds of all variables, in the order of earlier releases."""
    keras.utils.set_random_seed(7)
    pretrainer = AlbertPretrainer(CONFIG)
    pretrainer.build()
    found = {v.path: v.numpy() for v in pretrainer.variables}

    keras.utils.set_random_seed(7)
    block = "albert/encoder/group_0_inner_group_0"
    for path in (
        "albert/encoder/embedding_hidden_mapping_in/kernel",
        f"{block}_attention/query/kernel",
        f"{block}_attention/key/kernel",
        f"{block}_attention/value/kernel",
        f"{block}_attention/output/kernel",
        f"{block}_ffn/intermediate/kernel",
        f"{block}_ffn/output/kernel",
        "albert/masked_lm/transform/kernel",
        "albert/pooler/kernel",
        "albert/embeddings/word_embeddings",
        "albert/embeddings/token_type_embeddings",
        "albert/embeddings/position_embeddings",
        "albert/sentence/output_weights",
    ):
        draw = keras.initializers.TruncatedNormal(stddev=0.02)
        value = found.pop(path)
        np.testing.assert_array_equal(value, draw(value.shape), err_msg=path)
    # All others are constants: biases, and the scales of LayerNorm.
    assert {x for value in found.values() for x in value.flat} == {0.0, 1.0}


def test_other_precisions_are_refused():
    with pytest.raises(UserError, match="float32 or mixed_bfloat16"):
        AlbertBackbone(CONFIG, dtype="bfloat16")


def inputs():
    batch = tiny_model.make_batch()
    return [batch[k] for k in ("input_ids", "input_mask", "segment_ids")]


def keras_model(backbone):
    columns = [keras.Input((None,), dtype="int32") for _ in range(3)]
    pooled = backbone(*columns).pooled_output
    return keras.Model(columns, keras.layers.Dense(1)(pooled))


def test_keras_trains_with_dropout_and_predicts_without():
    """By its argument `training`; no dropout where the trainer says so."""
    config = dataclasses.replace(CONFIG, hidden_dropout_prob=0.5)
    backbone = AlbertBackbone(config)
    backbone.build()
    model = keras_model(backbone)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    targets = np.ones((len(inputs()[0]), 1))
    losses = {float(model.train_on_batch(inputs(), targets)) for _ in range(3)}
    assert len(losses) == 3
    tested = {float(model.test_on_batch(inputs(), targets)) for _ in range(3)}
    assert len(tested) == 1
    plain, explicit = (
        backbone(*inputs(), **more).pooled_output.numpy()
        for more in ({}, {"training": True, "dropout": NO_DROPOUT})
    )
    np.testing.assert_array_equal(plain, explicit)


def test_keras_saves_and_loads_a_model_on_the_backbone(tmp_path):
    """With its settings, none of which is the default."""
    backbone = AlbertBackbone(
        CONFIG, "mixed_bfloat16", remat=True, name="other"
    )
    backbone.build()
    model = keras_model(backbone)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        loaded.predict_on_batch(inputs()), model.predict_on_batch(inputs())
    )
    settings = loaded.get_layer("other").get_config()
    assert settings == backbone.get_config()
    assert settings["remat"]
    without = AlbertBackbone(CONFIG, has_pooler=False).get_config()
    assert AlbertBackbone.from_config(without).pooler is None


def test_other_backends_of_keras_are_refused_at_import():
    done = subprocess.run(
        [sys.executable, "-c", "import albert_tf"],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "KERAS_BACKEND=jax. Unset it." in done.stderr


# --- the encoder --------------------------------------------------------------


def make_encoder(remat=False, **settings):
    config = dataclasses.replace(CONFIG, **settings)
    encoder = Encoder(config, remat=remat)
    encoder.build()
    return encoder


def test_every_application_of_dropout_has_its_own_site():
    """Also where one shared block is applied several times."""
    sites = []

    class Recorder(Dropout):
        def hidden_masks(self, site, target):
            sites.append(site)
            return Masks()

        attention_masks = hidden_masks

    encoder = make_encoder(num_hidden_layers=3, inner_group_num=2)
    bias = attention_bias(tf.ones((2, 5), tf.int32))
    encoder(tf.ones((2, 5, 16)), bias, dropout=Recorder(0.1, 0.1), first_site=1)

    assert sorted(sites) == list(range(1, 1 + 3 * 3 * 2))


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_last_block_computes_only_keys_and_values_everywhere(layers, remat):
    """By the shapes of all products: 2 examples, 7 positions, 3 outputs."""
    encoder = make_encoder(
        num_hidden_layers=layers, embedding_size=24, remat=remat
    )
    bias = attention_bias(tf.ones((2, 7), tf.int32))
    positions = tf.constant([[0, 6, 2], [0, 5, 0]])

    @tf.function
    def encode(embedded):
        return encoder(embedded, bias, output_positions=positions)

    concrete = encode.get_concrete_function(tf.TensorSpec((2, 7, 24)))
    products = collections.Counter(
        tuple(op.outputs[0].shape)
        for op in concrete.graph.get_operations()
        if op.type in ("MatMul", "BatchMatMulV2")
    )

    below = layers - 1
    expected = {
        # Query, key, value, and the outputs of attention and feed-forward.
        (14, 24): 5 * below + 2,
        (6, 24): 3,
        (14, 40): below,
        (6, 40): 1,
        # Scores and contexts of three heads.
        (2, 3, 7, 7): below,
        (2, 3, 7, 8): below,
        (2, 3, 3, 7): 1,
        (2, 3, 3, 8): 1,
    }
    assert products == {shape: n for shape, n in expected.items() if n}
    assert concrete.structured_outputs.shape == (2, 3, 24)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "settings"),
    [
        (tiny_model.CPU, {"parameter_sharing": "none"}),
        (tiny_model.FUSED, {}),
    ],
    ids=["none-shared", "fused"],
)
def test_gradients_are_those_without_remat(target, settings):
    """A shared parameter's gradient is a sum over layers in another order."""
    tiny_model.assert_same_gradients(
        tiny_model.gradients(target, remat=True, **settings),
        tiny_model.gradients(target, **settings),
        1e-5,
    )


def count(kind, remat, target=tiny_model.CPU):
    """Operations of a kind in a program."""
    program = tiny_model.gradients_program(target, remat=remat)
    graph = program.get_concrete_function(tf.constant([1, 2])).graph
    return sum(op.type == kind for op in graph.get_operations())


def test_only_with_remat_is_a_block_computed_twice():
    """Otherwise the tests above may compare a program with itself.

    By the exponentials: one per layer, and some in the losses' gradients.
    """
    kept = count("Exp", False)
    assert kept >= CONFIG.num_hidden_layers
    assert count("Exp", True) == kept + CONFIG.num_hidden_layers


def test_on_a_tpu_a_barrier_precedes_the_second_computation():
    """The gradients of LayerNorm have barriers of their own, two per layer."""
    layers = CONFIG.num_hidden_layers
    assert count("XlaOptimizationBarrier", True, tiny_model.TPU) == 3 * layers
    assert count("XlaOptimizationBarrier", False, tiny_model.TPU) == 2 * layers
