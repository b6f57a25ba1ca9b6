import pytest
import tensorflow as tf

from tests.helpers import tiny_model

LAYERS = tiny_model.CONFIG.num_hidden_layers


@pytest.mark.parametrize(
    ("target", "settings", "tolerance"),
    [
        (tiny_model.CPU, {"parameter_sharing": "none"}, 1e-5),
        (tiny_model.CPU, {"dtype": "mixed_bfloat16"}, 0.05),
        (tiny_model.FUSED, {}, 1e-5),
        pytest.param(tiny_model.TPU, {}, 1e-5, marks=pytest.mark.slow),
        (tiny_model.plain(tiny_model.CPU), {}, 1e-5),
    ],
    ids=["none-shared", "bfloat16", "fused", "tpu", "plain"],
)
def test_gradients_are_those_without_remat(target, settings, tolerance):
    """A shared parameter's gradient is a sum over layers in another order."""
    tiny_model.assert_same_gradients(
        tiny_model.gradients(target, remat=True, **settings),
        tiny_model.gradients(target, **settings),
        tolerance,
    )


def count(kind, remat, target=tiny_model.CPU):
    """Operations of a kind in a program."""
    program = tiny_model.gradients_program(target, remat=remat)
    graph = program.get_concrete_function(tf.constant([1, 2])).graph
    return sum(op.type == kind for op in graph.get_operations())


def test_only_with_remat_is_a_block_computed_twice():
    """Otherwise the tests above may compare a program with itself.

    By the exponentials: one per layer, and some in the losses' gradients.
    """
    kept = count("Exp", False)
    assert kept >= LAYERS
    assert count("Exp", True) == kept + LAYERS


@pytest.mark.slow
def test_on_a_tpu_a_barrier_precedes_the_second_computation():
    """Each layer has six in the forward pass, and one in the gradient.

    With remat, it has those of the forward pass twice, and one more.
    """
    barrier = "XlaOptimizationBarrier"
    assert count(barrier, False, tiny_model.TPU) == (6 + 1) * LAYERS
    assert count(barrier, True, tiny_model.TPU) == (7 + 6 + 1) * LAYERS
    assert count(barrier, True) == 0
