"""Which records a run trains on, when, and whether they fit it.

Shards are found by their names and judged by the `metadata.json` beside them,
before a device is touched. A run trains on one set of records throughout
(`--input_file`), or on others from given steps on (`--data_schedule`).
"""

import dataclasses
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tqdm import tqdm

from albert_tf.config import DataConfig, PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.io.tfrecord import read_records
from albert_tf.records import features


@dataclasses.dataclass(frozen=True)
class Records:
    """Shards and what is known of them.

    Attributes:
        files: Paths, sorted.
        counts: Records in each file.
        checksums: SHA-256 of each file, where its metadata tells, or "".
        metadata: Of the first directory that has some; None for records
            that google-research/albert made.
        directory: Where `metadata` was read.
        sets: `files` by the dataset that they came with, or all together.
            Records of several sets alternate; see `num_of_sets`.
    """

    files: tuple[str, ...]
    counts: tuple[int, ...]
    checksums: tuple[str, ...]
    metadata: features.RecordsMetadata | None
    directory: str
    sets: tuple[tuple[str, ...], ...]

    @property
    def masking(self) -> str:
        """Either "static", or "dynamic" for records without masks."""
        return self.metadata.masking if self.metadata else "static"

    def count_of(self, file: str) -> int:
        """Records in a file, as its metadata says."""
        return self.counts[self.files.index(file)]

    @property
    def num_examples(self) -> int:
        """Records in all files."""
        return sum(self.counts)

    def num_of_sets(self, position: Any) -> list[Any]:
        """How many of an epoch's first records each set gives.

        In proportion to its size, to less than one record, wherever the epoch
        is cut; of all records, as many as it holds.

        Args:
            position: Records of the epoch, an integer or int64 tensor.

        Returns:
            By set, of the type of `position`; the sum is `position`.
        """
        count_of = dict(zip(self.files, self.counts, strict=True))
        rest, counts = self.num_examples, []
        for files in self.sets:
            size = sum(count_of[file] for file in files)
            # Of those that the sets before leave, which rise one by one too.
            counts.append(position * size // max(rest, 1))
            position -= counts[-1]
            rest -= size
        return counts

    def text_settings(self) -> dict[str, object]:
        """What other records must share for pieces to mean the same.

        Nothing is known, and nothing asked, of records without metadata.
        """
        if self.metadata is None:
            return {}
        return {
            "vocabulary_sha256": self.metadata.vocabulary_sha256,
            "do_lower_case": self.metadata.do_lower_case,
        }


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of a run that trains on one set of records.

    Attributes:
        first_step: Updates made before it.
        name: Of its datasets, joined by `+`; "" for `input_file`.
        records: What it trains on.
    """

    first_step: int
    name: str
    records: Records


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """All phases of a run, in order; the first one begins at step 0."""

    phases: tuple[Phase, ...]

    def at(self, step: int) -> Phase:
        """The phase of the update made at `step`."""
        return [p for p in self.phases if p.first_step <= step][-1]

    def next_change(self, step: int) -> int | None:
        """The first step after `step` that begins a phase, or None."""
        later = [p.first_step for p in self.phases if p.first_step > step]
        return min(later, default=None)


def find_training_data(config: PretrainingConfig) -> TrainingData:
    """Finds the records of `input_file`, or of `data_schedule`.

    Raises:
        UserError: As `find_records`; if the phases differ in vocabulary or
            lower-casing.
    """
    data = config.data
    if not data.data_schedule:
        records = find_records("input_file", data.input_file, config)
        return TrainingData((Phase(0, "", records),))
    files = data.datasets()
    phases: list[Phase] = []
    for first_step, names in data.data_phases():
        if phases and phases[-1].name == "+".join(names):
            continue  # nothing changes
        records = _find_sets(
            {f"dataset {name}": files[name] for name in names}, config
        )
        for phase in phases:
            if records.metadata is not None:
                features.check_agreement(
                    records.directory,
                    dataclasses.asdict(records.metadata),
                    phase.records.text_settings(),
                )
        phases.append(Phase(first_step, "+".join(names), records))
    return TrainingData(tuple(phases))


def find_records(
    name: str, patterns: Sequence[str], config: PretrainingConfig
) -> Records:
    """Finds shards, reads their metadata and checks it against the run.

    No device is touched, so that it may come before a strategy is made.

    Args:
        name: The setting that holds the patterns.
        patterns: Files or globs.
        config: The run.

    Raises:
        UserError: If no file matches, a build has not ended, a file is not
            in its metadata, lengths, vocabulary, lower-casing or sentence
            objective differ, or some hold masks and others none.
    """
    return _find_sets({name: patterns}, config)


def _find_sets(
    patterns_of: Mapping[str, Sequence[str]], config: PretrainingConfig
) -> Records:
    """As `find_records`, of several sets, by their names.

    A file that several sets have belongs to the first of them.
    """
    name = ", ".join(patterns_of)
    files: list[str] = []
    sets = []
    for set_name, patterns in patterns_of.items():
        own = _matching_files(set_name, patterns) - set(files)
        if own:
            sets.append(tuple(sorted(own)))
            files = sorted([*files, *own])
    metadata_of = {
        directory: _metadata_of(directory)
        for directory in sorted({posixpath.dirname(file) for file in files})
    }
    for directory, metadata in metadata_of.items():
        if metadata is not None:
            _check_metadata(directory, metadata, config)
    unlisted = [f for f in files if metadata_of[posixpath.dirname(f)] is None]
    counts = tuple(
        _count_records(file, config.data)
        if metadata is None
        else _listed_count(file, metadata)
        for file, metadata in (
            (file, metadata_of[posixpath.dirname(file)])
            for file in tqdm(
                files, desc="counting records", disable=not unlisted
            )
        )
    )
    if not sum(counts):
        raise UserError(f"{name} must hold records", received="none at all")
    # Vocabulary and lengths are those of the first that has metadata.
    directory, first = next(
        (item for item in metadata_of.items() if item[1] is not None),
        next(iter(metadata_of.items())),
    )
    checksums = tuple(
        metadata.checksums.get(posixpath.basename(file), "")
        if (metadata := metadata_of[posixpath.dirname(file)])
        else ""
        for file in files
    )
    records = Records(
        tuple(files), counts, checksums, first, directory, tuple(sets)
    )
    without_masks = [
        other
        for other, metadata in metadata_of.items()
        if metadata is not None and metadata.masking == "dynamic"
    ]
    if 0 < len(without_masks) < len(metadata_of):
        raise UserError(
            f"{name} must hold records of one masking, static or dynamic",
            received=f"dynamic in {', '.join(without_masks)} alone",
            remedy="Build all of them with the same --masking.",
        )
    for other, metadata in metadata_of.items():
        if metadata is not None:
            features.check_agreement(
                other, dataclasses.asdict(metadata), records.text_settings()
            )
    return records


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


def find_held_out(config: PretrainingConfig) -> Records:
    """Finds the records of `eval_input_file`, see `find_records`.

    Raises:
        UserError: If they hold no masks, too: each evaluation must ask for
            the same pieces.
    """
    held_out = find_records(
        "eval_input_file", config.data.eval_input_file, config
    )
    if held_out.masking == "dynamic":
        raise UserError(
            "eval_input_file must hold records of static masking",
            received=f"records without masks in {held_out.directory}",
            remedy="Take eval/ of a build with --holdout_fraction, whose "
            "masking is always static.",
        )
    return held_out


def check_held_out(train: Records, held_out: Records) -> None:
    """Refuses held-out records that are trained on, or made of other pieces.

    Raises:
        UserError: Naming the files in both, or what differs.
    """
    in_both = sorted(set(train.files) & set(held_out.files))
    if in_both:
        raise UserError(
            "eval_input_file must hold no file of input_file",
            received=", ".join(in_both[:3]),
        )
    if train.metadata is None or held_out.metadata is None:
        return
    features.check_agreement(
        held_out.directory,
        dataclasses.asdict(held_out.metadata),
        train.text_settings(),
    )
    if train.metadata.inputs_sha256 != held_out.metadata.inputs_sha256:
        logging.warning(
            "%s and %s are of two builds: documents of one may be in the other",
            train.directory,
            held_out.directory,
        )


def features_to_read(masking: str) -> tuple[features.Feature, ...]:
    """What the trainer reads of records of that masking."""
    return tuple(
        feature
        for feature in features.stored_features(masking)
        if masking == "dynamic" or feature.name != "token_boundary"
    )


def _metadata_of(directory: str) -> features.RecordsMetadata | None:
    """None for records of google-research/albert.

    Raises:
        UserError: For a build of our own that has not ended.
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
        "%s has no %s: its records are taken for those of "
        "google-research/albert, and their vocabulary is not checked",
        directory or ".",
        features.METADATA_FILE,
    )
    return None


def _check_metadata(
    directory: str,
    metadata: features.RecordsMetadata,
    config: PretrainingConfig,
) -> None:
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


def _listed_count(file: str, metadata: features.RecordsMetadata) -> int:
    try:
        return metadata.shards[posixpath.basename(file)]
    except KeyError:
        raise UserError(
            f"{features.METADATA_FILE} beside {file} must list it",
            received=", ".join(metadata.shards),
            remedy="Narrow the glob to the shards of one build.",
        ) from None


def _count_records(file: str, config: DataConfig) -> int:
    """Records of a file, read without touching a device.

    Raises:
        UserError: If the first record has other lengths, or one is damaged.
    """
    count = 0
    try:
        for serialized in tf.compat.v1.io.tf_record_iterator(file):
            if not count:
                _check_lengths(file, serialized, config)
            count += 1
    except tf.errors.DataLossError as error:
        if config.on_corrupt_record == "error":
            raise UserError(
                f"{file} must be a whole TFRecord file",
                received=error.message,
                remedy="Build it again, or --on_corrupt_record=skip.",
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
