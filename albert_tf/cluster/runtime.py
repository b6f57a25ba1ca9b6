"""What runs the programs of a run: TensorFlow, or JAX (`--runtime`).

A runtime knows the devices, also those of other processes, and runs a function
of a replica on all of them. No other module asks which one it has.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, cast

import numpy as np
import tensorflow as tf

from albert_tf.cluster import servers
from albert_tf.cluster.tensorflow_private import strategy_of

# A function of the batch of a replica, and of scalars of its process. It
# returns values equal on all replicas, and values with a row for each row of
# the batch.
ReplicaFunction = Callable[
    ..., tuple[Mapping[str, tf.Tensor], Mapping[str, tf.Tensor]]
]

# Takes an iterator of global batches, a float32 vector and the largest number
# of steps, an int32 scalar. Returns the vector plus those of its steps, the
# number of its steps, and a number that is not 0 after a request to stop.
Loop = Callable[[Iterator[Any], Any, Any], tuple[Any, Any, Any]]

# What TensorFlow raises when another process, or a TPU, is lost. An operation
# of this process may raise the same.
LOSS_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.DeadlineExceededError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.InternalError,
    tf.errors.FailedPreconditionError,
)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The devices that run the replicas, and the processes of the run."""

    device_type: str  # "TPU", "GPU" or "CPU"
    device_names: tuple[str, ...]  # of this process
    gpu_name: str  # the product name of the first GPU, "" if it is unknown
    num_processes: int
    process_index: int  # of this process, from 0 on

    @property
    def can_be_lost(self) -> bool:
        """Whether this process may wait for ever for a TPU or another process.

        A single process on CPUs or GPUs waits for no one else.
        """
        return self.device_type == "TPU" or self.num_processes > 1


class Runtime(Protocol):
    """What both runtimes have."""

    @property
    def cluster(self) -> Cluster:
        """The devices and processes."""

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

    def loop(
        self,
        function: Callable[..., tf.Tensor],
        stop_flag: tf.Variable | None = None,
    ) -> Loop:
        """A loop of steps, which runs a function on one batch after another.

        Args:
            function: Gets the batch of a replica and, if there are several
                processes, the stop flag of its process. It returns a float32
                vector, equal on all replicas. If it got flags, their sum is
                the last element, which `Loop` does not add up.
            stop_flag: float32 scalar on the host. Once it is not 0 in one
                process, all processes end at the same step, at most two steps
                later.
        """

    def read(self, variable: tf.Variable) -> np.ndarray:
        """The newest value of a variable; waits for the devices."""

    def assign(self, variable: tf.Variable, value: Any) -> None:
        """Assigns a value to a variable."""

    def sum_over_replicas(self, values: list[float]) -> list[float]:
        """Sums values of each process over all replicas, in float64."""

    def is_lost(self, error: Exception) -> bool:
        """Whether an error may be the loss of another process, or of a TPU.

        With JAX, waits until the loss would have been found, which ends this
        process; after that, the error is its own. TensorFlow does not say whose
        an internal error is: it is its own if all others can be reached.
        """

    def leave_at_exit(self, error: Exception) -> None:
        """Lets this process, which fails, end without the others."""


class TensorFlowRuntime:
    """The devices of a strategy of TensorFlow."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy

    @functools.cached_property
    def cluster(self) -> Cluster:
        strategy = self.strategy
        names = tuple(strategy.extended.worker_devices)
        device_type = tf.DeviceSpec.from_string(names[0]).device_type
        gpu_name = ""
        if device_type == "GPU":
            gpu = tf.config.list_physical_devices("GPU")[0]
            details = tf.config.experimental.get_device_details(gpu)
            gpu_name = details.get("device_name", "")
        num_processes, index = 1, 0
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            resolver = strategy.cluster_resolver
            workers = resolver.cluster_spec().as_dict().get("worker", ())
            num_processes, index = len(workers) or 1, resolver.task_id or 0
        return Cluster(device_type, names, gpu_name, num_processes, index)

    def compile(
        self, function: ReplicaFunction, stop_flag: tf.Variable | None = None
    ) -> Callable[[Any], tuple[dict[str, Any], dict[str, Any]]]:
        strategy = self.strategy
        sums_flags = self.cluster.num_processes > 1

        @tf.function
        def run(batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            flag = _read_flag(stop_flag)
            arguments = (batch, flag) if sums_flags else (batch,)
            equal, rows = strategy.run(function, args=arguments)
            return (
                {"stops": flag, **_first_replica_values(strategy, equal)},
                _first_replica_values(strategy, rows),
            )

        return run

    def loop(
        self,
        function: Callable[..., tf.Tensor],
        stop_flag: tf.Variable | None = None,
    ) -> Loop:
        strategy = self.strategy
        # Several processes sum up their flags, to stop at the same step. A
        # single process does not send its flag to the devices: a slice may
        # have 256.
        sums_flags = self.cluster.num_processes > 1

        @tf.function
        def run(
            batches: Iterator[Any], sums: tf.Tensor, num_steps: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            done = tf.constant(0)
            # The host sends a step to the devices without waiting for the
            # results of the previous step. TensorFlow starts no iteration
            # before all stateful operations of the last one, such as the
            # reading of the flag, are done. So this waits for `last`, a result
            # of the previous step, not for one of its own step.
            last, stops = tf.constant(0.0), tf.constant(0.0)
            while done < num_steps and stops == 0.0:
                batch = next(batches)
                flags = (_read_flag(stop_flag),) if sums_flags else ()
                per_replica = strategy.run(function, args=(batch, *flags))
                vector = strategy.experimental_local_results(per_replica)[0]
                with tf.control_dependencies([last]):
                    stops = last if sums_flags else _read_flag(stop_flag)
                # The host reads this value: a TPU has launched the step, not
                # computed it, when `vector` exists.
                last = vector[-1]
                sums += vector[: sums.shape[0]]
                done += 1
            with tf.control_dependencies([last]):
                stops = last if sums_flags else _read_flag(stop_flag)
            return sums, done, stops

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

    def is_lost(self, error: Exception) -> bool:
        cluster = self.cluster
        if not cluster.can_be_lost or not isinstance(error, LOSS_ERRORS):
            return False
        is_internal = isinstance(error, tf.errors.InternalError)
        if is_internal and cluster.num_processes > 1:
            spec = self.strategy.cluster_resolver.cluster_spec().as_dict()
            others = dict(enumerate(spec["worker"]))
            del others[cluster.process_index]
            return bool(servers.name_silent(others))
        return True

    def leave_at_exit(self, error: Exception) -> None:
        pass


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


def _read_flag(flag: tf.Variable | None) -> tf.Tensor:
    """The value of a stop flag, for use inside a `tf.function`."""
    return tf.constant(0.0) if flag is None else tf.identity(flag)


def _first_replica_values(
    strategy: tf.distribute.Strategy, per_replica: Mapping[str, Any]
) -> dict[str, tf.Tensor]:
    """The first replica's values, for values equal on all replicas."""
    return {
        name: strategy.experimental_local_results(value)[0]
        for name, value in per_replica.items()
    }
