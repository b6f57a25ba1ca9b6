"""The table of names is that of the models themselves."""

import dataclasses

import numpy as np
import pytest

from albert_tf.config import PARAMETER_SHARING, ModelConfig
from albert_tf.errors import UserError
from albert_tf.interop.model_weights import MOMENTS, ModelWeights
from albert_tf.interop.weight_names import list_weights
from albert_tf.modeling.pretrainer import AlbertPretrainer

TINY = ModelConfig(
    vocab_size=11,
    embedding_size=4,
    hidden_size=6,
    num_hidden_layers=4,
    num_hidden_groups=2,
    inner_group_num=2,
    num_attention_heads=2,
    intermediate_size=10,
    max_position_embeddings=7,
)


def random_weights(config, objective="sop", **more):
    generator = np.random.default_rng(3)
    values = {
        weight.path: generator.normal(size=weight.shape).astype(np.float32)
        for weight in list_weights(config, objective)
    }
    return ModelWeights(config, objective, values, **more)


@pytest.mark.parametrize("objective", ["sop", "nsp", "none"])
@pytest.mark.parametrize("embedding_size", [4, 6])
@pytest.mark.parametrize("sharing", PARAMETER_SHARING)
def test_paths_and_shapes_are_those_of_the_model(
    sharing, embedding_size, objective
):
    config = dataclasses.replace(
        TINY,
        parameter_sharing=sharing,
        embedding_size=embedding_size,
        num_hidden_groups=1 if sharing == "none" else 2,
    )
    pretrainer = AlbertPretrainer(config, objective)
    pretrainer.build()
    assert {
        weight.path: weight.shape for weight in list_weights(config, objective)
    } == {v.path: tuple(v.shape) for v in pretrainer.variables}


def test_published_models_have_the_published_number_of_parameters():
    """Of the table in the paper's repository: base, with both heads."""
    base = list_weights(ModelConfig())
    assert sum(np.prod(weight.shape) for weight in base) == 11_813_810


def test_each_name_stands_once():
    for names in zip(*list_weights(TINY), strict=True):
        if isinstance(names[0], str):
            assert len(set(names)) == len(names)
            assert all(names)


@pytest.mark.parametrize("sharing", PARAMETER_SHARING)
def test_a_regrouped_model_computes_the_same(sharing):
    groups = 1 if sharing == "none" else 2
    weights = random_weights(
        dataclasses.replace(
            TINY, parameter_sharing=sharing, num_hidden_groups=groups
        )
    )
    slots = {
        f"{path}/{moment}": value + index
        for path, value in weights.values.items()
        for index, moment in enumerate(MOMENTS)
    }
    weights = dataclasses.replace(weights, slots=slots)

    regrouped = weights.regrouped()

    assert regrouped.config.parameter_sharing == "all"
    assert regrouped.config.num_hidden_groups == (2 if sharing == "all" else 4)
    np.testing.assert_allclose(answers(regrouped), answers(weights), atol=1e-6)
    for path, value in regrouped.values.items():
        for index, moment in enumerate(MOMENTS):
            np.testing.assert_array_equal(
                regrouped.slots[f"{path}/{moment}"], value + index
            )


def answers(weights):
    pretrainer = AlbertPretrainer(weights.config, weights.sentence_objective)
    pretrainer.build()
    for variable in pretrainer.variables:
        variable.assign(weights.values[variable.path])
    ids = np.array([[2, 7, 8, 3, 9, 3]], np.int32)
    outputs = pretrainer(
        {
            "input_ids": ids,
            "input_mask": np.ones_like(ids),
            "segment_ids": np.zeros_like(ids),
            "masked_lm_positions": np.array([[1, 2]], np.int32),
        }
    )
    return np.concatenate(
        [np.ravel(outputs[name]) for name in ("mlm_logits", "sentence_logits")]
    )


def test_faults_are_named_with_both_values():
    weights = random_weights(TINY)
    path = "albert/pooler/kernel"
    for values, told in (
        ({p: v for p, v in weights.values.items() if p != path}, "is missing"),
        ({**weights.values, "albert/more": np.zeros(2, np.float32)}, "unknown"),
        ({**weights.values, path: np.zeros((6, 5), np.float32)}, r"\[6, 5\].*"),
        ({**weights.values, path: np.zeros((6, 6))}, "float64, not float32"),
    ):
        with pytest.raises(UserError, match=f"a/file: .*{told}"):
            dataclasses.replace(weights, values=values, source="a/file")
    with pytest.raises(UserError, match=r"\[6, 5\], not \[6, 6\]"):
        dataclasses.replace(
            weights,
            values={**weights.values, path: np.zeros((6, 5), np.float32)},
        )
    with pytest.raises(UserError, match=r"moments .*/v is missing"):
        dataclasses.replace(
            weights, slots={f"{p}/m": v for p, v in weights.values.items()}
        )
