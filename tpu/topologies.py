"""TPU slices, by the names of Google Cloud, and machines with NVIDIA's GPUs.

A slice is named by its accelerator type, e.g. `v5litepod-256`. Types of v5e and
v6e count chips; those of v2 to v4, v5p and TPU7x count cores, two per chip. A
machine is named by a card and the number of cards, e.g. `h100` and `8xh100`.
"""

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from typing import Any

from albert_tf.cluster.devices import (
    GPU_CARDS,
    TPU_ALIASES,
    TPU_CHIPS,
    GPUCard,
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
class Devices:
    """A TPU slice, or a machine with one or more GPUs of a kind.

    A device is a replica of a run: a core of a TPU chip, or a GPU.
    """

    name: str  # e.g. "v5e:16x16" or "8xh100"
    num_chips: int  # that are paid for
    num_devices: int
    description: str  # for users
    memory_bytes: int  # of a device, that a program may use
    bandwidth: float  # of the memory of a device, in bytes/s
    # Of a device, in FLOP/s, by the dtype of the operands of a product. A
    # dtype that it does not multiply is missing.
    peak_flops: Mapping[str, float]
    request: Mapping[str, Any]  # arguments of JAX's `get_topology_desc`


def _slice(version: str, shape: tuple[int, ...]) -> Devices:
    """Chips that are connected by a dedicated network.

    Args:
        version: E.g. "v5e".
        shape: Number of chips in each dimension of the network.
    """
    chip = TPU_CHIPS[version]
    num_chips = math.prod(shape)
    num_cores = num_chips * chip.cores
    name = f"{version}:{_join(shape)}"
    # libtpu compiles for at least the chips of a host.
    asked = (2, 2) if shape == (1, 1) else shape
    request = {
        "platform": "tpu",
        "topology_name": f"{version}:{_join(asked)}",
        **chip.options,
    }
    if chip.options:
        request["wrap"] = tuple(size >= 4 for size in asked)
    return Devices(
        name=name,
        num_chips=num_chips,
        num_devices=num_cores,
        description=f"{name}: {num_chips} chips, {num_cores} cores",
        memory_bytes=int(chip.memory_gib * 2**30),
        bandwidth=chip.bandwidth,
        # A product in float32 is one pass in bfloat16.
        peak_flops={"bfloat16": chip.peak_flops, "float32": chip.peak_flops},
        request=request,
    )


def _join(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


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


def _memory_fraction() -> float:
    """The part of the memory of a GPU that JAX takes; see docs/gpu.md.

    Raises:
        UserError: If the environment has another value than a part.
    """
    text = os.getenv(_MEMORY_VARIABLE) or "0.75"
    try:
        fraction = float(text)
    except ValueError:
        fraction = 0.0
    # JAX takes more than 1 as managed memory, which is slow.
    if not 0 < fraction <= 1:
        raise UserError(
            f"{_MEMORY_VARIABLE} must be above 0 and at most 1",
            received=repr(text),
            remedy="Unset it for the part that JAX takes by default, 0.75.",
        )
    return fraction


def _machine(name: str, number: int) -> Devices:
    """GPUs of the kind `name`, e.g. "h100"."""
    card = GPU_CARDS[name]
    taken = int(_memory_fraction() * card.memory_bytes)
    return Devices(
        name=f"{number}x{name}",
        num_chips=number,
        num_devices=number,
        description=f"{number} x {card.words}, "
        f"{card.memory_bytes / 2**30:.2f} GiB each, "
        f"of which JAX takes {taken / 2**30:.2f} "
        f"({_MEMORY_VARIABLE}=0.9 takes 90%)",
        memory_bytes=taken,
        bandwidth=card.bandwidth,
        peak_flops=card.peak_flops,
        request={
            "platform": "cuda",
            "target_config": _describe_to_xla(card),
            "topology": f"1x1x{number}",
        },
    )


def _describe_to_xla(card: GPUCard) -> str:
    """XLA's description of a GPU, `GpuTargetConfigProto` as text."""
    in_core, in_block, threads, units = _ARCHITECTURES[card.capability]
    major, minor = card.capability
    # Code for Hopper and Blackwell, as for a device that is found here.
    features = "ACCELERATED_FEATURES" if major in (9, 10) else "NONE"
    return f"""
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


def parse(name: str) -> Devices:
    """Returns the slice of an accelerator type, or the machine.

    Raises:
        UserError: If there is none of that name, or if the environment has a
            wrong part of the memory of a GPU.

    Example:
        >>> parse("v5litepod-256").name, parse("8xh100").num_devices
        ('v5e:16x16', 8)
    """
    # The compiler for CUDA 13 does not know the cards before these.
    cards = [n for n, c in GPU_CARDS.items() if c.capability in _ARCHITECTURES]
    if found := re.fullmatch(rf"(?:([1-9]\d?)x)?({'|'.join(cards)})", name):
        return _machine(found[2], int(found[1] or 1))
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
    return _slice(version, shapes[size])
