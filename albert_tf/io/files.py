"""Files, local or gs://. A file is written completely or not at all.

TensorFlow reads and writes gs://. It is imported only for such paths, so that
commands on local files start at once.
"""

import atexit
import contextlib
import errno
import functools
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from absl import logging

from albert_tf.errors import UserError
from albert_tf.io import faults

PARTIAL_SUFFIX = ".partial"

# On gs://, a read may return wrong bytes once. A file counts as damaged only if
# this number of reads fails.
READ_ATTEMPTS = 3

# TensorFlow caches the size of an object for 5 s. If another process has
# rewritten the object since, a read looks incomplete during this time. The
# waits between three reads are 2 s and 4 s.
REREAD_WAIT_S = 2.0

Result = TypeVar("Result")


def is_remote(path: str) -> bool:
    """Whether a path belongs to a remote file system such as gs://."""
    return "://" in path


def find(pattern: str, remote_directories: bool = False) -> list[str]:
    """Returns the files that match a glob, sorted.

    A local file whose name equals the pattern is the only match. `**` matches
    any number of directories; TensorFlow's glob, which has no `**`, only one.

    Args:
        pattern: Local or remote.
        remote_directories: Whether to return remote directories that match,
            too. To leave them out takes requests for each match.
    """
    if is_remote(pattern):
        if "**" in pattern.split("/"):
            raise UserError(
                "a remote glob must name each depth, without **", pattern
            )
        gfile = _gfile(pattern)
        paths = sorted(gfile.glob(pattern))
        if remote_directories:
            return paths
        return [path for path in paths if not gfile.isdir(path)]
    if os.path.isfile(pattern):  # its name may contain brackets
        return [pattern]
    matches = set(_glob(pattern))
    directory = os.path.dirname(pattern)
    if not matches and not glob.has_magic(directory):
        _check_directory(directory)
    return sorted(path for path in matches if os.path.isfile(path))


def find_all(
    name: str,
    patterns: Iterable[str],
    example: str,
    remedy: str = "",
    remote_directories: bool = False,
) -> list[str]:
    """Returns the files that globs match, each once, sorted.

    Args:
        name: The setting that has the globs, for messages.
        example: What a glob in a directory should match, e.g. "*.txt".
        remote_directories: See `find`.

    Raises:
        UserError: If a glob matches no file.
    """
    found: set[str] = set()
    for pattern in patterns:
        matches = find(pattern, remote_directories)
        if not matches:
            raise UserError(
                f"{name} must match files",
                received=f"no file at {pattern}",
                remedy=_hint_at_directory(pattern, example) or remedy,
            )
        found.update(matches)
    return sorted(found)


def _hint_at_directory(pattern: str, names: str) -> str:
    if is_remote(pattern):
        found = [pattern] if _gfile(pattern).isdir(pattern) else []
    else:
        found = [path for path in glob.glob(pattern) if os.path.isdir(path)]
    if not found:
        return ""
    directory = found[0].rstrip("/")
    return f"{directory} is a directory: give a glob, e.g. {directory}/{names}."


def _glob(pattern: str) -> Iterator[str]:
    """As `glob.glob`, but `**` enters each directory once, whatever its links.

    Two links to a parent directory would otherwise give 2^40 paths.
    """
    pattern = re.sub(r"/(\*\*/)+", "/**/", f"./{pattern}")
    if pattern.endswith("/**"):
        pattern += "/*"
    top, found, rest = pattern.partition("/**/")
    if not found:
        yield from glob.iglob(pattern.removeprefix("./"))
        return
    entered = set()
    for start in glob.iglob(top.removeprefix("./") or "/"):
        for directory, names, _ in os.walk(start, followlinks=True):
            real = os.path.realpath(directory)
            if real in entered:
                names.clear()
                continue
            entered.add(real)
            names[:] = sorted(n for n in names if not n.startswith("."))
            where = directory[2:] if start == "." else directory
            yield from _glob(os.path.join(glob.escape(where), rest))


def list_files(directory: str, pattern: str) -> list[str]:
    """Returns the files of `directory`, a path, that match a glob, sorted."""
    if not is_remote(directory):
        _check_directory(directory)
    return find(os.path.join(glob.escape(directory), pattern))


def _check_directory(directory: str) -> None:
    """Raises an OSError if a directory exists but cannot be listed.

    `glob` ignores such a directory.
    """
    if exists(directory):
        with contextlib.suppress(NotADirectoryError):
            os.listdir(directory)


def exists(path: str) -> bool:
    """Whether a file or directory exists.

    Raises:
        OSError, tf.errors.OpError: If the check fails, e.g. for lack of
            permission.
    """
    if is_remote(path):
        return _gfile(path).exists(path)
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False  # ValueError: no file can have this name
    return True


def count_bytes(path: str) -> int:
    """Size of a file in bytes, as stored."""
    if is_remote(path):
        return _gfile(path).stat(path).length
    return os.path.getsize(path)


def make_directories(path: str) -> None:
    """Makes a directory and its parents, if they do not exist.

    Raises:
        UserError: If the bucket does not exist.
    """
    if is_remote(path):
        gfile = _gfile(path)
        check_bucket(path)  # without it, `makedirs` does not return
        gfile.makedirs(path)
    elif path:
        os.makedirs(path, exist_ok=True)


def check_bucket(path: str) -> None:
    """Checks that the bucket of a path on gs:// exists, once for each bucket.

    Raises:
        UserError: If it does not exist.
        tf.errors.OpError: If its metadata cannot be read, e.g. for lack of
            permission.
    """
    if path.startswith("gs://"):
        stat_bucket("/".join(path.split("/")[:3]) + "/")


@functools.cache
def stat_bucket(bucket: str) -> None:
    """See `check_bucket`; for gs://BUCKET/."""
    import tensorflow as tf

    try:
        tf.io.gfile.stat(bucket)
    except tf.errors.NotFoundError:
        raise faults.missing_bucket(bucket) from None
    except tf.errors.OpError as error:
        # For a bucket, TensorFlow does not say what it requested.
        request = f"\n\t when reading metadata of {bucket}"
        raise type(error)(None, None, error.message + request) from None


def remove(path: str) -> None:
    """Removes a file, if it exists."""
    if not is_remote(path):
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
        return
    gfile = _gfile(path)
    with _ignore("NotFoundError"):
        gfile.remove(path)


def remove_directory(path: str) -> None:
    """Removes a directory and its contents, if it exists."""
    if not exists(path):
        return
    if not is_remote(path):
        shutil.rmtree(path)
        return
    # On gs://, TensorFlow believes for 5 s that files exist which another
    # program has removed.
    with _ignore("NotFoundError"):
        _gfile(path).rmtree(path)


@contextlib.contextmanager
def new_directory(target: str, setting: str) -> Iterator[str]:
    """Yields a temporary directory, which becomes `target` without an error.

    Each writer has its own; of several, the first to finish is kept.

    Raises:
        UserError: If `target`, the value of `setting`, exists and is not an
            empty directory, now or at the end: nothing is replaced.
    """
    import tensorflow as tf  # for directories of gs://, and its error types

    def check() -> None:
        is_empty = tf.io.gfile.isdir(target) and not tf.io.gfile.listdir(target)
        if exists(target) and not is_empty:
            raise UserError(
                f"{setting} must be new, or an empty directory",
                received=f"{target}, which exists",
                remedy="Choose another path, or remove it.",
            )

    check()
    # The rename must not replace a link, and "." has no neighbour.
    final = target if is_remote(target) else os.path.realpath(target)
    partial = f"{final}.{secrets.token_hex(4)}{PARTIAL_SUFFIX}"
    try:
        yield partial
        check()  # another process may have written to the target since
        if is_remote(final):
            remove_directory(final)
            tf.io.gfile.rename(partial, final)
        else:
            os.rename(partial, final)  # replaces an empty directory only
    except BaseException:
        remove_directory(partial)
        raise


def open_existing(path: str, mode: str = "r") -> Any:
    """Opens a file to read; text is UTF-8.

    Raises:
        FileNotFoundError: If the file does not exist.
        UserError: If its bucket does not exist, or if it is a pipe or device,
            which may never end.
    """
    if not is_remote(path):
        if exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            raise UserError(
                f"{path} must be a regular file", received="a pipe or a device"
            )
        return open(path, mode, encoding=None if "b" in mode else "utf-8")
    gfile = _gfile(path)
    if not gfile.exists(path):
        # To read, no permission for the bucket itself is needed.
        with _ignore("PermissionDeniedError"):
            check_bucket(path)
        raise FileNotFoundError(errno.ENOENT, "no such file", path)
    return gfile.GFile(path, mode)


def digest(path: str) -> str:
    """Returns the hexadecimal SHA-256 of a file."""
    sha256 = hashlib.sha256()
    with open_existing(path, "rb") as file:
        while block := file.read(1 << 20):
            sha256.update(block)
    return sha256.hexdigest()


def keep_until_exit(name: str, content: bytes) -> str:
    """Writes a temporary file, removed when the process ends; its path."""
    folder = tempfile.mkdtemp(prefix="albert_tf_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_bytes(path := os.path.join(folder, name), content)
    return path


def load_json(path: str) -> dict[str, Any]:
    """As `load_json_if_any`; a UserError if the file does not exist."""
    content = load_json_if_any(path)
    if content is None:
        raise UserError(f"{path} must exist", received="no such file")
    return content


def load_json_if_any(path: str, kind: type = dict) -> Any:
    """The object, or list, of a JSON file; None if the file does not exist.

    Args:
        kind: dict or list.

    Raises:
        DamagedFileError: If the file is not JSON, or holds another value.
    """

    def load() -> Any:
        try:
            with open_existing(path) as file:
                content = json.load(file)
            if not isinstance(content, kind):
                raise ValueError(f"{content!r:.80}, not a {kind.__name__}")
            return content
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as e:
            raise DamagedFileError(
                f"{path} must be JSON", received=str(e)
            ) from None
        except Exception as error:
            # Another program may remove a file that TensorFlow has just found.
            if type(error).__name__ == "NotFoundError":
                return None
            raise

    return read_again_if_damaged(load, path)


class DamagedFileError(UserError):
    """A file does not have the content that it must have."""


def read_again_if_damaged(
    read: Callable[[], Result],
    path: str,
    damage: type[Exception] = DamagedFileError,
) -> Result:
    """Reads a file; a remote file up to three times if it looks damaged.

    Args:
        read: Reads the file; called again after an incomplete read of gs://.
        damage: An error after which `read` is called again, too.
    """
    for attempt in range(1, READ_ATTEMPTS if is_remote(path) else 1):
        try:
            return read()
        except Exception as error:
            if not (
                isinstance(error, damage) or faults.is_incomplete_read(error)
            ):
                raise
            logging.warning("reading %s again: %s", path, error)
            time.sleep(attempt * REREAD_WAIT_S)
    return read()


def _gfile(path: str) -> Any:
    """`tf.io.gfile`, for a remote path.

    Raises:
        UserError: If TensorFlow does not know the scheme of the path.
    """
    import tensorflow as tf

    scheme = path.partition("://")[0]
    if scheme not in tf.io.gfile.get_registered_schemes():
        remedy = "Mount it, or copy it to a local directory or to gs://."
        if scheme == "gs":
            remedy = "pip install 'tensorflow[gcs-filesystem]'."
        raise UserError(
            f"{path} must be local or on a file system that TensorFlow reads",
            received=f"{scheme}://",
            remedy=remedy,
        )
    return tf.io.gfile


def _ignore(name: str) -> contextlib.AbstractContextManager[None]:
    """Ignores an error of `tf.errors`."""
    import tensorflow as tf

    return contextlib.suppress(getattr(tf.errors, name))


@contextlib.contextmanager
def atomic_write(path: str) -> Iterator[Any]:
    """Opens a file for writing bytes; makes its directory if it is missing.

    The file gets its name at the end of the block, and only if the block
    raises no error.
    """
    partial = path + PARTIAL_SUFFIX
    make_directories(os.path.dirname(path))
    if is_remote(path):
        gfile = _gfile(path)
        with gfile.GFile(partial, "wb") as file:
            yield file
            file.close()  # uploads
            gfile.rename(partial, path, overwrite=True)
        return
    with open(partial, "wb") as file:
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            error.filename = error.filename or path
            raise
    os.replace(partial, path)


def write_bytes(path: str, content: bytes) -> None:
    """Writes a file completely or not at all; makes its directory."""
    if is_remote(path):
        # An upload is atomic. Writing and renaming a partial file would need
        # more requests.
        with _gfile(path).GFile(path, "wb") as file:
            file.write(content)
        return
    with atomic_write(path) as file:
        file.write(content)


def write_text(path: str, text: str) -> None:
    """Writes a UTF-8 file completely or not at all."""
    write_bytes(path, text.encode())


def write_json(path: str, content: Any) -> None:
    """Writes a JSON file completely or not at all; `load_json` reads it."""
    write_text(path, json.dumps(content, indent=2) + "\n")
