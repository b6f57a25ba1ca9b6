"""Set-up of all tests: TensorFlow with four CPU devices, and the extras."""

import importlib.util
import os
import pathlib
import subprocess

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
import tensorflow as tf

# Before TensorFlow first uses the CPU, after which it cannot be split.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration()] * 4,
)
# Used at once, so that no test can split it otherwise.
assert len(tf.config.list_logical_devices("CPU")) == 4


@pytest.fixture
def mirrored_two():
    """A MirroredStrategy of two replicas."""
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
    """Records of real text, in train/ and eval/; see `tiny_run`."""
    from tests.helpers import tiny_run

    return tiny_run.build_records(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_dynamic_records(tmp_path_factory):
    """As `tiny_records`, without masks in train/."""
    from tests.helpers import tiny_run

    return tiny_run.build_records(tmp_path_factory.mktemp("tiny"), "dynamic")


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
