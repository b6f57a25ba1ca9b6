"""The devices of JAX, as a strategy: `--runtime=pjrt`.

TensorFlow reads records, and traces and lowers the programs of a replica, all
on the CPU. JAX compiles them and runs them on all its devices, also on those of
other processes. Calls return before the devices are done.
"""

import atexit
import collections
import contextlib
import dataclasses
import errno
import os
import pathlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.cluster import devices, jax_private
from albert_tf.cluster.runtime import (
    Cluster,
    Loop,
    ReplicaFunction,
)
from albert_tf.cluster.servers import TRY_S
from albert_tf.cluster.workers import end_with_lost_worker
from albert_tf.config import DistributionConfig
from albert_tf.errors import RetryError, UserError, first_line
from albert_tf.io import faults

TO_SAVE_MEMORY = (
    "Raise --gradient_accumulation_steps, or pass --remat or "
    "--precision=mixed_bfloat16, or use a smaller batch."
)

# Steps that the devices may have been given and not finished. With 2, they have
# the next step when they finish one, and a request to stop waits for two.
STEPS_AHEAD = 2

_AXIS = "replicas"
# How JAX's errors begin that the loss of a process may cause. An error of Gloo
# is UNKNOWN, and a ValueError.
_LOSS = re.compile(
    "(UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|INTERNAL|UNKNOWN|"
    "FAILED_PRECONDITION): "
)
# Where JAX stores compiled programs, unless its own variable says otherwise.
_CACHE_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
_CACHE = "~/.cache/albert_tf/jax"


def make_strategy(
    config: DistributionConfig, cluster: tuple[str, int, int] | None
) -> "PjrtStrategy":
    """Connects the devices of JAX.

    Args:
        cluster: HOST:PORT of the first process, number of processes and index
            of this one; None: one process, or, with strategy=multi_worker,
            what JAX finds out on a Cloud TPU, in Slurm or in Kubernetes.

    Raises:
        UserError: If JAX or its devices are missing.
        RetryError: If a process does not answer.
    """
    jax_private.check_installed()
    import jax

    # TensorFlow must leave the accelerators to JAX.
    for kind in ("GPU", "TPU"):
        with contextlib.suppress(RuntimeError, ValueError):
            tf.config.set_visible_devices([], kind)
    if not os.environ.get(_CACHE_VARIABLE):
        cache = str(pathlib.Path(_CACHE).expanduser())
        jax.config.update("jax_compilation_cache_dir", cache)
    # Otherwise, it would compile programs again that take less than a second.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    number = config.num_logical_cpus
    if number > 1:
        with contextlib.suppress(RuntimeError):  # JAX has started
            jax.config.update("jax_num_cpu_devices", number)
    several = cluster or config.strategy == "multi_worker"
    if several and not jax.distributed.is_initialized():
        _connect(cluster, config.worker_timeout_s)
    try:
        found = jax.devices("cpu" if number > 1 else None)
    except RuntimeError as error:
        raise UserError(
            "runtime=pjrt needs a device of JAX",
            received=first_line(error)[:300],
            remedy=f"Unset JAX_PLATFORMS, or {jax_private.INSTALL}.",
        ) from None
    if found[0].platform == "cpu":
        # JAX may have started with more of them.
        by_process = collections.defaultdict(list)
        for device in found:
            by_process[device.process_index].append(device)
        found = [d for own in by_process.values() for d in own[:number]]
    return PjrtStrategy(found, config.worker_timeout_s)


def _connect(cluster: tuple[str, int, int] | None, timeout_s: int) -> None:
    """Connects the processes, and watches for one that is lost."""
    import jax

    # Its handler of SIGTERM would do nothing.
    jax.config.update("jax_enable_preemption_service", False)
    first, num_processes, index = cluster or (None, None, None)
    try:
        jax.distributed.initialize(
            first,
            num_processes,
            index,
            devices.gpus_of_this_process(),
            initialization_timeout=timeout_s,
            heartbeat_timeout_seconds=timeout_s,
            shutdown_timeout_seconds=timeout_s,
        )
    except jax.errors.JaxRuntimeError as error:
        raise RetryError(
            "all workers must start within worker_timeout_s="
            f"{timeout_s} and connect to the first",
            received=first_line(error)[:300],
            remedy="Check their logs; then start all workers again.",
        ) from None
    except ValueError as error:
        raise UserError(
            "strategy=multi_worker needs the addresses of the workers",
            received=f"JAX says: {first_line(error)[:300]}",
            remedy="Set TF_CONFIG in each worker. Without it, JAX finds the "
            "workers on Cloud TPUs, in Slurm and in Kubernetes.",
        ) from None
    thread = end_with_lost_worker(jax_private.wait_for_loss)

    def leave() -> None:
        jax.distributed.shutdown()
        thread.join()

    atexit.register(leave)


class ReplicaContext(tf.distribute.ReplicaContext):
    """The replica context of a program that is lowered for one replica.

    Args:
        replica_id: int32 scalar, an argument of the program.
    """

    def __init__(self, num_replicas: int, replica_id: tf.Tensor) -> None:
        super().__init__(tf.distribute.get_strategy(), replica_id)
        self._num_replicas = num_replicas

    @property
    def num_replicas_in_sync(self) -> int:
        return self._num_replicas

    def all_reduce(self, reduce_op: tf.distribute.ReduceOp, value: Any) -> Any:
        """Sums nested tensors over all replicas, one by one."""
        assert reduce_op == tf.distribute.ReduceOp.SUM
        if self._num_replicas == 1:
            return value
        # The only collective that can be lowered without the devices.
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

    def all_gather(self, value: Any, axis: int) -> Any:
        """The value itself: `Program` joins the rows of all replicas."""
        assert axis == 0
        return value


class PjrtStrategy(tf.distribute.OneDeviceStrategy):
    """The scope in which variables are made, on the host, and the batches.

    `devices` are those of all processes; `runtime` runs programs on them.
    """

    def __init__(self, devices: Iterable[Any], timeout_s: float = 0) -> None:
        super().__init__("/device:CPU:0")
        self.runtime = JaxRuntime(devices, timeout_s)

    @property
    def num_replicas_in_sync(self) -> int:
        return len(self.runtime.devices)

    def distribute_datasets_from_function(
        self, dataset_fn: Any
    ) -> Iterable[dict[str, Any]]:
        """The global batches, as arrays of JAX.

        They reach the devices while these compute the steps before.
        """
        return _Batches(self.runtime, dataset_fn)


class JaxRuntime:
    """All devices of JAX; see `runtime.Runtime`.

    A program copies the values of its variables to the devices, where they stay
    and are updated. `read` returns them; after `assign`, the next program
    copies the value again.
    """

    def __init__(self, devices: Iterable[Any], timeout_s: float) -> None:
        import jax

        self.devices = sorted(devices, key=lambda d: (d.process_index, d.id))
        self.local_devices = [
            d for d in self.devices if d.process_index == jax.process_index()
        ]
        self.cluster = Cluster(
            self.devices[0].platform.upper(),
            tuple(map(str, self.local_devices)),
            self.devices[0].device_kind,
            len({device.process_index for device in self.devices}),
            jax.process_index(),
        )
        self.mesh = jax.sharding.Mesh(np.array(self.devices), (_AXIS,))
        self.on_all, self.by_rows = (
            jax.sharding.NamedSharding(
                self.mesh, jax.sharding.PartitionSpec(*axes)
            )
            for axes in ((), (_AXIS,))
        )
        self._timeout_s = timeout_s
        # By the id of a variable, which is much faster than by its `ref()`.
        self._arrays: dict[int, Any] = {}
        self._variables: dict[int, tf.Variable] = {}  # that must keep their ids

    def compile(
        self, function: ReplicaFunction, stop_flag: tf.Variable | None = None
    ) -> Callable[[Any], tuple[dict[str, Any], dict[str, Any]]]:
        program = Program(self, function)

        def run(batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            flag = _flag_value(stop_flag)
            equal, rows = program(batch, flag)
            return {"stops": flag, **equal}, rows

        return run

    def loop(
        self,
        function: Callable[..., tf.Tensor],
        stop_flag: tf.Variable | None = None,
    ) -> Loop:
        program = step_program(self, function)

        def run(
            batches: Iterator[Any], sums: Any, num_steps: Any
        ) -> tuple[Any, int, float]:
            sums, done, stops = np.array(sums), 0, 0.0
            vectors: collections.deque[Any] = collections.deque()  # not read

            def read_oldest() -> None:
                nonlocal sums, stops
                vector = value_of(vectors.popleft())
                sums = sums + vector[: len(sums)]
                if program.sums_flags:
                    stops = max(stops, float(vector[-1]))

            while done < int(num_steps) and not stops:
                batch = next(batches)
                results, _ = program(batch, _flag_value(stop_flag))
                done += 1
                vectors.append(results["all"])
                if len(vectors) > STEPS_AHEAD:
                    read_oldest()
                if not program.sums_flags:
                    stops = _flag_value(stop_flag)
            while vectors:
                read_oldest()
            return sums, done, stops

        return run

    def read(self, variable: tf.Variable) -> np.ndarray:
        array = self._arrays.get(id(variable))
        if array is None:
            return variable.numpy()
        return value_of(array).astype(variable.dtype.as_numpy_dtype)

    def assign(self, variable: tf.Variable, value: Any) -> None:
        variable.assign(value)
        self._arrays.pop(id(variable), None)

    def sum_over_replicas(self, values: list[float]) -> list[float]:
        from jax.experimental import multihost_utils

        # As bits, since JAX would round them to float32.
        bits = np.array(values, np.float64).view(np.uint32)
        gathered = multihost_utils.process_allgather(bits)
        of_processes = np.asarray(gathered).reshape(-1, len(bits))
        summed = of_processes.view(np.float64).sum(axis=0)
        return (summed * len(self.local_devices)).tolist()

    def is_lost(self, error: Exception) -> bool:
        if self.cluster.num_processes > 1 and _LOSS.match(str(error)):
            # If a process is lost, JAX finds it within this time, and
            # `end_with_lost_worker` ends this process.
            logging.warning(
                "%s. Waiting for JAX to say which worker was lost, if any",
                first_line(error),
            )
            time.sleep(self._timeout_s + 2 * TRY_S)
        return False

    def leave_at_exit(self, error: Exception) -> None:
        if self.cluster.num_processes > 1:
            # JAX would wait for the others, and then abort.
            explained = faults.explain(error)
            status = explained.exit_status if explained else 1
            atexit.register(os._exit, status)

    # For `Program` and `_Batches`.

    def arrays_of(self, variables: Iterable[tf.Variable]) -> list[Any]:
        """The values of variables on all devices; copies those that lack."""
        import jax

        found = []
        for variable in variables:
            key = id(variable)
            if key not in self._arrays:
                value = variable.numpy().astype(_dtype_of(variable))
                self._arrays[key] = jax.make_array_from_process_local_data(
                    self.on_all, value, value.shape
                )
                self._variables[key] = variable
            found.append(self._arrays[key])
        return found

    def update(
        self, variables: Iterable[tf.Variable], arrays: Iterable[Any]
    ) -> None:
        """Replaces values on the devices; those on the host become old."""
        for variable, array in zip(variables, arrays, strict=True):
            self._arrays[id(variable)] = array

    def join_rows(self, parts: list[dict[str, np.ndarray]]) -> dict[str, Any]:
        """Arrays of the rows of all replicas, given those of this process."""
        import jax

        rows = parts[0]
        if len(parts) > 1:
            rows = {n: np.concatenate([p[n] for p in parts]) for n in rows}
        if self.cluster.num_processes == 1:
            return jax.device_put(rows, self.by_rows)  # much faster
        return {
            name: jax.make_array_from_process_local_data(self.by_rows, value)
            for name, value in rows.items()
        }


@dataclasses.dataclass
class _Batches:
    """The batches of a dataset of per-replica batches; can be iterated."""

    runtime: JaxRuntime
    make: Callable[[tf.distribute.InputContext], tf.data.Dataset]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        runtime = self.runtime
        context = tf.distribute.InputContext(
            runtime.cluster.num_processes,
            runtime.cluster.process_index,
            len(runtime.devices),
        )
        parts = []
        for batch in self.make(context):
            parts.append({n: value.numpy() for n, value in batch.items()})
            if len(parts) == len(runtime.local_devices):
                yield runtime.join_rows(parts)
                parts = []


class Program:
    """A function of a replica's batch, run on all replicas.

    The first call compiles it. Calls update the variables on the devices.

    Args:
        function: Called in a `ReplicaContext` while TensorFlow traces it.

    Attributes:
        sums_flags: Whether the function gets the stop flag of its process.
    """

    def __init__(self, runtime: JaxRuntime, function: ReplicaFunction) -> None:
        self._runtime = runtime
        self._function = function
        self.sums_flags = runtime.cluster.num_processes > 1
        self._program: Any = None  # of JAX
        self._updated: list[tf.Variable] = []
        self._read: list[tf.Variable] = []

    def __call__(
        self, batch: Mapping[str, Any], flag: float = 0.0
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The results of the function, on the devices.

        Args:
            flag: The stop flag of this process.

        Raises:
            UserError: If the devices have too little memory.
        """
        runtime = self._runtime
        if self._program is None:
            self._program = self.compile(batch)
            self._check_memory()
        flags = {}
        if self.sums_flags:
            of_replica = {"flag": np.full(1, flag, np.float32)}
            flags = runtime.join_rows([of_replica] * len(runtime.local_devices))
        with _explain_memory():
            updated, equal, by_rows = self._program(
                runtime.arrays_of(self._updated),
                runtime.arrays_of(self._read),
                list(batch.values()),
                list(flags.values()),
            )
        runtime.update(self._updated, updated)
        return equal, by_rows

    def compile(self, batch: Mapping[str, Any]) -> Any:
        """Compiles it for the devices, which need not exist here.

        Args:
            batch: Arrays or specs of the global batch.

        Returns:
            A `jax.stages.Compiled`. It takes the variables that it updates,
            those that it only reads, the batch and the flags.
        """
        import jax

        runtime = self._runtime
        on_all, by_rows = runtime.on_all, runtime.by_rows
        traced = trace(
            self._function,
            batch,
            len(runtime.devices),
            self.sums_flags,
            hardware_bits=runtime.cluster.device_type == "TPU",
        )
        self._updated, self._read = traced.updated, traced.read

        def run(updated: Any, read: Any, batch: Any, flags: Any) -> Any:
            number = jax.lax.axis_index(_AXIS).astype(np.int32)
            scalars = [flag.reshape(()) for flag in flags]
            changed, results = jax_private.bind(
                traced.lowered, [number, *batch, *scalars], updated, read
            )
            return changed, *tf.nest.pack_sequence_as(traced.outputs, results)

        def specs(values: Iterable[Any], sharding: Any) -> list[Any]:
            return [
                jax.ShapeDtypeStruct(
                    tuple(value.shape), _dtype_of(value), sharding=sharding
                )
                for value in values
            ]

        program = jax.jit(
            jax.shard_map(
                run,
                mesh=runtime.mesh,
                in_specs=(on_all.spec, on_all.spec, by_rows.spec, by_rows.spec),
                out_specs=(on_all.spec, on_all.spec, by_rows.spec),
                check_vma=False,
            ),
            donate_argnums=0,
            out_shardings=on_all,
        )
        flag = tf.TensorSpec([len(runtime.devices)], tf.float32)
        flags = [flag] if self.sums_flags else []
        with _explain_memory():
            return program.lower(
                specs(traced.updated, on_all),
                specs(traced.read, on_all),
                specs(batch.values(), by_rows),
                specs(flags, by_rows),
            ).compile()

    def _check_memory(self) -> None:
        """Refuses a plan of the compiler that exceeds the devices.

        Otherwise, GPUs would fail later, while they compute.
        """
        limits = self._runtime.local_devices[0].memory_stats() or {}
        plan = self._program.memory_analysis()
        used = plan.argument_size_in_bytes + plan.temp_size_in_bytes
        used += plan.output_size_in_bytes - plan.alias_size_in_bytes
        limit = limits.get("bytes_limit", used)
        if used > limit:
            said = f"a plan of {used / 2**30:.2f}G of {limit / 2**30:.2f}G"
            raise _too_large(said)


def step_program(
    runtime: JaxRuntime, function: Callable[..., tf.Tensor]
) -> Program:
    """The program of a step of `Runtime.loop`."""

    def step(batch: Any, *flag: tf.Tensor) -> tuple[Any, Any]:
        return {"all": function(batch, *flag)}, {}

    return Program(runtime, step)


def _flag_value(flag: tf.Variable | None) -> float:
    return 0.0 if flag is None else float(flag.numpy())


def _dtype_of(value: Any) -> np.dtype:
    """The dtype of a value on the devices, where JAX counts in int32."""
    import jax

    dtype = tf.as_dtype(value.dtype).as_numpy_dtype
    return jax.dtypes.canonicalize_dtype(dtype)


@contextlib.contextmanager
def _explain_memory() -> Iterator[None]:
    import jax

    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        # The compiler for GPUs writes temporary files.
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, first_line(error)[:300]) from None
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise _too_large(first_line(error)[:300]) from None


def _too_large(said: str) -> UserError:
    return UserError(
        "the program must fit into the memory of a device",
        received=said,
        remedy=TO_SAVE_MEMORY,
    )


@dataclasses.dataclass(frozen=True)
class Traced:
    """The program of one replica."""

    outputs: Any  # symbolic tensors
    updated: list[tf.Variable]
    read: list[tf.Variable]  # but not updated
    lowered: jax_private.Lowered


def trace(
    function: ReplicaFunction,
    batch: Mapping[str, Any],
    num_replicas: int,
    takes_flag: bool,
    hardware_bits: bool,
) -> Traced:
    """Traces and lowers a function of a replica's batch.

    Args:
        batch: Arrays or specs of the global batch.
        takes_flag: Whether the function gets a stop flag, too.
        hardware_bits: See `jax_private.Lowered`.
    """
    names = list(batch)

    @tf.function(jit_compile=True, autograph=False)
    def on_replica(replica_id: tf.Tensor, *values: tf.Tensor) -> Any:
        features = dict(zip(names, values[: len(names)], strict=True))
        with ReplicaContext(num_replicas, replica_id):
            return function(features, *values[len(names) :])

    specs = [
        tf.TensorSpec([], tf.int32),
        *(
            tf.TensorSpec(
                [value.shape[0] // num_replicas, *value.shape[1:]],
                tf.as_dtype(value.dtype),
            )
            for value in batch.values()
        ),
    ]
    if takes_flag:
        specs.append(tf.TensorSpec([], tf.float32))
    concrete = on_replica.get_concrete_function(*specs)
    hlo = on_replica.experimental_get_compiler_ir(*specs)(
        stage="hlo_serialized", platform_name="CPU"
    )
    handles = {id(v.handle): v for v in concrete.graph.variables}
    variables = [handles[id(c)] for c in concrete.captured_inputs]
    # The number of the result that updates each variable, or None.
    results = jax_private.find_updates(hlo)
    updates = [results.get(len(specs) + i) for i in range(len(variables))]
    pairs = list(zip(variables, updates, strict=True))
    outputs = concrete.structured_outputs
    by_result = {result: v for v, result in pairs if result is not None}
    values = [*tf.nest.flatten(outputs)]
    values += [by_result[number] for number in sorted(by_result)]
    return Traced(
        outputs,
        [v for v, result in pairs if result is not None],
        [v for v, result in pairs if result is None],
        jax_private.Lowered(
            hlo,
            tuple(updates),
            tuple(
                (tuple(value.shape), _dtype_of(value).name) for value in values
            ),
            hardware_bits,
        ),
    )


def value_of(array: Any) -> np.ndarray:
    """The value of an array that is equal on all devices; waits for it."""
    with _explain_memory():
        return np.array(array.addressable_data(0))
