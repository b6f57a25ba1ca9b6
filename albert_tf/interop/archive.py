"""Unpacks models in tar archives, as google-research/albert publishes them.

An archive is untrusted input. Links, devices and files that no model needs are
left out, and `tarfile.data_filter` refuses paths that lead out of the archive.
Limits refuse archives that would fill the disk or the memory.
"""

import contextlib
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

MAX_BYTES = 64 * 2**30  # albert_xxlarge with its moments has 2.8 GB
MAX_FILES = 10_000
# Files that are read into memory: architecture, vocabulary, state.
MAX_SMALL_BYTES = 64 * 2**20
# Headers that extend a member's own: long names, times, owners.
MAX_HEADER_BYTES = 2**20

_SMALL_SUFFIXES = ("albert_config.json", "checkpoint", ".model")
_INDEX_SUFFIX = ".index"
_FILE_TYPES = (*tarfile.REGULAR_TYPES, tarfile.DIRTYPE)


class _Header(tarfile.TarInfo):
    """A member whose extended header, which tarfile reads, is limited."""

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        # A private method: the public `frombuf` is no longer called by the
        # tarfile of Python 3.13.5.
        if self.type not in _FILE_TYPES:
            _limit("an archive's headers", self.size, MAX_HEADER_BYTES)
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
        indices: list[str] = []
        try:
            with open_existing(archive, "rb") as file:
                if not archive.endswith(".tar"):
                    # tarfile's own decompression ignores a wrong checksum.
                    file = gzip.GzipFile(fileobj=file)
                # A stream: gs:// is read once, from start to end.
                with tarfile.open(
                    fileobj=file, mode="r|", tarinfo=_Header
                ) as members:
                    for member in _files_of_model(archive, members):
                        members.extract(
                            member, folder, set_attrs=False, filter="data"
                        )
                        if member.name.endswith(_INDEX_SUFFIX):
                            indices.append(member.name)
        except (UserError, PermissionError):
            raise
        except (tarfile.FilterError, ValueError) as error:
            raise UserError(
                f"{archive} must hold only names of files inside it",
                received=error,
                remedy="Nothing outside a temporary directory was written. Get "
                "the archive from a trusted source.",
            ) from None
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as e:
            raise UserError(
                f"{archive} must be a complete archive",
                received=str(e) or type(e).__name__,
                remedy="Download it again.",
            ) from None
        except OSError as error:
            raise UserError(
                f"{archive} must be a file that can be unpacked to {folder}",
                received=error.strerror or error,
            ) from None
        directories = {posixpath.dirname(name) for name in indices}
        if len(directories) != 1:
            raise UserError(
                f"{archive} must hold one TensorFlow checkpoint",
                received=", ".join(indices) or f"no file *{_INDEX_SUFFIX}",
            )
        yield os.path.join(folder, *directories)


def _files_of_model(
    archive: str, members: tarfile.TarFile
) -> Iterator[tarfile.TarInfo]:
    """The files of a checkpoint, by names without leading slashes and dots."""
    num_bytes = 0
    for count, member in enumerate(members, start=1):
        num_bytes += member.size
        _limit(f"the files in {archive}", num_bytes, MAX_BYTES)
        _limit(f"the files in {archive}", count, MAX_FILES, "files")
        name = posixpath.normpath(member.name).lstrip("/")
        base = posixpath.basename(name)
        is_small = base.endswith(_SMALL_SUFFIXES)
        is_needed = is_small or base.endswith(_INDEX_SUFFIX) or ".data-" in base
        # A name with a dot may be macOS's metadata of a file.
        if member.isreg() and is_needed and not base.startswith("."):
            if is_small:
                _limit(f"{base} in {archive}", member.size, MAX_SMALL_BYTES)
            yield member.replace(name=name)


def _limit(what: str, size: int, limit: int, unit: str = "bytes") -> None:
    if size > limit:
        raise UserError(f"{what} must be at most {limit} {unit}", received=size)
