"""TPU slices and chips, by the names of Google Cloud.

A slice is named by its accelerator type, e.g. `v5litepod-256`. Types of v5e and
v6e count chips; those of v2 to v4, v5p and TPU7x count cores, two per chip.
"""

import dataclasses
import math
from typing import Any

from albert_tf.cluster.devices import TPU_ALIASES, TPU_CHIPS, TPUChip
from albert_tf.errors import UserError

# Versions whose accelerator types count cores, two per chip.
_COUNTED_BY_CORES = ("v2", "v3", "v4", "v5p", "tpu7x")

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

    Example:
        >>> pod_part = Slice("v5e", (4, 4))
        >>> str(pod_part), pod_part.num_cores
        ('v5e:4x4', 16)
        >>> round(pod_part.all_reduce_seconds(47_000_000) * 1e6)  # microseconds
        441
    """

    version: str  # e.g. "v5e"
    shape: tuple[int, ...]  # chips in each dimension of the network

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

    def __str__(self) -> str:
        return f"{self.version}:{'x'.join(map(str, self.shape))}"

    def libtpu_arguments(self) -> dict[str, Any]:
        """The request to libtpu: of at least the chips of a host."""
        shape = (2, 2) if self.shape == (1, 1) else self.shape
        wrap = {"wrap": tuple(size >= 4 for size in shape)}
        return {
            "topology_name": str(Slice(self.version, shape)),
            **self.chip.options,
            **(wrap if self.chip.options else {}),
        }

    def all_reduce_seconds(self, num_bytes: int) -> float:
        """A lower bound of the time to sum `num_bytes` over all cores.

        Each of the n chips sends and receives 2 (n - 1) / n times the bytes,
        with all links busy. Slices smaller than a pod lack some of the links
        that close its rings, and take up to twice as long.
        """
        n = self.num_chips
        return 2 * (n - 1) / n * num_bytes / self.chip.all_reduce_bytes_s


def parse(name: str) -> Slice:
    """Returns the slice of an accelerator type.

    Raises:
        UserError: If there is no slice of that name.

    Example:
        >>> parse("v5litepod-256")
        Slice(version='v5e', shape=(16, 16))
    """
    kind, _, size = name.partition("-")
    version = TPU_ALIASES.get(kind, kind)
    chip = TPU_CHIPS.get(version)
    if not chip:
        raise UserError(
            "accelerator_type must begin with a version of TPUs: "
            f"{', '.join(TPU_CHIPS)}",
            received=repr(name),
            remedy="Examples: v5litepod-256, v4-128.",
        )
    per_chip = 2 if version in _COUNTED_BY_CORES else 1
    shapes = {
        str(math.prod(shape) * per_chip): shape
        for shape in _SHAPES[chip.dimensions]
        if math.prod(shape) <= chip.largest
        # v2 and v3 have no slices of 1 or 8 chips.
        and (shape not in ((1, 1), (2, 4)) or per_chip == 1)
    }
    if size not in shapes:
        raise UserError(
            "accelerator_type must be that of a slice",
            received=repr(name),
            remedy=f"Sizes: {', '.join(f'{kind}-{n}' for n in shapes)}.",
        )
    return Slice(version, shapes[size])
