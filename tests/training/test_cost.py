import dataclasses
import math
import mmap

import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2_as_graph,
)

from albert_tf.cluster import devices
from albert_tf.config import (
    DataConfig,
    DistributionConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainingConfig,
)
from albert_tf.modeling.models import AlbertPretrainer
from albert_tf.training import cost
from albert_tf.training.pretraining import Pretraining
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
    "E = H": ({"embedding_size": 40}, "sop"),
    "E = H, no sentence objective": ({"embedding_size": 40}, "none"),
    "two blocks in a layer": ({"inner_group_num": 2}, "nsp"),
    "one block": ({"num_hidden_layers": 1}, "sop"),
}
# Sharing parameters does not change what is computed.
ARCHITECTURES = {
    **COMPUTATIONS,
    "two groups": ({"num_hidden_groups": 2, "inner_group_num": 2}, "sop"),
    "one shared layer, no sentence objective": ({}, "none"),
    "shared attention": ({"parameter_sharing": "attention"}, "sop"),
    "shared feed-forward": (
        {
            "parameter_sharing": "ffn",
            "num_hidden_groups": 2,
            "inner_group_num": 2,
        },
        "sop",
    ),
    "BERT": ({"parameter_sharing": "none", "embedding_size": 40}, "nsp"),
}


def make_model(changes, objective):
    config = dataclasses.replace(MODEL, **changes)
    model = AlbertPretrainer(config, objective)
    model.build()
    return config, model


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


@pytest.mark.parametrize("data", [BATCH, PACKED], ids=["unpacked", "packed"])
@pytest.mark.parametrize(
    ("changes", "objective"), COMPUTATIONS.values(), ids=COMPUTATIONS
)
def test_flops_match_the_products_in_the_graph(changes, objective, data):
    """Forward pass and gradients, as TensorFlow derives and prunes them."""
    config, model = make_model(changes, objective)
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
    ("changes", "objective"), ARCHITECTURES.values(), ids=ARCHITECTURES
)
def test_parameter_counts_match_a_real_model(changes, objective):
    config, model = make_model(changes, objective)
    weights = model.trainable_variables
    numbers = sum(math.prod(variable.shape) for variable in weights)
    assert cost.num_parameters(config, objective) == numbers


def test_the_peak_covers_all_replicas(mirrored_two):
    given = DistributionConfig(peak_tflops=3)
    assert cost.peak_flops(mirrored_two, given) == 6e12
    assert cost.peak_flops(mirrored_two, DistributionConfig()) is None


@pytest.mark.parametrize(
    ("kind", "chips", "teraflops"),
    [
        ("v3-8", [], 123),  # of two cores, which are a chip
        ("v5litepod-16", [], 2 * 197),
        ("v99-8", [], None),
        # TPU VMs do not set the variable of Google Kubernetes Engine.
        (None, ["v5e"] * 4, 2 * 197),
        (None, [], None),
        # Two devices of v4 are two cores or two chips.
        (None, ["v4"], 275),
        (None, ["v4"] * 2, 2 * 275),
    ],
)
def test_the_peak_of_a_tpu_is_that_of_its_type_or_chips(
    monkeypatch, kind, chips, teraflops
):
    strategy = tpu_bridge.make_tpu_strategy(monkeypatch)
    monkeypatch.setattr(cost, "device_type", lambda strategy: "TPU")
    monkeypatch.setattr(devices, "find_chips", lambda: chips)
    monkeypatch.delenv(devices.TYPE_VARIABLE, raising=False)
    if kind:
        monkeypatch.setenv(devices.TYPE_VARIABLE, kind)
    peak = cost.peak_flops(strategy, DistributionConfig())
    assert peak == (teraflops and teraflops * 1e12)


def settings(precision="mixed_bfloat16", remat=False, parts=1):
    """BERT-base on 512 tokens; 4 rows at a time if `parts` is 4."""
    return PretrainingConfig(
        model=ModelConfig(embedding_size=768, parameter_sharing="none"),
        data=DataConfig(
            global_batch_size=32,
            max_seq_length=512,
            max_predictions_per_seq=20,
            gradient_accumulation_steps=parts,
        ),
        distribution=DistributionConfig(precision=precision, remat=remat),
    )


def test_activation_memory_matches_the_paper():
    """Korthikanti et al.: s b h (34 + 5 a s / h) bytes a layer, in 16 bits.

    s b h = 512 * 4 * 768 = 1,572,864, and 5 a s / h = 5 * 12 * 512 / 768 = 40.
    """
    layer = 1_572_864 * (34 + 40)
    parts = Pretraining(settings(parts=4)).memory_per_replica(2)
    assert parts["activations"] == 12 * layer
    # Logits, their probabilities and their gradient, all in float32.
    assert parts["logits"] == 3 * 4 * (4 * 20 * 30_000)
    assert parts["gradients"] == parts["weights"]
    assert parts["moments"] == 2 * parts["weights"]

    # BERT-base: 12 layers of four H x H and two H x 4 H kernels, H = 768.
    muon = OptimizerConfig(optimizer="muon")
    muon = dataclasses.replace(settings(parts=4), optimizer=muon)
    of_muon = Pretraining(muon).memory_per_replica(2)
    assert parts["moments"] - of_muon["moments"] == 4 * 12 * 12 * 768**2

    # A packed row has 20 + 8 - 1 slots.
    packed = settings(parts=4)
    data = dataclasses.replace(packed.data, packing="best_fit")
    packed = dataclasses.replace(packed, data=data)
    of_packed = Pretraining(packed).memory_per_replica(2)
    assert of_packed["logits"] == 3 * 4 * (4 * 27 * 30_000)

    # The input of each layer, and one layer computed a second time.
    recomputed = Pretraining(settings(remat=True, parts=4)).memory_per_replica(
        2
    )
    assert recomputed["activations"] == 12 * 2 * 1_572_864 + layer

    exact = Pretraining(settings("float32", parts=4)).memory_per_replica(2)
    assert exact["activations"] > parts["activations"]


on_the_host = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="asks the GPU instead"
)


@on_the_host
@pytest.mark.skipif(
    not cost.PROCESS_STATUS.exists(), reason="needs Linux's /proc"
)
def test_peak_memory_rises_and_can_be_reset():
    assert cost.reset_peak_memory()
    before = cost.peak_memory_bytes()
    # Not an array: the allocator may keep its memory.
    block = mmap.mmap(-1, 2**28)
    for _ in range(2**8):
        block.write(bytes(2**20))
    held = cost.peak_memory_bytes()
    assert 250 * 2**20 < held - before < 300 * 2**20

    block.close()
    assert cost.peak_memory_bytes() >= held - 2**20
    cost.reset_peak_memory()
    assert cost.peak_memory_bytes() < held - 200 * 2**20


@on_the_host
def test_peak_memory_is_known_without_proc(monkeypatch, tmp_path):
    expected = cost.peak_memory_bytes()
    nothing = tmp_path / "no" / "status"
    monkeypatch.setattr(cost, "PROCESS_STATUS", nothing)
    assert not cost.reset_peak_memory()
    found = cost.peak_memory_bytes()
    assert found == pytest.approx(expected, rel=0.1)


def test_peak_memory_is_that_of_the_accelerator_that_reports_it(monkeypatch):
    """The TPU's, or the GPU's if the TPU does not report it.

    One that cannot be reset is left.
    """
    peaks = {"TPU:0": 7, "GPU:0": 5}
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: [kind] * 2
    )
    monkeypatch.setattr(
        tf.config.experimental,
        "get_memory_info",
        lambda device: {"peak": peaks[device]},
    )
    assert cost.memory_owner() == "TPU:0"
    assert cost.peak_memory_bytes() == 7

    def refuse_resets(device):
        raise ValueError("Cannot reset the memory statistics")

    def refuse_tpus(device):
        if device == "TPU:0":
            raise ValueError("not supported")
        return {"peak": peaks[device]}

    monkeypatch.setattr(tf.config.experimental, "get_memory_info", refuse_tpus)
    assert cost.memory_owner() == "GPU:0"
    assert cost.peak_memory_bytes() == 5
    # TensorFlow raises ValueError for a device without this operation.
    monkeypatch.setattr(
        tf.config.experimental, "reset_memory_stats", refuse_resets
    )
    assert not cost.reset_peak_memory()
    assert cost.peak_memory_bytes() == 5
