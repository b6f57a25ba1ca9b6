"""A model's arrays match its architecture, and regrouping keeps its outputs."""

import dataclasses

import numpy as np
import pytest

from albert_tf.config import PARAMETER_SHARING
from albert_tf.errors import UserError
from albert_tf.interop.model_weights import MOMENTS
from tests.helpers.tiny_albert import TINY, outputs_of, random_weights


@pytest.mark.parametrize("sharing", PARAMETER_SHARING)
def test_a_regrouped_model_computes_the_same_outputs(sharing):
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
    np.testing.assert_allclose(outputs(regrouped), outputs(weights), atol=1e-6)
    for path, value in regrouped.values.items():
        for index, moment in enumerate(MOMENTS):
            np.testing.assert_array_equal(
                regrouped.slots[f"{path}/{moment}"], value + index
            )


def outputs(weights):
    ids = np.array([[2, 7, 8, 3, 9, 3]], np.int32)
    found = outputs_of(
        weights,
        {
            "input_ids": ids,
            "input_mask": np.ones_like(ids),
            "segment_ids": np.zeros_like(ids),
            "masked_lm_positions": np.array([[1, 2]], np.int32),
        },
    )
    return np.concatenate(
        [np.ravel(found[name]) for name in ("mlm_logits", "sentence_logits")]
    )


def test_faults_are_named_with_both_values():
    weights = random_weights(TINY)
    path = "albert/pooler/kernel"
    for values, message in (
        ({p: v for p, v in weights.values.items() if p != path}, "is missing"),
        ({**weights.values, "albert/more": np.zeros(2, np.float32)}, "unknown"),
        ({**weights.values, path: np.zeros((6, 5), np.float32)}, r"\[6, 5\].*"),
        ({**weights.values, path: np.zeros((6, 6))}, "float64, not float32"),
    ):
        with pytest.raises(UserError, match=f"a/file: .*{message}"):
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
