"""Google's TPU compiler, libtpu, on a machine without a TPU.

It compiles the program that `--runtime=pjrt` runs on a slice. JAX computes
nothing here.
"""

import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import re
from typing import Any

import tensorflow as tf
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

from albert_tf.cluster import jax_private, pjrt
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError, first_line
from albert_tf.records.features import features_to_read
from albert_tf.training import pjrt_steps, schedules, train_step
from albert_tf.training.pretraining import Pretraining
from tpu.topologies import Slice

PACKAGES = ("jax", "jaxlib", "libtpu")

# libtpu reads these variables when it is loaded.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    # Otherwise it queries the metadata server of a Cloud VM repeatedly.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    # Otherwise a second process cannot compile at the same time.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # Otherwise every process writes log files to the temporary directory.
    "TPU_LOG_DIR": "disabled",
}


class DoesNotCompileError(Exception):
    """The compiler rejects a program; the message is the compiler's."""


def check_installed() -> dict[str, str]:
    """Returns the versions of the packages; refuses missing or other ones."""
    jax_private.check_installed()
    if not importlib.util.find_spec("libtpu"):
        raise UserError(
            "the TPU compiler must be installed",
            received="no libtpu",
            remedy="pip install 'albert-tf[cpu,tpu-compile]'  (Linux on "
            "x86-64, 1.2 GB)",
        )
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def slice_devices(where: Slice) -> list[Any]:
    """Returns libtpu's descriptions of the cores of a slice."""
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    from jax.experimental import topologies

    try:
        description = topologies.get_topology_desc(
            platform="tpu", **where.libtpu_arguments()
        )
    except Exception as error:
        raise UserError(
            "topology must be one that libtpu knows",
            received=f"{where}; libtpu: {first_line(error)[:200]}",
        ) from None
    return list(description.devices)[: where.num_cores]


def compile_step(
    config: PretrainingConfig, devices: list[Any], *, quick: bool = False
) -> tuple[dict[str, Any], hlo_pb2.HloModuleProto]:
    """Compiles the first step of a run, with the sums over all devices.

    Args:
        devices: From `slice_devices`.
        quick: Compiles with low effort: the cycles are meaningless.

    Returns:
        `peak_bytes`, `argument_bytes` and `flops` of `compile_check.Estimate`,
        where the body of a loop counts once; and the optimized program.

    Raises:
        DoesNotCompileError: If the compiler rejects the program, e.g. because
            it exceeds the memory of a core; with the compiler's message.
    """
    import jax

    strategy = pjrt.PjrtStrategy(devices)
    with strategy.scope():
        state = train_step.make_state(config, Pretraining(config))
    batch = {
        feature.name: tf.TensorSpec(
            [config.data.global_batch_size, feature.length(config.data)],
            # The dtypes of batches: TPUs have no int64.
            tf.int32 if feature.dtype == "int64" else tf.float32,
        )
        for feature in features_to_read("static", config.data.packing)
    }
    steps = pjrt_steps.PjrtSteps(strategy, state, config)
    jax.config.update("jax_exec_time_optimization_effort", -1.0 * quick)
    try:
        program = steps.compile(batch, schedules.dropout_rates(0, config))
    except (UserError, jax.errors.JaxRuntimeError) as error:
        raise DoesNotCompileError(str(error)) from None
    memory = program.memory_analysis()
    plan = {
        "peak_bytes": memory.peak_memory_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "flops": program.cost_analysis()["flops"],
    }
    (optimized,) = program.runtime_executable().hlo_modules()
    return plan, hlo_pb2.HloModuleProto.FromString(
        optimized.as_serialized_hlo_module_proto()
    )


_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
_CYCLES = re.compile(rb'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(rb'"known_trip_count":\{"n":"(\d+)"')


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a compiled program, or of a part of it."""

    cycles: int = 0  # by the compiler's estimates
    all_reduce_bytes: int = 0  # of the results of collectives
    num_all_reduces: int = 0  # counted each time they run
    uncounted_loops: int = 0  # of unknown length, whose bodies count once

    def plus(self, other: "Cost", times: int = 1) -> "Cost":
        """Adds the cost of a part that runs `times` times."""
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return Cost(*(a + times * b for a, b in zip(mine, theirs, strict=True)))


def program_cost(module: hlo_pb2.HloModuleProto) -> Cost:
    """Adds up the compiler's estimates of cycles, which most operations have.

    The body of a loop counts once for each iteration. Collectives have no
    estimate, so their bytes are added up.
    """
    computations = {c.id: c for c in module.computations}
    operations = {i.id: i for c in module.computations for i in c.instructions}
    known: dict[int, Cost] = {}

    def number_in(one: Any) -> int | None:
        """The value of a constant scalar, or of a copy of one; else None."""
        if one.opcode == "copy":
            return number_in(operations[one.operand_ids[0]])
        values = one.literal.s32s
        return values[0] if one.opcode == "constant" and values else None

    def iterations(loop: Any) -> int | None:
        """The number of iterations of a loop; None if it is unknown.

        Where the compiler does not state it, it is derived for loops that
        count by one from a constant to a constant.
        """
        if stated := _TRIPS.search(loop.backend_config):
            return int(stated[1])
        condition = computations[loop.called_computation_ids[1]]
        root = operations[condition.root_id]
        if root.opcode != "compare" or root.comparison_direction != "LT":
            return None
        counter, limit = (operations[number] for number in root.operand_ids)
        initial = operations[loop.operand_ids[0]].operand_ids
        if counter.opcode != "get-tuple-element":
            return None
        if counter.tuple_index >= len(initial):
            return None
        start = number_in(operations[initial[counter.tuple_index]])
        end = number_in(limit)
        return None if start is None or end is None else end - start

    def cost(number: int) -> Cost:
        if number in known:
            return known[number]
        total = Cost()
        for one in computations[number].instructions:
            cycles = _CYCLES.search(one.backend_config)
            total = total.plus(Cost(int(cycles[1]) if cycles else 0))
            if one.opcode.removesuffix("-start") in _COLLECTIVES:
                total = total.plus(Cost(0, _bytes(one.shape), 1))
            # Computations inside a fusion have no separate cost.
            called = one.called_computation_ids
            if one.opcode == "while":
                times = iterations(one)
                total = total.plus(cost(called[0]), times or 1)
                total = total.plus(Cost(uncounted_loops=times is None))
            elif one.opcode in ("call", "conditional"):
                for part in called:
                    total = total.plus(cost(part))
        known[number] = total
        return total

    return cost(module.entry_computation_id)


def _bytes(shape: Any) -> int:
    """Bytes of the arrays of a shape, which may be a tuple."""
    if shape.tuple_shapes:
        return sum(map(_bytes, shape.tuple_shapes))
    # E.g. BF16 has two bytes, and PRED one.
    kind = xla_data_pb2.PrimitiveType.Name(shape.element_type)
    bits = re.search(r"\d+$", kind)
    return math.prod(shape.dimensions) * max(
        1, int(bits[0]) // 8 if bits else 1
    )
