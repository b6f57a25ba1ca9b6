"""How long a compiled program takes, as its compiler estimates it.

The optimized program, as text, holds the compiler's estimate of cycles beside
most operations. Where a loop's body runs many times, it is counted as often.
No estimate is given for collectives and for the device's generator of random
bits: their bytes are added up instead, to be judged apart.
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
_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\]")

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a program, or a part of it, costs.

    Attributes:
        cycles: Estimated, of all operations that have an estimate.
        collective_bytes: Operands of collectives.
        num_collectives: Of them, as often as they run.
        random_bytes: Made by the device's generator, in no estimate.
        uncounted_loops: Loops that do not tell how often they run, counted
            once.
    """

    cycles: int = 0
    collective_bytes: int = 0
    num_collectives: int = 0
    random_bytes: int = 0
    uncounted_loops: int = 0

    def plus(self, other: "Cost", times: int = 1) -> "Cost":
        """With another part that runs so many times."""
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
    """Adds up a program, loops and all.

    Args:
        hlo: An optimized module, as text.

    Raises:
        ValueError: If it has no entry, or no estimates.
    """
    computations, entry = _computations(hlo)
    if entry is None or not _CYCLES.search(hlo):
        raise ValueError("no optimized program of the TPU compiler")
    known: dict[str, Cost] = {}

    def cost(name: str) -> Cost:
        if name not in known:
            total, lines = Cost(), computations[name]
            for line in lines.values():
                total = total.plus(_own_cost(line))
                for called, times in _calls(line, lines, computations):
                    untold = Cost(uncounted_loops=int(times is None))
                    total = total.plus(untold).plus(cost(called), times or 1)
            known[name] = total
        return known[name]

    return cost(entry)


# Lines of a computation by the name of what they define.
_Lines = dict[str, str]


def _computations(hlo: str) -> tuple[dict[str, _Lines], str | None]:
    """All computations by their names, and the name of the entry."""
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
    """Of an operation, without the computations that it calls."""
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
    )


def _calls(
    line: str, lines: _Lines, computations: dict[str, _Lines]
) -> list[tuple[str, int | None]]:
    """Computations that an operation runs, and how often; None is not told.

    The inside of a fusion has no cost of its own.
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
    """How often a loop runs; None if it cannot be told.

    Where the compiler does not say it: of a loop that counts from a constant
    up to another, by one.
    """
    told = _TRIPS.search(line)
    if told:
        return int(told[1])
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
    """The number that a scalar is, copied or not; None if it is none."""
    line = lines.get(name, "")
    number = re.search(r" constant\((-?\d+)\)", line)
    if number:
        return int(number[1])
    if " copy(" in line:
        return _constant(_operands(line)[0], lines)
    return None


def _bytes(shape: str) -> int:
    """Of all arrays of a shape, e.g. `(f32[2,3]{1,0}, bf16[5])`."""
    return sum(
        math.prod(int(n) for n in sizes.split(",") if n) * _width(kind)
        for kind, sizes in _ARRAY.findall(shape)
    )


def _width(kind: str) -> int:
    """Bytes of a number: 2 of bf16, 1 of pred."""
    bits = re.search(r"\d+$", kind)
    return max(1, int(bits[0]) // 8) if bits else 1
