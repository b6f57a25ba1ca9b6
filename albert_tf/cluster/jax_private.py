"""A program that TensorFlow has lowered, as an operation of JAX.

This module holds every private name of jax and jaxlib that the repository uses.
They change between releases, so `RELEASES` limits these.
"""

import dataclasses
import importlib.metadata
import importlib.util
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from packaging.specifiers import SpecifierSet

from albert_tf.errors import UserError

RELEASES = SpecifierSet(">=0.10.2,<0.13")
INSTALL = (
    "pip install 'albert-tf[cpu,jax-cuda13]' (GPUs), 'albert-tf[cpu,jax-tpu]' "
    "or 'albert-tf[cpu,jax]' (CPUs only)"
)

_FOREVER_MS = 10**12

_ALIAS = re.compile(
    r"parameter_number = (\d+) : i64}, output_index = array<i64: (\d+)>"
)


def check_installed() -> None:
    """Refuses a missing JAX, or one of another release."""
    found = [
        importlib.metadata.version(name)
        if importlib.util.find_spec(name)
        else "none"
        for name in ("jax", "jaxlib")
    ]
    if not all(
        version != "none" and RELEASES.contains(version) for version in found
    ):
        raise UserError(
            f"jax and jaxlib must be {RELEASES}, because their private names "
            "change between releases",
            received=" and ".join(found),
            remedy=f"{INSTALL}.",
        )


def wait_for_loss() -> str:
    """Waits until JAX says that another process of the run is lost.

    Returns:
        What it says; "" at the end of the run.
    """
    import jax
    from jax._src.distributed import global_state

    # No other process reaches this barrier: only an error can end it.
    barrier = f"loss seen by {global_state.process_id}"
    try:
        global_state.client.wait_at_barrier(barrier, _FOREVER_MS)
    except jax.errors.JaxRuntimeError as error:
        said = str(error)
        is_end = "task disconnected" in said or "CANCELLED" in said
        return "" if is_end else said.splitlines()[0]
    return ""


@dataclasses.dataclass(frozen=True, eq=False)
class Lowered:
    """A program for one replica, whose last arguments are variables."""

    # A serialized HLO module that TensorFlow has lowered for a CPU, the only
    # platform that it lowers for without its device.
    hlo: bytes
    # By variable, the number of the result that updates it.
    updates: tuple[int | None, ...]
    # Shape and dtype of each result, with updated variables last.
    results: tuple[tuple[tuple[int, ...], str], ...]
    hardware_bits: bool = False  # random bits of the hardware's generator


def find_updates(hlo: bytes) -> dict[int, int]:
    """The number of the result that updates an argument, by its number."""
    from jax._src.interpreters import mlir

    name = "mhlo.input_output_alias"
    with mlir.make_ir_context():
        attributes = _parse(hlo).operation.attributes
        text = str(attributes[name]) if name in attributes else ""
    return {int(a): int(b) for a, b in _ALIAS.findall(text)}


def _parse(hlo: bytes) -> Any:
    """A module of StableHLO, in the current MLIR context."""
    from jax._src.lib import _jax
    from jax._src.lib.mlir import ir

    return ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo))


def bind(
    lowered: Lowered,
    arguments: Sequence[Any],
    updated: Sequence[Any],
    read: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """Runs a program inside a function that JAX traces for all replicas.

    Args:
        updated: The variables that it updates.
        read: The variables that it only reads.

    Returns:
        The new values of `updated`, and the other results.
    """
    changing, constant = iter(updated), iter(read)
    variables = [
        next(constant if result is None else changing)
        for result in lowered.updates
    ]
    results = _primitive().bind(*arguments, *variables, lowered=lowered)
    numbers = [number for number in lowered.updates if number is not None]
    changed = [results[number] for number in numbers]
    return changed, results[: len(results) - len(numbers)]


_PRIMITIVES: list[Any] = []


def _primitive() -> Any:
    """The primitive, which is made once."""
    if _PRIMITIVES:
        return _PRIMITIVES[0]
    import jax
    from jax._src.interpreters import mlir as private_mlir
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import func
    from jax.extend.core import Primitive
    from jax.interpreters import mlir

    primitive = Primitive("tensorflow_program")
    primitive.multiple_results = True
    primitive.def_abstract_eval(
        lambda *_, lowered: [
            jax.core.ShapedArray(shape, np.dtype(dtype))
            for shape, dtype in lowered.results
        ]
    )

    def lower(context: Any, *arguments: Any, lowered: Lowered) -> Any:
        module = _parse(lowered.hlo)
        _convert(module, lowered.hardware_bits)
        (main,) = (
            operation
            for operation in module.body.operations
            if operation.name.value == "main"
        )
        inputs, outputs = main.type.inputs, main.type.results
        name = private_mlir.merge_mlir_modules(
            context.module_context.module,
            "tensorflow_program",
            module,
            dst_symtab=context.module_context.symbol_table,
        )
        symbol = ir.FlatSymbolRefAttr.get(name)
        taken = list(map(_convert_to, inputs, arguments))
        results = func.CallOp(outputs, symbol, taken).results
        return [
            _convert_to(_type_in_jax(result.type), result) for result in results
        ]

    mlir.register_lowering(primitive, lower)
    _PRIMITIVES.append(primitive)
    return primitive


def _convert_to(wanted: Any, value: Any) -> Any:
    from jax._src.lib.mlir.dialects import hlo

    return value if value.type == wanted else hlo.convert(wanted, value)


def _type_in_jax(of_tensorflow: Any) -> Any:
    """The type of a result: JAX has int32 where TensorFlow has int64."""
    from jax._src.lib.mlir import ir

    tensor = ir.RankedTensorType(of_tensorflow)
    if tensor.element_type != ir.IntegerType.get_signless(64):
        return of_tensorflow
    return ir.RankedTensorType.get(
        tensor.shape, ir.IntegerType.get_signless(32)
    )


def _convert(module: Any, hardware_bits: bool) -> None:
    """Rewrites what TensorFlow lowers otherwise than JAX's compilers need.

    1. Copies of updated variables: StableHLO has no such operation, so each is
       replaced by its operand.
    2. Sums over replicas: the devices of a function of JAX are partitions of
       one program, numbered globally.
    3. Random bits, with `hardware_bits`: if a program does not choose a
       generator (ours never do), TensorFlow uses Philox on a CPU and the
       hardware's generator on a TPU, whose state is one number shorter.
       Programs that choose Philox explicitly cannot be distinguished.
    """
    from jax._src.lib.mlir import ir
    from jax._src.lib.mlir.dialects import hlo

    channels = itertools.count(1)
    for operation in list(_operations(module.operation)):
        if operation.name == "mhlo.copy":
            operation.results[0].replace_all_uses_with(operation.operands[0])
            operation.erase()
        elif operation.name == "stablehlo.all_reduce":
            channel = hlo.ChannelHandle.get(next(channels), 1)
            operation.attributes["channel_handle"] = channel
            operation.attributes["use_global_device_ids"] = ir.UnitAttr.get()
        elif hardware_bits and operation.name == (
            "stablehlo.rng_bit_generator"
        ):
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
