"""Files, local or gs://. A file is written completely or not at all.

TensorFlow reads and writes gs://. It is imported only for such paths, so that
commands on local files start at once.
"""

import contextlib
import errno
import glob
import json
import os
import shutil
from collections.abc import Iterator
from typing import Any

from albert_tf.errors import UserError

PARTIAL_SUFFIX = ".partial"


def is_remote(path: str) -> bool:
    """Whether a path belongs to a remote file system such as gs://."""
    return "://" in path


def find(pattern: str) -> list[str]:
    """Returns the files that match a glob, sorted, or the file of that name."""
    if is_remote(pattern):
        import tensorflow as tf

        matches = tf.io.gfile.glob(pattern)
        return sorted(p for p in matches if not tf.io.gfile.isdir(p))
    if os.path.isfile(pattern):  # its name may contain brackets
        return [pattern]
    return sorted(path for path in glob.glob(pattern) if os.path.isfile(path))


def exists(path: str) -> bool:
    """Whether a file or directory exists."""
    if is_remote(path):
        import tensorflow as tf

        return tf.io.gfile.exists(path)
    return os.path.exists(path)


def count_bytes(path: str) -> int:
    """Size of a file in bytes, as stored."""
    if is_remote(path):
        import tensorflow as tf

        return tf.io.gfile.stat(path).length
    return os.path.getsize(path)


def make_directories(path: str) -> None:
    """Makes a directory and its parents, if they do not exist."""
    if is_remote(path):
        import tensorflow as tf

        tf.io.gfile.makedirs(path)
    elif path:
        os.makedirs(path, exist_ok=True)


def remove(path: str) -> None:
    """Removes a file."""
    if is_remote(path):
        import tensorflow as tf

        tf.io.gfile.remove(path)
    else:
        os.remove(path)


def remove_directory(path: str) -> None:
    """Removes a directory and its contents, if it exists."""
    if not exists(path):
        return
    if is_remote(path):
        import tensorflow as tf

        tf.io.gfile.rmtree(path)
    else:
        shutil.rmtree(path)


def open_existing(path: str, mode: str = "r") -> Any:
    """Opens a file to read; text is UTF-8.

    Args:
        path: The file.
        mode: "r" or "rb".

    Raises:
        FileNotFoundError: If the file does not exist.
    """
    if not is_remote(path):
        return open(path, mode, encoding=None if "b" in mode else "utf-8")
    import tensorflow as tf

    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(errno.ENOENT, "no such file", path)
    return tf.io.gfile.GFile(path, mode)


def load_json(path: str) -> Any:
    """The content of a JSON file.

    Raises:
        UserError: If the file is missing or is not JSON.
    """
    try:
        with open_existing(path) as file:
            return json.load(file)
    except FileNotFoundError:
        raise UserError(f"{path} must exist", received="no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} must be JSON", received=str(error)) from None


def load_json_if_any(path: str) -> Any:
    """The content of a JSON file; None if the file does not exist.

    Raises:
        UserError: If the file is not JSON.
    """
    try:
        with open_existing(path):
            pass
    except FileNotFoundError:
        return None
    return load_json(path)


def is_full_disk(error: BaseException) -> bool:
    """Whether Python or TensorFlow raised an error because the disk is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    # Compared by name, since TensorFlow may not have been imported.
    return type(
        error
    ).__name__ == "ResourceExhaustedError" and "No space left" in str(error)


@contextlib.contextmanager
def atomic_write(path: str) -> Iterator[Any]:
    """Opens a file for writing bytes; makes its directory if it is missing.

    The file gets its name at the end of the block, and only if the block
    raises no error.
    """
    partial = path + PARTIAL_SUFFIX
    make_directories(os.path.dirname(path))
    if is_remote(path):
        import tensorflow as tf

        with tf.io.gfile.GFile(partial, "wb") as file:
            yield file
        tf.io.gfile.rename(partial, path, overwrite=True)
        return
    with open(partial, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def flush_to_disk(directory: str) -> None:
    """Fsyncs a local directory and its files, against a power failure."""
    if is_remote(directory):
        return
    with os.scandir(directory) as entries:
        paths = [entry.path for entry in entries if entry.is_file()]
    for path in (*paths, directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_bytes(path: str, content: bytes) -> None:
    """Writes a file completely or not at all."""
    with atomic_write(path) as file:
        file.write(content)


def write_text(path: str, text: str) -> None:
    """Writes a UTF-8 file completely or not at all."""
    write_bytes(path, text.encode())
