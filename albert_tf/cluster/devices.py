"""Known accelerators, TPU chips and NVIDIA GPUs, and those of this machine.

A device of tf.distribute is one core of a TPU chip. Chips are found on the PCI
bus, without TensorFlow: outside Google Cloud, the import of `tensorflow-tpu`
queries the metadata server for minutes.
"""

import dataclasses
import itertools
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from albert_tf.config import DistributionConfig
from albert_tf.errors import UserError

PCI_DEVICES = pathlib.Path("/sys/bus/pci/devices")
DEVICES = pathlib.Path("/dev")

# Vendor id on the PCI bus, from jax/_src/hardware_utils.py.
GOOGLE = "0x1ae0"

# Set by Google Kubernetes Engine, not on TPU VMs.
TYPE_VARIABLE = "TPU_ACCELERATOR_TYPE"


@dataclasses.dataclass(frozen=True)
class TPUChip:
    """A version of the TPU."""

    cores: int  # the two cores of v4 and v5p count as one (megacore)
    memory_gib: float  # HBM of a core, less what the compiler reserves
    peak_flops: float  # of a core in bfloat16, dense, in FLOP/s
    bandwidth: float  # of the memory of a core, in bytes/s
    largest: int  # number of chips of a pod, or of the largest slice tested
    dimensions: int = 2  # of the network between chips
    # Arguments that make libtpu use the two cores as one.
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


# Sources:
# - Peaks and bandwidths: https://cloud.google.com/tpu/docs.
# - Memory: the limit that errors of the compiler report.
_MEGACORE = {"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1)}
TPU_CHIPS = {
    "v2": TPUChip(2, 7.48, 22.5e12, 350e9, 256),
    "v3": TPUChip(2, 15.48, 61.5e12, 450e9, 1024),
    "v4": TPUChip(1, 30.75, 275e12, 1200e9, 2048, 3, _MEGACORE),
    "v5e": TPUChip(1, 15.75, 197e12, 819e9, 256),
    "v5p": TPUChip(1, 95.74, 459e12, 2765e9, 2048, 3),
    "v6e": TPUChip(1, 31.25, 918e12, 1638e9, 256),
    "tpu7x": TPUChip(2, 94.75, 1153.5e12, 3690e9, 2048, 3),
}
# Device ids on the PCI bus, from jax/_src/hardware_utils.py. v2 and v3 differ
# by the id of the subsystem only: from tpu_info/device.py of
# AI-Hypercomputer/cloud-accelerator-diagnostics.
PCI_IDS = {
    "0x0027 0x004e": "v2",
    "0x0027 0x004f": "v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "tpu7x",
}

# Names of versions in accelerator types, where they differ from the table.
TPU_ALIASES = {"v5litepod": "v5e", "v5lite": "v5e"}


@dataclasses.dataclass(frozen=True)
class GPUCard:
    """A model of NVIDIA's GPUs."""

    words: str  # of the device name, e.g. A100 of NVIDIA A100-SXM4-40GB
    memory_bytes: int
    bandwidth: float  # of its memory, in bytes/s
    # Dense, in FLOP/s, by the dtype of the operands. V100 and T4 have no
    # bfloat16; the others multiply float32 as TensorFloat-32.
    peak_flops: Mapping[str, float]
    capability: tuple[int, int]  # CUDA's compute capability
    num_cores: int  # streaming multiprocessors
    l2_bytes: int
    clock_ghz: float  # the highest

    @property
    def peak(self) -> float:
        """Of the fastest dtype, in FLOP/s."""
        return max(self.peak_flops.values())


# Sources:
# - Peaks: NVIDIA's data sheets of the fastest version of a card. The
#   peaks of RTX 4090 and RTX PRO 6000 are for accumulation in float32, from the
#   appendices of the white papers of Ada (2022) and RTX Blackwell (2025).
# - Others: XLA's target descriptions, xla/backends/gpu/target_config/specs; for
#   T4, L4 and RTX 4090, what CUDA's deviceQuery prints.
# - Memory of H200 and RTX PRO 6000: 139.80 and 94.97 GiB in errors of PyTorch,
#   since XLA has their nominal sizes.
_MIB = 2**20
# fmt: off
GPU_CARDS = {
    "v100": GPUCard(
        "V100", 16935682048, 898e9,
        {"float32": 15.7e12},
        (7, 0), 80, 6 * _MIB, 1.53),
    "t4": GPUCard(
        "T4", 15095 * _MIB, 320e9,
        {"float32": 8.1e12},
        (7, 5), 40, 4 * _MIB, 1.59),
    "a100-40g": GPUCard(
        "A100", 42331013120, 1555e9,
        {"bfloat16": 312e12, "float32": 156e12},
        (8, 0), 108, 40 * _MIB, 1.41),
    "a100-80g": GPUCard(
        "A100", 85100068864, 2039e9,
        {"bfloat16": 312e12, "float32": 156e12},
        (8, 0), 108, 40 * _MIB, 1.41),
    "l4": GPUCard(
        "L4", 22574 * _MIB, 300e9,
        {"bfloat16": 121e12, "float32": 60e12},
        (8, 9), 58, 48 * _MIB, 2.04),
    "rtx4090": GPUCard(
        "RTX 4090", 25393692672, 1008e9,
        {"bfloat16": 165e12, "float32": 82.6e12},
        (8, 9), 128, 72 * _MIB, 2.52),
    "h100": GPUCard(
        "H100", 84942979072, 3352e9,
        {"bfloat16": 989e12, "float32": 494e12},
        (9, 0), 132, 50 * _MIB, 1.98),
    "h200": GPUCard(
        "H200", 143155 * _MIB, 4800e9,
        {"bfloat16": 989e12, "float32": 494e12},
        (9, 0), 132, 50 * _MIB, 1.98),
    "b200": GPUCard(
        "B200", 191514411008, 7672e9,
        {"bfloat16": 2250e12, "float32": 1125e12},
        (10, 0), 148, 132644864, 1.965),
    "rtx6000pro": GPUCard(
        "RTX PRO 6000", 97249 * _MIB, 1792e9,
        {"bfloat16": 503.8e12, "float32": 251.9e12},
        (12, 0), 188, 128 * _MIB, 2.6),
}
# fmt: on


def find_card(name: str) -> GPUCard | None:
    """The card with a name such as `NVIDIA H100 80GB HBM3`, if it is known."""
    for card in GPU_CARDS.values():
        if re.search(rf"\b{card.words}\b", name):
            return card
    return None


def find_chips() -> list[str]:
    """The TPU chips of this machine, one entry per chip, e.g. "v5e".

    If the PCI bus shows none, as in some containers, there is an entry
    "unknown" for each device file of Google's driver.
    """
    chips = []
    for directory in sorted(PCI_DEVICES.glob("*")):
        vendor, device, subsystem = (
            path.read_text().strip() if path.exists() else ""
            for name in ("vendor", "device", "subsystem_device")
            for path in [directory / name]
        )
        ids = device, f"{device} {subsystem}"
        if vendor == GOOGLE:
            chips += [PCI_IDS[name] for name in ids if name in PCI_IDS]
    return chips or ["unknown" for _ in DEVICES.glob("accel[0-9]*")]


_GPU_NAME = re.compile(r"\d+$|GPU-|MIG-")


def find_gpus() -> list[str]:
    """NVIDIA's GPUs that this process may use.

    The entries of CUDA_VISIBLE_DEVICES, or else the device files of the driver,
    e.g. "/dev/nvidia0".
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # As CUDA does: up to the first entry that is neither a number nor a
        # UUID. So -1, or NoDevFiles of Slurm, hides all.
        names = [name.strip() for name in visible.split(",")]
        return list(itertools.takewhile(_GPU_NAME.match, names))
    return sorted(map(str, DEVICES.glob("nvidia[0-9]*")))


def gpus_of_this_process() -> list[int] | None:
    """The argument `local_device_ids` of `jax.distributed.initialize`.

    Under Slurm and Open MPI, JAX by default takes one GPU a process, which is
    right only if each GPU of the node has a process.

    Returns:
        [] for all GPUs that this process may use; None leaves the choice to
        JAX, if processes share the GPUs of this node.
    """
    if os.environ.get("JAX_LOCAL_DEVICE_IDS"):
        return None
    shares = _num_processes_of_node() > 1 and len(find_gpus()) > 1
    return None if shares else []


def _num_processes_of_node() -> int:
    """Number of processes that Open MPI or Slurm started on this machine."""
    number = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")
    # E.g. 4(x2),3: four each on two nodes, three on another.
    number = number or os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    found = re.match(r"\d+", number)
    return int(found[0]) if found else 1


def describe_gpus(config: DistributionConfig, used: int) -> tuple[bool, str]:
    """Whether a run uses the GPUs of this machine, and what it has.

    Args:
        used: Number of GPUs that this process uses.
    """
    gpus = find_gpus()
    if not gpus:
        return True, "no NVIDIA GPU on this machine"
    chosen = (
        config.strategy == "one_device"
        or config.num_logical_cpus > 1
        or bool(os.environ.get("JAX_PLATFORMS"))
        or bool(os.environ.get("JAX_LOCAL_DEVICE_IDS"))
    )
    processes = _num_processes_of_node()
    text = f"{used} of the GPUs of this machine: {', '.join(gpus)}"
    if processes > 1:
        text += f", for {processes} processes"
    return chosen or used * processes >= len(gpus), text


def chip_of_this_machine() -> TPUChip | None:
    """The chip of this machine; None if there is none, or it is unknown."""
    kind = os.environ.get(TYPE_VARIABLE) or next(iter(find_chips()), "")
    version = kind.split("-")[0]  # of v5litepod-16
    return TPU_CHIPS.get(TPU_ALIASES.get(version, version))


def skip_metadata_query_without_chips() -> None:
    """Keeps libtpu from querying the metadata server if there is no chip.

    JAX does the same. Call it before TensorFlow is imported.
    """
    if not find_chips():
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")


def check_tpu(config: DistributionConfig) -> None:
    """Refuses strategy=tpu without a chip.

    Raises:
        UserError: If there is no chip; the error names the paths searched.
    """
    if config.strategy != "tpu" or find_chips():
        return
    raise UserError(
        "strategy=tpu needs a TPU on this machine",
        received=f"no Google TPU chip in {PCI_DEVICES}, no {DEVICES}/accel*",
        remedy="Run on a TPU VM with tensorflow-tpu installed (pip install "
        "'albert-tf[tpu]', see docs/tpu.md), or use --strategy=auto.",
    )
