"""The table of known accelerators: TPU chips and NVIDIA GPUs.

tf.distribute takes a core of a TPU chip for a device. This module imports no
TensorFlow, since the PCI bus is searched before TensorFlow is imported.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class TPUChip:
    """A version of the TPU. tf.distribute sees each core as a device.

    Attributes:
        pci_id: Device id on the PCI bus, by jax/_src/hardware_utils.py.
        cores: Cores of a chip. The two cores of v4 and v5p act as one
            (megacore); whether TensorFlow uses v4 so is not confirmed.
        memory_bytes: HBM of a core that the compiler lets programs use.
        peak_flops: Dense peak of a core in bfloat16, in FLOP/s.
        clock_hz: Of a core.
        all_reduce_bytes_s: Bytes per second that a chip sends in an
            all-reduce over a complete pod.
        largest: Chips of the largest slice: a pod, or the largest tested.
        dimensions: Of the network between chips.
        options: Arguments for libtpu that join the cores.

    Example:
        >>> chip = TPU_CHIPS["v5e"]
        >>> chip.cores, chip.peak_flops / 1e12, chip.memory_bytes / 2**30
        (1, 197.0, 15.75)
    """

    pci_id: str
    cores: int
    memory_bytes: int
    peak_flops: float
    clock_hz: float
    all_reduce_bytes_s: float
    largest: int
    dimensions: int = 2
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


# Peaks are from https://cloud.google.com/tpu/docs; memory of v4 is what the
# compiler's errors name. Clocks: peak over what the matrix units of a core do
# in a cycle, 2 * 128 * 128 a unit, of 1, 2, 8 (two cores), 4 and 8 (two cores)
# units, and of v6e 4 units of 256 * 256, as the compiler counts cycles;
# Google's page says 2, at twice this clock. All-reduce: the bandwidth of a pod
# over its chips on the same pages, for v4, v5e and v6e; half the bandwidth in
# both directions for v5p; the sum of the four links in Jouppi et al., 2020
# (https://doi.org/10.1145/3360307), for v2 and v3.
TPU_CHIPS = {
    "v2": TPUChip("0x0027", 2, int(7.48 * 2**30), 22.5e12, 0.7e9, 248e9, 256),
    "v3": TPUChip(
        "0x0027", 2, int(15.48 * 2**30), 61.5e12, 0.94e9, 328e9, 1024
    ),
    "v4": TPUChip(
        "0x005e",
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
    "v5e": TPUChip("0x0063", 1, int(15.75 * 2**30), 197e12, 1.5e9, 200e9, 256),
    "v5p": TPUChip(
        "0x0062", 1, int(95.74 * 2**30), 459e12, 1.75e9, 600e9, 2048, 3
    ),
    "v6e": TPUChip("0x006f", 1, int(31.25 * 2**30), 918e12, 1.75e9, 400e9, 256),
}
# Chips that are recognised on the PCI bus, and of which no more is known here.
_OTHER_PCI_IDS = {"0x0056": "of no public name", "0x0076": "TPU7x"}

# Other names of versions, in accelerator types.
TPU_ALIASES = {"v5litepod": "v5e", "v5lite": "v5e"}

# Dense bfloat16 peak of NVIDIA's GPUs in FLOP/s, by a word of their names, from
# the data sheets of the fastest GPU of that name; V100 and T4 have tensor cores
# for float16 alone.
GPU_PEAK_FLOPS = {
    "V100": 125e12,
    "T4": 65e12,
    "A100": 312e12,
    "L4": 121e12,
    "H100": 989e12,
    "H200": 989e12,
}


def tpu_by_pci_id(pci_id: str) -> str | None:
    """The versions of TPU with this device id; None if there are none.

    Example:
        >>> tpu_by_pci_id("0x0063"), tpu_by_pci_id("0x0027")
        ('v5e', 'v2 or v3')
    """
    named = [v for v, chip in TPU_CHIPS.items() if chip.pci_id == pci_id]
    return " or ".join(named) or _OTHER_PCI_IDS.get(pci_id)


def tpu_by_accelerator_type(accelerator_type: str) -> TPUChip | None:
    """The chip of a type such as `v5litepod-16`; None if it is not known.

    None for v4, too, since it is not confirmed whether TensorFlow takes its
    chip or its core for a device.
    """
    version = accelerator_type.split("-")[0]
    version = TPU_ALIASES.get(version, version)
    return None if version == "v4" else TPU_CHIPS.get(version)


def gpu_peak_flops(name: str) -> float | None:
    """Peak of a GPU by its name, e.g. `NVIDIA H100 80GB HBM3`, in FLOP/s."""
    words = re.split(r"[^A-Z0-9]+", name.upper())
    return next(
        (peak for word, peak in GPU_PEAK_FLOPS.items() if word in words), None
    )
