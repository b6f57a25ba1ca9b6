"""Google's TPU compiler, libtpu, on a machine without a TPU.

This file holds every private name of jax and jaxlib that the repository uses.
Such names change between releases, so the extra `tpu-compile` pins the version.
JAX computes nothing here: it loads the compiler, and passes it the program that
TensorFlow has lowered.
"""

import dataclasses
import importlib.metadata
import importlib.util
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from albert_tf.errors import UserError, first_line

PACKAGES = ("jax", "jaxlib", "libtpu")
JAX_VERSION = "0.10.2"  # as in setup.py
INSTALL = "pip install -e '.[cpu,tpu-compile]'  (Linux on x86-64, 1.2 GB)"

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
    """A compiled program and the compiler's plan for it, for one core.

    Attributes:
        peak_bytes: Peak HBM, including arguments.
        argument_bytes: Weights, moments and batch.
        temporary_bytes: Intermediate values.
        code_bytes: The program itself.
        flops: Operations; loop bodies count once.
        hlo: The optimized program as text.
        compile_s: Wall-clock seconds of the compiler.
        compile_cpu_s: Seconds of processor time of the compiler.
    """

    peak_bytes: int
    argument_bytes: int
    temporary_bytes: int
    code_bytes: int
    flops: float
    hlo: str
    compile_s: float
    compile_cpu_s: float


class DoesNotCompileError(Exception):
    """The compiler rejects a program; the message is the compiler's."""


def check_installed() -> dict[str, str]:
    """Returns the versions of the packages that compiling needs.

    Raises:
        UserError: If a package is missing, or has another version, whose
            private names may differ.
    """
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


def slice_devices(name: str, options: Mapping[str, Any]) -> list[Any]:
    """Returns libtpu's descriptions of the devices of a slice.

    Args:
        name: The name in libtpu, e.g. "v5e:16x16".
        options: Further arguments for libtpu, e.g. how cores are joined.

    Raises:
        UserError: If libtpu knows no such slice.
    """
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    from jax.experimental import topologies

    try:
        description = topologies.get_topology_desc(
            platform="tpu", topology_name=name, **options
        )
    except Exception as error:
        raise UserError(
            "topology must be one that libtpu knows",
            received=f"{name}; libtpu: {first_line(error)[:200]}",
        ) from None
    return list(description.devices)


def compile_program(
    hlo: bytes, devices: list[Any], *, quick: bool = False
) -> Compiled:
    """Compiles a program that all devices run at the same time.

    Args:
        hlo: A serialized HLO module that TensorFlow has lowered for a CPU,
            since TensorFlow for CPUs cannot lower for TPUs.
            `_convert_for_tpu` rewrites the differences.
        devices: From `slice_devices`.
        quick: Compiles with low effort, in a quarter of the time: memory is
            right within a few per cent, cycles are meaningless.

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
        _convert_for_tpu(module)
        wall, cpu = time.monotonic(), time.process_time()
        try:
            executable = devices[0].client.compile(
                module,
                executable_devices=xc.DeviceList(tuple(devices)),
                compile_options=options,
            )
        except _jax.JaxRuntimeError as error:
            raise DoesNotCompileError(str(error)) from None
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    memory = executable.get_compiled_memory_stats()
    cost = executable.cost_analysis()
    return Compiled(
        peak_bytes=memory.peak_memory_in_bytes,
        argument_bytes=memory.argument_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        code_bytes=memory.generated_code_size_in_bytes,
        flops=cost["flops"],
        hlo=executable.hlo_modules()[0].to_string(),
        compile_s=wall,
        compile_cpu_s=cpu,
    )


def _convert_for_tpu(module: Any) -> None:
    """Rewrites operations that TensorFlow lowers differently for CPU and TPU.

    1. Copies of updated variables: StableHLO has no such operation, so each is
       replaced by its operand.
    2. Random bits: if a program does not choose a generator (ours never do),
       TensorFlow uses Philox on a CPU and the hardware's generator on a TPU,
       whose state is one number shorter. Programs that choose Philox
       explicitly cannot be distinguished, and are estimated too low.
    """
    for operation in list(_operations(module.operation)):
        if operation.name == "mhlo.copy":
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()
        elif operation.name == "stablehlo.rng_bit_generator":
            _use_hardware_generator(operation)


def _operations(operation: Any) -> Iterator[Any]:
    """All operations inside an operation."""
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from _operations(inner.operation)
                yield inner.operation


def _use_hardware_generator(operation: Any) -> None:
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import hlo

    if "PHILOX" not in str(operation.attributes["rng_algorithm"]):
        return

    def part(start: int, end: int) -> Any:
        numbers = map(ir.DenseI64ArrayAttr.get, ([start], [end], [1]))
        return hlo.slice(operation.operands[0], *numbers)

    with ir.InsertionPoint(operation), operation.location:
        short = part(0, 2)
        rest = part(2, 3)
        new = hlo.RngBitGeneratorOp(
            short.type,
            operation.results[1].type,
            hlo.RngAlgorithmAttr.get("DEFAULT"),
            short,
        )
        new_state = hlo.concatenate(
            [new.results[0], rest],
            ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0),
        )
    operation.results[1].replace_all_uses_with(new.results[1])
    operation.results[0].replace_all_uses_with(new_state)
    operation.erase()
