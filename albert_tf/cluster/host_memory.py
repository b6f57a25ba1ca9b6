"""Memory of the host: what a run on CPUs frees stays in its process."""

import ctypes

# Parameters of mallopt(3) in the GNU C library.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4

_LARGEST_INT = 2**31 - 1
# Bytes that the heap grows at a time, besides what an allocation needs.
_GROWTH = 64 * 2**20


def keep_freed_memory() -> None:
    """Makes the allocator keep freed memory, where it is that of glibc.

    By default, glibc maps large blocks, and returns them to the kernel when
    they are freed. TensorFlow allocates the activations of a step on a CPU that
    way, and each step then waits for the kernel to fill the same pages with
    zeros: about half of the time of a step of a small model. In exchange, the
    process holds its peak of memory until it ends. docs/log.md has
    measurements of both.

    Other C libraries are left as they are.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return
    libc.mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT)
    libc.mallopt(_M_TOP_PAD, _GROWTH)
    libc.mallopt(_M_MMAP_MAX, 0)
