"""Files that are either whole or absent, local or gs://."""

# TensorFlow is imported where it is used, see `corpus`.

import contextlib
import errno
import json
from collections.abc import Iterator
from typing import Any

PARTIAL_SUFFIX = ".partial"


@contextlib.contextmanager
def written_whole(path: str) -> Iterator[str]:
    """A path to write to; it becomes `path` when the block has ended well.

    Raises:
        OSError: For a full disk, also where TensorFlow reported it.
    """
    import tensorflow as tf

    partial = path + PARTIAL_SUFFIX
    try:
        yield partial
        tf.io.gfile.rename(partial, path, overwrite=True)
    except tf.errors.ResourceExhaustedError as error:
        raise OSError(errno.ENOSPC, error.message, partial) from None


def write_bytes(path: str, content: bytes) -> None:
    """Writes a file whole."""
    import tensorflow as tf

    with (
        written_whole(path) as partial,
        tf.io.gfile.GFile(partial, "wb") as file,
    ):
        file.write(content)


def open_existing(path: str, mode: str) -> Any:
    """A file to read, local or gs://.

    Raises:
        FileNotFoundError: As `open` does, where TensorFlow has an error of
            its own.
    """
    import tensorflow as tf

    if not tf.io.gfile.exists(path):
        raise FileNotFoundError(errno.ENOENT, "no such file", path)
    return tf.io.gfile.GFile(path, mode)


def read_json_if_any(path: str) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is no such file."""
    import tensorflow as tf

    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path, "r") as file:
        return json.load(file)
