"""Finds the TPU chips of this machine without TensorFlow.

The import of `tensorflow-tpu` loads libtpu, which sends eight queries about the
slice to the metadata server of the machine, with 30 attempts each. Outside
Google Cloud the import takes minutes and finds no TPU. The PCI bus shows at
once whether there is a chip.
"""

import os
import pathlib

from albert_tf.cluster import versions
from albert_tf.cluster.devices import (
    TPU_CHIPS,
    TPUChip,
    tpu_by_accelerator_type,
    tpu_by_pci_id,
)
from albert_tf.config import DistributionConfig
from albert_tf.errors import UserError

PCI_DEVICES = pathlib.Path("/sys/bus/pci/devices")
DEVICES = pathlib.Path("/dev")

# Vendor id on the PCI bus, from jax/_src/hardware_utils.py.
GOOGLE = "0x1ae0"

# Set by Google Kubernetes Engine, not on TPU VMs.
TYPE_VARIABLE = "TPU_ACCELERATOR_TYPE"


def find_chips() -> list[str]:
    """The TPU chips of this machine, one entry per chip, e.g. "v5e".

    If the PCI bus shows none, as in some containers, there is an entry
    "unknown" for each device file of Google's driver.
    """
    chips = []
    for directory in sorted(PCI_DEVICES.glob("*")):
        if _read(directory / "vendor") != GOOGLE:
            continue
        chip = tpu_by_pci_id(
            _read(directory / "device"), _read(directory / "subsystem_device")
        )
        if chip:
            chips.append(chip)
    return chips or ["unknown" for _ in DEVICES.glob("accel[0-9]*")]


def chip_of_this_machine(num_devices: int) -> TPUChip | None:
    """The chip of this machine; None if there is none, or it is unknown.

    Args:
        num_devices: Number of devices that TensorFlow has on this machine, or
            on each host of a slice. On v4, it decides whether a device is a
            chip or one of its two cores.
    """
    chips = find_chips()
    name = os.environ.get(TYPE_VARIABLE) or (chips[0] if chips else "")
    chip = tpu_by_accelerator_type(name)
    if chip is not TPU_CHIPS["v4"]:
        return chip
    return chip.with_devices(num_devices / len(chips)) if chips else None


def skip_metadata_query_without_chips() -> None:
    """Keeps libtpu from querying the metadata server if there is no chip.

    JAX does the same. Call it before TensorFlow is imported.
    """
    if not find_chips():
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")


def check(config: DistributionConfig) -> None:
    """Refuses `--strategy=tpu` on a machine without a TPU.

    Raises:
        UserError: If there is no chip; the error names the paths searched.
    """
    local = config.strategy == "tpu" and config.tpu_name == "local"
    if not local or find_chips():
        return
    installed = versions.installed_tensorflows()
    raise UserError(
        "strategy=tpu needs a TPU on this machine",
        received=f"no Google TPU chip in {PCI_DEVICES}, and no "
        f"{DEVICES}/accel*; installed: "
        f"{' and '.join(f'{n} {v}' for n, v in installed.items()) or 'none'}",
        remedy="Run on a TPU VM with tensorflow-tpu installed "
        "(pip install -e '.[tpu]', see docs/tpu.md), or give the servers of "
        "a slice as --tpu_name=grpc://HOST:8470,..., or use --strategy=auto.",
    )


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
