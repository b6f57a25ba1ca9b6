"""Warm starts of a model with other layers, positions or heads."""

import re

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.interop.weight_names import list_weights
from tests.helpers import tiny_run
from tests.helpers.warm_starts import (
    POSITIONS,
    model_of,
    moments_and,
    weights_of,
)


def applied(planned, here, objective="sop"):
    """The values that the plan assigns to variables that were all 9."""
    variables = {}
    for weight in list_weights(here, objective):
        for path in moments_and(weight.path):
            variables[path] = tf.Variable(np.full(weight.shape, 9, np.float32))
    planned.apply(variables)
    return {path: v.numpy() for path, v in variables.items()}


# The models there and here; for each group or layer here, the number of that
# which it starts from, by hand: by relative depth, or with --init_from_group0.
DEPTHS = {
    "a group that all layers share": (
        model_of(6),
        model_of(12),
        {"group": [0]},
        {"group": [0]},
    ),
    "twice as many groups": (
        model_of(6, 6),
        model_of(12, 12),
        {"group": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]},
        {"group": [0, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0]},
    ),
    "as many groups, of layers that do not divide": (
        model_of(3, 2),
        model_of(4, 2),
        {"group": [0, 1]},
        {"group": [0, 1]},
    ),
    "fewer groups": (
        model_of(6, 6),
        model_of(3, 3),
        {"group": [0, 2, 4]},
        {"group": [0, 1, 2]},
    ),
    "groups of one that all layers shared": (
        model_of(6),
        model_of(12, 3),
        {"group": [0, 0, 0]},
        {"group": [0, 0, 0]},
    ),
    "layers that do not share": (
        model_of(2, sharing="none"),
        model_of(4, sharing="none"),
        {"layer": [0, 0, 1, 1]},
        {"layer": [0, 1, 0, 0]},
    ),
    "no divisor": (
        model_of(3, 3),
        model_of(4, 4),
        {"group": [0, 0, 1, 2]},
        {"group": [0, 1, 2, 0]},
    ),
}


@pytest.mark.parametrize("from_group0", [False, True])
@pytest.mark.parametrize("case", DEPTHS)
def test_layers_start_from_layers_of_the_same_relative_depth(
    plan_for, case, from_group0
):
    there, here, *expected = DEPTHS[case]
    ((owner, taken),) = expected[from_group0].items()
    weights = weights_of(there, slots=True)
    values = applied(
        plan_for(
            here,
            weights,
            init_from_group0=from_group0,
            init_optimizer_state=True,
        ),
        here,
    )
    old = {**weights.values, **weights.slots}
    seen = set()
    for path, value in values.items():
        match = re.search(rf"/{owner}_(\d+)_", path)
        source = path
        if match:
            number = int(match[1])
            seen.add(number)
            source = path.replace(match[0], f"/{owner}_{taken[number]}_")
        np.testing.assert_array_equal(value, old[source], path)
    assert seen == set(range(len(taken)))


def test_unshared_layers_start_from_their_former_group(plan_for):
    """Feed-forward layers take those of their group; attention stays shared."""
    there, here = model_of(12, 3), model_of(12, sharing="attention")
    weights = weights_of(there)
    planned = plan_for(here, weights)
    values = applied(planned, here)
    kernel = "albert/encoder/{}_inner_group_0_{}/output/kernel"
    for layer in range(12):
        np.testing.assert_array_equal(
            values[kernel.format(f"layer_{layer}", "ffn")],
            weights.values[kernel.format(f"group_{layer // 4}", "ffn")],
        )
    np.testing.assert_array_equal(
        values[kernel.format("group_0", "attention")],
        weights.values[kernel.format("group_0", "attention")],
    )
    taken = planned.report["layers"]["taken_from"]
    assert taken["layer_11_inner_group_0_ffn"] == "group_2_inner_group_0_ffn"


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (model_of(4, 2), model_of(4, 4)),
        (model_of(4, 1), model_of(4, 2)),
        (model_of(4, 2, inner_group_num=2), model_of(4, 4, inner_group_num=2)),
        (model_of(4, 2), model_of(4, 4, inner_group_num=2)),
        (model_of(4, 4, inner_group_num=2), model_of(4, 4)),
    ],
)
def test_init_from_group0_matches_google_research(plan_for, there, here):
    """Its rule, on its names: the same name, or else group 0."""
    weights = weights_of(there)
    planned = plan_for(here, weights, init_from_group0=True)
    values = applied(planned, here)
    published = {
        w.google_albert: weights.values[w.path] for w in list_weights(there)
    }
    fresh = set()
    for weight in list_weights(here):
        name = weight.google_albert
        if name not in published:
            name = re.sub(r"/group_\d+/", "/group_0/", name)
        if name in published:
            np.testing.assert_array_equal(
                values[weight.path], published[name], weight.path
            )
        else:
            fresh.add(weight.path)
            assert (values[weight.path] == 9).all()
    assert set(planned.report["initialized"]) == fresh
    assert bool(fresh) == (here.inner_group_num > there.inner_group_num)
    assert all("inner_group_1" in path for path in planned.report["unused"])
    assert bool(planned.report["unused"]) == (
        here.inner_group_num < there.inner_group_num
    )


@pytest.mark.parametrize("number", [24, 32, 40, 80])
def test_new_positions_repeat_the_old_ones(plan_for, number):
    """Their moments are zero; surplus positions are dropped."""
    here = model_of(2, max_position_embeddings=number)
    weights = weights_of(tiny_run.MODEL, slots=True)
    planned = plan_for(here, weights, init_optimizer_state=True)
    values = applied(planned, here)
    for position in range(number):
        np.testing.assert_array_equal(
            values[POSITIONS][position],
            weights.values[POSITIONS][position % 32],
        )
        for path in (f"{POSITIONS}/m", f"{POSITIONS}/v"):
            expected = weights.slots[path][position] if position < 32 else 0
            np.testing.assert_array_equal(values[path][position], expected)
    assert planned.report["positions"] == {"here": number, "there": 32}


@pytest.mark.parametrize(
    ("here", "there", "fresh", "unused"),
    [
        ("sop", "sop", set(), set()),
        ("sop", "nsp", {"sentence"}, {"sentence"}),
        ("nsp", "sop", {"sentence"}, {"sentence"}),
        ("sop", "none", {"sentence", "pooler"}, set()),
        ("none", "sop", set(), {"sentence", "pooler"}),
        ("none", "none", set(), set()),
    ],
)
def test_a_head_for_another_task_is_newly_initialised(
    plan_for, here, there, fresh, unused
):
    weights = weights_of(tiny_run.MODEL, objective=there, slots=True)
    planned = plan_for(
        tiny_run.MODEL, weights, objective=here, init_optimizer_state=True
    )
    values = applied(planned, tiny_run.MODEL, here)
    initialized = {path.split("/")[1] for path in planned.report["initialized"]}
    assert initialized == fresh
    assert {path.split("/")[1] for path in planned.report["unused"]} == unused
    for weight in list_weights(tiny_run.MODEL, here):
        for path in moments_and(weight.path):
            untouched = (values[path] == 9).all()
            assert untouched == (weight.path.split("/")[1] in fresh), path


def test_requested_moments_must_exist(plan_for):
    weights = weights_of(tiny_run.MODEL)
    with pytest.raises(UserError, match="init_optimizer_state needs"):
        plan_for(tiny_run.MODEL, weights, init_optimizer_state=True)
    assert plan_for(tiny_run.MODEL, weights)


def test_the_description_names_everything_that_changed(plan_for):
    weights = weights_of(model_of(4, 2), objective="none")
    here = model_of(8, 4, max_position_embeddings=64)
    lines = plan_for(here, weights).describe()
    text = "; ".join(lines)
    assert "64 positions from 32" in text
    assert "8 layers from 4" in text
    assert (
        "group_1 from group_0, group_2 from group_1, group_3 from group_1"
        in text
    )
    assert "missing in the checkpoint and newly initialised" in text
    assert "albert/pooler, albert/sentence" in text
    same = weights_of(tiny_run.MODEL)
    assert plan_for(tiny_run.MODEL, same).describe() == [
        "starting from the weights of a"
    ]
