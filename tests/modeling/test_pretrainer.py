import collections
import dataclasses
import functools
import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import (
    PARAMETER_SHARING,
    ModelConfig,
    OptimizerConfig,
)
from albert_tf.modeling.dropout import Dropout
from albert_tf.modeling.models import AlbertPretrainer
from albert_tf.modeling.target import ProgramTarget
from albert_tf.training import pretraining
from albert_tf.training.optimizers import make_optimizer
from tests.helpers import tiny_model

TINY = dataclasses.replace(tiny_model.CONFIG, num_hidden_layers=3)


def make_batch(length=11):
    rng = np.random.default_rng(0)
    arrays = {
        "input_ids": rng.integers(5, 61, (3, length)),
        "input_mask": np.ones((3, length)),
        "segment_ids": rng.integers(0, 2, (3, length)),
        "masked_lm_positions": [[1, 2, 3, 4], [2, 8, 0, 0], [7, 9, 10, 0]],
    }
    return {k: tf.constant(v, tf.int32) for k, v in arrays.items()}


def build(config=TINY, **arguments):
    keras.utils.set_random_seed(0)
    model = AlbertPretrainer(config, **arguments)
    model.build()
    return model


def count_parameters(heads=True, **settings):
    """From shapes alone: xxlarge itself would take 900 MB."""
    with keras.StatelessScope(initialize_variables=False):
        model = AlbertPretrainer(ModelConfig(**settings))
        model.build()
    return sum(
        math.prod(v.shape)
        for v in model.variables
        if heads or v.path.split("/")[1] not in ("masked_lm", "sentence")
    )


@pytest.mark.parametrize(
    ("hidden", "layers", "heads", "parameters"),
    [
        (768, 12, 12, 11_813_810),
        (1024, 24, 16, 17_847_474),
        (2048, 24, 16, 59_021_490),
        (4096, 12, 64, 223_158_450),
    ],
)
def test_published_sizes_have_the_published_number_of_parameters(
    hidden, layers, heads, parameters
):
    """base, large, xlarge, xxlarge, with both heads."""
    assert parameters == count_parameters(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
    )


@pytest.mark.parametrize(
    ("embedding", "sharing", "millions"),
    [
        (768, "all", 31),
        (768, "attention", 83),
        (768, "ffn", 57),
        (768, "none", 108),
        (128, "all", 12),
        (128, "attention", 64),
        (128, "ffn", 38),
        (128, "none", 89),
    ],
)
def test_sharing_has_the_parameters_of_table_4(embedding, sharing, millions):
    """Without the heads, as the paper counts.

    Its roundings follow no one rule (BERT-base, E = 768 and nothing shared,
    has 109.1 million with its pooler and 108.5 without), hence the margin.
    """
    parameters = count_parameters(
        heads=False, embedding_size=embedding, parameter_sharing=sharing
    )
    assert abs(parameters / 1e6 - millions) < 1.1


def test_every_variable_has_its_own_path():
    """Checkpoints are flat dictionaries by path."""
    model = build(
        ModelConfig.from_dict(
            TINY.to_dict() | {"parameter_sharing": "ffn", "inner_group_num": 2}
        )
    )
    paths = [v.path for v in model.variables]
    assert len(set(paths)) == len(paths) == len(model.trainable_variables)
    assert all(path.startswith("albert/") for path in paths)


def test_the_path_decides_what_the_optimizer_excludes():
    """LayerNorm and biases are vectors; all else are matrices."""
    for variable in build().variables:
        left_out = "layer_norm" in variable.path or "bias" in variable.path
        assert left_out == (variable.shape.rank == 1), variable.path


def test_without_a_sentence_objective_there_is_no_pooler():
    model = build(sentence_objective="none")
    paths = " ".join(v.path for v in model.variables)
    assert "pooler" not in paths and "sentence" not in paths
    batch = make_batch()
    sentence = {"pooled_output", "sentence_logits"}
    assert set(model(batch)) == {"mlm_logits"}
    assert set(model.encode(batch)) == {"sequence_output"}
    assert set(build()(batch)) == {"mlm_logits"} | sentence
    assert set(build().encode(batch)) == {"sequence_output"} | sentence


def test_the_terms_of_the_logits_are_outputs_if_gradients_are_recomputed():
    """For the loss; all else is equal."""
    model, batch = build(), make_batch()
    expected = model(batch)
    target = ProgramTarget(recomputes_logit_gradients=True)
    outputs = model(batch, target=target)
    logits = outputs.pop("mlm_product") + outputs.pop("mlm_bias")
    assert outputs.keys() == expected.keys()
    assert np.array_equal(logits, expected["mlm_logits"])


def gather_afterwards(model, batch):
    """The model's outputs, from a last block computed at all positions."""
    outputs = model.encode(batch)
    hidden = outputs.pop("sequence_output")
    masked = tf.gather(hidden, batch["masked_lm_positions"], batch_dims=1)
    return outputs | {"mlm_logits": model.mlm_logits(masked)}


@pytest.mark.parametrize(
    ("settings", "arguments"),
    [
        *[({"parameter_sharing": s}, {}) for s in PARAMETER_SHARING],
        ({"num_hidden_layers": 1}, {}),
        ({"num_hidden_groups": 2, "inner_group_num": 2}, {}),
        ({}, {"sentence_objective": "none"}),
        ({}, {"remat": True}),
        ({"parameter_sharing": "none"}, {"remat": True}),
        ({}, {"dtype": "mixed_bfloat16"}),
    ],
    ids=str,
)
def test_the_last_block_at_some_positions_is_that_of_all_positions(
    settings, arguments
):
    """Outputs, and gradients of all variables; rows end in padding.

    Positions repeat, as those of padding slots do; their gradients add up.
    """
    config = dataclasses.replace(TINY, initializer_range=0.3, **settings)
    model = build(config, **arguments)
    batch = make_batch() | {
        "input_mask": tf.sequence_mask([11, 9, 4], 11, tf.int32),
        "masked_lm_positions": tf.constant(
            [[1, 2, 8, 10], [6, 6, 0, 0], [3, 0, 0, 0]]
        ),
    }
    rng = np.random.default_rng(1)
    weights = {
        "mlm_logits": rng.normal(size=(3, 4, 61)),
        "sentence_logits": rng.normal(size=(3, 2)),
    }
    variables = [v.value for v in model.trainable_variables]
    outputs, gradients = [], []
    for run in model, functools.partial(gather_afterwards, model):
        with tf.GradientTape() as tape:
            outputs.append(run(batch))
            loss = sum(
                tf.reduce_sum(value * weights[name])
                for name, value in outputs[-1].items()
                if name in weights
            )
        found = tape.gradient(loss, variables)
        gradients.append([tf.convert_to_tensor(g).numpy() for g in found])

    tolerance = 0.05 if "dtype" in arguments else 1e-4
    assert outputs[0].keys() == outputs[1].keys()
    for name, value in outputs[0].items():
        size = np.abs(value).max()
        np.testing.assert_allclose(
            value, outputs[1][name], atol=tolerance * size, err_msg=name
        )
    for variable, ours, all_positions in zip(
        model.trainable_variables, *gradients, strict=True
    ):
        if variable.path.endswith("key/bias"):  # Nothing but rounding.
            continue
        size = np.abs(all_positions).max()
        assert size > 0, variable.path
        np.testing.assert_allclose(
            ours, all_positions, atol=tolerance * size, err_msg=variable.path
        )


def test_unknown_shapes_give_what_static_ones_give():
    model, batch = build(), make_batch()
    signature = {k: tf.TensorSpec([None, None], tf.int32) for k in batch}
    for run in model.__call__, model.encode:
        unknown = tf.function(run, input_signature=[signature])
        expected = run(batch)
        for name, value in unknown(batch).items():
            np.testing.assert_allclose(value, expected[name], atol=1e-6)
        static = tf.function(run).get_concrete_function(batch)
        for value in static.structured_outputs.values():
            assert value.shape.is_fully_defined()


@pytest.mark.parametrize("sentence_objective", ["sop", "none"])
@pytest.mark.parametrize(("length", "encoded"), [(11, 8), (128, 8), (129, 128)])
def test_a_tpu_adds_output_positions_and_computes_the_same(
    length, encoded, sentence_objective
):
    """Up to 128, which fill its registers, or to 8 if a row has at most 128."""
    config = dataclasses.replace(TINY, max_position_embeddings=129)
    model = build(config, sentence_objective=sentence_objective)
    batch = make_batch(length)
    on_tpu = tf.function(
        lambda b: model(b, target=ProgramTarget("TPU")), jit_compile=True
    )
    expected = model(batch)
    for name, value in on_tpu(batch).items():
        np.testing.assert_allclose(value, expected[name], atol=1e-5)

    program = on_tpu.experimental_get_compiler_ir(batch)("hlo")
    hidden = model.config.hidden_size
    examples, length = batch["input_ids"].shape
    shapes = set(re.findall(r"f32\[([\d,]+)\]", program))
    assert f"{examples},{length},{hidden}" in shapes
    assert f"{examples},{encoded},{hidden}" in shapes


def test_padding_does_not_change_the_outputs():
    """More padding gives the same outputs; more tokens do not."""
    model, short, long = build(), make_batch(), make_batch()
    for name in "input_ids", "input_mask", "segment_ids":
        padding = 9 if name == "input_ids" else 0
        long[name] = tf.pad(short[name], [[0, 0], [0, 6]], "CONSTANT", padding)
    for name in "mlm_logits", "pooled_output", "sentence_logits":
        np.testing.assert_allclose(
            model(long)[name], model(short)[name], atol=1e-6
        )
    long["input_mask"] = tf.ones_like(long["input_mask"])
    change = model(long)["mlm_logits"] - model(short)["mlm_logits"]
    assert np.abs(change).max() > 1e-4


def test_mixed_bfloat16_computes_in_bfloat16_and_returns_float32_logits():
    model, batch = build(dtype="mixed_bfloat16"), make_batch()
    outputs, exact = model(batch), build()(batch)
    assert {v.dtype for v in model.variables} == {"float32"}
    assert model.encode(batch)["sequence_output"].dtype == tf.bfloat16
    for name in "mlm_logits", "sentence_logits":
        assert outputs[name].dtype == tf.float32
    difference = np.abs(outputs["mlm_logits"] - exact["mlm_logits"])
    assert 0 < difference.max() < 0.05 * np.abs(exact["mlm_logits"]).max()


def test_only_matrix_products_of_the_encoder_are_bfloat16():
    """By the operations of a complete step, with LAMB.

    Sums, divisions and roots are float32, and so are the heads.
    """
    model, batch = build(dtype="mixed_bfloat16"), make_batch()
    batch["masked_lm_ids"] = batch["masked_lm_positions"]
    batch["masked_lm_weights"] = tf.ones((3, 4))
    batch["next_sentence_labels"] = tf.constant([[0], [1], [0]])
    optimizer = make_optimizer(OptimizerConfig())
    optimizer.build(model.trainable_variables)

    @tf.function
    def update():
        dropout = Dropout(0.1, 0.1, tf.constant([1, 2]))
        with tf.GradientTape() as tape:
            outputs = model(batch, dropout=dropout)
            sums = pretraining.pretraining_sums(outputs, batch)
            loss = sums["mlm_loss_sum"] + sums["sentence_loss_sum"]
        variables = [v.value for v in model.trainable_variables]
        gradients = tape.gradient(loss, variables)
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        return optimizer.apply(gradients, tf.constant(0.1))

    types = collections.defaultdict(set)
    for op in update.get_concrete_function().graph.get_operations():
        types[op.type] |= {x.dtype.base_dtype for x in op.outputs}
    exact = "Exp", "Rsqrt", "Mean", "Sqrt", "RealDiv", "DivNoNan"
    for name in (*exact, "SparseSoftmaxCrossEntropyWithLogits", "L2Loss"):
        assert tf.bfloat16 not in types[name], name
    for name in exact:
        assert tf.float32 in types[name], name
    assert tf.bfloat16 in types["Einsum"] | types["MatMul"]
