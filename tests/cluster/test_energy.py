"""Energy from counters: made-up files of RAPL, and a made-up NVML."""

import ctypes

import pytest

from albert_tf.cluster import energy
from albert_tf.cluster.energy import Meter


@pytest.fixture
def zones(tmp_path, monkeypatch):
    """A package with its cores, and memory; counters end at 999 µJ."""
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    names = {"0": "package-0", "0:0": "core", "0:1": "dram"}
    for zone, name in names.items():
        folder = tmp_path / f"intel-rapl:{zone}"
        folder.mkdir()
        (folder / "name").write_text(f"{name}\n")
        (folder / "max_energy_range_uj").write_text("999\n")
        (folder / "energy_uj").write_text("900\n")
    return lambda zone, value: (
        tmp_path / f"intel-rapl:{zone}" / "energy_uj"
    ).write_text(f"{value}\n")


class Nvml:
    """Two GPUs, which count millijoules from 1000 on."""

    def __init__(self):
        self.millijoules = 1000

    def nvmlInit_v2(self):  # noqa: N802
        return 0

    def nvmlDeviceGetCount_v2(self, number):  # noqa: N802
        number._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, gpu):  # noqa: N802
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu, value):  # noqa: N802
        value._obj.value = self.millijoules
        return 0


def test_counters_of_cpus_start_again_at_0(zones):
    """The package includes its cores."""
    meter = Meter("CPU", 1)
    assert meter.measures == "CPUs"
    for package in (950, 200):
        zones("0", package)
        zones("0:0", package)
        meter.joules()
    zones("0:1", 901)
    assert meter.joules() == pytest.approx((50 + 249 + 1) * 1e-6)


def test_gpus_count_if_the_run_uses_all_of_them(zones, monkeypatch):
    """Of other GPUs, the run does not know whose energy it would be."""
    nvml = Nvml()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    meter = Meter("GPU", 2)
    assert meter.measures == "CPUs, GPUs"
    nvml.millijoules = 4000
    zones("0", 902)
    assert meter.joules() == pytest.approx(6 + 2e-6)
    assert Meter("GPU", 1).measures == Meter("TPU", 2).measures == ""


def test_without_counters_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(energy, "POWERCAP", tmp_path)
    monkeypatch.setattr(energy, "NVML", "libno-such-library.so")
    assert Meter("CPU", 1).measures == Meter("GPU", 1).measures == ""
    assert Meter("GPU", 0).joules() == 0
