"""The training step of one core of a slice, lowered to HLO.

The step is `train_step.make_replica_step`, the function that the trainer
passes to `strategy.run`. Under TPUStrategy that function is the program on the
device: the loop of `steps_per_loop` steps runs on the host, which launches the
program for each step. TPUStrategy cannot be created without a TPU, so
`SliceContext` replaces the replica context that it would provide.
"""

from typing import Any

import tensorflow as tf

from albert_tf.config import PretrainingConfig
from albert_tf.records.features import features_to_read
from albert_tf.training import schedules, train_step
from albert_tf.training.pretraining import Pretraining


class SliceContext(tf.distribute.ReplicaContext):
    """The replica context of one core of a slice.

    Args:
        num_replicas: Cores of the slice.
        replica_id: int32 scalar, the number of this core; an argument of the
            program.
    """

    def __init__(self, num_replicas: int, replica_id: tf.Tensor) -> None:
        super().__init__(tf.distribute.get_strategy(), replica_id)
        self._num_replicas = num_replicas

    @property
    def num_replicas_in_sync(self) -> int:
        return self._num_replicas

    def all_reduce(
        self, reduce_op: tf.distribute.ReduceOp, value: Any, options: Any = None
    ) -> Any:
        """Sums nested tensors over all cores, one by one, like TPUStrategy."""
        assert reduce_op == tf.distribute.ReduceOp.SUM and options is None
        if self._num_replicas == 1:
            return value
        # The only collective that can be lowered without a TPU.
        return tf.nest.map_structure(
            lambda tensor: tf.raw_ops.CollectiveReduceV2(
                input=tensor,
                group_size=self._num_replicas,
                group_key=1,
                instance_key=1,
                ordering_token=[],
                merge_op="Add",
                final_op="Id",
            ),
            value,
        )


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
        with SliceContext(num_replicas, replica_id):
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
    program, arguments = make_program(state, config, num_replicas)
    return program.experimental_get_compiler_ir(*arguments)(
        stage="hlo_serialized", platform_name="CPU"
    )
