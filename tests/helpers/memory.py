"""The memory of test processes: freed after tests, and limited."""

import ctypes
import dataclasses
import gc
import os
import pathlib
import resource
import sys
from multiprocessing import forkserver

GIB = 2**30
# The limit of each process of a test run, in bytes.
LIMIT = 4 * GIB


_LIBC = ctypes.CDLL(None)
_STATM = pathlib.Path("/proc/self/statm")

# A program of a training step registers about 20 gradients for each replica.
MANY_GRADIENTS = 50


def free_programs() -> None:
    """Frees the TensorFlow programs that nothing uses any more.

    TensorFlow registers the gradient function of each traced call of
    `tf.custom_gradient`, and never removes it. The function refers to its
    program and to the model: 20 to 70 MB for each program of a training step.
    This removes the functions once there are many. Programs that are still
    in use run as before, but new gradients through them are an error.

    A large process also gives the memory back that its allocator keeps.
    """
    ops = sys.modules.get("tensorflow.python.framework.ops")
    if ops is None:
        return
    registered = ops.gradient_registry._registry
    names = [name for name in registered if name.startswith("CustomGradient-")]
    if len(names) > MANY_GRADIENTS:
        for name in names:
            del registered[name]
        gc.collect()
    if _resident() > LIMIT / 2:
        gc.collect()
        if hasattr(_LIBC, "malloc_trim"):  # glibc
            _LIBC.malloc_trim(0)


def _resident() -> int:
    """The memory of this process now, in bytes; 0 where /proc is missing."""
    if not _STATM.exists():
        return 0
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclasses.dataclass
class Peak:
    """The most memory of this process or any that it started.

    Until a child process starts its program, it counts as large as this one.

    Attributes:
        size: the memory, in bytes.
        test: the test after which it was measured first.
    """

    size: int = 0
    test: str = ""

    def measure(self, test: str) -> None:
        """Stores the peak up to now, if it has grown."""
        unit = 1 if sys.platform == "darwin" else 1024
        size = unit * max(
            resource.getrusage(who).ru_maxrss
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        if size > self.size:
            self.size, self.test = size, test

    def measure_forked(self) -> None:
        """Stores the peak of the fork server of `forked_program`, too.

        Ends the server: only then its processes count as children.
        """
        forkserver._forkserver._stop()
        self.measure("a test with a forked program")
