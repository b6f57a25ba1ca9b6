"""The directory of the intermediate files of a build.

Its name is a digest of the inputs and settings, so that an interrupted build
continues from its files. It is removed when the build is finished.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator

from absl import logging

from albert_tf.io import files
from data_prep.config import RecordsConfig

SCRATCH_DIR = ".build_tfrecords_scratch"

# A directory gets this suffix before its files are removed. If the process is
# killed meanwhile, no build continues from the rest.
_REMOVED_SUFFIX = ".removed"


@contextlib.contextmanager
def open_scratch(config: RecordsConfig, key: str) -> Iterator[str]:
    """Makes the scratch directory of a build; removes it at the end.

    After an exception, the directory stays for the next build with this key.
    """
    scratch = os.path.join(find_parent(config), key)
    os.makedirs(scratch, exist_ok=True)
    yield scratch
    remove_scratch(config, key)


def find_parent(config: RecordsConfig) -> str:
    """Returns `scratch_dir`, or a default.

    The default is in `output_dir` if that is local, since its file system has
    space for the records. Otherwise, each user has a directory.
    """
    if config.scratch_dir:
        return config.scratch_dir
    if files.is_remote(config.output_dir):
        name = f"{SCRATCH_DIR}_{os.getuid()}"
        return os.path.join(tempfile.gettempdir(), name)
    return _default_parent(config)


def remove_scratch(config: RecordsConfig, key: str) -> None:
    """Removes the scratch directory of a build, if it exists."""
    parent = find_parent(config)
    _remove(os.path.join(parent, key))
    if not config.scratch_dir:
        # Fails if other builds have scratch directories there.
        with contextlib.suppress(OSError):
            os.rmdir(parent)


def remove_others(config: RecordsConfig, scratch: str) -> None:
    """Removes the scratch directories of other builds of `output_dir`.

    A build calls this when it has marked `output_dir` as its own, so that the
    other builds cannot continue.
    """
    parent, key = os.path.split(scratch)
    if parent != _default_parent(config):
        return  # other output directories may have builds there
    for other in os.listdir(parent):
        path = os.path.join(parent, other)
        # The system may write files, e.g. .DS_Store.
        if other != key and os.path.isdir(path):
            logging.info("removing %s, of another build", path)
            _remove(path)


def _default_parent(config: RecordsConfig) -> str:
    return os.path.join(config.output_dir, SCRATCH_DIR)


def _remove(scratch: str) -> None:
    removed = scratch.removesuffix(_REMOVED_SUFFIX) + _REMOVED_SUFFIX
    if scratch != removed and os.path.exists(scratch):
        files.remove_directory(removed)
        os.rename(scratch, removed)
    files.remove_directory(removed)
