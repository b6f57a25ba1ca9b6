"""The compilers for TPUs and GPUs, on a machine without these devices.

They compile the program that `--runtime=pjrt` runs on a slice or on GPUs. JAX
computes nothing here.
"""

import collections
import dataclasses
import importlib.metadata
import math
import os
import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

from albert_tf.cluster import jax_private, pjrt
from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError, first_line
from albert_tf.records.features import features_to_read
from albert_tf.training import schedules, train_step
from albert_tf.training.pretraining import Pretraining
from tpu.topologies import Devices

# The compilers read these variables when they are loaded.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    # Otherwise libtpu queries the metadata server of a Cloud VM repeatedly.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    # Otherwise a second process cannot compile at the same time.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # Otherwise every process writes log files to the temporary directory.
    "TPU_LOG_DIR": "disabled",
}
# Beside JAX. Of nvidia-cuda-nvcc, XLA runs ptxas, the assembler.
_COMPILERS = {
    "tpu": ["libtpu"],
    "cuda": ["jax-cuda13-plugin", "jax-cuda13-pjrt", "nvidia-cuda-nvcc"],
}
_EXTRAS = {
    "tpu": "'albert-tf[cpu,tpu-compile]'  (Linux on x86-64, 1.2 GB)",
    "cuda": "'albert-tf[cpu,gpu-compile]'  (Linux, 1.5 GB)",
}


class DoesNotCompileError(Exception):
    """The compiler rejects a program; the message is the compiler's."""


def check_installed(platform: str) -> dict[str, str]:
    """Returns the versions of the packages; refuses missing or other ones.

    Args:
        platform: "tpu" or "cuda".
    """
    jax_private.check_installed()
    found = {}
    for name in ["jax", "jaxlib", *_COMPILERS[platform]]:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    of_jaxlib = {
        version
        for name, version in found.items()
        if name == "jaxlib" or name.startswith("jax-cuda")
    }
    if "none" in found.values() or len(of_jaxlib) > 1:
        raise UserError(
            "the compiler must be installed, in the version of JAX",
            received=", ".join(f"{n} {v}" for n, v in found.items()),
            remedy=f"pip install {_EXTRAS[platform]}",
        )
    return found


def find_devices(where: Devices) -> list[Any]:
    """Returns the compiler's descriptions of the devices."""
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    from jax.experimental import topologies

    try:
        description = topologies.get_topology_desc(**where.request)
    except Exception as error:
        raise UserError(
            "accelerator_type must be one that the compiler knows",
            received=f"{where.name}; the compiler: {first_line(error)[:200]}",
        ) from None
    return list(description.devices)[: where.num_devices]


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled step, on one device."""

    peak_bytes: int  # of memory, with the arguments
    argument_bytes: int  # weights, moments and batch
    alias_bytes: int  # of arguments whose memory the results reuse
    module: hlo_pb2.HloModuleProto  # optimized


def compile_step(
    config: PretrainingConfig, devices: list[Any], *, quick: bool = False
) -> Program:
    """Compiles the first step of a run, with the sums over all devices.

    Args:
        devices: From `find_devices`.
        quick: Compiles with low effort.

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
        for feature in features_to_read(
            "static", config.data.packing, config.num_token_labels > 0
        )
    }
    runtime = strategy.runtime
    step = train_step.make_replica_step(
        state,
        config,
        schedules.dropout_rates(0, config),
        runtime.cluster.device_type,
    )
    jax.config.update("jax_optimization_level", "O1" if quick else "UNKNOWN")
    try:
        program = pjrt.step_program(runtime, step).compile(batch)
    except (UserError, jax.errors.JaxRuntimeError) as error:
        raise DoesNotCompileError(str(error)) from None
    memory = program.memory_analysis()
    (optimized,) = program.runtime_executable().hlo_modules()
    return Program(
        memory.peak_memory_in_bytes,
        memory.argument_size_in_bytes,
        memory.alias_size_in_bytes,
        hlo_pb2.HloModuleProto.FromString(
            optimized.as_serialized_hlo_module_proto()
        ),
    )


# --- What an optimized program says -------------------------------------------

_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
_CALLS = ("fusion", "call", "conditional", "async-start")
# These move nothing. The end of an asynchronous operation stands for it.
_FREE = re.compile(
    "parameter|constant|get-tuple-element|tuple|bitcast|while|call|conditional"
    "|after-all|partition-id|iota|opt-barrier|.*-start"
)
_TRIPS = re.compile(rb'"known_trip_count":\{"n":"(\d+)"')


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of an optimized program."""

    proto: hlo_pb2.HloInstructionProto
    operands: list[hlo_pb2.HloInstructionProto]
    times: int  # how often a step runs it
    is_fused: bool  # with others, so that its result is in no memory


def operations(
    module: hlo_pb2.HloModuleProto, num_micro_batches: int = 1
) -> Iterator[Operation]:
    """The operations that a step runs.

    A loop whose length the compiler does not state is that over micro-batches.
    """
    computations = {c.id: c for c in module.computations}
    known = {i.id: i for c in module.computations for i in c.instructions}

    def visit(number: int, times: int, is_fused: bool) -> Iterator[Operation]:
        for one in computations[number].instructions:
            operands = [known[operand] for operand in one.operand_ids]
            yield Operation(one, operands, times, is_fused)
            called = one.called_computation_ids
            if one.opcode == "while":
                stated = _TRIPS.search(one.backend_config)
                trips = int(stated[1]) if stated else num_micro_batches
                yield from visit(called[0], times * trips, is_fused)
            elif one.opcode in _CALLS:
                for part in called:
                    inside = is_fused or one.opcode == "fusion"
                    yield from visit(part, times, inside)

    yield from visit(module.entry_computation_id, 1, False)


def count_flops(found: list[Operation]) -> dict[str, int]:
    """Operations of the matrix products, by the dtype of their operands."""
    flops: collections.Counter[str] = collections.Counter()
    for one in found:
        proto = one.proto
        if proto.opcode in ("dot", "convolution") or (
            "matmul" in proto.custom_call_target
            or "gemm" in proto.custom_call_target
        ):
            left, right = one.operands[:2]
            flops[dtype_of(left)] += one.times * _product_flops(
                proto, left.shape, right.shape
            )
    return dict(flops)


def _product_flops(proto: Any, left: Any, right: Any) -> int:
    """Operations of a product of (b, m, k) and (b, k, n): 2 b m k n.

    They follow from the sizes of the three arrays and the number b of products
    of a batch. Compilers for TPUs write products as convolutions, where
    batches are spatial dimensions.
    """
    result = (list(proto.shape.tuple_shapes) or [proto.shape])[0]
    batch = 1
    if proto.opcode == "dot":
        numbers = proto.dot_dimension_numbers.lhs_batch_dimensions
        batch = math.prod(left.dimensions[number] for number in numbers)
    elif proto.opcode == "convolution":
        numbers = proto.convolution_dimension_numbers
        for axes in zip(
            numbers.input_spatial_dimensions,
            numbers.kernel_spatial_dimensions,
            numbers.output_spatial_dimensions,
            strict=True,
        ):
            sizes = {
                shape.dimensions[axis]
                for shape, axis in zip((left, right, result), axes, strict=True)
            }
            batch *= sizes.pop() if len(sizes) == 1 else 1
    elif len(left.dimensions) > 2:  # of a library
        batch = math.prod(left.dimensions[:-2])
    elements = (math.prod(shape.dimensions) for shape in (left, right, result))
    return 2 * math.isqrt(math.prod(elements) // batch)


def count_bytes(found: list[Operation]) -> int:
    """Bytes that the operations read from memory and write to it."""
    return sum(
        one.times * sum(_bytes(p.shape) for p in (one.proto, *one.operands))
        for one in found
        if not one.is_fused and not _FREE.fullmatch(one.proto.opcode)
    )


def all_reduces(found: list[Operation]) -> list[int]:
    """Bytes of the result of each collective, each time that it runs."""
    return [
        _bytes(one.proto.shape, on_chip=True)
        for one in found
        if one.proto.opcode.removesuffix("-start") in _COLLECTIVES
        for _ in range(one.times)
    ]


def dtype_of(proto: Any) -> str:
    """E.g. "bfloat16"; that of XLA for types that TensorFlow lacks."""
    name = xla_data_pb2.PrimitiveType.Name(proto.shape.element_type)
    return {"BF16": "bfloat16", "F32": "float32", "F64": "float64"}.get(
        name, name
    )


def _bytes(shape: Any, on_chip: bool = False) -> int:
    """Bytes of the arrays of a shape, which may be a tuple.

    Without `on_chip`, arrays that stay on the chip count nothing.
    """
    if shape.tuple_shapes:
        return sum(_bytes(part, on_chip) for part in shape.tuple_shapes)
    if shape.layout.memory_space and not on_chip:
        return 0
    # E.g. BF16 has two bytes, and PRED one.
    kind = xla_data_pb2.PrimitiveType.Name(shape.element_type)
    bits = re.search(r"\d+$", kind)
    size = max(1, int(bits[0]) // 8) if bits else 1
    return math.prod(shape.dimensions) * size
