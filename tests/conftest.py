"""Set-up of all tests: TensorFlow's devices, memory, extras, records."""

import gc
import importlib.machinery
import importlib.util
import os
import pathlib
import subprocess
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest

from albert_tf.cluster import versions
from tests.helpers import memory

# The memory that `-n auto` reserves for a worker of pytest-xdist.
WORKER_MEMORY = 3 * memory.GIB


class SplitCpu(importlib.machinery.PathFinder):
    """Gives TensorFlow four CPU devices as soon as a test imports it.

    A test that does not import TensorFlow does not pay for it. TensorFlow
    can split the CPU only before its first use.
    """

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(cls)
        spec = super().find_spec(fullname, path, target)
        if spec is not None:
            execute = spec.loader.exec_module

            def execute_and_split(module):
                with versions.quick_import():
                    execute(module)
                split_cpu(module)

            spec.loader.exec_module = execute_and_split
        return spec


def split_cpu(tf):
    """Splits the CPU into four logical devices."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 4,
    )
    # Initializes the devices, so that no test can split them differently.
    assert len(tf.config.list_logical_devices("CPU")) == 4


assert "tensorflow" not in sys.modules
sys.meta_path.insert(0, SplitCpu)


def pytest_xdist_auto_num_workers(config):
    """One worker for each processor that has enough memory.

    One more for slow tests: many of them wait for a process.
    """
    num_waiting = config.option.markexpr.startswith("slow")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if hasattr(os, "sched_getaffinity"):
        processors = len(os.sched_getaffinity(0))
    else:  # macOS
        processors = os.cpu_count()
    return max(1, min(processors + num_waiting, memory // WORKER_MEMORY))


def pytest_collection_finish():
    """Spares the garbage collector what has been imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _free_programs():
    yield
    memory.free_programs()


# The most memory of each worker of pytest-xdist, or of the only process.
PEAKS = pytest.StashKey[dict[str, int]]()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """Fails a session of which a process needed too much memory."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:  # a worker
        output["peak"] = memory.peak()
        return
    peaks = session.config.stash.setdefault(PEAKS, {})
    if not peaks:
        peaks["main"] = memory.peak()
    if max(peaks.values()) > memory.LIMIT:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Notes the memory of a worker that has ended."""
    peaks = node.config.stash.setdefault(PEAKS, {})
    peaks[node.gateway.id] = getattr(node, "workeroutput", {}).get("peak", 0)


def pytest_terminal_summary(terminalreporter, config):
    peaks = config.stash.get(PEAKS, {})
    listed = ", ".join(
        f"{name} {peak / memory.GIB:.1f}" for name, peak in peaks.items()
    )
    terminalreporter.write_line(f"most memory of a process, GiB: {listed}")
    if max(peaks.values(), default=0) > memory.LIMIT:
        limit = memory.LIMIT / memory.GIB
        terminalreporter.write_line(
            f"FAILED: no process of a test run may need more than {limit} GiB",
            red=True,
        )


@pytest.fixture
def mirrored_two():
    """A MirroredStrategy of two replicas."""
    import tensorflow as tf

    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


# Markers of tests that need an extra, and the packages that come with it.
EXTRAS = {
    "interop": ("safetensors", "torch", "transformers"),
    "beam": ("apache_beam",),
    "tfds": ("tensorflow_datasets",),
    "tpu_compile": ("jax", "libtpu"),
}


def pytest_collection_modifyitems(items):
    """Skips tests whose extra is not installed."""
    for extra, packages in EXTRAS.items():
        missing = [p for p in packages if not importlib.util.find_spec(p)]
        if missing:
            reason = f"not installed: {', '.join(missing)}"
            for item in items:
                if item.get_closest_marker(extra):
                    item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def tiny_records(tmp_path_factory):
    """Records of real text, in train/ and eval/; see `tiny_run`.

    All workers read the same files. Tests must not change them.
    """
    return shared_records(tmp_path_factory, "static")


@pytest.fixture(scope="session")
def tiny_dynamic_records(tmp_path_factory):
    """As `tiny_records`, without masks in train/."""
    return shared_records(tmp_path_factory, "dynamic")


@pytest.fixture(scope="session")
def tiny_packed_records(tmp_path_factory):
    """As `tiny_records`, with packed rows of short examples in train/."""
    return shared_records(tmp_path_factory, "static", "best_fit")


@pytest.fixture(scope="session")
def tiny_dynamic_packed_records(tmp_path_factory):
    """As `tiny_packed_records`, without masks in train/."""
    return shared_records(tmp_path_factory, "dynamic", "best_fit")


def shared_records(tmp_path_factory, masking, packing="none"):
    from tests.helpers import tiny_run
    from tests.helpers.shared_directory import build_once

    return (
        build_once(
            tmp_path_factory,
            f"tiny_{masking}_{packing}",
            lambda directory: tiny_run.build_records(
                directory, masking, packing
            ),
        )
        / "records"
    )


class SmallDisk(type(pathlib.Path())):
    """A directory on a file system of 256 KiB."""

    def free(self):
        """Bytes that fit on it."""
        status = os.statvfs(self)
        return status.f_bavail * status.f_frsize


@pytest.fixture
def small_disk(tmp_path):
    """A real disk, soon full; only root may make one."""
    directory = SmallDisk(tmp_path / "disk")
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", directory]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small disk")
    yield directory
    subprocess.run(["umount", "--lazy", directory], check=True)
