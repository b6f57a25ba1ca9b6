"""What runs the programs of a run: TensorFlow, or JAX (`--runtime`).

A runtime knows the devices, also those of other processes, and runs a function
of a replica on all of them. Only train.py asks which one it has.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

import numpy as np
import tensorflow as tf

from albert_tf.cluster.tensorflow_private import strategy_of

# A function of the batch of a replica, and of scalars of its process. It
# returns values equal on all replicas, and values with a row for each row of
# the batch.
ReplicaFunction = Callable[
    ..., tuple[Mapping[str, tf.Tensor], Mapping[str, tf.Tensor]]
]


class Runtime(Protocol):
    """What both runtimes have."""

    name: str  # as `--runtime` has it

    @property
    def loss_errors(self) -> tuple[type[Exception], ...]:
        """Errors that a lost process may cause."""

    def is_lost(self, error: Exception) -> bool:
        """Whether one of `loss_errors` counts as the loss of a process.

        With JAX, waits until a lost process would have been found, which ends
        this one; then, the error is its own.
        """

    def leave_at_exit(self, error: Exception) -> None:
        """Lets this process, which fails, end without the others."""

    @property
    def device_names(self) -> list[str]:
        """The names of the replicas' devices of this process."""

    @property
    def device_type(self) -> str:
        """The type of the replicas' devices: "TPU", "GPU" or "CPU"."""

    @property
    def gpu_name(self) -> str:
        """The product name of the first GPU, "" if it is unknown."""

    @property
    def num_processes(self) -> int:
        """Number of processes of the run."""

    @property
    def process_index(self) -> int:
        """The number of this process, from 0 on."""

    def batches(self, make_dataset: Callable[..., Any]) -> Iterable[Any]:
        """The global batches of a function that makes those of a process."""

    def compile(
        self, function: ReplicaFunction, stop_flag: tf.Variable | None = None
    ) -> Callable[[Any], tuple[dict[str, Any], dict[str, Any]]]:
        """A function of a global batch, which all replicas run.

        Args:
            function: Gets the stop flag of its process, too, if there are
                several processes; its sum is then the value "stops".
            stop_flag: float32 scalar on the host.

        Returns:
            Its results on a replica: equal values, among them "stops", which
            is not 0 after a request to stop; and the rows of all replicas.
        """

    def read(self, variable: tf.Variable) -> np.ndarray:
        """The newest value of a variable; waits for the devices."""

    def assign(self, variable: tf.Variable, value: Any) -> None:
        """Assigns a value to a variable."""

    def sum_over_replicas(self, values: list[float]) -> list[float]:
        """Sums values of each process over all replicas, in float64."""


class TensorFlowRuntime:
    """The devices of a strategy of TensorFlow."""

    name = "tensorflow"
    loss_errors: tuple[type[Exception], ...] = (
        tf.errors.UnavailableError,
        tf.errors.DeadlineExceededError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.InternalError,
        tf.errors.FailedPreconditionError,
    )

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy

    def is_lost(self, error: Exception) -> bool:
        # TensorFlow does not say whose error it is.
        on_tpu = isinstance(self.strategy, tf.distribute.TPUStrategy)
        return on_tpu or self.num_processes > 1

    def leave_at_exit(self, error: Exception) -> None:
        pass

    @property
    def device_names(self) -> list[str]:
        return list(self.strategy.extended.worker_devices)

    @property
    def device_type(self) -> str:
        return tf.DeviceSpec.from_string(self.device_names[0]).device_type

    @property
    def gpu_name(self) -> str:
        gpu = tf.config.list_physical_devices("GPU")[0]
        details = tf.config.experimental.get_device_details(gpu)
        return details.get("device_name", "")

    @functools.cached_property
    def num_processes(self) -> int:
        several = tf.distribute.MultiWorkerMirroredStrategy
        if not isinstance(self.strategy, several):
            return 1
        cluster = self.strategy.cluster_resolver.cluster_spec().as_dict()
        return len(cluster.get("worker", ())) or 1

    @property
    def process_index(self) -> int:
        resolver = self.strategy.cluster_resolver
        return (resolver and resolver.task_id) or 0

    def batches(self, make_dataset: Callable[..., Any]) -> Iterable[Any]:
        return self.strategy.distribute_datasets_from_function(make_dataset)

    def compile(
        self, function: ReplicaFunction, stop_flag: tf.Variable | None = None
    ) -> Callable[[Any], tuple[dict[str, Any], dict[str, Any]]]:
        strategy, sums_flags = self.strategy, self.num_processes > 1

        @tf.function
        def run(batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            flag = read_flag(stop_flag)
            arguments = (batch, flag) if sums_flags else (batch,)
            equal, rows = strategy.run(function, args=arguments)
            return (
                {"stops": flag, **first_replica_values(strategy, equal)},
                first_replica_values(strategy, rows),
            )

        return run

    def read(self, variable: tf.Variable) -> np.ndarray:
        return variable.numpy()

    def assign(self, variable: tf.Variable, value: Any) -> None:
        variable.assign(value)

    def sum_over_replicas(self, values: list[float]) -> list[float]:
        def sums() -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            return replica.all_reduce(
                tf.distribute.ReduceOp.SUM, tf.constant(values, tf.float64)
            )

        summed = tf.function(self.strategy.run)(sums)
        return (
            self.strategy.experimental_local_results(summed)[0].numpy().tolist()
        )


def runtime_of(strategy: tf.distribute.Strategy) -> Runtime:
    """The runtime of a strategy: a strategy of JAX brings its own."""
    own = cast(Runtime | None, getattr(strategy, "runtime", None))
    return own or TensorFlowRuntime(strategy)


def read(variable: tf.Variable) -> np.ndarray:
    """The newest value of a variable of any runtime."""
    return _runtime_of_variable(variable).read(variable)


def assign(variable: tf.Variable, value: Any) -> None:
    """Assigns a value to a variable of any runtime."""
    _runtime_of_variable(variable).assign(variable, value)


def _runtime_of_variable(variable: tf.Variable) -> Runtime:
    return runtime_of(strategy_of(variable))


def read_flag(flag: tf.Variable | None) -> tf.Tensor:
    """The value of a stop flag, for use inside a `tf.function`."""
    return tf.constant(0.0) if flag is None else tf.identity(flag)


def first_replica_values(
    strategy: tf.distribute.Strategy, per_replica: Mapping[str, Any]
) -> dict[str, tf.Tensor]:
    """The first replica's values, for values equal on all replicas."""
    return {
        name: strategy.experimental_local_results(value)[0]
        for name, value in per_replica.items()
    }
