"""The program of one TPU core."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records.features import features_to_read
from albert_tf.training import train_step
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.schedules import DropoutRates
from tests.helpers.compiled_runs import tiny_config
from tpu import replica_program


@pytest.mark.slow
def test_the_program_computes_the_trainers_step():
    """On one core and packed rows, it has its metrics and variables."""
    config = tiny_config(
        num_warmup_steps=0, gradient_accumulation_steps=2, packing="best_fit"
    )
    state = train_step.make_state(config, Pretraining(config))
    program, (_, *specs) = replica_program.make_program(state, config, 1)
    names = [f.name for f in features_to_read("static", "best_fit")]
    random = np.random.default_rng(0)
    batch = {
        name: tf.constant(
            random.integers(
                *(
                    (5, config.model.vocab_size)
                    if name == "input_ids"
                    else (2,)
                ),
                size=spec.shape,
            ),
            spec.dtype,
        )
        for name, spec in zip(names, specs, strict=True)
    }
    # Random positions would not have `[CLS]`.
    positions = "next_sentence_positions"
    batch[positions] = tf.zeros_like(batch[positions])
    before = {n: v.numpy() for n, v in state.variables().items()}
    found = program(tf.constant(0), *batch.values())

    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        trained = train_step.make_state(config, Pretraining(config))
    replica_step = train_step.make_replica_step(trained, config)
    expected = tf.function(strategy.run)(
        lambda batch: replica_step(batch, DropoutRates(0.0, 0.0)), [batch]
    )

    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, err_msg=name)
    for name, variable in trained.variables().items():
        after = state.variables()[name].numpy()
        np.testing.assert_allclose(
            after, variable.numpy(), atol=1e-5, err_msg=name
        )
    assert any(
        np.abs(before[n] - v).max() > 1e-4 for n, v in state.variables().items()
    )


def test_each_core_sums_over_the_complete_slice():
    """Each sum of the program has a group of all 8 cores."""
    config = tiny_config()
    state = train_step.make_state(config, Pretraining(config))
    program, arguments = replica_program.make_program(state, config, 8)
    hlo = program.experimental_get_compiler_ir(*arguments)(
        stage="hlo", platform_name="CPU"
    )
    sums = [line for line in hlo.splitlines() if " all-reduce(" in line]
    # The weight of the batch, each gradient, and the metrics. Each weight has
    # two moments.
    assert len(sums) == 2 + len(state.optimizer.slots) // 2
    assert all("replica_groups={{0,1,2,3,4,5,6,7}}" in line for line in sums)
