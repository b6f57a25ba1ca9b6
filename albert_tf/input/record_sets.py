"""The records of a run, checked against its settings.

Shards are found by file name and checked against the `metadata.json` in their
directory before any device is initialized. google-research/albert writes no
metadata: the records of such shards are counted by reading them, and the first
record of each shard shows the lengths of the features.
"""

import contextlib
import dataclasses
import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from absl import logging
from google.protobuf.message import DecodeError
from tqdm import tqdm

from albert_tf.config import DataConfig, PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.io.files import find_all, is_remote, open_existing
from albert_tf.io.tfrecord import read_records
from albert_tf.records import features

# A packed record has slots for masked tokens as these settings need them.
_MASKING = ("masked_lm_prob", "ngram", "max_predictions_per_seq")

# The metadata of each directory; None for records of google-research/albert.
_MetadataOf: TypeAlias = Mapping[str, features.RecordsMetadata | None]


@dataclasses.dataclass(frozen=True)
class RecordSet:
    """Shards and their metadata.

    Attributes:
        counts: Number of records in each file, by path, sorted.
        checksums: SHA-256 of each file whose metadata has it.
        metadata: The metadata of the first directory with metadata, but the
            mean unigram entropy of all; None for google-research's records.
        directory: The directory of `metadata`.
        examples_per_row: Mean number of examples in a record; 1 if they are
            not packed.
        useful_share: Fraction of the positions that hold tokens, not padding;
            None if it is not known.

    Example:
        >>> records = RecordSet({"books/a": 2, "wiki/a": 3, "wiki/b": 1})
        >>> records.num_records
        6
        >>> [records.num_by_directory(position) for position in (0, 3, 6)]
        [[0, 0], [1, 2], [2, 4]]
    """

    counts: Mapping[str, int]
    checksums: Mapping[str, str] = dataclasses.field(default_factory=dict)
    metadata: features.RecordsMetadata | None = None
    directory: str = ""
    examples_per_row: float = 1.0
    useful_share: float | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """Paths, sorted."""
        return tuple(self.counts)

    @property
    def packing(self) -> str:
        """As in `RecordsMetadata`; "none" without metadata."""
        return self.metadata.packing if self.metadata else "none"

    @property
    def masking(self) -> str:
        """As in `RecordsMetadata`; "static" without metadata."""
        return self.metadata.masking if self.metadata else "static"

    @property
    def num_records(self) -> int:
        """Number of records in all files: the rows of an epoch."""
        return sum(self.counts.values())

    @property
    def files_by_directory(self) -> tuple[tuple[str, ...], ...]:
        """The files of each directory, in the order of `files`.

        A build shuffles only its own records, so training alternates between
        directories.
        """
        groups: dict[str, list[str]] = {}
        for file in self.counts:
            groups.setdefault(posixpath.dirname(file), []).append(file)
        return tuple(tuple(files) for files in groups.values())

    def num_by_directory(self, position: Any) -> list[Any]:
        """Number of records of each directory among the first `position` ones.

        It is proportional to the size of the directory, up to a difference
        below the number of directories. An epoch reads every record once.

        Args:
            position: An integer or int64 tensor; so are the numbers.
        """
        rest = self.num_records
        numbers = []
        for files in self.files_by_directory:
            size = sum(self.counts[file] for file in files)
            # The directory gets its proportion of the positions that the
            # earlier ones leave. That number also grows by at most one at a
            # time.
            number = position * size // max(rest, 1)
            numbers.append(number)
            position -= number
            rest -= size
        return numbers

    def lane(self, lane: int, num_lanes: int) -> "RecordSet":
        """Returns the shards of one of several streams, from 0.

        The streams share the shards of each directory evenly.
        """
        if num_lanes == 1:
            return self
        counts = {
            file: self.counts[file]
            for files in self.files_by_directory
            for file in files[lane::num_lanes]
        }
        return dataclasses.replace(self, counts=counts)

    def text_settings(self) -> dict[str, object]:
        """Settings with which equal text has equal tokens, where known."""
        names = "vocabulary_sha256", "do_lower_case", "labels_sha256"
        return {n: getattr(self.metadata, n) for n in names if self.metadata}


def find_training_data(config: PretrainingConfig) -> RecordSet:
    """Finds the records of `input_file`.

    Raises:
        UserError: See `find_records`; also if the shards cannot be divided
            among `input_lanes`.
    """
    records = find_records("input_file", config.data.input_file, config)
    _check_shards_of_lanes("input_file", records, config.data.input_lanes)
    return records


def find_held_out(config: PretrainingConfig) -> RecordSet:
    """Finds the records of `eval_input_file`.

    They must have the sentence objective of the run, or that of
    `eval_sentence_objective`.

    Raises:
        UserError: See `find_records`; also if the records hold no masks: all
            evaluations must predict the same tokens.
    """
    objective = config.training.held_out_objective()
    held_out = find_records(
        "eval_input_file",
        config.data.eval_input_file,
        config.replace(sentence_objective=objective),
        may_be_unpacked=True,
    )
    if held_out.masking == "dynamic":
        raise UserError(
            "eval_input_file must hold records of static masking",
            received=f"records without masks in {held_out.directory}",
            remedy="Use eval/ of a build with --holdout_fraction, whose "
            "masking is always static.",
        )
    return held_out


def check_held_out(
    train: RecordSet, held_out: RecordSet, config: DataConfig
) -> None:
    """Checks that the held-out set fits the training records.

    Warns of other masks, whose loss reads as overfitting.

    Args:
        config: Decides the masks of records that are masked while they are
            read.

    Raises:
        UserError: If a file is in both sets, possibly under different paths,
            or if their vocabularies or lower-casing differ.
    """
    of_train = set().union(*_identities(train).values())
    in_both = [
        file for file, own in _identities(held_out).items() if own & of_train
    ]
    if in_both:
        raise UserError(
            "eval_input_file must hold no file of input_file",
            received=", ".join(in_both[:3]),
        )
    if train.metadata is None or held_out.metadata is None:
        return
    check_same_text(held_out, train)
    if train.metadata.inputs_sha256 != held_out.metadata.inputs_sha256:
        logging.warning(
            "%s and %s come from different builds, so documents of one may "
            "also be in the other",
            train.directory,
            held_out.directory,
        )
    masks = config if train.masking == "dynamic" else train.metadata
    for name in ("masked_lm_prob", "ngram"):
        own, other = getattr(masks, name), getattr(held_out.metadata, name)
        if own != other:
            logging.warning(
                "the losses of the run and of %s cannot be compared: their "
                "masks have %s %s and %s. Build the held-out records with the "
                "settings of the run",
                held_out.directory,
                name,
                own,
                other,
            )


def _identities(records: RecordSet) -> dict[str, set[str]]:
    """The path and the checksum, if known, of each file that has records."""
    return {
        file: {
            file if is_remote(file) else os.path.realpath(file),
            records.checksums.get(file, file),
        }
        for file, count in records.counts.items()
        if count
    }


def find_records(
    setting: str,
    patterns: Sequence[str],
    config: PretrainingConfig,
    may_be_unpacked: bool = False,
) -> RecordSet:
    """Finds shards, reads their metadata and checks it against the run.

    It initializes no device, so it may run before a strategy is created.

    Args:
        setting: The name of the setting that has the `patterns`.
        patterns: Files or globs.
        may_be_unpacked: Whether records of one example fit a run on packed
            records.

    Raises:
        UserError: If no file matches, a build is unfinished, a file is not
            listed in its metadata, or records differ from the settings or
            among each other.
    """
    # A directory among them would have no shard in its metadata.
    files = find_all(
        setting,
        patterns,
        "*.tfrecord",
        "Build records with python -m data_prep.build_tfrecords.",
        remote_directories=True,
    )
    directories = sorted({posixpath.dirname(file) for file in files})
    metadata_of = {
        directory: _read_metadata_if_any(directory) for directory in directories
    }
    holds_pairs = any(
        metadata is not None and metadata.sentence_objective != "none"
        for metadata in metadata_of.values()
    )
    for directory, metadata in metadata_of.items():
        _check_settings(
            directory, metadata, config, may_be_unpacked, holds_pairs
        )
    counts = {}
    has_metadata = None not in metadata_of.values()
    for file in tqdm(files, desc="counting records", disable=has_metadata):
        metadata = metadata_of[posixpath.dirname(file)]
        counts[file] = _count_records(file, metadata, config.data)
    if not any(counts.values()):
        raise UserError(
            f"{setting} must hold records",
            received=f"no record in {', '.join(files[:3]) or 'no file'}",
        )
    records = _describe(counts, metadata_of)
    _check_directories_match(records, metadata_of)
    return records


def _describe(counts: Mapping[str, int], metadata_of: _MetadataOf) -> RecordSet:
    """The set of files with these numbers of records, and their metadata."""
    known = {
        directory: metadata
        for directory, metadata in metadata_of.items()
        if metadata is not None
    }
    if not known:
        return RecordSet(counts, directory=min(metadata_of))
    checksums: dict[str, str] = {}
    # Of the shards that are read, not of all shards of a directory.
    num_examples = num_positions = 0.0
    num_tokens = dict.fromkeys(known, 0.0)
    for file, count in counts.items():
        directory, name = posixpath.split(file)
        metadata = known.get(directory)
        if metadata is None:
            continue
        if name in metadata.checksums:
            checksums[file] = metadata.checksums[name]
        share = count / max(metadata.num_rows, 1)
        num_examples += share * metadata.num_examples
        num_tokens[directory] += share * metadata.num_pieces
        num_positions += count * metadata.max_seq_length
    # The masked-LM loss of a model that knows which directory an example is
    # from, and the frequencies of the pieces there.
    entropy = np.average(
        [metadata.unigram_entropy_nats for metadata in known.values()],
        weights=[max(number, 1) for number in num_tokens.values()],
    )
    # Vocabulary and lengths are those of the first directory with metadata.
    first = min(known)
    records = RecordSet(
        counts,
        checksums,
        dataclasses.replace(known[first], unigram_entropy_nats=float(entropy)),
        directory=first,
    )
    if len(known) < len(metadata_of):
        return records
    return dataclasses.replace(
        records,
        examples_per_row=num_examples / records.num_records,
        useful_share=sum(num_tokens.values()) / num_positions,
    )


def _read_metadata_if_any(directory: str) -> features.RecordsMetadata | None:
    """Reads the metadata of a directory; None if there is none."""
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


def _check_settings(
    directory: str,
    metadata: features.RecordsMetadata | None,
    config: PretrainingConfig,
    may_be_unpacked: bool,
    may_be_single: bool,
) -> None:
    """Checks the metadata of a directory against the settings of a run."""
    data = config.data
    path = posixpath.join(directory, features.METADATA_FILE)
    if metadata is None:
        features.check_values_match(
            f"records without {path}",
            {"packing": "none"},
            {} if may_be_unpacked else {"packing": data.packing},
            remedy="Copy it from the directory of the build. For records of "
            "google-research/albert, set --packing=none.",
        )
        return
    wanted: dict[str, object] = {
        "max_seq_length": data.max_seq_length,
        "vocab_size": config.model.vocab_size,
    }
    if metadata.masking == "static":
        wanted["max_predictions_per_seq"] = data.max_predictions_per_seq
    if config.num_token_labels:
        wanted["label_vocab_size"] = config.num_token_labels
    # The segments of unmasked rows tell which examples are pairs.
    single = metadata.sentence_objective, metadata.packing, metadata.masking
    may_be_single &= single == ("none", "best_fit", "dynamic")
    if config.training.sentence_objective != "none" and not may_be_single:
        wanted["sentence_objective"] = config.training.sentence_objective
    if metadata.packing != "none":
        is_packed = data.packing != "none"
        number = data.max_examples_per_row if is_packed else 1
        wanted |= {"packing": data.packing, "max_examples_per_row": number}
        if metadata.masking == "dynamic":
            wanted |= {name: getattr(data, name) for name in _MASKING}
    elif not may_be_unpacked:
        wanted["packing"] = data.packing
    features.check_values_match(path, dataclasses.asdict(metadata), wanted)


def _count_records(
    file: str, metadata: features.RecordsMetadata | None, config: DataConfig
) -> int:
    """Number of records of a file, which is read if it has no metadata."""
    if metadata is not None:
        try:
            return metadata.shards[posixpath.basename(file)]
        except KeyError:
            raise UserError(
                f"{features.METADATA_FILE} must list {file}, which is in the "
                "same directory",
                received=", ".join(metadata.shards),
                remedy="Narrow the glob to the shards of one build.",
            ) from None

    number = 0
    with open_existing(file, "rb") as opened:
        for record in read_records(opened):
            if record.fault:
                raise UserError(
                    f"{file} must be an intact TFRecord file",
                    received=f"record {record.number}, at byte "
                    f"{record.offset}: {record.fault}",
                    remedy="Copy or build it again.",
                )
            if not number:
                _check_lengths(file, record.content, config)
            number += 1
    return number


def _check_lengths(file: str, serialized: bytes, config: DataConfig) -> None:
    found: Any = {}
    with contextlib.suppress(DecodeError):
        found = tf.train.Example.FromString(serialized).features.feature
    if "input_ids" not in found:
        raise UserError(
            f"{file} must hold messages tf.train.Example with input_ids",
            received=", ".join(sorted(found)) or "another message",
            remedy="Build the records with data_prep.build_tfrecords or "
            "google-research/albert; TensorFlow Model Garden has other names.",
        )
    stored = {}
    for feature in features.FEATURES:
        values = found[feature.name]
        numbers = values.float_list.value or values.int64_list.value
        stored[feature.name] = len(numbers)
    features.check_values_match(
        f"the lengths of the features in {file}",
        stored,
        {
            feature.name: feature.length(config)
            for feature in features.features_to_read("static")
        },
        remedy="Set --max_seq_length and --max_predictions_per_seq to the "
        f"lengths of the records. Packed records need the "
        f"{features.METADATA_FILE} of their build.",
    )


def _check_directories_match(
    records: RecordSet, metadata_of: _MetadataOf
) -> None:
    """Checks that directories share masking, packing and vocabulary."""
    for path, metadata in metadata_of.items():
        part = dataclasses.replace(records, directory=path, metadata=metadata)
        features.check_values_match(
            path or ".",
            {"masking": part.masking, "packing": part.packing},
            {"masking": records.masking, "packing": records.packing},
            other=records.directory or ".",
            remedy="Build both with the same --masking and --packing.",
        )
        check_same_text(part, records)


def check_same_text(records: RecordSet, other: RecordSet) -> None:
    """Checks that two sets share vocabulary, case and labels, where known."""
    features.check_values_match(
        records.directory or ".",
        records.text_settings(),
        other.text_settings() if records.metadata else {},
        other=other.directory or ".",
        remedy="Build both with the same --spm_model_file and --do_lower_case; "
        "records with labels, from the same text.",
    )


def _check_shards_of_lanes(
    name: str, records: RecordSet, num_lanes: int
) -> None:
    """Checks that all lanes get equally many shards, and some records."""
    for files in records.files_by_directory:
        if len(files) % num_lanes:
            raise UserError(
                f"the number of shards of {name} must be divisible by "
                f"input_lanes={num_lanes}, in each directory",
                received=f"{len(files)} shards, beginning with {files[0]}",
                remedy="Build the records with another --num_shards, or change "
                "--input_lanes.",
            )
    for lane in range(num_lanes):
        of_lane = records.lane(lane, num_lanes)
        if not of_lane.num_records:
            raise UserError(
                f"each of the input_lanes={num_lanes} lanes must hold records "
                f"of {name}",
                received=f"no record in {', '.join(of_lane.files[:3])}",
                remedy="Build the records with fewer --num_shards, or lower "
                "--input_lanes.",
            )
