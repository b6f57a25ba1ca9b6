"""The trainer's update as one core of a slice runs it, lowered to HLO.

It is `train_step.make_replica_step`, the very function that the trainer gives
to `strategy.run`. Under TPUStrategy that function is the program on the
device: the loop of `steps_per_loop` updates around it runs on the host, which
sends the program again for each. Here no TPUStrategy can be made, for lack of
a TPU; `SliceContext` stands for what it gives the function.
"""

from typing import Any

import tensorflow as tf

from albert_tf.config import PretrainingConfig
from albert_tf.records.features import FEATURES
from albert_tf.training import schedules, train_step

# Batches leave out what masking alone reads.
_IN_BATCHES = [f for f in FEATURES if f.name != "token_boundary"]


class SliceContext(tf.distribute.ReplicaContext):
    """What a replica knows of a slice: its number, and sums over all.

    Args:
        num_replicas: Cores of the slice.
        replica_id: int32 scalar, which of them this is; an argument of the
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
        """Sums over all cores, tensor by tensor, as TPUStrategy makes them.

        Args:
            reduce_op: SUM.
            value: Nested tensors.
            options: None.
        """
        assert reduce_op == tf.distribute.ReduceOp.SUM and options is None
        if self._num_replicas == 1:
            return value
        return tf.nest.map_structure(self._sum, value)

    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        # The one collective that also lowers where there is no TPU.
        return tf.raw_ops.CollectiveReduceV2(
            input=value,
            group_size=self._num_replicas,
            group_key=1,
            instance_key=1,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
        )


def make_program(
    state: train_step.TrainState, config: PretrainingConfig, num_replicas: int
) -> tuple[Any, list[tf.TensorSpec]]:
    """The first update, whose dropout rates it has, as a function.

    Args:
        state: What is updated; made outside of any strategy.
        config: The run.
        num_replicas: Cores of the slice.

    Returns:
        A `tf.function` compiled by XLA, and what its arguments are: the stop
        flag, the replica's number, and its share of each feature of a batch.
        It gives what the trainer's function gives.
    """
    replica_step = train_step.make_replica_step(
        state, config, device_type="TPU"
    )
    settings = train_step.StepSettings(schedules.dropout_rates(0, config))

    @tf.function(jit_compile=True, autograph=False)
    def program(
        stop: tf.Tensor, replica_id: tf.Tensor, *values: tf.Tensor
    ) -> Any:
        names = [feature.name for feature in _IN_BATCHES]
        batch = dict(zip(names, values, strict=True))
        with SliceContext(num_replicas, replica_id):
            return replica_step(batch, stop, settings=settings)

    share = config.data.global_batch_size // num_replicas
    return program, [
        tf.TensorSpec([], tf.float32),
        tf.TensorSpec([], tf.int32),
        *(
            tf.TensorSpec(
                [share, feature.length(config.data)],
                # As batches hold them: TPUs have no int64.
                tf.int32 if feature.dtype == "int64" else tf.float32,
            )
            for feature in _IN_BATCHES
        ),
    ]


def lower(config: PretrainingConfig, num_replicas: int) -> bytes:
    """The program of `make_program`, for a batch that the cores can share.

    Returns:
        A serialized HLO module, lowered for a CPU. Its arguments are those of
        the function, and the variables, which it updates in place.
    """
    program, arguments = make_program(
        train_step.make_state(config), config, num_replicas
    )
    return program.experimental_get_compiler_ir(*arguments)(
        stage="hlo_serialized", platform_name="CPU"
    )
