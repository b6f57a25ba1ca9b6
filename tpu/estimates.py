"""The cost of a training step on a slice, by the TPU compiler's estimate.

Memory is the compiler's plan. The text of an optimized program states an
estimate of cycles for most operations, and this module adds them up; the body
of a loop counts once for each iteration. Collectives have no estimate, so their
bytes are added up, and divided by the bandwidth of a chip.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging

from albert_tf.cluster.strategy import per_replica_batch_size
from albert_tf.config import PretrainingConfig
from albert_tf.training import schedules
from albert_tf.training.cost import flops_per_step
from tpu import replica_program, tpu_compiler
from tpu.topologies import Slice

CAVEATS = (
    "Memory is the compiler's memory plan for the step. Time is the compiler's "
    "estimate of cycles, divided by the clock rate of the chip, plus the time "
    "of the all-reduce: 2 (n-1)/n times its bytes, divided by the bandwidth of "
    "a chip, for n chips. The time of input, host and the hardware's random "
    "generator is not included, nor that of asynchronous copies between HBM "
    "and on-chip memory, which are taken as hidden behind arithmetic. Use "
    "estimates to compare settings. Expect 1 to 1.5 times the estimate; "
    "docs/tpu.md says why."
)

# How many times the estimate a real step may take; see docs/tpu.md.
LARGEST_RATIO = 1.5


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A training step on a slice; values are per core unless stated.

    Step times and values derived from them are None after a quick or failed
    compilation. After a failed one, all results of the compiler are None, too.

    Attributes:
        topology: The slice, e.g. "v5e:16x16".
        num_chips, num_cores: Numbers of chips and cores of the slice.
        chip_memory_bytes: HBM of a core.
        batch_size: Rows of a micro-batch; each is an example, unless packed.
        gradient_accumulation_steps: Micro-batches in a step.
        max_seq_length, precision, remat, packing: Settings of the run.
        hidden_dropout, attention_dropout: Rates of the first step.
        quick: Whether the program was compiled with `quick`.
        model_flops: Operations of the model by arithmetic, without
            recomputation.
        versions: Versions of the compiler, of the packages that load it, and
            of TensorFlow.
        error: The compiler's error; "" if the program compiles.
        peak_bytes, argument_bytes, temporary_bytes, code_bytes: See
            `tpu_compiler.Compiled`.
        flops: Operations, counted by the compiler; the body of the loop over
            micro-batches counts once for each micro-batch.
        cycles: The compiler's estimate.
        uncounted_loops: Loops with an unknown number of iterations, whose
            bodies count once in `cycles`.
        all_reduce_bytes, num_all_reduces: Bytes and number of the sums over
            all cores.
        all_reduce_s: A lower bound of the time of these sums.
        step_s: Cycles at the chip's clock, plus `all_reduce_s`.
        mfu: `model_flops` per second as a fraction of a core's peak.
        tokens_per_s_chip, tokens_per_s: Positions, including padding, per
            chip and in total.
        days, chip_hours: Duration and chip-hours of the complete run.
        compile_s, compile_cpu_s: Wall-clock and processor time of the
            compiler.
    """

    topology: str
    num_chips: int
    num_cores: int
    chip_memory_bytes: int
    batch_size: int
    gradient_accumulation_steps: int
    max_seq_length: int
    precision: str
    remat: bool
    packing: str
    hidden_dropout: float
    attention_dropout: float
    quick: bool
    model_flops: int
    versions: Mapping[str, str]
    error: str = ""
    peak_bytes: int | None = None
    argument_bytes: int | None = None
    temporary_bytes: int | None = None
    code_bytes: int | None = None
    flops: float | None = None
    cycles: int | None = None
    uncounted_loops: int | None = None
    all_reduce_bytes: int | None = None
    num_all_reduces: int | None = None
    all_reduce_s: float | None = None
    step_s: float | None = None
    mfu: float | None = None
    tokens_per_s_chip: float | None = None
    tokens_per_s: float | None = None
    days: float | None = None
    chip_hours: float | None = None
    compile_s: float | None = None
    compile_cpu_s: float | None = None


def estimate(
    config: PretrainingConfig, where: Slice, *, quick: bool = False
) -> Estimate:
    """Compiles the first step of a run for a slice.

    Args:
        quick: Estimates memory only, in about a quarter of the time.

    Raises:
        UserError: If the batch cannot be divided over the slice, or if libtpu
            is not installed or does not know the slice.
    """
    micro_batches = config.data.gradient_accumulation_steps
    batch_size = per_replica_batch_size(
        "global_batch_size",
        config.data.global_batch_size,
        where.num_cores,
        micro_batches,
    )
    versions = tpu_compiler.check_installed()
    devices = tpu_compiler.slice_devices(
        where.libtpu_name(), where.libtpu_options()
    )[: where.num_cores]
    model_flops = flops_per_step(
        config.model, config.data, config.training.sentence_objective
    )
    rates = schedules.dropout_rates(0, config)
    planned = Estimate(
        topology=str(where),
        num_chips=where.num_chips,
        num_cores=where.num_cores,
        chip_memory_bytes=where.chip.memory_bytes,
        batch_size=batch_size // micro_batches,
        gradient_accumulation_steps=micro_batches,
        max_seq_length=config.data.max_seq_length,
        precision=config.distribution.precision,
        remat=config.distribution.remat,
        packing=config.data.packing,
        hidden_dropout=rates.hidden,
        attention_dropout=rates.attention,
        quick=quick,
        model_flops=model_flops // where.num_cores,
        versions={**versions, "tensorflow": tf.__version__},
    )
    logging.info("lowering the training step for %s", where)
    hlo = replica_program.lower(config, where.num_cores)
    logging.info("compiling (%s)", "quick" if quick else "takes minutes")
    try:
        program = tpu_compiler.compile_program(hlo, devices, quick=quick)
    except tpu_compiler.DoesNotCompileError as error:
        return dataclasses.replace(planned, error=str(error))
    cost = program_cost(program.hlo)
    done = dataclasses.replace(
        planned,
        peak_bytes=program.peak_bytes,
        argument_bytes=program.argument_bytes,
        temporary_bytes=program.temporary_bytes,
        code_bytes=program.code_bytes,
        # The loop over micro-batches holds all but a thousandth of the
        # operations.
        flops=program.flops * micro_batches,
        uncounted_loops=cost.uncounted_loops,
        all_reduce_bytes=cost.collective_bytes,
        num_all_reduces=cost.num_collectives,
        all_reduce_s=where.all_reduce_seconds(cost.collective_bytes),
        compile_s=program.compile_s,
        compile_cpu_s=program.compile_cpu_s,
    )
    if quick:
        return done
    return dataclasses.replace(
        done, cycles=cost.cycles, **_times(config, where, done, cost.cycles)
    )


def _times(
    config: PretrainingConfig, where: Slice, done: Estimate, num_cycles: int
) -> dict[str, Any]:
    assert done.all_reduce_s is not None
    step_s = num_cycles / where.chip.clock_hz + done.all_reduce_s
    hours = config.training.num_train_steps * step_s / 3600
    tokens = config.data.global_batch_size * config.data.max_seq_length
    return {
        "step_s": step_s,
        "mfu": done.model_flops / step_s / where.chip.peak_flops,
        "tokens_per_s": tokens / step_s,
        "tokens_per_s_chip": tokens / step_s / where.num_chips,
        "days": hours / 24,
        "chip_hours": hours * where.num_chips,
    }


_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_OPERATION = re.compile(
    r"\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>\(.*?\)|\S+) "
    r"(?P<kind>[a-z][\w\-]*)\("
)
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_BODY = re.compile(r"body=%?([\w.\-]+)")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_CALLED = re.compile(r"to_apply=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a compiled program, or of a part of it.

    Attributes:
        cycles: Sum of the compiler's estimates.
        collective_bytes: Bytes of the results of collectives.
        num_collectives: Number of collectives, counted each time they run.
        uncounted_loops: Loops whose number of iterations is unknown; their
            bodies count once.
    """

    cycles: int = 0
    collective_bytes: int = 0
    num_collectives: int = 0
    uncounted_loops: int = 0

    def plus(self, other: "Cost", times: int = 1) -> "Cost":
        """Adds the cost of a part that runs `times` times."""
        mine, theirs = dataclasses.astuple(self), dataclasses.astuple(other)
        return Cost(*(a + times * b for a, b in zip(mine, theirs, strict=True)))


def program_cost(hlo: str) -> Cost:
    """Adds up the cost of a program, including its loops.

    Args:
        hlo: An optimized HLO module, as text.

    Raises:
        ValueError: If the module has no entry computation, or no estimates.
    """
    computations, entry = _computations(hlo)
    if entry is None or not _CYCLES.search(hlo):
        raise ValueError("hlo must be a module that the TPU compiler optimized")
    known: dict[str, Cost] = {}

    def cost(name: str) -> Cost:
        if name not in known:
            total, lines = Cost(), computations[name]
            for line in lines.values():
                total = total.plus(_own_cost(line))
                for called, times in _calls(line, lines, computations):
                    unknown = Cost(uncounted_loops=int(times is None))
                    total = total.plus(unknown).plus(cost(called), times or 1)
            known[name] = total
        return known[name]

    return cost(entry)


# Lines of a computation, by the name that each line defines.
_Lines = dict[str, str]


def _computations(hlo: str) -> tuple[dict[str, _Lines], str | None]:
    """Returns all computations by name, and the name of the entry."""
    found: dict[str, _Lines] = {}
    entry, lines = None, None
    for line in hlo.splitlines():
        start = _COMPUTATION.match(line)
        operation = _OPERATION.match(line)
        if start:
            lines = found.setdefault(start[2], {})
            entry = start[2] if start[1] else entry
        elif line.startswith("}"):
            lines = None
        elif operation and lines is not None:
            lines[operation["name"]] = line
    return found, entry


def _own_cost(line: str) -> Cost:
    """The cost of an operation without the computations that it calls."""
    operation = _OPERATION.match(line)
    assert operation
    cycles = _CYCLES.search(line)
    collective = operation["kind"].removesuffix("-start") in _COLLECTIVES
    return Cost(
        cycles=int(cycles[1]) if cycles else 0,
        collective_bytes=_bytes(operation["shape"]) if collective else 0,
        num_collectives=int(collective),
    )


def _calls(
    line: str, lines: _Lines, computations: dict[str, _Lines]
) -> list[tuple[str, int | None]]:
    """The computations that an operation runs, and how often (None: unknown).

    Computations inside a fusion have no separate cost.
    """
    operation = _OPERATION.match(line)
    assert operation
    if operation["kind"] == "while":
        trips = _trips(line, lines, computations)
        return [(name, trips) for name in _BODY.findall(line)]
    if operation["kind"] == "call":
        return [(name, 1) for name in _CALLED.findall(line)]
    if operation["kind"] == "conditional":
        branches = _BRANCHES.search(line)
        names = re.findall(r"[\w.\-]+", branches[1] if branches else "")
        return [(name, 1) for name in names]
    return []


def _trips(
    line: str, lines: _Lines, computations: dict[str, _Lines]
) -> int | None:
    """The number of iterations of a loop; None if it is unknown.

    Where the compiler does not state it, it is derived for loops that count
    by one from a constant to a constant.
    """
    stated = _TRIPS.search(line)
    if stated:
        return int(stated[1])
    condition = computations[_CONDITION.findall(line)[0]]
    root = next(text for text in condition.values() if "ROOT" in text)
    if " compare(" not in root or "direction=LT" not in root:
        return None
    counter, limit = _operands(root)
    index = re.search(r"get-tuple-element\(.*index=(\d+)", condition[counter])
    end = _constant(limit, condition)
    initial = _operands(lines.get(_operands(line)[0], ""))
    if index is None or int(index[1]) >= len(initial) or end is None:
        return None
    start = _constant(initial[int(index[1])], lines)
    return None if start is None else end - start


def _operands(line: str) -> list[str]:
    """Names of an operation's operands."""
    operation = _OPERATION.match(line)
    if operation is None:
        return []
    return re.findall(r"%([\w.\-]+)", line[operation.end() :].split(")")[0])


def _constant(name: str, lines: _Lines) -> int | None:
    """The value of a constant scalar, or of a copy of one; else None."""
    line = lines.get(name, "")
    number = re.search(r" constant\((-?\d+)\)", line)
    if number:
        return int(number[1])
    if " copy(" in line:
        return _constant(_operands(line)[0], lines)
    return None


def _bytes(shape: str) -> int:
    """Bytes of all arrays in a shape, e.g. `(f32[2,3]{1,0}, bf16[5])`."""
    return sum(
        math.prod(int(n) for n in sizes.split(",") if n) * _width(kind)
        for kind, sizes in _ARRAY.findall(shape)
    )


def _width(kind: str) -> int:
    """Bytes of an element, e.g. 2 for bf16 and 1 for pred."""
    bits = re.search(r"\d+$", kind)
    return max(1, int(bits[0]) // 8) if bits else 1
