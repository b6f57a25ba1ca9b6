"""Google's TPU compiler, libtpu, on a machine without a TPU.

This file uses private names of jax and jaxlib, as `cluster.jax_private` does.
They change between releases, so the extra `tpu-compile` pins the version.
JAX computes nothing here: it loads the compiler, and passes it the program that
TensorFlow has lowered.
"""

import dataclasses
import importlib.metadata
import importlib.util
import math
import os
import re
from typing import Any

import numpy as np
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

from albert_tf.cluster import jax_private
from albert_tf.errors import UserError, first_line
from tpu.topologies import Slice

PACKAGES = ("jax", "jaxlib", "libtpu")
JAX_VERSION = "0.10.2"  # as in setup.py
INSTALL = "pip install 'albert-tf[cpu,tpu-compile]'  (Linux on x86-64, 1.2 GB)"

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


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiler's plan for a program, for one core."""

    peak_bytes: int  # of HBM, with the arguments
    argument_bytes: int  # weights, moments and batch
    flops: float  # loop bodies count once


class DoesNotCompileError(Exception):
    """The compiler rejects a program; the message is the compiler's."""


def check_installed() -> dict[str, str]:
    """Returns the versions of the packages; refuses missing or other ones."""
    missing = [name for name in PACKAGES if not importlib.util.find_spec(name)]
    if missing:
        raise UserError(
            "the TPU compiler must be installed",
            received=f"no {', '.join(missing)}",
            remedy=INSTALL,
        )
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    if {found["jax"], found["jaxlib"]} != {JAX_VERSION}:
        raise UserError(
            f"jax and jaxlib must be {JAX_VERSION}, because their private "
            "names change between releases",
            received=f"{found['jax']} and {found['jaxlib']}",
            remedy=INSTALL,
        )
    return found


def slice_devices(where: Slice) -> list[Any]:
    """Returns libtpu's descriptions of the cores of a slice.

    Raises:
        UserError: If libtpu does not know the slice.
    """
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    from jax.experimental import topologies

    try:
        description = topologies.get_topology_desc(
            platform="tpu",
            topology_name=where.libtpu_name(),
            **where.libtpu_options(),
        )
    except Exception as error:
        raise UserError(
            "topology must be one that libtpu knows",
            received=f"{where}; libtpu: {first_line(error)[:200]}",
        ) from None
    return list(description.devices)[: where.num_cores]


def compile_program(
    hlo: bytes, devices: list[Any], *, quick: bool = False
) -> tuple[Compiled, hlo_pb2.HloModuleProto]:
    """Compiles a program that all devices run at the same time.

    Args:
        hlo: A serialized HLO module that TensorFlow has lowered for a CPU,
            since TensorFlow for CPUs cannot lower for TPUs.
            `jax_private.convert` rewrites the differences.
        devices: From `slice_devices`.
        quick: Compiles with low effort, in a quarter of the time: memory is
            right within a few per cent, cycles are meaningless.

    Returns:
        The plan, and the optimized program.

    Raises:
        DoesNotCompileError: If the compiler rejects the program, e.g. because
            it exceeds the memory of a core; with the compiler's message.
    """
    from jax._src.interpreters import mlir
    from jax._src.lib import _jax
    from jax._src.lib import xla_client as xc
    from jax._src.lib.mlir import ir

    options = xc.CompileOptions()
    build = options.executable_build_options
    options.num_replicas = build.num_replicas = len(devices)
    options.num_partitions = build.num_partitions = 1
    build.device_assignment = xc.DeviceAssignment.create(
        np.array([[device.id] for device in devices])
    )
    if quick:
        build.exec_time_optimization_effort = -1.0
    with mlir.make_ir_context():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo))
        jax_private.convert(module, hardware_bits=True, as_partitions=False)
        try:
            executable = devices[0].client.compile(
                module,
                executable_devices=xc.DeviceList(tuple(devices)),
                compile_options=options,
            )
        except _jax.JaxRuntimeError as error:
            raise DoesNotCompileError(str(error)) from None
    memory = executable.get_compiled_memory_stats()
    compiled = Compiled(
        peak_bytes=memory.peak_memory_in_bytes,
        argument_bytes=memory.argument_size_in_bytes,
        flops=executable.cost_analysis()["flops"],
    )
    (optimized,) = executable.hlo_modules()
    return compiled, hlo_pb2.HloModuleProto.FromString(
        optimized.as_serialized_hlo_module_proto()
    )


_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
_CYCLES = re.compile(rb'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(rb'"known_trip_count":\{"n":"(\d+)"')


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a compiled program, or of a part of it.

    Attributes:
        cycles: Sum of the compiler's estimates.
        all_reduce_bytes: Bytes of the results of collectives.
        num_all_reduces: Number of collectives, counted each time they run.
        uncounted_loops: Loops whose number of iterations is unknown; their
            bodies count once.
    """

    cycles: int = 0
    all_reduce_bytes: int = 0
    num_all_reduces: int = 0
    uncounted_loops: int = 0

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
