"""TPU slices and chips, by the names of Google Cloud.

A slice is named by version and topology, e.g. `v5e:16x16`, or by accelerator
type, e.g. `v5litepod-256`. Accelerator types of v5e and v6e count chips; those
of v2 to v4 and v5p count cores.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from albert_tf.errors import UserError
from albert_tf.training.step_cost import TPU_MEMORY, TPU_PEAKS


@dataclasses.dataclass(frozen=True)
class Chip:
    """A version of the TPU. tf.distribute sees each core as a device.

    Attributes:
        cores: Cores of a chip. The two cores of v4 and v5p act as one
            (megacore); whether TensorFlow uses v4 so is not confirmed.
        memory_bytes: HBM of a core that the compiler lets programs use.
        peak_flops: Of a core, in bfloat16.
        clock_hz: Of a core.
        all_reduce_bytes_s: Bytes per second that a chip sends in an
            all-reduce over a complete pod.
        largest: Chips of the largest slice: a pod, or the largest tested.
        dimensions: Of the network between chips.
        options: Arguments for libtpu that join the cores.
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
# Other names of versions.
_VERSIONS = {"v5litepod": "v5e", "v5lite": "v5e"}
# Versions whose accelerator types count cores, two per chip.
_COUNTED_BY_CORES = ("v2", "v3", "v4", "v5p")

# Shapes of the accelerator types, by number of dimensions.
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
    """A slice: chips that are connected by their own network.

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
        """Devices of tf.distribute, and so replicas of a run."""
        return self.num_chips * self.chip.cores

    def __str__(self) -> str:
        return f"{self.version}:{'x'.join(map(str, self.shape))}"

    def libtpu_name(self) -> str:
        """The slice to request from libtpu; this slice is part of it.

        The smallest slice that libtpu knows has the four chips of a host.
        """
        shape = (2, 2) if self.shape == (1, 1) else self.shape
        return str(Slice(self.version, shape))

    def libtpu_options(self) -> dict[str, Any]:
        """Further arguments of the request to libtpu."""
        options = dict(self.chip.options)
        if options:
            options["wrap"] = tuple(size >= 4 for size in self.shape)
        return options

    def all_reduce_seconds(self, num_bytes: int) -> float:
        """A lower bound of the time to sum `num_bytes` over all cores.

        Each of the n chips sends and receives 2 (n - 1) / n times the bytes,
        with all links busy. Slices smaller than a pod lack some of the links
        that close its rings, and take up to twice as long.
        """
        n = self.num_chips
        return 2 * (n - 1) / n * num_bytes / self.chip.all_reduce_bytes_s


def parse(name: str) -> Slice:
    """Returns the slice of a name.

    Args:
        name: E.g. "v5e:16x16", "v4:4x4x8", "v5litepod-256", "v3-32".

    Raises:
        UserError: If there is no slice of that name.

    Example:
        >>> from tpu import topologies
        >>> topologies.parse("v5litepod-256")
        Slice(version='v5e', shape=(16, 16))
        >>> topologies.parse("v3-32").num_cores
        32
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
            # v2 and v3 have no slices of 1 or 8 chips by these names.
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
