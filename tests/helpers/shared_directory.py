"""Builds a directory once for all workers of pytest-xdist."""

import fcntl
import os


def build_once(tmp_path_factory, name, build):
    """Returns a directory that the first worker to need it has filled.

    All workers read the same files. Tests must not change them.

    Args:
        tmp_path_factory: pytest's fixture.
        name: A name that no other caller uses.
        build: Called with the new directory, a `pathlib.Path`.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # of this run of pytest, common to all workers
    directory = root / name
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            directory.mkdir()
            build(directory)
            (directory / "complete").touch()
    return directory
