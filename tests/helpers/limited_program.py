"""Runs a module with few resources.

    python -m tests.helpers.limited_program '{"files": 20}' MODULE FLAGS

The limits are JSON: `files`, the number of open files; `file_bytes`, the size
of a file that it writes; `is_root`, false to take away the rights of root.
"""

import contextlib
import json
import resource
import runpy
import sys

from tests.helpers import rights


def main(limits: str, module: str, *arguments: str) -> None:
    sys.argv = [module, *arguments]
    with contextlib.ExitStack() as stack:
        for name, value in json.loads(limits).items():
            if name == "files":
                resource.setrlimit(resource.RLIMIT_NOFILE, (value, value))
            elif name == "file_bytes":
                # Python may keep the part of a .pyc that it could write.
                sys.dont_write_bytecode = True
                resource.setrlimit(resource.RLIMIT_FSIZE, (value, value))
            elif name == "is_root" and not value:
                stack.enter_context(rights.without_root())
            else:
                raise ValueError(f"no such limit: {name}={value}")
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
