"""Google's TPU compiler, libtpu, on a machine with no TPU.

Every private name of jax and jaxlib stands in this file, written against
one version, which the extra `tpu-compile` pins; they have changed between
releases. JAX itself computes nothing here: its package loads the compiler,
and takes the program that TensorFlow has lowered.
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

# What libtpu reads from the environment when it is loaded.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    # Else it asks the metadata server of a Cloud VM, again and again.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    # Else a second process that compiles is refused.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    # Else every process leaves log files in the temporary directory.
    "TPU_LOG_DIR": "disabled",
}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program as the compiler plans it, for one core of the slice.

    Attributes:
        peak_bytes: HBM at the fullest moment, arguments included.
        argument_bytes: Weights, moments and batch; what is updated is updated
            in place.
        temporary_bytes: All else that it computes with.
        code_bytes: The program itself.
        aliased_bytes: That part of the arguments which is updated in place.
        flops: Operations, with the bodies of loops counted once.
        accessed_bytes: Bytes read and written, counted likewise.
        hlo: The optimized program as text.
        compile_s: Wall-clock seconds of the compiler.
        compile_cpu_s: Its seconds of processor time.
    """

    peak_bytes: int
    argument_bytes: int
    temporary_bytes: int
    code_bytes: int
    aliased_bytes: int
    flops: float
    accessed_bytes: float
    hlo: str
    compile_s: float
    compile_cpu_s: float


class DoesNotCompileError(Exception):
    """What the compiler says of a program that it refuses."""


def check_installed() -> dict[str, str]:
    """Versions of what is needed.

    Raises:
        UserError: If a package is missing, or has other private names.
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
            f"jax and jaxlib must be {JAX_VERSION}, for what is used of them "
            "changes between releases",
            received=f"{found['jax']} and {found['jaxlib']}",
            remedy=INSTALL,
        )
    return found


def slice_devices(name: str, options: Mapping[str, Any]) -> list[Any]:
    """Descriptions of a slice's devices.

    Args:
        name: As libtpu names it, e.g. "v5e:16x16".
        options: Further ones, e.g. of how cores are joined.

    Raises:
        UserError: If there is no such slice.
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
            received=f"{name}, of which it says: {first_line(error)[:200]}",
        ) from None
    return list(description.devices)


def compile_program(
    hlo: bytes, devices: list[Any], *, quick: bool = False
) -> Compiled:
    """Compiles a program that all devices run at the same time.

    Args:
        hlo: A serialized HLO module that TensorFlow has lowered for XLA on a
            CPU: TensorFlow for CPUs has no lowering for TPUs. What differs is
            rewritten, see `_as_for_tpus`.
        devices: Of `slice_devices`.
        quick: With little effort: the memory within some per cent, in a
            fourth of the time; the cycles mean nothing.

    Raises:
        DoesNotCompileError: With the compiler's own words, e.g. that the
            program needs more memory than there is.
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
        _as_for_tpus(module)
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
        aliased_bytes=memory.alias_size_in_bytes,
        flops=cost["flops"],
        accessed_bytes=cost["bytes accessed"],
        hlo=executable.hlo_modules()[0].to_string(),
        compile_s=wall,
        compile_cpu_s=cpu,
    )


def _as_for_tpus(module: Any) -> None:
    """Rewrites what TensorFlow lowers otherwise for a CPU than for a TPU.

    1. A copy of each updated variable, an operation that StableHLO does not
       have: its operand takes its place.
    2. Random bits: where a program leaves the generator open, as ours all do,
       TensorFlow takes Philox on a CPU and the device's own on a TPU, whose
       state is one number shorter. Programs that ask for Philox by name would
       be judged too well: they cannot be told apart.
    """
    for operation in list(_operations(module.operation)):
        if operation.name == "mhlo.copy":
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()
        elif operation.name == "stablehlo.rng_bit_generator":
            _take_own_generator(operation)


def _take_own_generator(operation: Any) -> None:
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import hlo

    if "PHILOX" not in str(operation.attributes["rng_algorithm"]):
        return

    def numbers(*values: int) -> Any:
        return ir.DenseI64ArrayAttr.get(list(values))

    with ir.InsertionPoint(operation), operation.location:
        state = operation.operands[0]
        short = hlo.slice(state, numbers(0), numbers(2), numbers(1))
        rest = hlo.slice(state, numbers(2), numbers(3), numbers(1))
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
    operation.results[0].replace_all_uses_with(new_state)
    operation.results[1].replace_all_uses_with(new.results[1])
    operation.erase()


def _operations(operation: Any) -> Iterator[Any]:
    """All operations in one, at any depth."""
    for region in operation.regions:
        for block in region:
            for inner in list(block):
                yield from _operations(inner.operation)
                yield inner.operation
