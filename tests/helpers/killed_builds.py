"""Builds of records that end, as by SIGKILL, before any one change of a file.

    python tests/helpers/killed_builds.py DIRECTORY SETTINGS

builds records by the settings, JSON of `RecordsConfig`, in DIRECTORY/N for
N = 1, 2, ...: first in a process that ends before its N-th change of a file
there, then in another, which goes on to the end. Each begins with a copy of
DIRECTORY/before, if there is one. It is over with the first N that comes to
its end by itself; what such a build leaves is in DIRECTORY/N, too.

Kills at random moments meet a window of microseconds once in a thousand
times; this meets every one.
"""

import itertools
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Callable

from data_prep import build_tfrecords
from data_prep.config import RecordsConfig

CHANGES = {"os.mkdir", "os.remove", "os.rename", "os.rmdir"}
KILLED = 9


def end_before(number: int, directory: pathlib.Path) -> None:
    """Ends this process before its N-th change of a file in a directory."""
    left = number

    def watch(event: str, arguments: tuple) -> None:
        nonlocal left
        if event == "open":
            path, _, flags = arguments
            if not flags & (os.O_WRONLY | os.O_RDWR):
                return
        elif event in CHANGES:
            path = arguments[0]
        else:
            return
        path = os.fsdecode(path)
        # Where a tree is removed, names are relative to a descriptor.
        if path.startswith(str(directory)) or not os.path.isabs(path):
            left -= 1
            if not left:
                os._exit(KILLED)

    sys.addaudithook(watch)


def in_a_process(function: Callable, *arguments) -> int:
    """Calls a function in a copy of this process; how that ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        function(*arguments)
        os._exit(0)
    finally:  # after an error, which is printed at last
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def build(
    output_dir: pathlib.Path, settings: dict, number: int | None = None
) -> None:
    if number is not None:
        end_before(number, output_dir)
    build_tfrecords.main(
        RecordsConfig(output_dir=str(output_dir), num_workers=1, **settings)
    )


def check_notes(output_dir: pathlib.Path) -> None:
    """A whole shard without its note would be written once more."""
    if (output_dir / "unfinished.json").exists():
        for shard in output_dir.glob("*/*.tfrecord"):
            note = output_dir / "unfinished" / f"{shard.name}.json"
            assert note.exists(), shard


def main(directory: pathlib.Path, settings: dict) -> None:
    # Which outlives a power cut, not the end of a process, and takes longest.
    os.fsync = lambda _descriptor: None
    for number in itertools.count(1):
        output_dir = directory / str(number)
        if (directory / "before").exists():
            shutil.copytree(directory / "before", output_dir)
        killed = in_a_process(build, output_dir, settings, number)
        if killed == 0:
            return
        assert killed == KILLED, f"{number}: an error"
        check_notes(output_dir)
        again = in_a_process(build, output_dir, settings)
        assert again == 0, f"{number}: an error of the second build"


if __name__ == "__main__":
    settings = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in json.loads(sys.argv[2]).items()
    }
    main(pathlib.Path(sys.argv[1]), settings)
