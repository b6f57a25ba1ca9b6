"""The output and scratch directories of a build, and what is complete there.

`unfinished.json` is written before the first shard, and removed after the last
file. It identifies the build, so that a later build can decide whether the
shards are its own; if not, it needs `overwrite`. While a build removes the
shards of another one, the file names no build.
Notes in `unfinished/` describe the content of complete shards.

The name of the scratch directory is a digest of the inputs and settings, so
that an interrupted build continues from its files. It is removed when the build
is finished.
"""

import contextlib
import hashlib
import json
import os
import posixpath
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import logging

from albert_tf.errors import UserError, name_faults
from albert_tf.io import files
from albert_tf.io.artifact import Artifact
from albert_tf.records.features import (
    METADATA_FILE,
    TOKENIZER_FILE,
    UNFINISHED_FILE,
    RecordsMetadata,
    read_metadata,
)
from data_prep.builder.examples import EVAL, TRAIN
from data_prep.builder.shards import NOTES_DIR, Shard, join_counts
from data_prep.config import RecordsConfig
from data_prep.text import Source

SCRATCH_DIR = ".build_tfrecords_scratch"

# A directory gets this suffix before its files are removed. If the process is
# killed meanwhile, no build continues from the rest.
_REMOVED_SUFFIX = ".removed"

_READ_BYTES = 1 << 20


def has_finished_records(output_dir: str) -> bool:
    """Returns whether the directory has the records of a finished build."""
    return files.exists(
        posixpath.join(output_dir, TRAIN, METADATA_FILE)
    ) and not files.exists(posixpath.join(output_dir, UNFINISHED_FILE))


def find_missing_shards(
    output_dir: str,
    records: Artifact,
    unfinished: Artifact,
    shards: Sequence[Shard],
) -> list[Shard] | None:
    """Returns the shards that the directory lacks of finished records.

    The content of files is checked only with `overwrite`, since this takes as
    long as reading them.

    Args:
        records: The records to build.
        unfinished: The same, with the versions of libraries. Finished records
            stay valid with others, but one build must not mix them.
        shards: All shards of the build.

    Returns:
        An empty list for complete records; None if the directory does not have
        finished records of this build, or if `overwrite` replaces them.

    Raises:
        UserError: If the directory has the records of another build, complete
            or not, or lacks metadata or vocabulary, and `overwrite` is false.
    """
    stored = _read_unfinished(output_dir)
    if stored is not None:
        _check_unfinished(output_dir, stored, unfinished)
        return None
    path = posixpath.join(output_dir, TRAIN, METADATA_FILE)
    try:
        metadata = files.load_json_if_any(path) or {}
    except files.DamagedFileError:
        if not records.overwrite:
            raise
        logging.warning("building the records again, since %s is damaged", path)
        metadata = {}
    if not records.compare(
        metadata and {"packing": "none", **metadata},
        _find_first_record(output_dir),
        otherwise=f"the text, a setting that {path} does not store, or the "
        "version of build_tfrecords",
    ):
        return None
    missing = _find_missing(shards)
    if records.overwrite:
        faults = missing or _find_damaged(shards)
        if faults:
            logging.warning(
                "building the records again, since these files are missing or "
                "damaged: %s",
                name_faults(faults),
            )
        return None if faults else []
    missing_shards = [shard for shard in shards if shard.path in missing]
    if others := missing[len(missing_shards) :]:
        raise UserError(
            "output_dir must hold all files of its records",
            received=f"no {name_faults(others)}",
            remedy="Build the records again with --overwrite.",
        )
    return missing_shards


def _check_unfinished(
    output_dir: str, stored: Mapping[str, Any], unfinished: Artifact
) -> None:
    """Checks that an unfinished build may be continued or replaced."""
    path = posixpath.join(output_dir, UNFINISHED_FILE)
    if stored.get("inputs_sha256"):
        unfinished.compare(
            stored,
            path,
            otherwise="the text, or the version of build_tfrecords",
            advice="Continue that build with its settings and text. ",
        )
    else:
        unfinished.compare(
            stored,
            _find_first_record(output_dir),
            otherwise=f"{path} names no build, since an interrupted build was "
            "about to replace the records",
        )


def begin_build(output_dir: str, unfinished: Artifact) -> None:
    """Marks the directory as unfinished; removes records of other builds."""
    path = posixpath.join(output_dir, UNFINISHED_FILE)
    if unfinished.compare(_read_unfinished(output_dir), ""):
        return
    # The file names no build until all other records are removed. If this
    # process is killed, the next one must not take the rest for its own.
    files.write_text(path, json.dumps({"inputs_sha256": None}))
    for other in _find_records(output_dir):
        files.remove(other)
    remove_notes(output_dir)
    content = {**unfinished.identity, "settings": unfinished.settings}
    files.write_text(path, json.dumps(content))


def read_checksums(shards: Sequence[Shard]) -> dict[Shard, str]:
    """Returns the SHA-256 of shards by the metadata of finished records."""
    metadata = {path: read_metadata(path) for path in _split_dirs(shards)}
    return {
        shard: metadata[posixpath.dirname(shard.path)].checksums[shard.name]
        for shard in shards
    }


def check_not_empty(
    config: RecordsConfig,
    num_examples: Mapping[str, int],
    skipped: Mapping[str, int],
    sources: Sequence[Source],
) -> None:
    """Refuses a corpus that gives no examples for a split.

    Args:
        num_examples: Number of examples by split.
        skipped: Number of skipped lines, chunks and documents, by reason.
        sources: Sources of the text, for the error message.

    Raises:
        UserError: If train/ would be empty, or eval/ with holdout_fraction.
    """
    if not sum(num_examples.values()):
        raise UserError(
            "the text must contain a document of at least two words",
            received=f"{join_counts(skipped) or 'only blank lines'}, in "
            + name_faults([source.name for source in sources]),
        )
    wanted = (TRAIN, EVAL) if config.holdout_fraction else (TRAIN,)
    if not all(num_examples.get(split) for split in wanted):
        raise UserError(
            "holdout_fraction must leave documents for train/ and for eval/",
            received=f"{config.holdout_fraction}, which leaves "
            f"{num_examples.get(TRAIN, 0)} and {num_examples.get(EVAL, 0)} "
            "examples",
            remedy="A hash of the text chooses the documents: set a fraction "
            "that corresponds to several documents, or 0.",
        )


def finish_build(
    output_dir: str, metadata: Mapping[str, RecordsMetadata], vocabulary: bytes
) -> None:
    """Completes the directory of a build that has written all shards.

    Args:
        vocabulary: Content of the SentencePiece model file.
    """
    for split, split_metadata in metadata.items():
        directory = posixpath.join(output_dir, split)
        files.write_bytes(posixpath.join(directory, TOKENIZER_FILE), vocabulary)
        files.write_text(
            posixpath.join(directory, METADATA_FILE), split_metadata.to_json()
        )
    files.remove(posixpath.join(output_dir, UNFINISHED_FILE))
    remove_notes(output_dir)


def remove_notes(output_dir: str) -> None:
    """Removes the notes on complete shards, if any."""
    files.remove_directory(posixpath.join(output_dir, NOTES_DIR))


def _read_unfinished(output_dir: str) -> Mapping[str, Any] | None:
    """Returns what identifies the unfinished build; None if there is none."""
    path = posixpath.join(output_dir, UNFINISHED_FILE)
    try:
        found = files.load_json_if_any(path)
    except files.DamagedFileError:
        found = {}
    if found is None:
        return None
    return {"packing": "none", **(found if isinstance(found, dict) else {})}


def _split_dirs(shards: Sequence[Shard]) -> list[str]:
    """Returns the directories of the shards."""
    return list(dict.fromkeys(posixpath.dirname(s.path) for s in shards))


def _find_missing(shards: Sequence[Shard]) -> list[str]:
    """Returns the files of complete records that do not exist, shards first."""
    wanted = [shard.path for shard in shards]
    present = set()
    for split_dir in _split_dirs(shards):
        wanted += [
            posixpath.join(split_dir, name)
            for name in (METADATA_FILE, TOKENIZER_FILE)
        ]
        # On gs://, one request for all files.
        present |= {
            posixpath.join(split_dir, posixpath.basename(path))
            for path in files.list_files(split_dir, "*")
        }
    return [path for path in wanted if path not in present]


def _find_damaged(shards: Sequence[Shard]) -> list[str]:
    """Returns the files that do not have the checksums of the metadata."""
    damaged = []
    for split_dir in _split_dirs(shards):
        logging.info("reading %s, to verify its checksums", split_dir)
        try:
            metadata = read_metadata(split_dir)
        except UserError:
            damaged.append(posixpath.join(split_dir, METADATA_FILE))
            continue
        checksums = {
            TOKENIZER_FILE: metadata.vocabulary_sha256,
            **{
                shard.name: metadata.checksums.get(shard.name)
                for shard in shards
                if posixpath.dirname(shard.path) == split_dir
            },
        }
        damaged += [
            path
            for name, sha256 in checksums.items()
            if not _has_checksum(
                path := posixpath.join(split_dir, name), sha256
            )
        ]
    return damaged


def _has_checksum(path: str, sha256: str | None) -> bool:
    def check() -> None:
        digest = hashlib.sha256()
        with files.open_existing(path, "rb") as file:
            while block := file.read(_READ_BYTES):
                digest.update(block)
        if digest.hexdigest() != sha256:
            raise files.DamagedFileError(f"{path} must have SHA-256 {sha256}")

    try:
        files.read_again_if_damaged(check, path)
    except files.DamagedFileError:
        return False
    return True


def _find_records(output_dir: str) -> list[str]:
    """Returns the shards, metadata and vocabulary of any build."""
    patterns = (
        "*.tfrecord",
        "*" + files.PARTIAL_SUFFIX,
        METADATA_FILE,
        TOKENIZER_FILE,
    )
    return [
        path
        for split in (TRAIN, EVAL)
        for pattern in patterns
        for path in files.list_files(posixpath.join(output_dir, split), pattern)
    ]


def _find_first_record(output_dir: str) -> str:
    return next(iter(_find_records(output_dir)), "")


# --- scratch ------------------------------------------------------------------


@contextlib.contextmanager
def open_scratch(config: RecordsConfig, key: str) -> Iterator[str]:
    """Makes the scratch directory of a build; removes it at the end.

    After an exception, the directory stays for the next build with this key.
    """
    scratch = os.path.join(_find_parent(config), key)
    os.makedirs(scratch, exist_ok=True)
    yield scratch
    remove_scratch(config, key)


def _find_parent(config: RecordsConfig) -> str:
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
    parent = _find_parent(config)
    _remove(os.path.join(parent, key))
    if not config.scratch_dir:
        # Fails if other builds have scratch directories there.
        with contextlib.suppress(OSError):
            os.rmdir(parent)


def remove_other_scratch(config: RecordsConfig, scratch: str) -> None:
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
