"""Set-up of all tests: CPU devices, programs, memory, extras, records."""

import atexit
import gc
import importlib.machinery
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if "PYTEST_XDIST_WORKER" not in os.environ:
    # Many tests compile the same programs for CPUs. So each process of this run
    # of pytest loads those that another one has compiled.
    programs = tempfile.mkdtemp(prefix="xla-programs-")
    atexit.register(shutil.rmtree, programs, ignore_errors=True)
    os.environ["TF_XLA_FLAGS"] = " ".join(
        (
            *os.environ.get("TF_XLA_FLAGS", "").split(),
            f"--tf_xla_persistent_cache_directory={programs}",
        )
    )

    os.environ["JAX_COMPILATION_CACHE_DIR"] = programs
# Four CPU devices, as TensorFlow gets; libtpu may be installed.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")
# Of PyTorch, whose operations here are too small for a second thread to help.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest

from albert_tf.cluster import versions
from tests.helpers import memory

# The memory that `-n auto` reserves for a worker of pytest-xdist.
WORKER_MEMORY = 3 << 30


class SplitCpu(importlib.machinery.PathFinder):
    """Gives TensorFlow four CPU devices as soon as a test imports it.

    Tests that do not import TensorFlow start without it. TensorFlow can split
    the CPU only before its first use.
    """

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(cls)
        # Later, `tensorflow` is in sys.modules.
        versions.import_triton()
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


def runs_slow_tests(config):
    """Whether this is a run of `make slow-test` or `make other-tests`."""
    return config.option.markexpr.lstrip("(").startswith("slow")


def pytest_xdist_auto_num_workers(config):
    """One worker for each processor, as far as the memory suffices.

    Two more for slow tests, since many of them wait for a process.
    """
    num_waiting = 2 * runs_slow_tests(config)
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(os.cpu_count() + num_waiting, size // WORKER_MEMORY))


def pytest_collection_finish(session):
    """Lets garbage collection take less time."""
    gc.collect()
    gc.freeze()  # excludes all imported objects
    if runs_slow_tests(session.config):
        gc.set_threshold(10_000, 10, 5)  # 5 % less CPU
    else:
        # Also 5 %. The slow tests would need too much memory.
        gc.set_threshold(50_000, 20, 100)


@pytest.fixture(autouse=True)
def _free_programs():
    yield
    memory.free_programs()


# Markers of tests that need an extra, and the packages that come with it.
EXTRAS = {
    "text": ("tensorflow_text",),
    "interop": ("safetensors", "torch", "transformers"),
    "tfds": ("tensorflow_datasets",),
    "tpu_compile": ("jax", "libtpu"),
    "gpu_compile": ("jax", "jax_cuda13_plugin"),
    "jax": ("jax",),
    "edge": ("ai_edge_litert", "onnxruntime", "onnxscript", "torch"),
}


def pytest_collection_modifyitems(items):
    """Skips tests without their extra; files with long tests start first.

    A worker that starts a long test as its last one would end alone.
    """
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    for extra, packages in EXTRAS.items():
        missing = [p for p in packages if not importlib.util.find_spec(p)]
        if missing:
            reason = f"not installed: {', '.join(missing)}"
            for item in items:
                if item.get_closest_marker(extra):
                    item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def eager():
    """For runs of a few steps, whose programs other tests compile."""
    from tests.helpers import tiny_run

    with tiny_run.eagerly():
        yield


def records_fixture(name, masking, packing):
    """Records of real text, in train/ and eval/; see `tiny_run`.

    All workers read the same files. Tests must not change them.
    """

    @pytest.fixture(scope="session", name=name)
    def make(tmp_path_factory):
        from tests.helpers import tiny_run
        from tests.helpers.shared_directory import build_once

        return (
            build_once(
                tmp_path_factory,
                name,
                lambda directory: tiny_run.build_records(
                    directory, masking, packing
                ),
            )
            / "records"
        )

    return make


tiny_records = records_fixture("tiny_records", "static", "none")
# Without masks in train/, with packed rows of short examples there, or both.
tiny_dynamic_records = records_fixture(
    "tiny_dynamic_records", "dynamic", "none"
)
tiny_packed_records = records_fixture(
    "tiny_packed_records", "static", "best_fit"
)
tiny_dynamic_packed_records = records_fixture(
    "tiny_dynamic_packed_records", "dynamic", "best_fit"
)


@pytest.fixture(scope="session")
def source(tiny_records, tmp_path_factory):
    """A finished run with checkpoints of steps 0, 4, 8 and 12; see `eager`.

    All workers read the same files. Tests must not change them.
    """
    from albert_tf.training.train import train
    from tests.helpers import tiny_run
    from tests.helpers.shared_directory import build_once

    def train_source(directory):
        with tiny_run.eagerly():
            train(tiny_run.make_config(tiny_records, directory / "run"))

    return build_once(tmp_path_factory, "source", train_source) / "run"


class SmallDisk(type(pathlib.Path())):
    """A directory on a file system of its own, which has limits."""

    def free(self):
        """Bytes that fit on it."""
        status = os.statvfs(self)
        return status.f_bavail * status.f_frsize


@pytest.fixture
def small_disk(tmp_path):
    """A mounted file system of 256 KiB; only root can mount it."""
    directory = SmallDisk(tmp_path / "disk")
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", directory]
    if (
        not shutil.which("mount")
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("needs the right to mount a small disk")
    yield directory
    subprocess.run(["umount", "--lazy", directory], check=True)


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    from tests.helpers import fake_gcs

    if not shutil.which("openssl"):
        pytest.skip("needs the openssl command")
    with fake_gcs.serve(tmp_path_factory.mktemp("storage")) as storage:
        yield storage


@pytest.fixture
def storage(served, monkeypatch, caplog):
    """An empty storage that this process uses as Cloud Storage."""
    for name, value in served.environment().items():
        monkeypatch.setenv(name, value)
    yield served
    # Logged errors keep the iterators of failed runs. If these are freed after
    # their files, they ask for them for half a minute.
    caplog.get_records("call").clear()
    served.set_rules([])
    if "tensorflow" in sys.modules:
        from tensorflow.io import gfile

        # TensorFlow would believe for five more seconds that files exist that
        # it has not removed itself.
        for name in served.read():
            gfile.remove(f"gs://bucket/{name}")
    served.remove("")
