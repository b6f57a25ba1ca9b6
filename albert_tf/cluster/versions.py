"""Versions of other packages that a run needs; TensorFlow is not imported.

Where TensorFlow and a companion do not fit together, its import may end the
process with no message, so that they are judged by what was installed.
"""

import dataclasses
import importlib.metadata
import importlib.util
import re
import sys

from albert_tf.errors import UserError

# From, and below; as in setup.py.
SUPPORTED = {
    "Python": ("3.11", "3.14"),
    "tensorflow": ("2.20", "2.22"),
    "keras": ("3.12", "4"),
    "numpy": ("2.0", ""),
    "protobuf": ("4.25", ""),
    "sentencepiece": ("0.2.0", "0.2.2"),
    "tensorboard": ("2.20", "2.22"),
}

# Distributions of TensorFlow; they share one directory.
TENSORFLOWS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-tpu",
    "tf-nightly",
)
# The newest that tensorflow-tpu 2.20.0 imports with.
NEWEST_LIBTPU = "0.0.30"


@dataclasses.dataclass(frozen=True)
class Installed:
    """A package, and whether a run can work with it.

    Attributes:
        name: Of the distribution.
        version: What is installed; "none" if nothing is.
        remedy: What to do; "" if it fits.
    """

    name: str
    version: str
    remedy: str = ""


def check_import() -> None:
    """Refuses what would keep TensorFlow from being imported.

    Raises:
        UserError: If there is no TensorFlow, or one whose libtpu ends the
            process.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise UserError(
            "TensorFlow must be installed",
            received="none",
            remedy="pip install -e '.[cpu]', '.[gpu]' or '.[tpu]'.",
        )
    libtpu = _version("libtpu")
    if "tensorflow-tpu" in installed_tensorflows() and _parse(libtpu) > _parse(
        NEWEST_LIBTPU
    ):
        raise UserError(
            f"libtpu must be at most {NEWEST_LIBTPU} beside tensorflow-tpu, "
            "whose import it ends otherwise",
            received=libtpu,
            remedy=f"pip install libtpu=={NEWEST_LIBTPU}",
        )


def check_installed() -> list[Installed]:
    """Python and the packages that a run needs, or that go with TensorFlow."""
    python = ".".join(map(str, sys.version_info[:3]))
    found = [_judge("Python", python, SUPPORTED["Python"])]
    tensorflow = ""
    for distribution, tensorflow in installed_tensorflows().items():
        limits = SUPPORTED["tensorflow"]
        found.append(_judge(distribution, tensorflow, limits))
    if len(installed_tensorflows()) > 1:
        names = " ".join(installed_tensorflows())
        remedy = f"pip uninstall {names}, and install the one that is meant."
        found.append(Installed(names, "in one directory", remedy))
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


def _judge(name: str, version: str, limits: tuple[str, str]) -> Installed:
    """Whether a version is from the first limit on, and below the second."""
    first, below = limits
    wanted = f"{name}>={first}" + (f",<{below}" if below else "")
    fits = _parse(first) <= _parse(version)
    fits = fits and (not below or _parse(version) < _parse(below))
    remedy = f"pip install '{wanted}'"
    if name == "Python":
        remedy = f"Make an environment with {wanted}."
    return Installed(name, version or "none", "" if fits else remedy)


def installed_tensorflows() -> dict[str, str]:
    """Versions of the distributions of TensorFlow, by name."""
    versions = {name: _version(name) for name in TENSORFLOWS}
    return {name: version for name, version in versions.items() if version}


def _version(name: str) -> str:
    """That which is installed, or ""."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _parse(version: str) -> tuple[int, ...]:
    """(2, 21, 0) of 2.21.0rc1; () of nothing."""
    numbers = re.match(r"[0-9.]*", version)
    assert numbers
    return tuple(int(part) for part in numbers[0].split(".") if part)
