import collections
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import ModelConfig, OptimizerConfig, PretrainingConfig
from albert_tf.modeling.dropout import Dropout
from albert_tf.modeling.models import AlbertPretrainer
from albert_tf.training.optimizers import make_optimizer
from albert_tf.training.pretraining import Pretraining
from tests.helpers import tiny_model


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
    """Without the heads; the paper's roundings follow no one rule."""
    parameters = count_parameters(
        heads=False, embedding_size=embedding, parameter_sharing=sharing
    )
    assert abs(parameters / 1e6 - millions) < 1.1


def test_every_variable_has_its_own_path_which_excludes_vectors():
    """Checkpoints are flat dictionaries by path.

    The optimizer excludes LayerNorm and biases, by their paths.
    """
    model = tiny_model.build(parameter_sharing="ffn", inner_group_num=2)
    paths = [v.path for v in model.variables]
    assert len(set(paths)) == len(paths) == len(model.trainable_variables)
    for variable in model.variables:
        left_out = "layer_norm" in variable.path or "bias" in variable.path
        assert left_out == (variable.shape.rank == 1), variable.path


def test_without_a_sentence_objective_there_is_no_pooler():
    model = tiny_model.build(sentence_objective="none")
    paths = " ".join(v.path for v in model.variables)
    assert "pooler" not in paths and "sentence" not in paths
    batch = tiny_model.make_batch()
    assert set(model(batch)) == {"mlm_logits"}
    assert set(model.encode(batch)) == {"sequence_output"}


@pytest.mark.parametrize(
    "settings",
    [
        {"num_hidden_layers": 1, "sentence_objective": "none"},
        {"num_hidden_groups": 2, "inner_group_num": 2},
        {"parameter_sharing": "ffn", "remat": True},
        {"dtype": "mixed_bfloat16"},
    ],
    ids=str,
)
def test_the_last_block_at_some_positions_is_that_of_all_positions(settings):
    """Outputs, and gradients of all variables; rows end in padding.

    Positions repeat, as those of padding slots do; their gradients add up.
    """
    model, batch = tiny_model.build(**settings), tiny_model.make_batch()
    positions = batch["masked_lm_positions"]
    rng = np.random.default_rng(1)
    weights = {
        "mlm_logits": rng.normal(size=(5, 7, 61)),
        "sentence_logits": rng.normal(size=(5, 2)),
    }

    def gather_afterwards(batch):
        outputs = model.encode(batch)
        hidden = outputs.pop("sequence_output")
        masked = tf.gather(hidden, positions, batch_dims=1)
        return {"mlm_logits": model.mlm_logits(masked)} | outputs

    def outputs_and_gradients(run):
        variables = model.trainable_variables
        with tf.GradientTape() as tape:
            outputs = run(batch)
            loss = sum(
                tf.reduce_sum(outputs[name] * weight)
                for name, weight in weights.items()
                if name in outputs
            )
        gradients = tape.gradient(loss, [v.value for v in variables])
        return outputs | {
            v.path: tf.convert_to_tensor(gradient)
            for v, gradient in zip(variables, gradients, strict=True)
        }

    tiny_model.assert_same_gradients(
        outputs_and_gradients(model),
        outputs_and_gradients(gather_afterwards),
        0.05 if "dtype" in settings else 1e-4,
    )


def test_unknown_shapes_give_what_static_ones_give():
    model, batch = tiny_model.build(), tiny_model.make_batch()
    signature = {k: tf.TensorSpec([None, None], tf.int32) for k in batch}
    for run in model.__call__, model.encode:
        unknown = tf.function(run, input_signature=[signature])
        expected = run(batch)
        for name, value in unknown(batch).items():
            np.testing.assert_allclose(value, expected[name], atol=1e-5)
        static = tf.function(run).get_concrete_function(batch)
        for value in static.structured_outputs.values():
            assert value.shape.is_fully_defined()


def test_padding_does_not_change_the_outputs():
    """More padding gives the same outputs; more tokens do not."""
    model, short = tiny_model.build(), tiny_model.make_batch()
    long = dict(short)
    for name in "input_ids", "input_mask", "segment_ids":
        padding = 9 if name == "input_ids" else 0
        long[name] = tf.pad(short[name], [[0, 0], [0, 6]], "CONSTANT", padding)
    for name in "mlm_logits", "pooled_output", "sentence_logits":
        np.testing.assert_allclose(
            model(long)[name], model(short)[name], atol=1e-5
        )
    long["input_mask"] = tf.ones_like(long["input_mask"])
    change = model(long)["mlm_logits"] - model(short)["mlm_logits"]
    assert np.abs(change).max() > 1e-2


def test_only_matrix_products_of_the_encoder_are_bfloat16():
    """By the operations of a complete step, with LAMB.

    Sums, divisions and roots are float32, and so are variables and logits.
    """
    model, batch = (
        tiny_model.build(dtype="mixed_bfloat16"),
        tiny_model.make_batch(),
    )
    batch["masked_lm_ids"] = batch["masked_lm_positions"]
    batch["masked_lm_weights"] = tf.ones((5, 7))
    batch["next_sentence_labels"] = tf.constant([[0], [1], [0], [1], [1]])
    assert {v.dtype for v in model.variables} == {"float32"}
    assert model.encode(batch)["sequence_output"].dtype == tf.bfloat16
    assert {x.dtype for x in model(batch).values()} == {tf.float32}
    optimizer = make_optimizer(OptimizerConfig())
    optimizer.build(model.trainable_variables)
    objective = Pretraining(PretrainingConfig())

    @tf.function
    def update():
        dropout = Dropout(0.1, 0.1, tf.constant([1, 2]))
        with tf.GradientTape() as tape:
            outputs = model(batch, dropout=dropout)
            sums = objective.sums(outputs, batch)
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
