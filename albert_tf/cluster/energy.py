"""The energy of this machine's CPUs (RAPL, for root) and GPUs (NVML)."""

import contextlib
import ctypes
import pathlib

POWERCAP = pathlib.Path("/sys/class/powercap")
NVML = "libnvidia-ml.so.1"


class Meter:
    """Adds up the joules of a run's devices on this machine, and of its CPUs.

    Attributes:
        measures: "CPUs", "GPUs", "CPUs, GPUs", or "" without counters: on TPUs,
            and if the machine has other GPUs than those of the run.
    """

    def __init__(self, kind: str, num_devices: int) -> None:
        self._num_gpus = {"GPU": num_devices, "CPU": 0}.get(kind)
        self._last = self._read()
        self._joules = 0.0
        self.measures = ", ".join(sorted({name for name, _ in self._last}))

    def joules(self) -> float:
        """Energy since the start. Counters of RAPL overflow within hours."""
        for name, (now, size) in self._read().items():
            last, _ = self._last.get(name, (now, size))
            self._joules += (now - last) % size
            self._last[name] = now, size
        return self._joules

    def _read(self) -> dict[tuple[str, int], tuple[float, float]]:
        """The joules of each counter, and those at which it overflows."""
        found: dict[tuple[str, int], tuple[float, float]] = {}
        gpus = _read_gpus() if self._num_gpus else []
        if len(gpus) != self._num_gpus:
            return {}
        for number, joules in enumerate(gpus):
            found["GPUs", number] = joules, 2.0**64
        for number, zone in enumerate(sorted(POWERCAP.glob("intel-rapl:*"))):
            with contextlib.suppress(OSError):
                if (zone / "name").read_text().startswith(("package", "dram")):
                    now, size = (
                        int((zone / name).read_text()) / 1e6
                        for name in ("energy_uj", "max_energy_range_uj")
                    )
                    found["CPUs", number] = now, size
        return found


def _read_gpus() -> list[float]:
    """The joules of each GPU since its driver was loaded."""
    found: list[float] = []
    with contextlib.suppress(OSError):
        nvml, number = ctypes.CDLL(NVML), ctypes.c_uint()
        gpu, value = ctypes.c_void_p(), ctypes.c_ulonglong()
        nvml.nvmlInit_v2()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(number))
        read = nvml.nvmlDeviceGetTotalEnergyConsumption
        for index in range(number.value):
            nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(gpu))
            if read(gpu, ctypes.byref(value)) == 0:  # not before Volta
                found.append(value.value / 1e3)
    return found
