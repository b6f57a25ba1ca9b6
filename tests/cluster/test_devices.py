"""Known accelerators; detection of TPUs in PCI trees made of files."""

import os
import pathlib

import pytest

from albert_tf.cluster import devices
from albert_tf.config import DistributionConfig
from albert_tf.errors import UserError

ROOT = pathlib.Path(__file__).parents[2]
ON_TPU = DistributionConfig(strategy="tpu")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that makes PCI devices, and files of /dev.

    A device has the ids of its vendor, of its kind and, if given, of its
    subsystem.
    """
    pci, dev = tmp_path / "pci", tmp_path / "dev"
    dev.mkdir()
    monkeypatch.setattr(devices, "PCI_DEVICES", pci)
    monkeypatch.setattr(devices, "DEVICES", dev)
    monkeypatch.delenv("TPU_SKIP_MDS_QUERY", raising=False)

    def build(pci_devices, files=()):
        for ids in pci_devices:
            directory = pci / f"0000:00:0{len(list(pci.glob('*')))}.0"
            directory.mkdir(parents=True)
            for name, value in zip(
                ("vendor", "device", "subsystem_device"), ids, strict=False
            ):
                (directory / name).write_text(value + "\n")
        for name in files:
            (dev / name).touch()

    return build


# The network card and disk of a Google Cloud VM have Google's vendor id, too.
GVNIC, NVME = ("0x1ae0", "0x0042"), ("0x1ae0", "0x001f")


def test_other_pci_devices_of_google_are_not_chips(machine):
    machine([GVNIC, NVME, ("0x10de", "0x0063")])
    assert devices.find_chips() == []
    # Two cores a chip, of 45 and 123 teraflops. The last is v2 or v3.
    machine(
        [
            ("0x1ae0", "0x0063"),
            ("0x1ae0", "0x0027", "0x004e"),
            ("0x1ae0", "0x0027", "0x004f"),
            ("0x1ae0", "0x0027"),
        ]
    )
    assert devices.find_chips() == ["v5e", "v2", "v3"]


def test_without_a_pci_bus_device_files_count(machine):
    machine([], files=["accel0", "accel1", "accel_else", "null"])
    assert len(devices.find_chips()) == 2
    devices.check_tpu(ON_TPU)


def test_libtpu_queries_the_slice_only_with_a_chip(machine):
    devices.skip_metadata_query_without_chips()
    assert os.environ["TPU_SKIP_MDS_QUERY"] == "1"
    del os.environ["TPU_SKIP_MDS_QUERY"]
    machine([("0x1ae0", "0x005e")])
    devices.skip_metadata_query_without_chips()
    assert "TPU_SKIP_MDS_QUERY" not in os.environ


def test_only_a_local_tpu_is_searched_for(machine):
    machine([GVNIC])
    with pytest.raises(UserError) as raised:
        devices.check_tpu(ON_TPU)
    for told in (str(devices.PCI_DEVICES), "accel*"):
        assert told in raised.value.fault
    assert "docs/tpu.md" in raised.value.remedy
    devices.check_tpu(DistributionConfig(strategy="auto"))


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        *[(name, None) for name in ("NVIDIA L40S", "NVIDIA T400 4GB", "")],
        ("Tesla T4", 8.1),
        ("NVIDIA L4", 121),
        ("NVIDIA H100 80GB HBM3", 989),
    ],
)
def test_a_gpu_has_the_peak_of_its_data_sheet(name, teraflops):
    """A GPU that is not in the table has none; a T4 has no bfloat16."""
    card = devices.find_card(name)
    assert (card and card.peak) == (teraflops and teraflops * 1e12)


@pytest.mark.parametrize(
    ("kind", "version"),
    [("v3-32", "v3"), ("v4-8", "v4"), ("v5litepod-16", "v5e"), ("v99-8", None)],
)
def test_a_chip_is_known_by_its_accelerator_type(kind, version, monkeypatch):
    monkeypatch.setenv(devices.TYPE_VARIABLE, kind)
    chip = devices.chip_of_this_machine()
    assert chip == (version and devices.TPU_CHIPS[version])


@pytest.mark.parametrize(
    ("environment", "gpus", "argument"),
    [
        # One process a node: all GPUs, not the one of its local rank.
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, 8, []),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, 8, []),
        ({}, 8, []),
        # Several processes a node: JAX gives each one its own.
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, 8, None),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2),4"}, 8, None),
        # Unless the scheduler has done so.
        (
            {"SLURM_STEP_TASKS_PER_NODE": "8", "CUDA_VISIBLE_DEVICES": "3"},
            8,
            [],
        ),
        ({"JAX_LOCAL_DEVICE_IDS": "0,1"}, 8, None),
    ],
)
def test_a_process_takes_all_gpus_that_no_other_process_takes(
    machine, monkeypatch, environment, gpus, argument
):
    machine([], [f"nvidia{n}" for n in range(gpus)] + ["nvidiactl"])
    set_variables(monkeypatch, environment)
    assert devices.gpus_of_this_process() == argument


VARIABLES = (
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "SLURM_STEP_TASKS_PER_NODE",
    "CUDA_VISIBLE_DEVICES",
    "JAX_LOCAL_DEVICE_IDS",
    "JAX_PLATFORMS",
)


def set_variables(monkeypatch, environment):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("environment", "settings", "used", "is_right"),
    [
        ({}, {}, 8, True),
        ({}, {}, 1, False),
        ({}, {}, 0, False),
        ({"CUDA_VISIBLE_DEVICES": "0,3"}, {}, 2, True),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937, 3,-1,4"}, {}, 2, True),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, {}, 1, True),
        ({"JAX_PLATFORMS": "cpu"}, {}, 0, True),
        ({}, {"strategy": "one_device"}, 1, True),
    ],
)
def test_idle_gpus_are_a_fault_unless_they_are_left_on_purpose(
    machine, monkeypatch, environment, settings, used, is_right
):
    machine([], [f"nvidia{n}" for n in range(8)])
    set_variables(monkeypatch, environment)
    found, text = devices.describe_gpus(DistributionConfig(**settings), used)
    assert found == is_right
    assert text.startswith(f"{used} of the GPUs of this machine: ")


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles", "-1,0"])
def test_a_machine_may_hide_all_of_its_gpus(machine, monkeypatch, hidden):
    machine([], [f"nvidia{n}" for n in range(8)])
    set_variables(monkeypatch, {"CUDA_VISIBLE_DEVICES": hidden})
    assert devices.describe_gpus(DistributionConfig(), 0)[0]
