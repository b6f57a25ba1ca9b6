"""Versions of the packages that a run needs, checked without TensorFlow.

The import of TensorFlow next to an incompatible package may end the process
without a message. So versions are read from the installed distributions.
"""

import contextlib
import glob
import importlib.metadata
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from albert_tf.errors import UserError

# First supported version, and first unsupported one or ""; as in setup.py.
SUPPORTED = {
    "Python": ("3.11", "3.14"),
    "tensorflow": ("2.20", "2.22"),
    "keras": ("3.12", "4"),
    "numpy": ("2.0", ""),
    "protobuf": ("4.25", ""),
    "sentencepiece": ("0.2.0", "0.2.2"),
    "tensorboard": ("2.20", "2.22"),
}

# Distributions of TensorFlow; all install into the same directory.
TENSORFLOWS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-tpu",
    "tf-nightly",
)
# Packages that Keras and TensorFlow Lite import if they are installed, for
# functions that this project does not call.
NOT_NEEDED = ("jax", "matplotlib", "sklearn")
# Flags of XLA, which change the programs that it compiles.
COMPILER_VARIABLES = ("LIBTPU_INIT_ARGS", "XLA_FLAGS", "TF_XLA_FLAGS")
# The newest libtpu with which tensorflow-tpu 2.20.0 can be imported.
NEWEST_LIBTPU = "0.0.30"
LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
# Devices of NVIDIA's and Google's drivers.
ACCELERATORS = ("/dev/nvidia*", "/dev/accel*", "/dev/vfio/*")


class Installed(NamedTuple):
    """An installed package, and whether a run works with it.

    Attributes:
        name: Name of the distribution.
        version: The installed version, or "none".
        remedy: What to do; "" if the version is supported.
    """

    name: str
    version: str
    remedy: str = ""


def import_tensorflow() -> None:
    """Imports TensorFlow quickly, and without its lines about this machine.

    These are kept where they may tell of a GPU or TPU, or if the user asks for
    them by `TF_CPP_MIN_LOG_LEVEL`, and after an error.

    Raises:
        UserError: If TensorFlow is missing, or its libtpu would end the
            process.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise UserError(
            "TensorFlow must be installed",
            received="none",
            remedy="pip install 'albert-tf[cpu]', or [gpu] or [tpu].",
        )
    libtpu = _version("libtpu")
    if "tensorflow-tpu" in installed_tensorflows() and _parse(libtpu) > _parse(
        NEWEST_LIBTPU
    ):
        raise UserError(
            f"libtpu must be at most {NEWEST_LIBTPU}: with a newer one the "
            "import of tensorflow-tpu ends the process",
            received=libtpu,
            remedy=f"pip install libtpu=={NEWEST_LIBTPU}",
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(quick_import())
        if LOG_LEVEL not in os.environ and not any(
            map(glob.glob, ACCELERATORS)
        ):
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


def check_installed() -> list[Installed]:
    """Python, and the packages that a run or TensorFlow needs."""
    python = ".".join(map(str, sys.version_info[:3]))
    found = [_judge("Python", python, SUPPORTED["Python"])]
    tensorflow = ""
    for distribution, tensorflow in installed_tensorflows().items():
        limits = SUPPORTED["tensorflow"]
        found.append(_judge(distribution, tensorflow, limits))
    if len(installed_tensorflows()) > 1:
        names = " ".join(installed_tensorflows())
        remedy = f"pip uninstall {names}, then install only one of them."
        found.append(Installed(names, "in the same directory", remedy))
    found += [
        _judge(name, _version(name), limits)
        for name, limits in SUPPORTED.items()
        if name not in ("Python", "tensorflow")
    ]
    text = _version("tensorflow-text")
    if text and tensorflow:
        # Its library is linked against one minor release.
        major, minor = _parse(tensorflow)[:2]
        limits = (f"{major}.{minor}", f"{major}.{minor + 1}")
        found.append(_judge("tensorflow-text", text, limits))
    if "tensorflow-tpu" in installed_tensorflows():
        limits = ("0.0.1", NEWEST_LIBTPU + ".1")
        found.append(_judge("libtpu", _version("libtpu"), limits))
    return found


def software() -> dict[str, str]:
    """What may change the rounding of a run: packages and compiler flags.

    Returns:
        Versions by package, and each variable of `COMPILER_VARIABLES` that is
        set.
    """
    installed = {one.name: one.version for one in check_installed()}
    variables = {
        name: os.environ[name]
        for name in COMPILER_VARIABLES
        if os.environ.get(name)
    }
    return {**installed, **variables}


def _judge(name: str, version: str, limits: tuple[str, str]) -> Installed:
    """Checks that a version is at least `limits[0]` and below `limits[1]`."""
    first, below = limits
    wanted = f"{name}>={first}" + (f",<{below}" if below else "")
    fits = _parse(first) <= _parse(version)
    fits = fits and (not below or _parse(version) < _parse(below))
    remedy = f"pip install '{wanted}'"
    if name == "Python":
        remedy = f"Make an environment with {wanted}."
    return Installed(name, version or "none", "" if fits else remedy)


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


def _parse(version: str) -> tuple[int, ...]:
    """Numbers of a version: (2, 21, 0) for 2.21.0rc1, () for ""."""
    numbers = re.match(r"[0-9.]*", version)
    assert numbers
    return tuple(int(part) for part in numbers[0].split(".") if part)
