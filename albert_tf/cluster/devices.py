"""Known accelerators, TPU chips and NVIDIA GPUs, and those of this machine.

A device of tf.distribute is one core of a TPU chip. Chips are found on the PCI
bus, without TensorFlow: outside Google Cloud, the import of `tensorflow-tpu`
queries the metadata server for minutes.
"""

import dataclasses
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
    clock_hz: float  # of a core
    all_reduce_bytes_s: float  # that a chip sends, over a complete pod
    largest: int  # number of chips of a pod, or of the largest slice tested
    dimensions: int = 2  # of the network between chips
    # Arguments that make libtpu use the two cores as one.
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


# Sources:
# - Peaks: https://cloud.google.com/tpu/docs.
# - Memory of v4: the limit that errors of the compiler report.
# - Clocks: the peak divided by the operations that the matrix units of a core
#   do in a cycle. A unit does 2 * 128 * 128; a core has 1 (v2), 2 (v3), 8 (v4,
#   two cores), 4 (v5e) and 8 (v5p, two cores). For v6e and a core of TPU7x, the
#   compiler counts 4 units of 256 * 256; for v6e, Google's page says 2 units,
#   at twice this clock.
# - All-reduce: for v4, v5e and v6e, the bandwidth of a pod divided by its
#   number of chips, from the same pages; for v5p and TPU7x, half the bandwidth
#   of both directions; for v2 and v3, the sum of the four links in Jouppi et
#   al., 2020 (https://doi.org/10.1145/3360307).
_MEGACORE = {"chip_config_name": "megacore", "chips_per_host_bounds": (2, 2, 1)}
TPU_CHIPS = {
    "v2": TPUChip(2, 7.48, 22.5e12, 0.7e9, 248e9, 256),
    "v3": TPUChip(2, 15.48, 61.5e12, 0.94e9, 328e9, 1024),
    "v4": TPUChip(1, 30.75, 275e12, 1.05e9, 268e9, 2048, 3, _MEGACORE),
    "v5e": TPUChip(1, 15.75, 197e12, 1.5e9, 200e9, 256),
    "v5p": TPUChip(1, 95.74, 459e12, 1.75e9, 600e9, 2048, 3),
    "v6e": TPUChip(1, 31.25, 918e12, 1.75e9, 400e9, 256),
    "tpu7x": TPUChip(2, 94.75, 1153.5e12, 2.2e9, 600e9, 2048, 3),
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

# Dense bfloat16 peak of NVIDIA's GPUs in FLOP/s, by a word of the device name,
# from the data sheet of the fastest GPU with that name. V100 and T4 have no
# bfloat16: their peaks are for float16.
GPUS = {
    "V100": 125e12,
    "T4": 65e12,
    "A100": 312e12,
    "L4": 121e12,
    "H100": 989e12,
    "H200": 989e12,
}


def gpu_peak(name: str) -> float | None:
    """Peak in FLOP/s, where known.

    Args:
        name: E.g. `NVIDIA H100 80GB HBM3`.
    """
    words = re.split(r"[^A-Z0-9]+", name.upper())
    for word, peak in GPUS.items():
        if word in words:
            return peak
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


def find_gpus() -> list[str]:
    """NVIDIA's GPUs that this process may use.

    The entries of CUDA_VISIBLE_DEVICES, or else the device files of the driver,
    e.g. "/dev/nvidia0".
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip() != ""]
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
