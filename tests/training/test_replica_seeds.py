"""The seeds of dropout on each replica in each step."""

import numpy as np
import tensorflow as tf

from albert_tf.cluster.strategy import make_strategy
from albert_tf.input.batch_stream import BatchStream
from albert_tf.modeling.dropout import Dropout
from albert_tf.modeling.target import DEFAULT_TARGET
from albert_tf.training import train_step
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.schedules import DropoutRates
from albert_tf.training.train_step import make_state
from tests.helpers import tiny_run


def test_dropout_masks_depend_on_seed_step_and_replica_only():
    def mask(seed, step, replica):
        keys = train_step._replica_seed(seed, tf.constant(step), replica)
        masks = Dropout(0.5, 0.5, keys).hidden_masks(0, DEFAULT_TARGET)
        return masks.keep(tf.constant([40])).numpy()

    original = mask(1, 2, 3)
    np.testing.assert_array_equal(mask(1, 2, 3), original)
    for other in (mask(2, 2, 3), mask(1, 3, 3), mask(1, 2, 4)):
        assert (other != original).any()


def test_each_step_replica_and_micro_batch_has_other_masks(
    monkeypatch, tmp_path
):
    config = tiny_run.make_synthetic_config(
        tmp_path,
        gradient_accumulation_steps=2,
        strategy="mirrored",
        num_logical_cpus=2,
    )
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
    strategy = make_strategy(config.distribution)
    objective = Pretraining(config)
    with strategy.scope():
        state = make_state(config, objective)
        step = train_step.make_replica_step(state, config)
    stream = BatchStream(
        objective.find_training_data(),
        config.data,
        7,
        format_of=objective.record_format,
    )
    batches = iter(strategy.distribute_datasets_from_function(stream.open(0)))
    rates = DropoutRates(0.1, 0.1)
    run = tf.function(lambda batch: strategy.run(step, args=(batch, rates)))
    for _ in range(2):
        run(next(batches))
    assert len(seeds) == len(set(seeds)) == 2 * 2 * 2
