import dataclasses
import math

import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2_as_graph,
)

from albert_tf.cluster import devices
from albert_tf.config import (
    DataConfig,
    ModelConfig,
)
from albert_tf.modeling.models import AlbertPretrainer
from albert_tf.training import cost
from tests.helpers import tpu_bridge

# No two sizes are equal, so that swapped sizes are noticed.
MODEL = ModelConfig(
    vocab_size=700,
    embedding_size=24,
    hidden_size=40,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=56,
    max_position_embeddings=32,
)
BATCH = DataConfig(
    global_batch_size=6, max_seq_length=22, max_predictions_per_seq=5
)
PACKED = dataclasses.replace(BATCH, packing="best_fit", max_examples_per_row=3)
# Changes of MODEL, and the sentence objective.
COMPUTATIONS = {
    "E < H": ({}, "sop"),
    "no sentence objective": ({"embedding_size": 40}, "none"),
    "two blocks in a layer": ({"inner_group_num": 2}, "nsp"),
    "one block": ({"num_hidden_layers": 1}, "sop"),
    "packed": ({}, "sop"),
}


def flops_of_products(graph):
    """Operations of all matrix products that a graph computes.

    Products with a single row of ones do not count: they are gradients of
    biases, which `flops_per_step` leaves out.
    """
    total = 0
    for operation in graph.get_operations():
        shapes = [tensor.shape for tensor in operation.inputs]
        if operation.type == "Einsum":
            equation = operation.get_attr("equation").decode()
            names = equation.split("->")[0].split(",")
            assert len(names) == 2
            sizes = {}
            for of_input, shape in zip(names, shapes, strict=True):
                sizes.update(zip(of_input, shape, strict=True))
            total += 2 * math.prod(sizes.values())
        elif "MatMul" in operation.type:
            plain = operation.type == "MatMul"
            if plain and shapes[0][0] == 1:
                continue
            flipped = operation.get_attr("transpose_a" if plain else "adj_x")
            summed = shapes[0][-2 if flipped else -1]
            total += 2 * math.prod(operation.outputs[0].shape) * summed
    return total


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_flops_match_the_products_in_the_graph(name):
    """Forward pass and gradients, as TensorFlow derives and prunes them."""
    changes, objective = COMPUTATIONS[name]
    data = PACKED if name == "packed" else BATCH
    config = dataclasses.replace(MODEL, **changes)
    model = AlbertPretrainer(config, objective)
    model.build()
    lengths = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), 22)
    lengths["masked_lm_positions"] = 5
    if data is PACKED:
        lengths |= {"masked_lm_positions": 7, "next_sentence_positions": 3}
    batch = {
        name: tf.TensorSpec([6, length], tf.int32)
        for name, length in lengths.items()
    }

    @tf.function
    def gradients(batch):
        results = model(batch).values()
        # The square, since the gradient of a sum is a constant.
        loss = tf.add_n([tf.nn.l2_loss(result) for result in results])
        weights = [variable.value for variable in model.trainable_variables]
        return [tf.convert_to_tensor(g) for g in tf.gradients(loss, weights)]

    _, frozen = convert_variables_to_constants_v2_as_graph(
        gradients.get_concrete_function(batch)
    )
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(frozen, name="")

    expected = flops_of_products(graph)
    assert cost.flops_per_step(config, data, objective) == expected


@pytest.mark.parametrize(
    ("kind", "chips", "teraflops"),
    [
        ("v3-8", [], 123),  # of two cores, which are a chip
        ("v5litepod-16", [], 2 * 197),
        ("v99-8", [], None),
        # TPU VMs do not set the variable of Google Kubernetes Engine.
        (None, ["v5e"] * 4, 2 * 197),
    ],
)
def test_the_peak_of_a_tpu_is_that_of_its_type_or_chips(
    monkeypatch, kind, chips, teraflops
):
    strategy = tpu_bridge.make_tpu_strategy(monkeypatch)
    monkeypatch.setattr(devices, "find_chips", lambda: chips)
    monkeypatch.delenv(devices.TYPE_VARIABLE, raising=False)
    if kind:
        monkeypatch.setenv(devices.TYPE_VARIABLE, kind)
    peak = cost.peak_flops(strategy)
    assert peak == (teraflops and teraflops * 1e12)
    # People pay for chips; two devices are one chip of v3.
    found, _ = cost.describe_devices(strategy)
    assert found["number"] == (1 if kind == "v3-8" else 2)
