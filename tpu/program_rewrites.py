"""Changes of a lowered program, as StableHLO, before the TPU compiler gets it.

Like `tpu_compiler`, this file has private names of jax and jaxlib.
"""

import math
from collections.abc import Iterator
from typing import Any

from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo


def convert_for_tpu(module: Any) -> None:
    """Rewrites operations that TensorFlow lowers differently for CPU and TPU.

    1. Copies of updated variables: StableHLO has no such operation, so each is
       replaced by its operand.
    2. Random bits: if a program does not choose a generator (ours never do),
       TensorFlow uses Philox on a CPU and the hardware's generator on a TPU,
       whose state is one number shorter. Programs that choose Philox
       explicitly cannot be distinguished, and are estimated too low.
    """
    for operation in _operations(module):
        if operation.name == "mhlo.copy":
            _replace(operation, operation.operands[0])
        elif operation.name == "stablehlo.rng_bit_generator":
            _use_hardware_generator(operation)


def simplify_for_simulation(module: Any, vocab_size: int) -> None:
    """Replaces what the compiler's simulator of generated code aborts at.

    The program then computes other values, with the same shapes:

    1. A gather becomes a slice, or the copies of one row, and a scatter the sum
       with a padded or sliced array.
    2. A product with an axis of `vocab_size` stands between two barriers, so
       that no other operation is fused with it.
    """
    for operation in _operations(module):
        if operation.name == "stablehlo.gather":
            _slice_instead(operation)
        elif operation.name == "stablehlo.scatter":
            _add_instead(operation)
        elif operation.name == "stablehlo.dot_general":
            arrays = [*operation.operands, *operation.results]
            if any(vocab_size in _shape(array) for array in arrays):
                _put_between_barriers(operation)


def _operations(module: Any) -> list[Any]:
    """All operations of a module."""

    def nested(operation: Any) -> Iterator[Any]:
        for region in operation.regions:
            for block in region:
                for inner in block:
                    yield from nested(inner.operation)
                    yield inner.operation

    return list(nested(module.operation))


def _replace(operation: Any, value: Any) -> None:
    """Lets all readers of the first result read another value."""
    operation.results[0].replace_all_uses_with(value)
    operation.erase()


def _use_hardware_generator(operation: Any) -> None:
    if "PHILOX" not in str(operation.attributes["rng_algorithm"]):
        return
    with ir.InsertionPoint(operation), operation.location:
        state = operation.operands[0]
        short = _slice(state, [0], [2])
        rest = _slice(state, [2], [3])
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
    _replace(operation, new_state)


def _slice_instead(gather: Any) -> None:
    """Replaces a gather by a part of its operand, with the same shape."""
    source, result = gather.operands[0], gather.results[0]
    given, wanted = _shape(source), _shape(result)
    num_rows = math.prod(wanted[:-1])
    with ir.InsertionPoint(gather), gather.location:
        if (
            len(given) == len(wanted)
            and given[-1] == wanted[-1]
            and all(g >= w for g, w in zip(given, wanted, strict=True))
        ):  # positions of each row
            part = _slice(source, [0] * len(given), wanted)
        elif given[:-1] == wanted:  # one entry of each row
            part = _slice(source, [0] * len(given), [*wanted, 1])
        elif len(given) == 2 and given[0] >= num_rows:  # rows of a table
            part = _slice(source, [0, 0], [num_rows, given[1]])
        else:  # rows of a small table
            row = hlo.reshape(
                _of_shape(source, given[1:]),
                _slice(source, [0, 0], [1, given[1]]),
            )
            part = hlo.broadcast_in_dim(
                result.type, row, _numbers([len(wanted) - 1])
            )
        part = hlo.reshape(result.type, part)
    _replace(gather, part)


def _add_instead(scatter: Any) -> None:
    """Replaces a scatter of rows by a sum of two arrays."""
    table, _, updates = scatter.operands
    num_rows, width = _shape(table)
    num_updates = math.prod(_shape(updates)) // width
    with ir.InsertionPoint(scatter), scatter.location:
        rows = hlo.reshape(_of_shape(table, [num_updates, width]), updates)
        if num_updates > num_rows:
            rows = _slice(rows, [0, 0], [num_rows, width])
        else:
            element = ir.RankedTensorType(table.type).element_type
            zero = hlo.constant(
                ir.DenseElementsAttr.get_splat(
                    ir.RankedTensorType.get([], element),
                    ir.FloatAttr.get(element, 0.0),
                )
            )
            rows = hlo.pad(
                rows,
                zero,
                _numbers([0, 0]),
                _numbers([num_rows - num_updates, 0]),
                _numbers([0, 0]),
            )
        total = hlo.add(table, rows)
    _replace(scatter, total)


def _put_between_barriers(operation: Any) -> None:
    operands = list(operation.operands)
    with ir.InsertionPoint(operation), operation.location:
        before = hlo.OptimizationBarrierOp(operands)
    for index in range(len(operands)):
        operation.operands[index] = before.results[index]
    result = operation.results[0]
    with ir.InsertionPoint.after(operation), operation.location:
        after = hlo.OptimizationBarrierOp([result])
    result.replace_all_uses_except(after.results[0], after.operation)


def _slice(array: Any, start: list[int], end: list[int]) -> Any:
    steps = [1] * len(start)
    return hlo.slice(array, _numbers(start), _numbers(end), _numbers(steps))


def _shape(array: Any) -> list[int]:
    return list(ir.RankedTensorType(array.type).shape)


def _of_shape(array: Any, shape: list[int]) -> Any:
    """The type of an array of another shape."""
    element = ir.RankedTensorType(array.type).element_type
    return ir.RankedTensorType.get(shape, element)


def _numbers(values: list[int]) -> Any:
    return ir.DenseI64ArrayAttr.get(values)
