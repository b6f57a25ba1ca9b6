"""Runs a module that may write only small files.

python -m tests.helpers.limited_program BYTES MODULE FLAGS
"""

import resource
import runpy
import sys


def main(file_bytes: str, module: str, *arguments: str) -> None:
    sys.argv = [module, *arguments]
    # Python may keep the part of a .pyc that it could write.
    sys.dont_write_bytecode = True
    limit = int(file_bytes)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
