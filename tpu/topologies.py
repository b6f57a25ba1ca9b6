"""TPU slices and chips, by the names of Google Cloud.

A slice is named by version and topology, e.g. `v5e:16x16`, or by accelerator
type, e.g. `v5litepod-256`. Accelerator types of v5e and v6e count chips; those
of v2 to v4 and v5p count cores.
"""

import dataclasses
import math
from typing import Any

from albert_tf.cluster.devices import TPU_ALIASES, TPU_CHIPS, TPUChip
from albert_tf.errors import UserError

# Versions whose accelerator types count cores, two per chip.
_COUNTED_BY_CORES = ("v2", "v3", "v4", "v5p")

# Versions of which up to eight chips are on one host.
_WITH_LARGE_HOSTS = ("v5e", "v6e")

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
    """A slice: chips that are connected by a dedicated network.

    Attributes:
        version: E.g. "v5e".
        shape: Chips in each dimension of the network.

    Example:
        >>> pod_part = Slice("v5e", (4, 4))
        >>> str(pod_part), pod_part.num_cores, pod_part.num_hosts
        ('v5e:4x4', 16, 4)
        >>> round(pod_part.all_reduce_seconds(47_000_000) * 1e6)  # microseconds
        441
    """

    version: str
    shape: tuple[int, ...]

    @property
    def chip(self) -> TPUChip:
        return TPU_CHIPS[self.version]

    @property
    def num_chips(self) -> int:
        return math.prod(self.shape)

    @property
    def num_cores(self) -> int:
        """Devices of tf.distribute, and so replicas of a run."""
        return self.num_chips * self.chip.cores

    @property
    def num_hosts(self) -> int:
        """Hosts of slices have four chips; v5e and v6e have hosts of eight."""
        if self.version in _WITH_LARGE_HOSTS and self.num_chips <= 8:
            return 1
        return max(self.num_chips // 4, 1)

    def __str__(self) -> str:
        return f"{self.version}:{'x'.join(map(str, self.shape))}"

    def libtpu_name(self) -> str:
        """The slice to request from libtpu: of at least the chips of a host."""
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

    Raises:
        UserError: If there is no slice of that name.

    Example:
        >>> parse("v5litepod-256")
        Slice(version='v5e', shape=(16, 16))
        >>> parse("v3:4x4") == parse("v3-32")
        True
    """
    version, separator, size = name.lower().replace("-", ":").partition(":")
    version = TPU_ALIASES.get(version, version)
    if version not in TPU_CHIPS or not separator:
        raise UserError(
            "topology must be VERSION:SHAPE or an accelerator type, with "
            f"VERSION one of {', '.join(TPU_CHIPS)}",
            received=repr(name),
            remedy="Examples: v5e:16x16, v4:4x4x8, v5litepod-256, v3-32.",
        )
    chip = TPU_CHIPS[version]
    per_chip = 2 if version in _COUNTED_BY_CORES else 1
    types: dict[str, tuple[int, ...]] = {
        str(math.prod(shape) * per_chip): shape
        for shape in _SHAPES[chip.dimensions]
        if math.prod(shape) <= chip.largest
        # v2 and v3 have no slices of 1 or 8 chips by these names.
        and (shape not in ((1, 1), (2, 4)) or per_chip == 1)
    }
    shape = types.get(size, ())
    if ":" in name or "x" in size:
        numbers = size.split("x")
        shape = tuple(int(n) if n.isdecimal() else 0 for n in numbers)
    num_chips = math.prod(shape)
    if len(shape) != chip.dimensions or not 0 < num_chips <= chip.largest:
        prefix = name.replace(":", "-").split("-")[0]
        example = Slice(version, (4, 4, 8)[-chip.dimensions :])
        raise UserError(
            f"topology of {version} must have {chip.dimensions} dimensions and "
            f"at most {chip.largest} chips, or be an accelerator type",
            received=repr(name),
            remedy=f"Example: {example}. "
            f"Types: {', '.join(f'{prefix}-{n}' for n in types)}.",
        )
    return Slice(version, shape)
