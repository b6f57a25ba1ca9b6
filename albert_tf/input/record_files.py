"""Finds the shards of records, and reads their metadata and record counts.

google-research/albert writes no metadata. The records of such shards are
counted by reading them; the first record of each shard shows the lengths of the
features.
"""

import dataclasses
import posixpath
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from absl import logging
from tqdm import tqdm

from albert_tf.config import DataConfig, PretrainingConfig
from albert_tf.errors import UserError, first_line
from albert_tf.io import faults
from albert_tf.io.files import READ_ATTEMPTS, find
from albert_tf.records import features

# The name that `_describe_packing` gives to unpacked records.
UNPACKED = "packing=none"

# The metadata of each directory; None for records of google-research/albert.
MetadataByDirectory = Mapping[str, features.RecordsMetadata | None]

# These settings decide how many masked tokens a packed row can have.
_MASKING = ("masked_lm_prob", "ngram", "max_predictions_per_seq")


def features_to_read(
    masking: str, packing: str = "none"
) -> tuple[features.Feature, ...]:
    """Returns the features that the trainer reads from records.

    Args:
        masking: "static" or "dynamic", as the records were built.
        packing: "none" or "best_fit", as the records were built.
    """
    unread = {features.EXAMPLE_NUMBERS}
    if masking == "static":
        unread.add("token_boundary")
    return tuple(
        feature
        for feature in features.stored_features(masking, packing)
        if feature.name not in unread
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
    if not patterns:
        raise UserError(
            f"{name} must name files of records",
            received="none",
            remedy="Set files or globs, e.g. records/train/*.tfrecord.",
        )
    files: set[str] = set()
    for pattern in patterns:
        # A directory among them would have no shard in its metadata.
        matches = find(pattern, remote_directories=True)
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
    """Reads the metadata of a directory.

    Returns:
        None for a directory without metadata, as google-research/albert writes.

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
    path = posixpath.join(directory, features.METADATA_FILE)
    stored = dataclasses.asdict(metadata)
    features.check_agreement(path, stored, wanted)
    if metadata.masking == "dynamic" and metadata.packing != "none":
        features.check_agreement(
            path,
            stored,
            {name: getattr(config.data, name) for name in _MASKING},
            remedy="The build packed each row so that the masks of its "
            "settings fit into the slots of the row. Set "
            + " ".join(f"--{name}={stored[name]}" for name in _MASKING)
            + ", build the records again, or use unpacked records, which have "
            "slots for any masking.",
        )


def check_packing(
    name: str,
    metadata_of: MetadataByDirectory,
    config: DataConfig,
    may_be_unpacked: bool,
) -> None:
    """Checks that all records are packed alike, as the settings say.

    Args:
        name: The setting that names the records.
        metadata_of: The metadata of their directories.
        may_be_unpacked: Whether unpacked records always fit.

    Raises:
        UserError: If they are packed differently.
    """
    found = {
        directory: _describe_packing(metadata)
        for directory, metadata in metadata_of.items()
    }
    if len(set(found.values())) > 1:
        raise UserError(
            f"{name} must hold records of one packing",
            received="; ".join(
                f"{packing} in {directory}"
                for directory, packing in found.items()
            ),
            remedy="Build all of them with the same --packing and "
            "--max_examples_per_row.",
        )
    (directory, packing), *_ = found.items()
    wanted = _describe_packing(config)
    fits = {wanted} | ({UNPACKED} if may_be_unpacked else set())
    if packing not in fits and metadata_of[directory] is None:
        raise UserError(
            f"{name} must hold records of {wanted}",
            received=f"{directory or '.'} without {features.METADATA_FILE}, "
            "which says how records are packed",
            remedy="Copy it from the directory of the build. For records of "
            "google-research/albert, set --packing=none.",
        )
    if packing not in fits:
        raise UserError(
            f"{name} must hold records of {wanted}",
            received=f"{packing} in "
            f"{posixpath.join(directory, features.METADATA_FILE)}",
            remedy=f"Set --{packing.replace(', ', ' --')}, or build the "
            "records again. For packed records, add "
            "--flagfile=configs/pretrain/include/packed.flags to a recipe.",
        )


def _describe_packing(
    settings: features.RecordsMetadata | DataConfig | None,
) -> str:
    """Names the packing of records; None stands for google-research/albert."""
    if settings is None or settings.packing == "none":
        return UNPACKED
    return (
        f"packing={settings.packing}, "
        f"max_examples_per_row={settings.max_examples_per_row}"
    )


def count_files(
    files: Sequence[str], metadata_of: MetadataByDirectory, config: DataConfig
) -> tuple[int, ...]:
    """Returns the number of records in each file.

    The numbers come from the metadata. Files without metadata are read.

    Raises:
        UserError: If a file is not listed in its metadata. Without metadata,
            if the lengths of its features differ from `config`, or if it is
            damaged.
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


def mean_content(
    files: Sequence[str],
    counts: Sequence[int],
    metadata_of: MetadataByDirectory,
) -> tuple[float, float | None]:
    """Returns the mean content of a record, according to the metadata.

    Args:
        counts: Number of records in each file.
        metadata_of: The metadata of their directories.

    Returns:
        The number of examples, and the fraction of the positions that hold
        tokens; 1 and None if a directory has no metadata.
    """
    examples = tokens = positions = 0.0
    for file, count in zip(files, counts, strict=True):
        metadata = metadata_of[posixpath.dirname(file)]
        if metadata is None:
            return 1.0, None
        share = count / max(metadata.num_rows, 1)
        examples += share * metadata.num_examples
        tokens += share * metadata.num_pieces
        positions += count * metadata.max_seq_length
    return examples / sum(counts), tokens / positions


def with_mean_entropy(
    metadata: features.RecordsMetadata, metadata_of: MetadataByDirectory
) -> features.RecordsMetadata:
    """Returns metadata with the mean unigram entropy of all directories.

    Weighted by tokens, it is the masked-LM loss of a model that knows which
    directory an example is from, and the frequencies of the pieces there.
    """
    known = [m for m in metadata_of.values() if m is not None]
    mean = np.average(
        [m.unigram_entropy_nats for m in known],
        weights=[max(m.num_pieces, 1) for m in known],
    )
    return dataclasses.replace(metadata, unigram_entropy_nats=float(mean))


def checksum(file: str, metadata_of: MetadataByDirectory) -> str:
    """Returns the SHA-256 of a file, or "" if its metadata has none."""
    metadata = metadata_of[posixpath.dirname(file)]
    if metadata is None:
        return ""
    return metadata.checksums.get(posixpath.basename(file), "")


def _count_records(file: str, config: DataConfig) -> int:
    """Counts the records of a file without initializing devices.

    A file that looks damaged is read again.
    """
    for _ in range(1, READ_ATTEMPTS):
        try:
            return _count_intact_records(file, config)
        except tf.errors.OpError as error:
            if not (
                isinstance(error, tf.errors.DataLossError)
                or faults.is_incomplete_read(error)
            ):
                raise
            logging.warning("reading %s again: %s", file, first_line(error))
    try:
        return _count_intact_records(file, config)
    except tf.errors.DataLossError as error:
        raise UserError(
            f"{file} must be an intact TFRecord file",
            received=error.message,
            remedy="Copy or build it again.",
        ) from None


def _count_intact_records(file: str, config: DataConfig) -> int:
    count = 0
    for serialized in tf.compat.v1.io.tf_record_iterator(file):
        if not count:
            _check_lengths(file, serialized, config)
        count += 1
    return count


def _check_lengths(file: str, serialized: bytes, config: DataConfig) -> None:
    example = tf.train.Example.FromString(serialized)
    if "next_sentence_positions" in example.features.feature:
        raise UserError(
            f"{features.METADATA_FILE} must be in the directory of packed "
            "records",
            received=f"{file}, a shard of packed records, without it",
            remedy="Copy it from the directory of the build.",
        )
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
