"""What the CPU of this machine has."""

import os
import pathlib

_INFORMATION = pathlib.Path("/proc/cpuinfo")  # of Linux


def count_cores() -> int:
    """The cores that this process may use, which Slurm or taskset may limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def has_any(*instructions: str) -> bool | None:
    """Whether it has one of some instructions, as Linux names them.

    Returns:
        None if that is unknown.
    """
    if not _INFORMATION.exists():
        return None
    words = _INFORMATION.read_text().split()
    return not set(instructions).isdisjoint(words)
