"""Training steps without a run: their program, metrics and weights."""

import functools
import itertools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.cluster.strategy import make_strategy
from albert_tf.input import record_sets as training_records
from albert_tf.input.batch_stream import BatchStream
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.schedules import DropoutRates
from albert_tf.training.train_step import (
    make_state,
    make_train_steps,
    metric_names,
)

NO_DROPOUT = DropoutRates(0.0, 0.0)
# The run directory, to which steps write nothing.
UNUSED = "unused"


def no_totals(config):
    names = metric_names(config, Pretraining(config))
    return {name: tf.constant(0.0) for name in names}


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


def make_steps(config):
    """The program of the steps, its variables, and batches for it."""
    strategy = make_strategy(config.distribution)
    data = training_records.find_training_data(config)
    with strategy.scope():
        state = make_state(config, Pretraining(config))
        train_steps = make_train_steps(strategy, state, config)
    batches = iter(
        strategy.distribute_datasets_from_function(
            BatchStream(data, config.data, 7).open(0)
        )
    )
    return train_steps, state, batches


def operations_of(program, arguments):
    """The types of all operations of a program, and the functions it calls."""
    graph = program.get_concrete_function(*arguments).graph.as_graph_def()
    functions = graph.library.function
    nodes = itertools.chain(graph.node, *(f.node_def for f in functions))
    return [node.op for node in nodes], functions


@functools.cache
def run_steps(config, rates=NO_DROPOUT, num_steps=3):
    """Trains some steps; tests with the same settings share the result."""
    train_steps, state, batches = make_steps(config)
    arguments = (batches, no_totals(config), tf.constant(num_steps), rates)
    steps = train_steps(*arguments)
    assert steps.num_steps == num_steps
    assert steps.times.shape == (num_steps, 3)
    requested, received, previous_finished = np.array(steps.times).T
    assert np.all(requested <= received)
    assert np.all(np.diff(previous_finished) > 0)
    operations, functions = operations_of(train_steps, arguments)
    compiled = [f for f in functions if f.attr["_XlaMustCompile"].b]
    in_compiled = [node.op for f in compiled for node in f.node_def]
    return Trained(
        {name: float(v) / num_steps for name, v in steps.totals.items()},
        {name: v.numpy() for name, v in state.variables().items()},
        operations,
        len(compiled),
        operations.count("L2Loss") - in_compiled.count("L2Loss"),
    )


def assert_close(one, other, tolerance):
    for name, value in one.items():
        np.testing.assert_allclose(
            other[name], value, atol=tolerance, err_msg=name
        )


def largest_difference(one, other):
    return max(np.abs(one[name] - other[name]).max() for name in one)
