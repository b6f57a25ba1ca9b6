import collections
import dataclasses

import pytest
import tensorflow as tf

from albert_tf.modeling import backbone as encoder_lib
from albert_tf.modeling.attention_bias import attention_bias
from albert_tf.modeling.dropout import Dropout, Masks
from tests.helpers import tiny_model

CONFIG = dataclasses.replace(tiny_model.CONFIG, num_hidden_layers=3)


def build(remat=False, **settings):
    config = dataclasses.replace(CONFIG, **settings)
    encoder = encoder_lib.Encoder(config, remat=remat)
    encoder.build()
    return encoder


def layer_names(encoder):
    """The second part of each variable's path, without repetition."""
    return list(dict.fromkeys(v.path.split("/")[1] for v in encoder.variables))


@pytest.mark.parametrize(
    ("layers", "groups", "expected"),
    [
        (4, 1, [0, 0, 0, 0]),
        (4, 2, [0, 0, 1, 1]),
        (5, 2, [0, 0, 0, 1, 1]),
        (7, 3, [0, 0, 0, 1, 1, 2, 2]),
        (3, 3, [0, 1, 2]),
    ],
)
def test_a_layer_uses_group_floor_of_layer_groups_over_layers(
    layers, groups, expected
):
    config = dataclasses.replace(
        CONFIG, num_hidden_layers=layers, num_hidden_groups=groups
    )
    assert expected == [config.group_of_layer(layer) for layer in range(layers)]


def test_a_variable_is_named_after_the_group_or_the_layer_that_owns_it():
    encoder = build(parameter_sharing="attention", num_hidden_layers=2)
    assert layer_names(encoder) == [
        "embedding_hidden_mapping_in",
        "group_0_inner_group_0_attention",
        "layer_0_inner_group_0_ffn",
        "layer_1_inner_group_0_ffn",
    ]


def test_every_application_of_dropout_has_its_own_site():
    """Also where one shared block is applied several times."""
    sites = []

    class Recorder(Dropout):
        def hidden_masks(self, site, target):
            sites.append(site)
            return Masks()

        attention_masks = hidden_masks

    encoder = build(num_hidden_layers=3, inner_group_num=2)
    bias = attention_bias(tf.ones((2, 5), tf.int32))
    encoder(tf.ones((2, 5, 16)), bias, dropout=Recorder(0.1, 0.1), first_site=1)

    assert sorted(sites) == list(range(1, 1 + 3 * 3 * 2))


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_the_last_block_computes_only_keys_and_values_everywhere(layers, remat):
    """By the shapes of all products: 2 examples, 7 positions, 3 outputs."""
    encoder = build(num_hidden_layers=layers, embedding_size=24, remat=remat)
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
