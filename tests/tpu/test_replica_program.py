"""The program of one TPU core."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.training import train_step
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.schedules import DropoutRates
from tests.helpers.compiled_runs import tiny_config
from tpu import replica_program


def make_batch(arguments, vocab_size):
    """Random values with the shapes and dtypes of a program's arguments."""
    random = np.random.default_rng(0)
    return [
        tf.constant(random.integers(0, 2, spec.shape), spec.dtype)
        if number != 0
        else tf.constant(random.integers(5, vocab_size, spec.shape), spec.dtype)
        for number, spec in enumerate(arguments)
    ]


def test_the_program_takes_the_batches_of_packed_records():
    config = tiny_config(packing="best_fit", max_examples_per_row=3)
    state = train_step.make_state(config, Pretraining(config))
    _, (_, *batch) = replica_program.make_program(state, config, 2)
    data = config.data
    names = [f.name for f in replica_program.batch_features(data)]
    rows, slots = data.global_batch_size // 2, data.max_predictions_per_seq + 2
    expected = dict.fromkeys(
        ("input_ids", "input_mask", "segment_ids"), (rows, data.max_seq_length)
    )
    for name in "positions", "ids", "weights":
        expected[f"masked_lm_{name}"] = (rows, slots)
    for name in "positions", "labels", "weights":
        expected[f"next_sentence_{name}"] = (rows, 3)
    shapes = [tuple(spec.shape) for spec in batch]
    assert dict(zip(names, shapes, strict=True)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("packing", ["none", "best_fit"])
def test_the_program_computes_the_trainers_step(packing):
    """On one core, metrics and variables are those of the trainer's step."""
    config = tiny_config(
        num_warmup_steps=0, gradient_accumulation_steps=2, packing=packing
    )
    state = train_step.make_state(config, Pretraining(config))
    program, (replica_id, *features) = replica_program.make_program(
        state, config, 1
    )
    names = [f.name for f in replica_program.batch_features(config.data)]
    values = make_batch(features, config.model.vocab_size)
    if packing == "best_fit":  # Random positions would not have `[CLS]`.
        number = names.index("next_sentence_positions")
        values[number] = tf.zeros_like(values[number])
    before = {n: v.numpy() for n, v in state.variables().items()}
    figures = program(tf.zeros(replica_id.shape, tf.int32), *values)

    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        trained = train_step.make_state(config, Pretraining(config))
    replica_step = train_step.make_replica_step(trained, config)
    expected = tf.function(strategy.run)(
        lambda *v: replica_step(
            dict(zip(names, v, strict=True)), DropoutRates(0.0, 0.0)
        ),
        values,
    )

    assert set(figures) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(
            figures[name], value, rtol=1e-4, err_msg=name
        )
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
