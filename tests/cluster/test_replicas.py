"""One program copies the values of variables to all replicas of a slice.

`tests/training/test_slice.py` runs it on the hosts of a slice.
"""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.cluster.replicas import (
    Replicas,
    copy_on_replica,
    values_on_first,
)
from tests.helpers import tpu_bridge


@pytest.fixture
def strategy(monkeypatch):
    return tpu_bridge.make_tpu_strategy(monkeypatch)


def make_variables(strategy):
    with values_on_first(strategy), strategy.scope():
        return {
            name: tf.Variable(
                value,
                name=name,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
                if name == "step"
                else tf.VariableAggregation.NONE,
            )
            for name, value in (
                ("kernel", tf.fill([3, 5], 2.0)),
                ("bias", lambda: tf.fill([5], 7.0)),
                ("step", np.int64(11)),
            )
        }


def values_of(strategy, variable):
    return [v.numpy() for v in strategy.experimental_local_results(variable)]


def test_the_program_that_copies_runs_on_tpus(strategy):
    """With one sum, and one update in place, for each variable but the step."""
    variables = make_variables(strategy)
    program = tpu_bridge.lower(
        Replicas(variables)._program.get_concrete_function(),
        variables.values(),
    )
    tpu_bridge.assert_runs_on_tpu(program)
    assert program.num_sums_over_replicas == 2
    assert program.num_updated_variables == 2


def test_all_replicas_get_the_values_of_the_first_one(mirrored_two):
    """Even if the others hold NaN or infinity."""
    first = {"kernel": [[2.0, -3.5], [np.inf, 0.0]], "bias": [7.0, 1e-30]}
    with mirrored_two.scope():
        variables = {
            name: tf.Variable(value, dtype=tf.float32)
            for name, value in first.items()
        }
    for variable, value in (
        ("kernel", [[4.0, np.nan], [-np.inf, 9.0]]),
        ("bias", [np.nan, 5.0]),
    ):
        other = mirrored_two.experimental_local_results(variables[variable])[1]
        other.assign(value)
    run = tf.function(mirrored_two.run, autograph=False)
    run(copy_on_replica, args=(tuple(variables.values()),))
    for name, value in first.items():
        one, other = values_of(mirrored_two, variables[name])
        np.testing.assert_array_equal(one, np.float32(value))
        np.testing.assert_array_equal(other, np.float32(value))


def test_values_are_sent_to_the_first_replica_only(strategy, monkeypatch):
    variables = make_variables(strategy)
    for name, first in ("kernel", 2), ("bias", 7):
        one, other = values_of(strategy, variables[name])
        assert (one == first).all() and (other == 0).all()
    assert values_of(strategy, variables["step"]) == [11, 11]

    # A TPUStrategy on CPUs cannot run programs.
    copied = []
    monkeypatch.setattr(
        Replicas, "copy_from_first", lambda self: copied.append(self)
    )
    replicas = Replicas(variables)
    replicas.assign({"kernel": np.ones([3, 5]), "bias": [1.0] * 5, "step": 12})
    one, other = values_of(strategy, variables["kernel"])
    assert (one == 1).all() and (other == 0).all()
    assert values_of(strategy, variables["step"]) == [12, 12]
    assert copied == [replicas]


def test_other_strategies_assign_to_each_replica(mirrored_two):
    variables = make_variables(mirrored_two)
    assert [v.tolist() for v in values_of(mirrored_two, variables["bias"])] == [
        [7.0] * 5
    ] * 2
    replicas = Replicas(variables)
    assert replicas.read()["step"] == 11
    replicas.assign({"kernel": np.ones([3, 5]), "bias": [1.0] * 5, "step": 12})
    assert [v.tolist() for v in values_of(mirrored_two, variables["bias"])] == [
        [1.0] * 5
    ] * 2
