"""Unpacks models in tar archives, as google-research/albert publishes them.

An archive is untrusted input. Links, devices and files that no model needs are
left out, and `tarfile.data_filter` refuses paths that lead out of the archive.
Limits refuse archives that would fill the disk or the memory.
"""

import contextlib
import errno
import gzip
import os
import platform
import posixpath
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from typing import Any

from albert_tf.errors import UserError
from albert_tf.io.files import open_existing

SUFFIXES = (".tar.gz", ".tgz", ".tar")

# albert_xxlarge with its moments has 2.8 GB.
MAX_BYTES = 64 * 2**30
MAX_FILES = 10_000
# Files that are read into memory: architecture, vocabulary, state.
MAX_SMALL_BYTES = 64 * 2**20
# Headers that extend a member's own: long names, times, owners.
MAX_HEADER_BYTES = 2**20

_SMALL_SUFFIXES = ("albert_config.json", "checkpoint", ".model")
_INDEX_SUFFIX = ".index"
_DATA_PART = ".data-"
_NAME_ERRORS = (errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG)
_FILE_TYPES = (*tarfile.REGULAR_TYPES, tarfile.DIRTYPE)


class _Header(tarfile.TarInfo):
    """A member whose header has a limited size.

    tarfile reads extended headers into memory, however long they are.
    """

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        # A private method: the public `frombuf` is no longer called by the
        # tarfile of Python 3.13.5.
        if self.type not in _FILE_TYPES and self.size > MAX_HEADER_BYTES:
            raise UserError(
                "an archive's headers must have at most "
                f"{MAX_HEADER_BYTES} bytes",
                received=self.size,
            )
        return super()._proc_member(archive)  # type: ignore[misc]


@contextlib.contextmanager
def unpacked(archive: str) -> Iterator[str]:
    """Unpacks the model in an archive for the duration of a `with` block.

    Args:
        archive: A .tar or .tar.gz, local or gs://.

    Yields:
        A temporary directory with the checkpoint, its architecture and its
        vocabulary. Other files are not unpacked.

    Raises:
        UserError: If the archive is damaged, exceeds a limit, holds paths
            that lead out of it, or does not hold exactly one checkpoint.
    """
    if not hasattr(tarfile, "data_filter"):
        raise UserError(
            "Python must be 3.11.4 or later to unpack an archive safely",
            received=platform.python_version(),
            remedy=f"Unpack {archive} yourself and give its directory.",
        )
    with tempfile.TemporaryDirectory(prefix="albert_tf_") as folder:
        try:
            with open_existing(archive, "rb") as file:
                if not archive.endswith(".tar"):
                    # tarfile's own decompression ignores a wrong checksum.
                    file = gzip.GzipFile(fileobj=file)
                # A stream: gs:// is read once, from start to end.
                with tarfile.open(
                    fileobj=file, mode="r|", tarinfo=_Header
                ) as members:
                    indices = _unpack(archive, members, folder)
        except (FileNotFoundError, IsADirectoryError) as error:
            is_missing = isinstance(error, FileNotFoundError)
            raise UserError(
                f"{archive} must exist and be a file",
                received="no such file" if is_missing else "a directory",
            ) from None
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as e:
            raise UserError(
                f"{archive} must be a complete archive",
                received=str(e) or type(e).__name__,
                remedy="Download it again.",
            ) from None
        directories = {posixpath.dirname(name) for name in indices}
        if len(directories) != 1:
            raise UserError(
                f"{archive} must hold one TensorFlow checkpoint",
                received=", ".join(indices) or f"no file *{_INDEX_SUFFIX}",
            )
        yield os.path.join(folder, *directories)


def _unpack(archive: str, members: tarfile.TarFile, folder: str) -> list[str]:
    """Unpacks the files of a checkpoint.

    Returns:
        The names of the index files.
    """
    num_bytes, indices = 0, []
    for count, member in enumerate(members, start=1):
        num_bytes += member.size
        if num_bytes > MAX_BYTES or count > MAX_FILES:
            raise UserError(
                f"{archive} must hold at most {MAX_FILES} files with "
                f"{MAX_BYTES} bytes in total",
                received=f"{count} files with {num_bytes} bytes up to "
                f"{member.name}",
            )
        name = posixpath.normpath(member.name)
        if not member.isreg() or not _is_needed(archive, name, member.size):
            continue
        try:
            members.extract(member, folder, set_attrs=False, filter="data")
        except (tarfile.FilterError, ValueError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _NAME_ERRORS:
                raise
            raise UserError(
                f"{archive} must hold only names of files inside it",
                received=f"{member.name!r}: {error}",
                remedy="Nothing outside a temporary directory was written. Get "
                "the archive from a trusted source.",
            ) from None
        if name.endswith(_INDEX_SUFFIX):
            indices.append(name.lstrip("/"))  # as the filter does
    return indices


def _is_needed(archive: str, name: str, size: int) -> bool:
    base = posixpath.basename(name)
    if base.startswith("."):  # e.g. macOS's metadata of a file
        return False
    is_small = base.endswith(_SMALL_SUFFIXES)
    if is_small and size > MAX_SMALL_BYTES:
        raise UserError(
            f"{base} in {archive} must have at most {MAX_SMALL_BYTES} bytes",
            received=size,
        )
    return is_small or base.endswith(_INDEX_SUFFIX) or _DATA_PART in base
