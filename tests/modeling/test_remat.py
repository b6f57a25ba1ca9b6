import keras
import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import ModelConfig
from albert_tf.modeling.dropout import Dropout
from albert_tf.modeling.pretrainer import AlbertPretrainer

SIZES = {
    "vocab_size": 61,
    "embedding_size": 16,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 19,
    "initializer_range": 0.3,
}
PARTS = 3


def make_gradients(
    strategy, remat, sharing="all", dtype="float32", on_tpu=False
):
    """A model, and a program giving each replica's sums of its gradients.

    As in training: the tape stands in a loop over the parts of a batch, and
    each part and replica has dropout of its own.
    """
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = AlbertPretrainer(
            ModelConfig(**SIZES, parameter_sharing=sharing),
            dtype=dtype,
            remat=remat,
        )
        model.build()
    rng = np.random.default_rng(0)
    arrays = {
        "input_ids": rng.integers(5, 61, (5, 11)),
        "input_mask": np.arange(11) < [[11], [9], [4], [11], [1]],
        "segment_ids": rng.integers(0, 2, (5, 11)),
        "masked_lm_positions": rng.integers(0, 11, (5, 4)),
    }
    batch = {k: tf.constant(v, tf.int32) for k, v in arrays.items()}

    def part_gradients(part, replica):
        dropout = Dropout(0.3, 0.3, tf.stack([part, replica]), on_tpu)
        with tf.GradientTape() as tape:
            outputs = model(batch, dropout=dropout)
            loss = sum(
                tf.reduce_sum(tf.nn.log_softmax(outputs[name])[..., 1])
                for name in ("mlm_logits", "sentence_logits")
            )
        variables = [v.value for v in model.trainable_variables]
        gradients = tape.gradient(loss, variables)
        return [tf.convert_to_tensor(g) for g in gradients]

    def replica_gradients():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        replica = tf.cast(replica, tf.int32)
        _, totals = tf.while_loop(
            lambda part, _: part < PARTS,
            lambda part, totals: (
                part + 1,
                tf.nest.map_structure(
                    tf.add, totals, part_gradients(part, replica)
                ),
            ),
            (tf.constant(1), part_gradients(tf.constant(0), replica)),
            maximum_iterations=PARTS - 1,
        )
        return totals

    return model, tf.function(lambda: strategy.run(replica_gradients))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sharing", "dtype", "tolerance"),
    [
        ("all", "float32", 1e-5),
        ("none", "float32", 1e-5),
        ("all", "mixed_bfloat16", 0.05),
    ],
)
def test_gradients_are_those_without_recomputation(
    mirrored_two, sharing, dtype, tolerance
):
    """With dropout, whose masks come again, on every replica its own.

    A shared parameter's gradient is a sum over layers in another order.
    """
    gradients = {}
    for remat in False, True:
        model, program = make_gradients(mirrored_two, remat, sharing, dtype)
        paths = [v.path for v in model.trainable_variables]
        for path, value in zip(paths, program(), strict=True):
            values = mirrored_two.experimental_local_results(value)
            for replica, of_replica in enumerate(values):
                gradients[remat, replica, path] = of_replica.numpy()

    for path in paths:
        first, second = (gradients[False, replica, path] for replica in (0, 1))
        size = np.abs(first).max()
        if path.endswith("key/bias"):  # Nothing but rounding.
            continue
        assert np.abs(first - second).max() > 1e-3 * size
        for replica, kept in enumerate([first, second]):
            np.testing.assert_allclose(
                gradients[True, replica, path],
                kept,
                rtol=0,
                atol=tolerance * size,
                err_msg=path,
            )


def count(kind, remat, on_tpu=False):
    """Operations of a kind in one step."""
    strategy = tf.distribute.get_strategy()
    _, program = make_gradients(strategy, remat, on_tpu=on_tpu)
    graph = program.get_concrete_function().graph.as_graph_def()
    bodies = {f.signature.name: f for f in graph.library.function}
    loop = next(n for n in graph.node if n.op in ("While", "StatelessWhile"))
    nodes = bodies[loop.attr["body"].func.name].node_def
    return sum(node.op == kind for node in nodes)


@pytest.mark.slow
def test_only_with_remat_is_a_block_computed_twice():
    """3 layers; without the test above may compare a program with itself.

    An exponential for each, and some in the losses' gradients.
    """
    kept = count("Exp", False)
    assert kept >= 3
    assert count("Exp", True) == kept + 3


@pytest.mark.slow
def test_on_a_tpu_the_second_computation_is_kept_apart():
    """By one barrier a block, beside those of attention: forward, backward."""
    barrier = "XlaOptimizationBarrier"
    forward, backward, kept_apart = 3, 3, 3
    without = forward + backward
    assert count(barrier, False, on_tpu=True) == without
    assert count(barrier, True, on_tpu=True) == without + kept_apart + forward
    assert count(barrier, True) == 0


@pytest.mark.slow
def test_a_tpus_gradients_are_those_without_recomputation():
    """Compiled by XLA, as what keeps the two computations apart needs."""
    strategy = tf.distribute.get_strategy()
    gradients = []
    for remat in False, True:
        model, program = make_gradients(strategy, remat, on_tpu=True)
        compiled = tf.function(program, jit_compile=True)
        gradients.append([value.numpy() for value in compiled()])
    paths = [v.path for v in model.trainable_variables]
    for path, kept, again in zip(paths, *gradients, strict=True):
        if path.endswith("key/bias"):  # Nothing but rounding.
            continue
        size = np.abs(kept).max()
        assert size > 0
        np.testing.assert_allclose(again, kept, atol=1e-5 * size, err_msg=path)
