"""The table of weights matches the models."""

import dataclasses

import pytest

from albert_tf.config import PARAMETER_SHARING, TaskHeadConfig
from albert_tf.interop.weight_names import list_weights
from albert_tf.modeling.pretrainer import AlbertPretrainer
from albert_tf.modeling.task_model import AlbertForTask
from tests.helpers.tiny_albert import TINY


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


@pytest.mark.parametrize(
    "head",
    [
        TaskHeadConfig("classification", ("no", "yes", "maybe")),
        TaskHeadConfig("regression"),
        TaskHeadConfig("multiple_choice", num_choices=4),
        TaskHeadConfig("question_answering"),
        TaskHeadConfig("question_answering", squad_head="beam"),
    ],
    ids=lambda head: f"{head.kind}_{head.squad_head}",
)
def test_paths_and_shapes_are_those_of_the_fine_tuned_model(head):
    model = AlbertForTask(TINY, head)
    model.build()
    assert {
        weight.path: weight.shape for weight in list_weights(TINY, head=head)
    } == {v.path: tuple(v.shape) for v in model.variables}


def test_each_name_occurs_once():
    for names in zip(*list_weights(TINY), strict=True):
        if isinstance(names[0], str):
            assert len(set(names)) == len(names)
            assert all(names)
