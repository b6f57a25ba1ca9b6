"""Finds the shards of records, and reads their metadata and record counts.

google-research/albert writes no metadata. The records of such shards are
counted by reading them; the first record of each shard shows its lengths.
"""

import dataclasses
import posixpath
from collections.abc import Mapping, Sequence

import tensorflow as tf
from absl import logging
from tqdm import tqdm

from albert_tf.config import DataConfig, PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.io.tfrecord import read_records
from albert_tf.records import features

# The metadata of each directory; None for records of google-research/albert.
MetadataByDirectory = Mapping[str, features.RecordsMetadata | None]


def features_to_read(masking: str) -> tuple[features.Feature, ...]:
    """Returns the features that the trainer reads from records.

    Args:
        masking: "static" or "dynamic", as the records were built.
    """
    return tuple(
        feature
        for feature in features.stored_features(masking)
        if masking == "dynamic" or feature.name != "token_boundary"
    )


def match_files(
    patterns_by_set: Mapping[str, Sequence[str]],
) -> tuple[tuple[str, ...], ...]:
    """Finds the files of each dataset, sorted.

    A file that several datasets match belongs to the first of them. A dataset
    whose files all belong to others is left out.
    """
    found: set[str] = set()
    sets = []
    for name, patterns in patterns_by_set.items():
        matches = _matching_files(name, patterns) - found
        if matches:
            sets.append(tuple(sorted(matches)))
            found |= matches
    return tuple(sets)


def _matching_files(name: str, patterns: Sequence[str]) -> set[str]:
    files = set()
    for pattern in patterns:
        matches = tf.io.gfile.glob(pattern)
        if not matches:
            raise UserError(
                f"{name} must match files",
                received=f"no file at {pattern}",
                remedy="Build records with python -m "
                "data_prep.build_tfrecords.",
            )
        files.update(matches)
    return files


def read_metadata(directory: str) -> features.RecordsMetadata | None:
    """Reads the metadata of a directory; None for google-research/albert.

    Raises:
        UserError: If the directory belongs to an unfinished build.
    """
    path = posixpath.join(directory, features.METADATA_FILE)
    if tf.io.gfile.exists(path):
        return features.read_metadata(directory)
    unfinished = posixpath.join(
        posixpath.dirname(directory), features.UNFINISHED_FILE
    )
    if tf.io.gfile.exists(unfinished):
        raise UserError(
            f"the records of {directory} must be complete",
            received=f"{unfinished} of a build that has not ended",
            remedy="Run python -m data_prep.build_tfrecords again.",
        )
    logging.warning(
        "%s has no %s: its records are read as records of "
        "google-research/albert, and their vocabulary is not checked",
        directory or ".",
        features.METADATA_FILE,
    )
    return None


def check_metadata(
    directory: str,
    metadata: features.RecordsMetadata,
    config: PretrainingConfig,
) -> None:
    """Checks the metadata of a directory against the settings of a run.

    Raises:
        UserError: If they differ.
    """
    wanted: dict[str, object] = {
        "max_seq_length": config.data.max_seq_length,
        "vocab_size": config.model.vocab_size,
    }
    if metadata.masking == "static":
        wanted["max_predictions_per_seq"] = config.data.max_predictions_per_seq
    if config.training.sentence_objective != "none":
        wanted["sentence_objective"] = config.training.sentence_objective
    features.check_agreement(
        posixpath.join(directory, features.METADATA_FILE),
        dataclasses.asdict(metadata),
        wanted,
    )


def count_files(
    files: Sequence[str], metadata_of: MetadataByDirectory, config: DataConfig
) -> tuple[int, ...]:
    """Returns the number of records in each file.

    The numbers come from the metadata. Files without metadata are read.

    Raises:
        UserError: If a file is not listed in its metadata. Without metadata,
            if its lengths differ from `config`, or if it is damaged and
            `on_corrupt_record` does not allow that.
    """
    metadata = [metadata_of[posixpath.dirname(file)] for file in files]
    progress = tqdm(
        files, desc="counting records", disable=None not in metadata
    )
    return tuple(
        _count_records(file, config)
        if listing is None
        else _listed_count(file, listing)
        for file, listing in zip(progress, metadata, strict=True)
    )


def _listed_count(file: str, metadata: features.RecordsMetadata) -> int:
    try:
        return metadata.shards[posixpath.basename(file)]
    except KeyError:
        raise UserError(
            f"{features.METADATA_FILE} must list {file}, which is in the same "
            "directory",
            received=", ".join(metadata.shards),
            remedy="Narrow the glob to the shards of one build.",
        ) from None


def checksum(file: str, metadata_of: MetadataByDirectory) -> str:
    """Returns the SHA-256 of a file, or "" if its metadata has none."""
    metadata = metadata_of[posixpath.dirname(file)]
    if metadata is None:
        return ""
    return metadata.checksums.get(posixpath.basename(file), "")


def _count_records(file: str, config: DataConfig) -> int:
    """Counts the records of a file without initializing devices."""
    count = 0
    try:
        for serialized in tf.compat.v1.io.tf_record_iterator(file):
            if not count:
                _check_lengths(file, serialized, config)
            count += 1
    except tf.errors.DataLossError as error:
        if config.on_corrupt_record == "error":
            raise UserError(
                f"{file} must be an intact TFRecord file",
                received=error.message,
                remedy="Build it again, or set --on_corrupt_record=skip.",
            ) from None
        with tf.io.gfile.GFile(file, "rb") as opened:
            return sum(1 for record in read_records(opened))
    return count


def _check_lengths(file: str, serialized: bytes, config: DataConfig) -> None:
    example = tf.train.Example.FromString(serialized)
    stored = {}
    for feature in features.FEATURES:
        values = example.features.feature[feature.name]
        stored[feature.name] = len(
            values.float_list.value
            if feature.dtype == "float32"
            else values.int64_list.value
        )
    features.check_agreement(
        f"the lengths of the features in {file}",
        stored,
        {
            feature.name: feature.length(config)
            for feature in features_to_read("static")
        },
        remedy="Set --max_seq_length and --max_predictions_per_seq to the "
        "lengths of the records.",
    )
