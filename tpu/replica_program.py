"""The training step of one core of a slice, lowered to HLO.

The step is `train_step.make_replica_step`, the function that the trainer
passes to `strategy.run`. Under TPUStrategy that function is the program on the
device: the loop of `steps_per_loop` steps runs on the host, which launches the
program for each step. TPUStrategy cannot be created without a TPU, so
`ReplicaContext` replaces the one that it would provide.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from albert_tf.cluster.pjrt import ReplicaContext
from albert_tf.config import PretrainingConfig
from albert_tf.records.features import features_to_read
from albert_tf.training import schedules, train_step
from albert_tf.training.pretraining import Pretraining


def make_program(
    state: train_step.TrainState, config: PretrainingConfig, num_replicas: int
) -> tuple[Any, list[tf.TensorSpec]]:
    """The training step as a function, with the dropout rates of step 0.

    Args:
        state: Model, optimizer and step, created outside of any strategy.
        num_replicas: Cores of the slice.

    Returns:
        A `tf.function` compiled by XLA, and the specs of its arguments: the
        number of the replica, and the features of the per-replica batch. It
        returns what the trainer's function returns.
    """
    replica_step = train_step.make_replica_step(
        state, config, device_type="TPU"
    )
    rates = schedules.dropout_rates(0, config)
    features = features_to_read("static", config.data.packing)

    @tf.function(jit_compile=True, autograph=False)
    def program(replica_id: tf.Tensor, *values: tf.Tensor) -> Any:
        names = [feature.name for feature in features]
        batch = dict(zip(names, values, strict=True))
        with ReplicaContext(num_replicas, replica_id):
            return replica_step(batch, rates)

    batch_size = config.data.global_batch_size // num_replicas
    return program, [
        tf.TensorSpec([], tf.int32),
        *(
            tf.TensorSpec(
                [batch_size, feature.length(config.data)],
                # The dtypes of batches: TPUs have no int64.
                tf.int32 if feature.dtype == "int64" else tf.float32,
            )
            for feature in features
        ),
    ]


def lower(config: PretrainingConfig, num_replicas: int) -> bytes:
    """Lowers the program of `make_program`.

    Returns:
        A serialized HLO module, lowered for a CPU. Its arguments are those of
        the function, then the variables, which it updates in place.
    """
    state = train_step.make_state(config, Pretraining(config))
    # TPUs count in int32.
    step = tf.Variable(0, dtype=tf.int32, trainable=False)
    state = dataclasses.replace(state, step=step)
    program, arguments = make_program(state, config, num_replicas)
    return program.experimental_get_compiler_ir(*arguments)(
        stage="hlo_serialized", platform_name="CPU"
    )
