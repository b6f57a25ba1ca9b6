"""TPU slices, by the names of Google Cloud, and machines with NVIDIA's GPUs.

A slice is named by its accelerator type, e.g. `v5litepod-256`. Types of v5e and
v6e count chips; those of v2 to v4, v5p and TPU7x count cores, two per chip. A
machine is named by a card and the number of cards, e.g. `h100` and `8xh100`.
"""

import dataclasses
import math
import os
import re
from typing import Any, ClassVar

from albert_tf.cluster.devices import (
    GPU_CARDS,
    TPU_ALIASES,
    TPU_CHIPS,
    GPUCard,
    TPUChip,
)
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
        >>> str(pod_part), pod_part.num_devices
        ('v5e:4x4', 16)
    """

    platform: ClassVar[str] = "tpu"  # of JAX
    version: str  # e.g. "v5e"
    shape: tuple[int, ...]  # chips in each dimension of the network

    @property
    def chip(self) -> TPUChip:
        return TPU_CHIPS[self.version]

    @property
    def num_chips(self) -> int:
        return math.prod(self.shape)

    @property
    def num_devices(self) -> int:
        """Number of cores, and so of replicas of a run."""
        return self.num_chips * self.chip.cores

    @property
    def memory_bytes(self) -> int:
        """Memory of a core that a program may use."""
        return int(self.chip.memory_gib * 2**30)

    @property
    def bandwidth(self) -> float:
        """Bandwidth of the memory of a core, in bytes/s."""
        return self.chip.bandwidth

    def peak_flops(self, dtype: str) -> float:
        """Peak of a core; a float32 product is one pass in bfloat16."""
        return self.chip.peak_flops

    def __str__(self) -> str:
        return f"{self.version}:{'x'.join(map(str, self.shape))}"

    def describe(self) -> str:
        return f"{self}: {self.num_chips} chips, {self.num_devices} cores"

    def check(self, precision: str) -> None:
        """Any precision is right for any chip."""

    def arguments(self) -> dict[str, Any]:
        """The request to libtpu: of at least the chips of a host."""
        shape = (2, 2) if self.shape == (1, 1) else self.shape
        wrap = {"wrap": tuple(size >= 4 for size in shape)}
        return {
            "platform": self.platform,
            "topology_name": str(Slice(self.version, shape)),
            **self.chip.options,
            **(wrap if self.chip.options else {}),
        }


# JAX takes this part of the memory of a GPU; see docs/gpu.md.
_MEMORY_FRACTION = 0.75
_MEMORY_VARIABLE = "XLA_CLIENT_MEM_FRACTION"

# By compute capability: bytes of shared memory of a core, of a block, threads
# of a core, and units for float32 of a core, from the tables of NVIDIA's CUDA
# C++ Programming Guide.
_ARCHITECTURES = {
    (7, 5): (65536, 65536, 1024, 64),
    (8, 0): (167936, 166912, 2048, 64),
    (8, 9): (102400, 101376, 1536, 128),
    (9, 0): (233472, 232448, 2048, 128),
    (10, 0): (233472, 232448, 2048, 128),
    (12, 0): (102400, 101376, 1536, 128),
}


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine with one or more GPUs of a kind."""

    platform: ClassVar[str] = "cuda"
    name: str  # e.g. "h100"
    num_devices: int

    @property
    def card(self) -> GPUCard:
        return GPU_CARDS[self.name]

    @property
    def num_chips(self) -> int:
        return self.num_devices

    @property
    def memory_bytes(self) -> int:
        """Memory of a GPU that JAX takes when it starts."""
        fraction = os.getenv(_MEMORY_VARIABLE) or _MEMORY_FRACTION
        return int(float(fraction) * self.card.memory_bytes)

    @property
    def bandwidth(self) -> float:
        """Bandwidth of the memory of a GPU, in bytes/s."""
        return self.card.bandwidth

    def peak_flops(self, dtype: str) -> float:
        """Peak of a GPU for products of a dtype."""
        card = self.card
        return card.peak_float32 if dtype == "float32" else card.peak_flops

    def __str__(self) -> str:
        return f"{self.num_devices}x{self.name}"

    def check(self, precision: str) -> None:
        """Refuses a precision that the matrix units of a card lack."""
        if precision == "mixed_bfloat16" and not self.card.has_bfloat16:
            raise UserError(
                f"precision must be float32: a {self.card.words} has no "
                "bfloat16 products",
                received=precision,
                remedy="Use --precision=float32.",
            )

    def describe(self) -> str:
        memory = self.card.memory_bytes / 2**30
        return (
            f"{self.num_devices} x {self.card.words}, {memory:.2f} GiB each, "
            f"of which JAX takes {self.memory_bytes / 2**30:.2f} "
            f"({_MEMORY_VARIABLE}=0.9 takes 90%)"
        )

    def arguments(self) -> dict[str, Any]:
        """The request to XLA, with its description of the GPU."""
        card = self.card
        in_core, in_block, threads, units = _ARCHITECTURES[card.capability]
        major, minor = card.capability
        # Code for Hopper and Blackwell, as for a device that is found here.
        features = "ACCELERATED_FEATURES" if major in (9, 10) else "NONE"
        description = f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: {in_block}
  shared_memory_per_core: {in_core} threads_per_core_limit: {threads}
  core_count: {card.num_cores} fpus_per_core: {units}
  clock_rate_ghz: {card.clock_ghz} l2_cache_size: {card.l2_bytes}
  device_memory_size: {card.memory_bytes} memory_bandwidth: {card.bandwidth:.0f}
  cuda_compute_capability {{
    major: {major} minor: {minor} feature_extension: {features}
  }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 12 }} runtime_version {{ major: 13 }}
device_description_str: "NVIDIA {card.words}"
"""
        return {
            "platform": self.platform,
            "target_config": description,
            "topology": f"1x1x{self.num_devices}",
        }


def parse(name: str) -> Slice | Machine:
    """Returns the slice of an accelerator type, or the machine.

    Raises:
        UserError: If there is none of that name.

    Example:
        >>> parse("v5litepod-256")
        Slice(version='v5e', shape=(16, 16))
        >>> parse("8xh100")
        Machine(name='h100', num_devices=8)
    """
    # The compiler for CUDA 13 does not know the cards before these.
    cards = [n for n, c in GPU_CARDS.items() if c.capability in _ARCHITECTURES]
    if found := re.fullmatch(rf"(?:([1-9]\d?)x)?({'|'.join(cards)})", name):
        return Machine(found[2], int(found[1] or 1))
    kind, _, size = name.partition("-")
    version = TPU_ALIASES.get(kind, kind)
    chip = TPU_CHIPS.get(version)
    if not chip:
        raise UserError(
            "accelerator_type must be a slice of TPUs or a kind of GPUs",
            received=repr(name),
            remedy=f"GPUs: {', '.join(cards)}; 8xh100 for eight. TPUs begin "
            f"with {', '.join(TPU_CHIPS)}, e.g. v5litepod-256, v4-128.",
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
