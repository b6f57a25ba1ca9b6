"""Kills a build of records before each of its changes of a file.

    python tests/helpers/killed_builds.py DIRECTORY SETTINGS

builds records in DIRECTORY/N for N = 1, 2, ... SETTINGS are settings of
`RecordsConfig` as JSON. Each N runs two processes: the first ends, as by
SIGKILL, before its N-th change of a file, and the second continues the build to
the end. Each N begins with a copy of DIRECTORY/before, if that exists. The
first N whose first process finishes the build is the last.

Kills at random moments hit a window of microseconds once in a thousand times.
This program hits every window.
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
    """Ends this process before its `number`-th change of a file."""
    remaining = number

    def watch(event: str, arguments: tuple) -> None:
        nonlocal remaining
        if event == "open":
            path, _, flags = arguments
            if not flags & (os.O_WRONLY | os.O_RDWR):
                return
        elif event in CHANGES:
            path = arguments[0]
        else:
            return
        path = os.fsdecode(path)
        # shutil.rmtree names files relative to a descriptor.
        if path.startswith(str(directory)) or not os.path.isabs(path):
            remaining -= 1
            if not remaining:
                os._exit(KILLED)

    sys.addaudithook(watch)


def call_in_fork(function: Callable, *arguments) -> int:
    """Calls a function in a fork of this process; returns its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        function(*arguments)
        os._exit(0)
    finally:  # only after an error
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
    """Checks that every shard of this build has a note.

    One without is written again.
    """
    if (output_dir / "unfinished.json").exists():
        for shard in output_dir.glob("*/*.tfrecord"):
            split, name = shard.parts[-2:]
            replaced = output_dir.parent / "before" / split / name
            is_other = (
                replaced.exists()
                and replaced.read_bytes() == shard.read_bytes()
            )
            note = output_dir / "unfinished" / f"{name}.json"
            assert is_other or note.exists(), shard


def main(directory: pathlib.Path, settings: dict) -> None:
    # fsync protects from power cuts, which are not tested, and is slow.
    os.fsync = lambda _descriptor: None
    for number in itertools.count(1):
        output_dir = directory / str(number)
        if (directory / "before").exists():
            shutil.copytree(directory / "before", output_dir)
        exit_code = call_in_fork(build, output_dir, settings, number)
        if exit_code == 0:
            return
        assert exit_code == KILLED, f"{number}: the first build failed"
        check_notes(output_dir)
        exit_code = call_in_fork(build, output_dir, settings)
        assert exit_code == 0, f"{number}: the second build failed"


if __name__ == "__main__":
    settings = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in json.loads(sys.argv[2]).items()
    }
    main(pathlib.Path(sys.argv[1]), settings)
