"""Batches of random numbers, to measure the speed of training without records.

`--synthetic_input` trains on one batch of random numbers, again and again. The
devices do the same work as on real records, and never wait for input. The
difference from a run on records is therefore the cost of the input.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.config import DataConfig
from albert_tf.input.record_format import StoredFeature
from albert_tf.input.record_sets import RecordSet

# So many records that no run reaches the end of an epoch.
RECORDS = RecordSet({"synthetic_input": 2**40}, (("synthetic_input",),))


def make_dataset(
    config: DataConfig,
    features: Sequence[StoredFeature],
    limits: Mapping[str, int],
) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
    """The argument of `strategy.distribute_datasets_from_function`.

    Args:
        config: Batch size and lengths.
        limits: Exclusive upper bounds of integer features, by name; the bound
            is 2 for a feature that is not listed.
    """

    def dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        rows = context.get_per_replica_batch_size(config.global_batch_size)
        random = np.random.default_rng(0)
        batch = {}
        for feature in features:
            shape = rows, feature.length(config)
            if feature.dtype == "float32" or feature.name == "input_mask":
                # Every position holds a token, and every slot counts.
                values = np.ones(shape)
            else:
                values = random.integers(
                    limits.get(feature.name, 2), size=shape
                )
            dtype = np.float32 if feature.dtype == "float32" else np.int32
            batch[feature.name] = values.astype(dtype)
        options = tf.data.Options()
        options.autotune.enabled = False
        return (
            tf.data.Dataset.from_tensors(batch).repeat().with_options(options)
        )

    return dataset
