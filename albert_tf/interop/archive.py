"""Models in a tar archive, as google-research/albert publishes them.

An archive comes from elsewhere, so none of its paths is believed: one that
holds a path out of it, a link or a device is refused, and so is one that would
fill the disk.
"""

import contextlib
import gzip
import os
import posixpath
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, Self

from albert_tf.errors import UserError
from albert_tf.io.files import open_existing

SUFFIXES = (".tar.gz", ".tgz", ".tar")

# albert_xxlarge with its moments has 2.8 GB.
MAX_BYTES = 64 * 2**30
MAX_FILES = 10_000
# Of what is read into memory at once: architecture, vocabulary, state.
MAX_SMALL_BYTES = 64 * 2**20
# Of what comes before a file and tells of it: long names, times, owners.
MAX_HEADER_BYTES = 2**20

_SMALL_FILES = ("albert_config.json", "checkpoint")
_SMALL_SUFFIXES = (".model",)
_INDEX_SUFFIX = ".index"
_DATA_PART = ".data-"
_LONGEST_NAME = 255  # bytes, between two slashes
_FILE_TYPES = (*tarfile.REGULAR_TYPES, tarfile.DIRTYPE)


class _Header(tarfile.TarInfo):
    """A header, which tarfile would read into memory however long it is."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type not in _FILE_TYPES and header.size > MAX_HEADER_BYTES:
            raise UserError(
                "an archive's headers must have at most "
                f"{MAX_HEADER_BYTES} bytes",
                received=header.size,
            )
        return header


@contextlib.contextmanager
def unpacked(archive: str) -> Iterator[str]:
    """The model of an archive, for as long as the block runs.

    Args:
        archive: A .tar or .tar.gz, local or gs://.

    Yields:
        The directory of its checkpoint, in the system's place for temporary
        files. Architecture, vocabulary and checkpoint are unpacked, and
        nothing else.

    Raises:
        UserError: If the archive is damaged, holds what it must not, or holds
            no checkpoint or several in different directories.
    """
    with tempfile.TemporaryDirectory(prefix="albert_tf_") as folder:
        try:
            with (
                open_existing(archive, "rb") as raw,
                _decompressed(archive, raw) as file,
                # A stream: gs:// is read once, and nothing is sought.
                tarfile.open(
                    fileobj=file, mode="r|", tarinfo=_Header
                ) as members,
            ):
                indices = _unpack(archive, members, folder)
        except IsADirectoryError:
            raise UserError(
                f"{archive} must be an archive", received="a directory"
            ) from None
        except FileNotFoundError:
            raise UserError(
                f"{archive} must exist", received="no such file"
            ) from None
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as e:
            raise UserError(
                f"{archive} must be a whole archive",
                received=str(e) or type(e).__name__,
                remedy="Download it again.",
            ) from None
        directories = {posixpath.dirname(name) for name in indices}
        if len(directories) != 1:
            raise UserError(
                f"{archive} must hold one checkpoint of TensorFlow",
                received=", ".join(indices) or f"no file *{_INDEX_SUFFIX}",
            )
        yield os.path.join(folder, *directories)


@contextlib.contextmanager
def _decompressed(archive: str, raw: IO[bytes]) -> Iterator[Any]:
    if archive.endswith(".tar"):
        yield raw
        return
    # Not by tarfile itself, whose streams pass over a wrong checksum.
    with gzip.GzipFile(fileobj=raw) as file:
        yield file


def _unpack(archive: str, members: tarfile.TarFile, folder: str) -> list[str]:
    """Unpacks what is needed.

    Returns:
        The names of the checkpoints' index files.
    """
    num_bytes, indices = 0, []
    for count, member in enumerate(members, start=1):
        name = posixpath.normpath(member.name)
        _check(archive, member)
        num_bytes += member.size
        if num_bytes > MAX_BYTES or count > MAX_FILES:
            raise UserError(
                f"{archive} must hold at most {MAX_FILES} files of "
                f"{MAX_BYTES} bytes in all",
                received=f"{count} files of {num_bytes} bytes up to {name}",
            )
        if not member.isreg() or not _is_needed(archive, name, member.size):
            continue
        target = os.path.join(folder, *name.split("/"))
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise UserError(
                f"{archive} must hold files in directories",
                received=f"{name}, in a file",
            ) from None
        if os.path.exists(target):
            raise UserError(
                f"{archive} must hold each file once", received=f"{name} twice"
            )
        content = members.extractfile(member)
        assert content is not None, "a regular file has content"
        with open(target, "xb") as file:
            shutil.copyfileobj(content, file)
        if name.endswith(_INDEX_SUFFIX):
            indices.append(name)
    return indices


def _check(archive: str, member: tarfile.TarInfo) -> None:
    """Refuses a member that is no plain file or directory in the archive."""
    fault = ""
    if member.name.startswith("/") or ".." in member.name.split("/"):
        fault = "a path out of it"
    elif "\0" in member.name or any(
        len(os.fsencode(part)) > _LONGEST_NAME
        for part in member.name.split("/")
    ):
        fault = "a name that no file can have"
    elif not (member.isreg() or member.isdir()):
        fault = "a link" if member.issym() or member.islnk() else "a device"
    if fault:
        raise UserError(
            f"{archive} must hold plain files and directories",
            received=f"{member.name!r}, {fault}",
            remedy="Nothing of it was unpacked where it asked to be; ask "
            "whoever made it why it does.",
        )


def _is_needed(archive: str, name: str, size: int) -> bool:
    base = posixpath.basename(name)
    if base.startswith("."):  # e.g. what macOS puts beside each file
        return False
    if base in _SMALL_FILES or base.endswith(_SMALL_SUFFIXES):
        if size > MAX_SMALL_BYTES:
            raise UserError(
                f"{base} in {archive} must have at most {MAX_SMALL_BYTES} "
                "bytes",
                received=size,
            )
        return True
    return base.endswith(_INDEX_SUFFIX) or _DATA_PART in base
