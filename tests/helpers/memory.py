"""Frees memory of a test process after its tests."""

import ctypes
import gc
import os
import pathlib
import sys

# The size of a process, in bytes, from which it gives memory back.
_LARGE = 2 << 30
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
    if _resident() > _LARGE:
        gc.collect()
        if hasattr(_LIBC, "malloc_trim"):  # glibc
            _LIBC.malloc_trim(0)


def _resident() -> int:
    """The memory of this process now, in bytes; 0 where /proc is missing."""
    if not _STATM.exists():
        return 0
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
