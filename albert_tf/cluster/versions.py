"""Versions of the packages that a run needs, checked without TensorFlow.

The import of TensorFlow next to an incompatible package may end the process
without a message. So versions are read from the installed distributions.
"""

import contextlib
import glob
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Iterator

from packaging.specifiers import SpecifierSet

from albert_tf.errors import UserError

# Dependencies that may change what a run computes.
PACKAGES = ("keras", "numpy", "protobuf", "sentencepiece", "tensorboard")
# Distributions of TensorFlow; all install into the same directory.
TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly")
# Packages that Keras and TensorFlow Lite import if they are installed, for
# functions that this project does not call.
NOT_NEEDED = ("jax", "matplotlib", "sklearn")
# Flags of XLA, which change the programs that it compiles.
COMPILER_VARIABLES = ("LIBTPU_INIT_ARGS", "XLA_FLAGS", "TF_XLA_FLAGS")
# The newest libtpu with which tensorflow-tpu 2.20.0 can be imported.
NEWEST_LIBTPU = SpecifierSet("<=0.0.30")
LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# Devices of NVIDIA's and Google's drivers.
ACCELERATORS = ("/dev/nvidia*", "/dev/accel*", "/dev/vfio/*")


def import_tensorflow() -> None:
    """Imports TensorFlow quickly, and without its lines about this machine.

    These are kept on machines with a GPU or TPU, if `TF_CPP_MIN_LOG_LEVEL` is
    set to another value than 3, and after an error.

    Raises:
        ModuleNotFoundError: If TensorFlow is missing.
        UserError: If its libtpu would end the process.
    """
    libtpu = _version("libtpu")
    on_tpu = "tensorflow-tpu" in installed_tensorflows()
    if on_tpu and libtpu and libtpu not in NEWEST_LIBTPU:
        raise UserError(
            f"libtpu must be {NEWEST_LIBTPU}: with a newer one the import of "
            "tensorflow-tpu ends the process",
            received=libtpu,
            remedy=f"pip install 'libtpu{NEWEST_LIBTPU}'",
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(quick_import())
        has_accelerator = any(map(glob.glob, ACCELERATORS))
        if os.environ.get(LOG_LEVEL, "3") == "3" and not has_accelerator:
            # TensorFlow reads it when it first uses a device.
            os.environ[LOG_LEVEL] = "3"
            stack.enter_context(_without_stderr())
        import tensorflow  # noqa: F401


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Drops what C++ writes to standard error, unless an error follows."""
    with tempfile.TemporaryFile() as written:
        stderr = os.dup(2)
        os.dup2(written.fileno(), 2)
        try:
            yield
        except BaseException:
            written.seek(0)
            os.write(stderr, written.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


@contextlib.contextmanager
def quick_import() -> Iterator[None]:
    """Makes the first import of TensorFlow a third shorter: 4 s of CPU, not 6.

    Within the context, the packages of `NOT_NEEDED` cannot be imported, so that
    Keras goes on without them. Later imports of them work.
    """
    hidden = [name for name in NOT_NEEDED if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def import_triton() -> None:
    """Imports Triton, if it is installed, unless TensorFlow was imported first.

    PyTorch for GPUs brings Triton, which transformers imports. Both Triton and
    TensorFlow contain LLVM, and Triton ends the process if TensorFlow comes
    first (https://github.com/tensorflow/tensorflow/issues/124205).
    """
    if "tensorflow" not in sys.modules:
        with contextlib.suppress(ImportError):
            import triton  # noqa: F401


def software() -> dict[str, str]:
    """What may change the rounding of a run: versions and compiler flags."""
    names = (*PACKAGES, "tensorflow-text", "libtpu")
    found = {name: _version(name) for name in names}
    flags = {name: os.getenv(name, "") for name in COMPILER_VARIABLES}
    return {
        "Python": ".".join(map(str, sys.version_info[:3])),
        **installed_tensorflows(),
        **{name: version for name, version in found.items() if version},
        **{name: value for name, value in flags.items() if value},
    }


def installed_tensorflows() -> dict[str, str]:
    """Versions of the installed distributions of TensorFlow, by name."""
    versions = {name: _version(name) for name in TENSORFLOWS}
    return {name: version for name, version in versions.items() if version}


def _version(name: str) -> str:
    """The installed version, or ""."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
