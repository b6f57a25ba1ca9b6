"""Slices of Cloud TPUs by the names that Google Cloud gives them.

A slice is named by its version and its topology, `v5e:16x16`, or by its
accelerator type, `v5litepod-256`. Types count chips from v5e on, but for v5p,
and cores before.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from albert_tf.errors import UserError
from albert_tf.training.step_cost import TPU_MEMORY, TPU_PEAKS


@dataclasses.dataclass(frozen=True)
class Chip:
    """A version of the TPU; a core is what tf.distribute takes for a device.

    Attributes:
        cores: Of a chip. Those of v4 and v5p work as one; of v4 it was not
            established that TensorFlow joins them, too.
        memory_bytes: Of a core's HBM, as the compiler lets programs use it.
        peak_flops: Of a core, in bfloat16.
        clock_hz: Of a core.
        all_reduce_bytes_s: What a chip sends in an all-reduce over a whole
            pod.
        largest: Chips of the largest slice: of a pod, or for more of which
            nothing was tried.
        dimensions: Of the network.
        options: How libtpu is told to join the cores.
    """

    cores: int
    memory_bytes: int
    peak_flops: float
    clock_hz: float
    all_reduce_bytes_s: float
    largest: int
    dimensions: int = 2
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


# Memory of v4 is what the compiler's errors name; its peak is from
# https://cloud.google.com/tpu/docs/v4. Clocks: peak over what the matrix units
# of a core do in a cycle, 2 * 128 * 128 a unit, of 1, 2, 8 (two cores), 4 and 8
# (two cores) units, and of v6e 4 units of 256 * 256, as the compiler counts
# cycles; Google's page says 2, at twice this clock. All-reduce: a pod's
# figure by its chips on the same pages, for v4, v5e and v6e; half the
# bandwidth in both directions for v5p; the sum of the four links in Jouppi et
# al., 2020 (https://doi.org/10.1145/3360307), for v2 and v3.
CHIPS = {
    "v2": Chip(2, TPU_MEMORY["v2"], TPU_PEAKS["v2"], 0.7e9, 248e9, 256),
    "v3": Chip(2, TPU_MEMORY["v3"], TPU_PEAKS["v3"], 0.94e9, 328e9, 1024),
    "v4": Chip(
        1,
        int(30.75 * 2**30),
        275e12,
        1.05e9,
        268e9,
        2048,
        dimensions=3,
        options={
            "chip_config_name": "megacore",
            "chips_per_host_bounds": (2, 2, 1),
        },
    ),
    "v5e": Chip(
        1, TPU_MEMORY["v5litepod"], TPU_PEAKS["v5litepod"], 1.5e9, 200e9, 256
    ),
    "v5p": Chip(1, TPU_MEMORY["v5p"], TPU_PEAKS["v5p"], 1.75e9, 600e9, 2048, 3),
    "v6e": Chip(1, TPU_MEMORY["v6e"], TPU_PEAKS["v6e"], 1.75e9, 400e9, 256),
}
# What else a version is called.
_VERSIONS = {"v5litepod": "v5e", "v5lite": "v5e"}
# Versions whose accelerator types count cores, two a chip.
_COUNTED_BY_CORES = ("v2", "v3", "v4", "v5p")

# Shapes of the accelerator types, by dimensions.
_SHAPES: dict[int, tuple[tuple[int, ...], ...]] = {
    2: (
        (1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16),
        (16, 32), (32, 32),
    ),
    3: (
        (2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8),
        (4, 8, 8), (8, 8, 8), (8, 8, 16), (8, 16, 16),
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Slice:
    """Chips that work together.

    Attributes:
        version: E.g. "v5e".
        shape: Chips in each dimension of the network.
    """

    version: str
    shape: tuple[int, ...]

    @property
    def chip(self) -> Chip:
        return CHIPS[self.version]

    @property
    def num_chips(self) -> int:
        return math.prod(self.shape)

    @property
    def num_cores(self) -> int:
        """Devices of tf.distribute: replicas of a run."""
        return self.num_chips * self.chip.cores

    def __str__(self) -> str:
        return f"{self.version}:{'x'.join(map(str, self.shape))}"

    def libtpu_name(self) -> str:
        """A slice that libtpu describes and that this one is part of.

        It knows none below a host's four chips.
        """
        shape = (2, 2) if self.shape == (1, 1) else self.shape
        return str(Slice(self.version, shape))

    def libtpu_options(self) -> dict[str, Any]:
        """Further arguments of that description."""
        options = dict(self.chip.options)
        if options:
            options["wrap"] = tuple(size >= 4 for size in self.shape)
        return options

    def all_reduce_seconds(self, num_bytes: int) -> float:
        """The least time to sum so many bytes over all cores.

        Each chip sends, and receives, 2 (n - 1) / n of them over the network
        of n chips, with all of its links busy all the time. Slices smaller
        than a pod lack some of the links that close its rings, and take up to
        twice as long.
        """
        n = self.num_chips
        return 2 * (n - 1) / n * num_bytes / self.chip.all_reduce_bytes_s


def parse(name: str) -> Slice:
    """The slice that a name stands for.

    Args:
        name: E.g. "v5e:16x16", "v4:4x4x8", "v5litepod-256", "v3-32".

    Raises:
        UserError: If it is the name of none.
    """
    version, separator, size = name.lower().replace("-", ":").partition(":")
    version = _VERSIONS.get(version, version)
    if version not in CHIPS or not separator:
        raise UserError(
            "topology must be VERSION:SHAPE or an accelerator type, of "
            f"{', '.join(CHIPS)}",
            received=repr(name),
            remedy="Examples: v5e:16x16, v4:4x4x8, v5litepod-256, v3-32.",
        )
    dimensions = CHIPS[version].dimensions
    if ":" in name or "x" in size:
        numbers = size.split("x")
        if len(numbers) != dimensions or not all(
            n.isdecimal() and int(n) for n in numbers
        ):
            example = (4, 4, 8)[-dimensions:]
            raise UserError(
                f"topology of {version} must have {dimensions} dimensions",
                received=repr(name),
                remedy=f"Example: {Slice(version, example)}.",
            )
        found = Slice(version, tuple(map(int, numbers)))
    else:
        per_chip = 2 if version in _COUNTED_BY_CORES else 1
        types = {
            math.prod(shape) * per_chip: shape
            for shape in _SHAPES[dimensions]
            if math.prod(shape) <= CHIPS[version].largest
            # Of v2 and v3 there are none below a host but whole ones.
            and (shape not in ((1, 1), (2, 4)) or per_chip == 1)
        }
        if not size.isdecimal() or int(size) not in types:
            prefix = name.split("-")[0]
            raise UserError(
                f"topology must be an accelerator type of {version}, "
                "or a shape",
                received=repr(name),
                remedy=f"Types: {', '.join(f'{prefix}-{n}' for n in types)}.",
            )
        found = Slice(version, types[int(size)])
    if found.num_chips > found.chip.largest:
        raise UserError(
            f"topology of {version} must have at most {found.chip.largest} "
            "chips",
            received=f"{name}, with {found.num_chips}",
        )
    return found
