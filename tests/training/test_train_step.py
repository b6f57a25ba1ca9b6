"""The program of a training step: what it computes, and how."""

import functools
import itertools
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.training import pretraining, train_step
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.schedules import DropoutRates
from albert_tf.training.train_step import make_state
from tests.helpers import tiny_run
from tests.helpers.step_program import NO_DROPOUT, StepProgram, make_dataset

MIRRORED = {"strategy": "mirrored", "num_logical_cpus": 2}
# The run directory, to which steps write nothing.
UNUSED = "unused"


class Trained(NamedTuple):
    """The results of some steps.

    Attributes:
        metrics: Means over the steps.
        weights: All variables after the steps, by path.
        operations: The types of all operations of the program, including
            those of called functions.
        num_compiled: How many functions XLA compiles.
        num_uncompiled_norms: How many squares of norms the other operations of
            the program compute.
    """

    metrics: dict[str, float]
    weights: dict[str, np.ndarray]
    operations: list[str]
    num_compiled: int
    num_uncompiled_norms: int


def operations_of(program, num_steps, rates):
    """The types of all operations of a program, and the functions it calls."""
    arguments = program.arguments(num_steps, rates)
    concrete = program.train_steps.get_concrete_function(*arguments)
    graph = concrete.graph.as_graph_def()
    functions = graph.library.function
    nodes = itertools.chain(graph.node, *(f.node_def for f in functions))
    return [node.op for node in nodes], functions


@functools.cache
def run_steps(config, rates=NO_DROPOUT, num_steps=3):
    """Trains some steps; tests with the same settings share the result."""
    program = StepProgram(config)
    steps = program.run(num_steps, rates)
    assert steps.num_steps == num_steps
    assert steps.times.shape == (num_steps, 3)
    requested, received, previous_finished = np.array(steps.times).T
    assert np.all(requested <= received)
    assert np.all(np.diff(previous_finished) > 0)
    operations, functions = operations_of(program, num_steps, rates)
    compiled = [f for f in functions if f.attr["_XlaMustCompile"].b]
    in_compiled = [node.op for f in compiled for node in f.node_def]
    return Trained(
        {name: float(v) / num_steps for name, v in steps.totals.items()},
        {name: v.numpy() for name, v in program.state.variables().items()},
        operations,
        len(compiled),
        operations.count("L2Loss") - in_compiled.count("L2Loss"),
    )


def assert_close(one, other, tolerance):
    for name, value in one.items():
        np.testing.assert_allclose(
            other[name], value, atol=tolerance, err_msg=name
        )


@pytest.mark.slow
def test_sums_of_metrics_are_the_same_in_every_process(tiny_records):
    """A second program stands for a second process: its operations have other
    names, by which TensorFlow orders the terms of sums."""
    config = tiny_run.make_config(tiny_records, UNUSED, **MIRRORED)
    for _ in range(2):
        program = StepProgram(config)
        for before in np.arange(5, 40, 1.7, np.float32):
            program.zeros["loss"] = tf.constant(before)
            after = program.run().totals
            loss = after["masked_lm_loss"] + after["sentence_order_loss"]
            assert after["loss"].numpy() == before + loss.numpy()


@pytest.mark.slow
def test_a_large_step_in_micro_batches_can_be_repeated(tiny_records):
    """If memory is short, TensorFlow rewrites the sum of the gradients."""
    config = tiny_run.make_config(
        tiny_records,
        UNUSED,
        hidden_size=64,
        intermediate_size=256,
        global_batch_size=4096,
        gradient_accumulation_steps=2,
    )
    program = StepProgram(config)
    for _ in range(2):
        program.run()
    assert int(program.state.step) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "num_micro_batches", "rates"),
    [("remat", 2, DropoutRates(0.1, 0.2)), ("fuse_on_cpu", 1, NO_DROPOUT)],
)
def test_how_the_step_is_computed_does_not_change_it(
    tiny_records, how, num_micro_batches, rates
):
    """Remat and fused kernels agree; remat also with dropout."""
    plain = tiny_run.make_config(
        tiny_records,
        UNUSED,
        optimizer="adamw",
        learning_rate=0.001,
        gradient_accumulation_steps=num_micro_batches,
    )
    expected = run_steps(plain, rates)
    found = run_steps(plain.replace(**{how: True}), rates)
    assert_close(expected.metrics, found.metrics, 1e-4)
    assert_close(expected.weights, found.weights, 1e-4)
    if how == "fuse_on_cpu":
        assert found.num_compiled > expected.num_compiled == 0
    else:
        products = [
            x.operations.count("BatchMatMulV2") for x in (expected, found)
        ]
        assert products[1] > products[0] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "num_compiled"),
    [
        ({"jit_compile": False}, 1),
        ({"remat": True}, 2),
    ],
)
def test_on_gpus_xla_compiles_the_gradients_and_the_update(
    tiny_records, monkeypatch, settings, num_compiled
):
    """The program for GPUs runs on CPUs here: the gradients and the update."""
    plain = tiny_run.make_config(
        tiny_records, UNUSED, optimizer="adamw", learning_rate=0.001
    )
    on_cpus = run_steps(plain)
    monkeypatch.setattr(train_step, "device_type", lambda strategy: "GPU")
    # Not the shared result.
    on_gpus = run_steps.__wrapped__(plain.replace(**settings))
    assert on_cpus.num_compiled == 0
    assert on_gpus.num_compiled == num_compiled
    # Not one kernel for each variable: XLA compiles the clipping, too.
    assert on_gpus.num_uncompiled_norms == 0 < on_cpus.num_uncompiled_norms
    assert_close(on_cpus.metrics, on_gpus.metrics, 1e-4)
    assert_close(on_cpus.weights, on_gpus.weights, 1e-4)
    has_barrier = "XlaOptimizationBarrier" in on_gpus.operations
    assert has_barrier == ("remat" in settings)


@pytest.mark.slow
def test_bfloat16_trains_close_to_float32(tiny_records):
    config = tiny_run.make_config(tiny_records, UNUSED)
    exact = run_steps(config)
    rounded = run_steps(config.replace(precision="mixed_bfloat16"))
    loss = exact.metrics["loss"]
    assert rounded.metrics["loss"] == pytest.approx(loss, rel=0.01)
    assert rounded.metrics["loss"] != loss
    assert {v.dtype for v in rounded.weights.values()} == {
        v.dtype for v in exact.weights.values()
    }


def gradients_by_share(config, num_shares):
    """Gradients of each share's part of the global loss, by path."""
    make = make_dataset(config, Pretraining(config))
    (batch,) = make(tf.distribute.InputContext()).take(1)
    mlm_weight = tf.reduce_sum(batch["masked_lm_weights"])
    pretrainer = make_state(config, Pretraining(config)).model
    size = config.data.global_batch_size // num_shares
    weights = tf.reshape(batch["masked_lm_weights"], [num_shares, -1])
    assert len(set(weights.numpy().sum(axis=1))) == num_shares
    shares = []
    for first in range(0, config.data.global_batch_size, size):
        share = {k: v[first : first + size] for k, v in batch.items()}
        with tf.GradientTape() as tape:
            sums = pretraining.pretraining_sums(pretrainer(share), share)
            loss = sums["mlm_loss_sum"] / mlm_weight
            loss += sums["sentence_loss_sum"] / config.data.global_batch_size
        variables = pretrainer.trainable_variables
        gradients = tape.gradient(loss, [v.value for v in variables])
        shares.append(
            {
                v.path: tf.convert_to_tensor(g).numpy().astype(np.float64)
                for v, g in zip(variables, gradients, strict=True)
            }
        )
    return shares


def clip(gradients, norm):
    """The gradients, scaled down to a global norm if theirs exceeds it."""
    length = np.sqrt(sum(np.square(g).sum() for g in gradients.values()))
    return {k: g * min(1, norm / length) for k, g in gradients.items()}


def mean(shares):
    return {k: sum(s[k] for s in shares) / len(shares) for k in shares[0]}


@pytest.mark.slow
@pytest.mark.parametrize("clip_scope", ["global", "per_replica"])
def test_clipping_follows_the_formula(tiny_records, clip_scope):
    """On two replicas, against NumPy.

    "global" clips the gradient of the global batch. "per_replica", as
    published, clips the gradient of each replica's mean loss, which is twice
    its part of the global one, and averages them. Each masked token counts the
    same, although the replicas have different numbers of them.
    """
    config = tiny_run.make_config(
        tiny_records,
        UNUSED,
        optimizer="adamw",
        seed=2,  # gives the replicas different numbers of masked tokens
        # Above the norm of a replica's part, below that of its mean.
        clip_norm=0.6,
        clip_scope=clip_scope,
        **MIRRORED,
    )
    own_means = [
        {k: 2 * g for k, g in share.items()}
        for share in gradients_by_share(config, 2)
    ]
    expected = {
        "global": clip(mean(own_means), 0.6),
        "per_replica": mean([clip(own, 0.6) for own in own_means]),
    }
    other = {"global": "per_replica", "per_replica": "global"}[clip_scope]
    trained = run_steps(config, num_steps=1)
    weights = trained.weights
    if clip_scope == "global":  # the logged norm is that before clipping
        norm = np.sqrt(sum(np.sum(g**2) for g in mean(own_means).values()))
        assert trained.metrics["gradient_norm"] == pytest.approx(norm, rel=1e-4)
        assert norm > 0.61

    differs = 0.0
    for path, gradient in expected[clip_scope].items():
        # The first moment after one update is a tenth of the gradient.
        moment = weights[f"{path}/m"]
        np.testing.assert_allclose(
            moment, 0.1 * gradient, rtol=1e-3, atol=1e-7, err_msg=path
        )
        differs = max(differs, np.abs(expected[other][path] - gradient).max())
    assert differs > 1e-4, "the two ways must differ here"


@pytest.mark.parametrize("fuse", [True, False])
def test_dropout_of_rate_0_adds_no_random_operation(tiny_records, fuse):
    config = tiny_run.make_config(tiny_records, UNUSED, fuse_on_cpu=fuse)
    program = StepProgram(config)
    without, with_dropout = (
        operations_of(program, 1, rates)[0]
        for rates in (NO_DROPOUT, DropoutRates(0.1, 0.1))
    )

    # Three operations for the seed of the step, which is not used then.
    draw, split = "StatelessRandomUniformFullIntV2", "LeftShift"
    assert without.count(draw) == 3
    if fuse:
        assert with_dropout.count("BitwiseXor") > 5
        assert without.count("BitwiseXor") == 0
    else:
        assert with_dropout.count(draw) > 3 + 5
        assert with_dropout.count(split) > 5
        assert without.count(split) == 0


def test_each_seed_step_replica_and_micro_batch_has_other_masks(
    monkeypatch, tmp_path
):
    seeds = []

    def record(state, micro_batch, weights, dropout, target, total):
        """Takes the place of the model; its losses and gradients are 0."""
        tf.numpy_function(
            lambda seed: seeds.append(tuple(seed.tolist())), [dropout.seed], []
        )
        sums = [
            f"{task}_{quantity}_sum"
            for task in ("mlm", "sentence")
            for quantity in ("loss", "correct", "weight")
        ]
        gradients = [tf.zeros(v.shape) for v in state.model.trainable_variables]
        return gradients, dict.fromkeys(sums, tf.zeros(()))

    monkeypatch.setattr(train_step, "_add_gradients", record)
    for seed in (1, 2):
        config = tiny_run.make_synthetic_config(
            tmp_path,
            gradient_accumulation_steps=2,
            seed=seed,
            **MIRRORED,
        )
        StepProgram(config).run(2, DropoutRates(0.1, 0.1))
    assert len(seeds) == len(set(seeds)) == 2 * 2 * 2 * 2
