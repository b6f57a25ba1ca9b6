import time

import pytest
import tensorflow as tf

from albert_tf.input import device_iterators, pipeline, record_sets
from albert_tf.input.record_format import pretraining_format
from albert_tf.training.train import train
from tests.helpers import tiny_run

# A tuning thread sleeps for 10 ms, then 20 ms, and so on. At this age of the
# iterator it would sleep for 5 to 10 s more.
AGE_S = 12
PROMPT_S = 5


@pytest.mark.slow
def test_old_iterators_close_at_once(tiny_records):
    """With a tuning thread, one iterator in three waits when it is closed."""
    config = tiny_run.make_config(tiny_records, "unused")
    held_out = record_sets.find_held_out(config)
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    make_dataset, _ = pipeline.evaluation_dataset(
        held_out, config.data, pretraining_format(held_out, config.data)
    )
    iterators = []
    for _ in range(8):
        batches = strategy.distribute_datasets_from_function(make_dataset)
        iterators.append(device_iterators.iterate(batches))
        next(iterators[-1])
    time.sleep(AGE_S)
    while iterators:
        began = time.monotonic()
        del iterators[-1]
        assert time.monotonic() - began < PROMPT_S


def test_no_iterator_of_a_run_has_a_tuning_thread(
    tiny_records, tmp_path, monkeypatch
):
    """In training and in evaluation. Such threads delay the end of a run."""
    config = tiny_run.make_config(
        tiny_records, tmp_path / "run", num_train_steps=4
    )
    iterate, autotuned = device_iterators.iterate, []

    def iterate_and_note(batches):
        autotuned.append(
            [d.options().autotune.enabled for d in batches._datasets]
        )
        return iterate(batches)

    monkeypatch.setattr(device_iterators, "iterate", iterate_and_note)
    train(config)
    assert autotuned == [[False], [False]]
