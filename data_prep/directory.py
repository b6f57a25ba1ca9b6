"""The directory of records of a build, and its scratch directory.

One file describes the records: `unfinished.json` from before the first shard
until after the last file, then `train/metadata.json`. Records of other inputs
are refused, or replaced with --overwrite.

A shard counts as written only with its note in `unfinished/`. To replace other
records, a build removes their notes, writes `unfinished.json`, and then removes
all files without a note; so it can be killed at any time.
"""

import dataclasses
import os
import posixpath
import tempfile
from collections.abc import Mapping
from typing import Any

from albert_tf.errors import UserError, name_faults
from albert_tf.io import artifact, files
from albert_tf.io.artifact import Artifact
from albert_tf.records.features import (
    LABELS_FILE,
    METADATA_FILE,
    SCHEMA_VERSION,
    TOKENIZER_FILE,
    UNFINISHED_FILE,
)
from data_prep.config import RecordsConfig
from data_prep.segments import EVAL, TRAIN
from data_prep.shards import NOTES_DIR, list_shards

SCRATCH_DIR = ".build_tfrecords_scratch"

# A directory gets this suffix before its files are removed. If the process is
# killed meanwhile, no build continues from the rest.
_REMOVED_SUFFIX = ".removed"


class RecordsDirectory:
    """The `output_dir` of a build."""

    def __init__(self, config: RecordsConfig) -> None:
        self._config, self._dir = config, config.output_dir
        self._notes = posixpath.join(self._dir, NOTES_DIR)
        self._unfinished = posixpath.join(self._dir, UNFINISHED_FILE)
        self._metadata = posixpath.join(self._dir, TRAIN, METADATA_FILE)

    def list_files(self) -> list[str]:
        """All files of this or another build."""
        notes = files.list_files(self._notes, "*")
        return [*notes, self._unfinished, *self._list_records()]

    def _list_records(self) -> list[str]:
        """Metadata, vocabulary and shards, in the order of removal.

        Without metadata, a run does not read the shards that are left.
        """
        patterns = (
            METADATA_FILE,
            TOKENIZER_FILE,
            LABELS_FILE,
            "*.tfrecord",
            "*" + files.PARTIAL_SUFFIX,
        )
        return [
            path
            for split in (TRAIN, EVAL)
            for pattern in patterns
            for path in files.list_files(
                posixpath.join(self._dir, split), pattern
            )
        ]

    def check_writable(self) -> None:
        """Finished records may be on a medium that is not writable."""
        is_finished = files.exists(self._metadata)
        if not is_finished or files.exists(self._unfinished):
            for path in filter(None, (self._dir, self._config.scratch_dir)):
                artifact.check_writable(posixpath.join(path, "writable"))

    def is_finished(
        self,
        inputs_sha256: str,
        vocabulary_sha256: str,
        versions: Mapping[str, str],
    ) -> bool:
        """Whether all files of the records exist; else, `begin` may follow.

        Finished records stay valid with other versions of libraries, but one
        build must not mix them.

        Raises:
            UserError: If it has other records, or lacks files, and `overwrite`
                is not set.
        """
        packing = self._config.packing_settings()
        identity = {"inputs_sha256": inputs_sha256, **packing}
        settings = {
            **self._config.result_settings(),
            **packing,
            "vocabulary_sha256": vocabulary_sha256,
            "schema_version": SCHEMA_VERSION,
            **versions,
        }

        records = Artifact(
            "output_dir", "records", identity, settings, self._config.overwrite
        )
        self._build = dataclasses.replace(
            records, identity={**identity, "versions": versions}
        )
        stored = _read_description(self._unfinished)
        self._is_continued = stored is not None and self._build.compare(
            stored,
            self._unfinished,
            otherwise="the text, or the version of build_tfrecords",
            advice="Continue that build with its settings and text. ",
        )
        if stored is not None:
            return False
        if not records.compare(
            _read_description(self._metadata),
            next(iter(self._list_records()), ""),
            otherwise=f"the text, a setting that {self._metadata} does not "
            "store, or the version of build_tfrecords",
        ):
            return False
        missing = self._find_missing()
        if missing and not self._config.overwrite:
            raise UserError(
                "output_dir must hold all files of its records",
                received=f"no {name_faults(missing)}",
                remedy="Build the records again, with the same bytes, with "
                "--overwrite.",
            )
        return not missing

    def _find_missing(self) -> list[str]:
        """Returns the files of complete records that do not exist."""
        shards = list_shards(self._config)
        directories = dict.fromkeys(posixpath.dirname(s.path) for s in shards)
        names = [METADATA_FILE, TOKENIZER_FILE]
        if self._config.reads_labels:
            names.append(LABELS_FILE)
        wanted = [shard.path for shard in shards] + [
            posixpath.join(directory, name)
            for directory in directories
            for name in names
        ]
        present = set(self._list_records())
        return [path for path in wanted if path not in present]

    def begin(self) -> None:
        """Marks the directory as unfinished; removes files of other builds."""
        if not self._is_continued:
            files.remove_directory(self._notes)
            content = {**self._build.identity, "settings": self._build.settings}
            files.write_json(self._unfinished, content)
        notes = files.list_files(self._notes, "*.json")
        written = {posixpath.basename(path) for path in notes}
        for path in self._list_records():
            if posixpath.basename(path) + ".json" not in written:
                files.remove(path)

    def finish(self) -> None:
        """Marks the records as complete, also after an interruption."""
        files.remove(self._unfinished)
        files.remove_directory(self._notes)


def _read_description(path: str) -> dict[str, Any] | None:
    """Returns what identifies records; None if the file does not exist."""
    try:
        found = files.load_json_if_any(path)
    except files.DamagedFileError:
        found = {}
    if found is None:
        return None
    return {"packing": "none", **found}


def find_scratch_parent(config: RecordsConfig) -> str:
    """Returns `scratch_dir`, or a default.

    The default is in `output_dir` if that is local, since its file system has
    space for the records. Otherwise, each user has a directory.
    """
    default = os.path.join(config.output_dir, SCRATCH_DIR)
    if files.is_remote(default):
        name = f"{SCRATCH_DIR}_{os.getuid()}"
        default = os.path.join(tempfile.gettempdir(), name)
    return config.scratch_dir or default


def remove_scratch(scratch: str, config: RecordsConfig) -> None:
    """Removes the scratch directory of a build, if it exists.

    In `output_dir`, also those of builds that the directory had before.
    Directories in `scratch_dir` may belong to other output directories.
    """
    of_output = os.path.join(config.output_dir, SCRATCH_DIR)
    if os.path.dirname(scratch) == of_output:
        scratch = of_output
    removed = scratch + _REMOVED_SUFFIX
    if os.path.exists(scratch):
        files.remove_directory(removed)
        os.rename(scratch, removed)
    files.remove_directory(removed)
