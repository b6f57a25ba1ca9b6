"""Checks before hours of work that a command can write its results."""

import os

from albert_tf.io import files


def check_writable(path: str) -> None:
    """Checks that a file can be written, or raises the error of the system.

    Unlike `files.check_writable`, it makes no local directories, since a
    command that fails must leave none: it writes to the closest one that
    exists.
    """
    if not files.is_remote(path):
        directory = os.path.dirname(path)
        while not os.path.exists(parent := os.path.dirname(path) or "."):
            path = parent
        if not os.path.isdir(parent):
            files.make_directories(directory)  # raises the error
    files.check_writable(path)
