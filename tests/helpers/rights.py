"""The rights of root over files, taken away from the thread that asks."""

import contextlib
import ctypes
import os
from collections.abc import Iterator

import pytest

# Version of the structures of these system calls, from linux/capability.h.
_VERSION = 0x20080522
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def without_root() -> Iterator[None]:
    """Removes root's right to bypass file permissions from this thread.

    The user stays the same, so that the files of the test stay its own. Threads
    that exist already keep their rights.
    """
    if not hasattr(_LIBC, "capset"):
        pytest.skip("needs the capabilities of Linux")
    header = (ctypes.c_uint32 * 2)(_VERSION, 0)
    # Effective, permitted and inheritable capabilities, twice 32 of them.
    rights = (ctypes.c_uint32 * 6)()
    _check(_LIBC.capget(header, rights))
    effective = rights[0], rights[3]
    rights[0] = rights[3] = 0
    _check(_LIBC.capset(header, rights))
    try:
        yield
    finally:
        rights[0], rights[3] = effective
        _check(_LIBC.capset(header, rights))


def _check(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
