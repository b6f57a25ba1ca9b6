"""The cost of a compiled program, from the compiler's own estimates.

The text of an optimized program holds an estimate of cycles for most
operations. This module adds them up; the body of a loop counts once for each
iteration. Collectives, the device's random generator and asynchronous copies
between HBM and on-chip memory have no estimate, so their bytes are added up
instead. So are the bytes that other operations read and write in HBM, since a
compiler can replace a copy by an operation that reads the HBM itself.
"""

import dataclasses
import math
import re

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
_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\](\{[^}]*\})?")

# The start of a copy of an array, or of a part of it.
COPIES = ("copy-start", "slice-start")
# Marks arrays in on-chip memory.
ON_CHIP = "S(1)"
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a program, or of a part of it.

    Attributes:
        cycles: Sum of the estimates.
        collective_bytes: Bytes of the results of collectives.
        num_collectives: Number of collectives, counted each time they run.
        random_bytes: Bytes from the device's random generator, whose time is
            not estimated.
        copied_bytes: Bytes of asynchronous copies, which may be hidden behind
            other operations.
        direct_bytes: Bytes that operations with an estimate read and write in
            HBM themselves. An array counts as a whole, and once for each
            operation that reads or writes it.
        uncounted_loops: Loops whose number of iterations is unknown; their
            bodies count once.

    """

    cycles: int = 0
    collective_bytes: int = 0
    num_collectives: int = 0
    random_bytes: int = 0
    copied_bytes: int = 0
    direct_bytes: int = 0
    uncounted_loops: int = 0

    def plus(self, other: "Cost", times: int = 1) -> "Cost":
        """Adds the cost of a part that runs `times` times."""
        return Cost(
            *(
                mine + times * theirs
                for mine, theirs in zip(
                    dataclasses.astuple(self),
                    dataclasses.astuple(other),
                    strict=True,
                )
            )
        )


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
                own = _own_cost(line, lines)
                total = total.plus(own)
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


def _own_cost(line: str, lines: _Lines) -> Cost:
    """The cost of an operation without the computations that it calls."""
    operation = _OPERATION.match(line)
    assert operation
    shape, kind = operation["shape"], operation["kind"]
    cycles = _CYCLES.search(line)
    collective = kind.removesuffix("-start") in COLLECTIVES
    return Cost(
        cycles=int(cycles[1]) if cycles else 0,
        collective_bytes=_bytes(shape) if collective else 0,
        num_collectives=int(collective),
        random_bytes=_bytes(shape) if kind == "rng-bit-generator" else 0,
        copied_bytes=_copied_bytes(shape) if kind in COPIES else 0,
        direct_bytes=_direct_bytes(line, lines) if cycles else 0,
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
        for kind, sizes, _ in _ARRAY.findall(shape)
    )


def _copied_bytes(shape: str) -> int:
    """Bytes that a copy moves: the smaller of its two arrays, if it slices.

    0 for copies that neither begin nor end in on-chip memory.
    """
    if ON_CHIP not in shape:
        return 0
    arrays = [array[0] for array in _ARRAY.finditer(shape)]
    return min(_bytes(array) for array in arrays[:2])


def _direct_bytes(line: str, lines: _Lines) -> int:
    """Bytes of the operands and results of an operation that are in HBM."""
    defined = (lines.get(name, "") for name in _operands(line))
    operations = [_OPERATION.match(text) for text in (line, *defined)]
    return sum(
        _bytes(array[0])
        for operation in operations
        if operation
        for array in _ARRAY.finditer(operation["shape"])
        if ON_CHIP not in array[0]
    )


def _width(kind: str) -> int:
    """Bytes of an element, e.g. 2 for bf16 and 1 for pred."""
    bits = re.search(r"\d+$", kind)
    return max(1, int(bits[0]) // 8) if bits else 1
