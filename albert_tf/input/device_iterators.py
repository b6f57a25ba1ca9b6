"""Iterators over a distributed dataset that close without delay.

tf.data starts a tuning thread for each iterator whose options do not turn
autotuning off. The thread sleeps for up to a minute at a time. When an
iterator is destroyed, TensorFlow wakes the thread before it marks the iterator
as cancelled (`CancellationManager::StartCancel` and `Model::OptimizeLoop`). In
about a third of all cases, the thread therefore goes back to sleep. The
destructor, which blocks all of Python, then waits for the rest of the minute:
at the end of a run, after an evaluation, after a rollback.

Two kinds of iterators have such a thread. The iterator of the host gets its
options from the dataset (see `pipeline`). tf.distribute makes the iterators of
the devices without options. These only copy batches from the host's iterator,
one in advance, so there is nothing to tune.

This module replaces a private function of TensorFlow while an iterator is made.
If a release of TensorFlow lacks that function, processes may end late, and
`tests/input/test_device_iterators.py` fails.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import multi_device_iterator_ops

_CREATE_DATASET = "_create_device_dataset"


def iterate(batches: tf.distribute.DistributedDataset) -> Any:
    """Starts reading a distributed dataset.

    Args:
        batches: From `strategy.distribute_datasets_from_function`. The options
            of its datasets must turn autotuning off.
    """
    with _device_datasets_without_autotuning():
        return iter(batches)


@contextlib.contextmanager
def _device_datasets_without_autotuning() -> Iterator[None]:
    create = getattr(multi_device_iterator_ops, _CREATE_DATASET, None)
    if create is None:
        yield
        return

    def create_without_autotuning(*args: Any) -> tf.data.Dataset:
        options = tf.data.Options()
        options.autotune.enabled = False
        return create(*args).with_options(options)

    setattr(
        multi_device_iterator_ops, _CREATE_DATASET, create_without_autotuning
    )
    try:
        yield
    finally:
        setattr(multi_device_iterator_ops, _CREATE_DATASET, create)
