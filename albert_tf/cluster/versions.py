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
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from albert_tf.errors import UserError

# The project, and its dependencies that may change what a run computes.
PROJECT = "albert-tf"
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


class Installed(NamedTuple):
    """A package that a run needs."""

    name: str
    version: str  # or "none"
    remedy: str = ""  # unless the project works with this version


def import_tensorflow() -> None:
    """Imports TensorFlow quickly, and without its lines about this machine.

    These are kept on machines with a GPU or TPU, if `TF_CPP_MIN_LOG_LEVEL` is
    set to another value than 3, and after an error.

    Raises:
        ModuleNotFoundError: If TensorFlow is missing.
        UserError: If its libtpu would end the process.
    """
    libtpu = _judge("libtpu", _version("libtpu"), NEWEST_LIBTPU)
    on_tpu = "tensorflow-tpu" in installed_tensorflows()
    if on_tpu and libtpu.remedy and libtpu.version != "none":
        raise UserError(
            f"libtpu must be {NEWEST_LIBTPU}: with a newer one the import of "
            "tensorflow-tpu ends the process",
            received=libtpu.version,
            remedy=libtpu.remedy,
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


def check_installed() -> list[Installed]:
    """Python, and the packages that a run or TensorFlow needs."""
    limits = _limits()
    python = ".".join(map(str, sys.version_info[:3]))
    found = [_judge("Python", python, limits.get("Python"))]
    tensorflows = installed_tensorflows()
    for name, version in tensorflows.items():
        found.append(_judge(name, version, limits.get("tensorflow")))
    if len(tensorflows) > 1:
        names = " ".join(tensorflows)
        remedy = f"pip uninstall {names}, then install only one of them."
        found.append(Installed(names, "in the same directory", remedy))
    found += [_judge(n, _version(n), limits.get(n)) for n in PACKAGES]
    text = _version("tensorflow-text")
    if text and tensorflows:
        # Its library is linked against one minor release.
        minor = Version([*tensorflows.values()][-1]).release[:2]
        same = SpecifierSet(f"=={'.'.join(map(str, minor))}.*")
        found.append(_judge("tensorflow-text", text, same))
    if "tensorflow-tpu" in tensorflows:
        found.append(_judge("libtpu", _version("libtpu"), NEWEST_LIBTPU))
    return found


def _limits() -> dict[str, SpecifierSet]:
    """The versions that setup.py requires; {} unless it has been installed."""
    try:
        project = importlib.metadata.distribution(PROJECT)
    except importlib.metadata.PackageNotFoundError:
        return {}
    python = SpecifierSet(project.metadata["Requires-Python"])
    needed = map(Requirement, project.requires or ())
    return {"Python": python} | {one.name: one.specifier for one in needed}


def software() -> dict[str, str]:
    """What may change the rounding of a run: versions and compiler flags."""
    flags = {name: os.getenv(name, "") for name in COMPILER_VARIABLES}
    return {
        **{one.name: one.version for one in check_installed()},
        **{name: value for name, value in flags.items() if value},
    }


def _judge(name: str, version: str, limits: SpecifierSet | None) -> Installed:
    if version and (not limits or limits.contains(version, prereleases=True)):
        return Installed(name, version)
    remedy = f"pip install '{name}{limits or ''}'"
    if name == "Python":
        remedy = f"Make an environment with Python{limits}."
    return Installed(name, version or "none", remedy)


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
