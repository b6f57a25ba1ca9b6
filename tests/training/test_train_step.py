"""The program of a training step: what it computes, and how."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.modeling import dropout
from albert_tf.training import train_step
from albert_tf.training.schedules import DropoutRates
from tests.helpers import tiny_run
from tests.helpers.pretended_devices import pretend
from tests.helpers.step_program import NO_DROPOUT, StepProgram

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
    arguments = program.arguments(num_steps)
    concrete = program.loop(rates).get_concrete_function(*arguments)
    graph = concrete.graph.as_graph_def()
    functions = graph.library.function
    nodes = itertools.chain(graph.node, *(f.node_def for f in functions))
    return [node.op for node in nodes], functions


def run_steps(config, rates=NO_DROPOUT, num_steps=3):
    """Trains some steps."""
    program = StepProgram(config)
    sums = program.run(num_steps, rates)
    operations, functions = operations_of(program, num_steps, rates)
    compiled = [f for f in functions if f.attr["_XlaMustCompile"].b]
    in_compiled = [node.op for f in compiled for node in f.node_def]
    return Trained(
        {name: float(v) / num_steps for name, v in sums.items()},
        {name: v.numpy() for name, v in program.state.variables().items()},
        operations,
        len(compiled),
        operations.count("L2Loss") - in_compiled.count("L2Loss"),
    )


@pytest.mark.slow
def test_sums_of_metrics_are_the_same_in_every_process(tiny_records):
    """A second program stands for a second process: its operations have other
    names, by which TensorFlow orders the terms of sums."""
    config = tiny_run.make_config(
        tiny_records, UNUSED, optimizer="adamw", **MIRRORED
    )
    for _ in range(2):
        program = StepProgram(config)
        for before in np.arange(5, 40, 1.7, np.float32):
            after = program.run(start={"loss": before})
            loss = after["masked_lm_loss"] + after["sentence_order_loss"]
            assert after["loss"] == before + loss


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
def test_on_gpus_xla_compiles_the_gradients_and_the_update(
    tiny_records, monkeypatch
):
    """The program for GPUs runs on CPUs here: the gradients and the update."""
    plain = tiny_run.make_config(
        tiny_records,
        UNUSED,
        optimizer="adamw",
        learning_rate=0.001,
    )
    on_cpus = run_steps(plain)
    pretend(monkeypatch, "GPU")
    on_gpus = run_steps(plain.replace(remat=True, jit_compile=True))
    assert (on_cpus.num_compiled, on_gpus.num_compiled) == (0, 2)
    # Not one kernel for each variable: XLA compiles the clipping, too.
    assert on_gpus.num_uncompiled_norms == 0 < on_cpus.num_uncompiled_norms
    for one, other in (
        (on_cpus.metrics, on_gpus.metrics),
        (on_cpus.weights, on_gpus.weights),
    ):
        for name, value in one.items():
            np.testing.assert_allclose(other[name], value, atol=1e-4)
    assert "XlaOptimizationBarrier" in on_gpus.operations


def test_dropout_of_rate_0_adds_no_random_operation(tiny_records):
    config = tiny_run.make_config(tiny_records, UNUSED, jit_compile=True)
    program = StepProgram(config)
    without, with_dropout = (
        operations_of(program, 1, rates)[0]
        for rates in (NO_DROPOUT, DropoutRates(0.1, 0.1))
    )
    # Three operations for the seed of the step, which is not used then.
    assert without.count("StatelessRandomUniformFullIntV2") == 3
    assert with_dropout.count("BitwiseXor") > 5
    assert without.count("BitwiseXor") == 0


@pytest.mark.slow
def test_each_seed_step_replica_and_micro_batch_has_other_masks(
    monkeypatch, tmp_path
):
    seeds = []

    def record(hidden, attention, seed):
        """Takes the place of dropout."""
        tf.numpy_function(
            lambda seed: seeds.append(tuple(seed.tolist())), [seed], []
        )
        return dropout.NO_DROPOUT

    monkeypatch.setattr(train_step, "Dropout", record)
    for seed in (1, 2):
        config = tiny_run.make_synthetic_config(
            tmp_path,
            gradient_accumulation_steps=2,
            optimizer="adamw",
            seed=seed,
            **MIRRORED,
        )
        StepProgram(config).run(2, DropoutRates(0.1, 0.1))
    assert len(seeds) == len(set(seeds)) == 2 * 2 * 2 * 2
