"""The table of weights matches the models."""

import dataclasses
import itertools

import numpy as np
import pytest

from albert_tf.config import PARAMETER_SHARING
from albert_tf.errors import UserError
from albert_tf.interop.weight_names import list_weights
from albert_tf.modeling.models import AlbertForTask, AlbertPretrainer
from tests.helpers.tiny_albert import HEADS, TINY, random_weights


@pytest.mark.parametrize(
    ("sharing", "embedding_size", "objective", "head"),
    [
        *itertools.product(PARAMETER_SHARING, [4, 6], ["sop"], [None]),
        *(("all", 4, "none", head) for head in (None, *HEADS.values())),
    ],
)
def test_paths_and_shapes_are_those_of_the_model(
    sharing, embedding_size, objective, head
):
    config = dataclasses.replace(
        TINY,
        parameter_sharing=sharing,
        embedding_size=embedding_size,
        num_hidden_groups=1 if sharing == "none" else 2,
    )
    model = AlbertPretrainer(config, objective)
    if head is not None:
        model = AlbertForTask(config, head)
    model.build()
    assert {
        weight.path: weight.shape
        for weight in list_weights(config, objective, head)
    } == {v.path: tuple(v.shape) for v in model.variables}


def test_weights_are_finite_and_moments_complete():
    weights = random_weights(TINY)
    path = "albert/pooler/kernel"
    for more, message in (
        (np.full((6, 6), np.nan, "f4"), "finite numbers.*NaN or infinity in"),
        (np.zeros((6, 6)), "float64, not float32"),
    ):
        with pytest.raises(UserError, match=f"a/file must .*{message}"):
            dataclasses.replace(
                weights, values=weights.values | {path: more}, source="a/file"
            )
    with pytest.raises(UserError, match=r"/m is missing"):
        dataclasses.replace(
            weights, slots={f"{p}/v": v for p, v in weights.values.items()}
        )
