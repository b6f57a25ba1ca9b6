"""Synthetic batches have the shapes and types of real ones."""

import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.input.batch_stream import BatchStream
from albert_tf.runs.log import read_metrics
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train import train
from tests.helpers import tiny_run


def first_batch(config):
    """The batch of the second of two replicas, on one host."""
    objective = Pretraining(config)
    stream = BatchStream(
        objective.find_training_data(),
        config.data,
        seed=1,
        format_of=objective.record_format,
    )
    batches = iter(stream.open(7)(tf.distribute.InputContext(1, 0, 2)))
    next(batches)
    return next(batches)


@pytest.mark.parametrize("packing", ["none", "best_fit"])
def test_batches_have_the_features_of_records(
    tiny_records, tiny_packed_records, tmp_path, packing
):
    records = tiny_records if packing == "none" else tiny_packed_records
    packed = {} if packing == "none" else tiny_run.PACKING
    real = first_batch(tiny_run.make_config(records, tmp_path, **packed))
    made = first_batch(tiny_run.make_synthetic_config(tmp_path, **packed))
    assert {n: (v.shape, v.dtype) for n, v in made.items()} == {
        n: (v.shape, v.dtype) for n, v in real.items()
    }
    ids = made["input_ids"].numpy()
    # Gathering the same few rows of the embedding might be faster.
    assert len(set(ids.ravel())) > 50 and ids.max() < tiny_run.MODEL.vocab_size
    assert made["masked_lm_positions"].numpy().max() < ids.shape[1]
    assert made["input_mask"].numpy().min() == 1


def test_synthetic_input_and_records_exclude_each_other(tiny_records, tmp_path):
    with pytest.raises(UserError, match="synthetic_input replaces"):
        tiny_run.make_config(tiny_records, tmp_path, synthetic_input=True)


@pytest.mark.slow
def test_a_run_needs_no_records(tmp_path):
    config = tiny_run.make_synthetic_config(tmp_path, num_train_steps=4)
    assert train(config) == 0
    assert train(config) == 0  # resumed, with nothing left to do
    assert [line["step"] for line in read_metrics(str(tmp_path))] == [2, 4]
