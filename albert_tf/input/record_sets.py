"""The records of a run, checked against its settings.

Shards are found by file name and checked against the `metadata.json` in their
directory before any device is initialized. google-research/albert writes no
metadata: the records of such shards are counted by reading them, and the first
record of each shard shows the lengths of the features. A run trains on one set
of records (`--input_file`), or changes sets at given steps (`--data_schedule`).
"""

import contextlib
import dataclasses
import itertools
import os
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from google.protobuf.message import DecodeError
from tqdm import tqdm

from albert_tf.config import DataConfig, PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.io.files import (
    DamagedFileError,
    find_all,
    is_remote,
    open_existing,
    read_again_if_damaged,
)
from albert_tf.io.tfrecord import read_records
from albert_tf.records import features

# A packed record has slots for masked tokens as these settings need them.
_MASKING = ("masked_lm_prob", "ngram", "max_predictions_per_seq")


@dataclasses.dataclass(frozen=True)
class RecordSet:
    """Shards and their metadata.

    Attributes:
        counts: Number of records in each file, by path, sorted.
        files_by_source: The files of each source: of a dataset, or of a
            directory. Training alternates between the records of several
            sources; see `num_by_source`.
        checksums: SHA-256 of each file whose metadata has it.
        metadata: The metadata of the first directory with metadata, but the
            mean unigram entropy of all; None for google-research's records.
        directory: The directory of `metadata`.
        examples_per_row: Mean number of examples in a record; 1 if they are
            not packed.
        useful_share: Fraction of the positions that hold tokens, not padding;
            None if it is not known.
        weights: Fraction of the records of an epoch that each source gives;
            empty for that of its size.

    Example:
        >>> records = RecordSet(
        ...     {"books": 2, "wiki": 4}, (("books",), ("wiki",))
        ... )
        >>> records.num_records
        6
        >>> [records.num_by_source(position) for position in (0, 3, 6)]
        [[0, 0], [1, 2], [2, 4]]
    """

    counts: Mapping[str, int]
    files_by_source: tuple[tuple[str, ...], ...]
    checksums: Mapping[str, str] = dataclasses.field(default_factory=dict)
    metadata: features.RecordsMetadata | None = None
    directory: str = ""
    examples_per_row: float = 1.0
    useful_share: float | None = None
    weights: tuple[float, ...] = ()

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

    def num_by_source(self, position: Any) -> list[Any]:
        """Number of records of each source among the first `position` ones.

        It is proportional to the size of the source, or its weight, up to a
        difference below the number of sources. Without weights, an epoch reads
        every record once.

        Args:
            position: An integer or int64 tensor; so are the numbers.
        """
        rest, counts = self.num_records, []
        for size in self.records_of_epoch():
            # The source gets its proportion of the positions that the earlier
            # sources leave. That number also grows by at most one at a time.
            counts.append(position * size // max(rest, 1))
            position -= counts[-1]
            rest -= size
        return counts

    def records_of_epoch(self) -> list[int]:
        """The number of records of each source in an epoch."""
        if not self.weights:
            return self.sizes()
        ends = [
            round(self.num_records * part)
            for part in itertools.accumulate(self.weights)
        ]
        return np.diff(ends, prepend=0).tolist()

    def sizes(self) -> list[int]:
        """Returns the number of records of each source."""
        return [
            sum(self.counts[file] for file in files)
            for files in self.files_by_source
        ]

    def read_in_epoch(self) -> dict[str, float]:
        """Mean number of records that an epoch reads of each file, by path."""
        times = {
            file: wanted / max(size, 1)
            for files, wanted, size in zip(
                self.files_by_source,
                self.records_of_epoch(),
                self.sizes(),
                strict=True,
            )
            for file in files
        }
        return {file: n * times[file] for file, n in self.counts.items()}

    def lane(self, lane: int, num_lanes: int) -> "RecordSet":
        """Returns the shards of one of several streams, from 0.

        The streams share the shards of each source evenly.
        """
        if num_lanes == 1:
            return self
        sources = tuple(f[lane::num_lanes] for f in self.files_by_source)
        files = sorted(itertools.chain.from_iterable(sources))
        counts = {file: self.counts[file] for file in files}
        return dataclasses.replace(self, counts=counts, files_by_source=sources)

    def text_settings(self) -> dict[str, object]:
        """Settings with which equal text has equal tokens, where known."""
        return {
            name: getattr(self.metadata, name)
            for name in ("vocabulary_sha256", "do_lower_case")
            if self.metadata
        }


@dataclasses.dataclass(frozen=True)
class Phase:
    """The steps from `first_step` on, which train on one set of records.

    Its name is those of its datasets, joined by `+`; "" for `input_file`.
    """

    first_step: int
    name: str
    records: RecordSet


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """All phases of a run, in order; the first one begins at step 0."""

    phases: tuple[Phase, ...]

    def at(self, step: int) -> Phase:
        """Returns the phase of the batch of `step`."""
        return [p for p in self.phases if p.first_step <= step][-1]

    def next_change(self, step: int) -> int | None:
        """Returns the first step after `step` that begins a phase, or None."""
        later = [p.first_step for p in self.phases if p.first_step > step]
        return min(later, default=None)


def find_training_data(config: PretrainingConfig) -> TrainingData:
    """Finds the records of `input_file`, or of `data_schedule`.

    Raises:
        UserError: See `find_records`; also if the phases differ in vocabulary
            or lower-casing.
    """
    data = config.data
    if not data.data_schedule:
        records = find_records({"input_file": data.input_file}, config)
        # A build shuffles only its own records, so those of several
        # directories alternate.
        directories: dict[str, list[str]] = {}
        for file in records.files:
            directories.setdefault(posixpath.dirname(file), []).append(file)
        records = dataclasses.replace(
            records, files_by_source=tuple(map(tuple, directories.values()))
        )
        _check_shards_of_lanes("input_file", records, data.input_lanes)
        return TrainingData((Phase(0, "", records),))
    files = data.datasets()
    phases: list[Phase] = []
    for first_step, names in data.data_phases():
        if phases and phases[-1].name == "+".join(names):
            continue  # the same data
        of_phase = [name.partition("*") for name in names]
        records = find_records(
            {f"dataset {name}": files[name] for name, *_ in of_phase},
            config,
            tuple(float(weight) for *_, weight in of_phase if weight),
        )
        _check_shards_of_lanes("dataset", records, data.input_lanes)
        for lane in range(data.input_lanes):
            sizes = records.lane(lane, data.input_lanes).sizes()
            if records.weights and 0 in sizes:
                raise UserError(
                    "datasets with weights must hold records for all "
                    "input_lanes",
                    received="+".join(names),
                )
        for phase in phases:
            check_same_text(records, phase.records)
        phases.append(Phase(first_step, "+".join(names), records))
    return TrainingData(tuple(phases))


def find_held_out(config: PretrainingConfig) -> RecordSet:
    """Finds the records of `eval_input_file`.

    They must have the sentence objective of the run, or that of
    `eval_sentence_objective`.

    Raises:
        UserError: See `find_records`; also if the records hold no masks: all
            evaluations must predict the same tokens.
    """
    training = dataclasses.replace(
        config.training,
        sentence_objective=config.training.held_out_objective(),
    )
    held_out = find_records(
        {"eval_input_file": config.data.eval_input_file},
        dataclasses.replace(config, training=training),
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
                *(held_out.directory, name, own, other),
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
    patterns_by_source: Mapping[str, Sequence[str]],
    config: PretrainingConfig,
    weights: tuple[float, ...] = (),
    may_be_unpacked: bool = False,
) -> RecordSet:
    """Finds shards, reads their metadata and checks it against the run.

    It initializes no device, so it may run before a strategy is created.

    Args:
        patterns_by_source: Files or globs by their setting.
        weights: See `RecordSet`.
        may_be_unpacked: Whether records of one example fit a run on packed
            records.

    Raises:
        UserError: If no file matches, a build is unfinished, a file is not
            listed in its metadata, or records differ from the settings or
            among each other.
    """
    name = ", ".join(patterns_by_source)
    sources = _match_files(patterns_by_source)
    if len(sources) < len(weights):
        raise UserError("datasets with weights must differ", received=name)
    files = sorted(itertools.chain.from_iterable(sources))
    metadata_of = {
        directory: _read_metadata_if_any(directory)
        for directory in sorted(set(map(posixpath.dirname, files)))
    }
    known = {d: m for d, m in metadata_of.items() if m is not None}
    holds_pairs = any(m.sentence_objective != "none" for m in known.values())
    for directory, found in metadata_of.items():
        _check_settings(directory, found, config, may_be_unpacked, holds_pairs)
    # Of each file.
    listings = [metadata_of[posixpath.dirname(file)] for file in files]
    progress = tqdm(
        files, desc="counting records", disable=None not in listings
    )
    counts = {
        file: _count_records(file, listing, config.data)
        for file, listing in zip(progress, listings, strict=True)
    }
    if not any(counts.values()):
        raise UserError(
            f"{name} must hold records",
            received=f"no record in {', '.join(files[:3])}",
        )
    # Vocabulary and lengths are those of the first directory with metadata.
    directory = min(known or metadata_of)
    metadata = metadata_of[directory]
    records = RecordSet(counts, sources, weights=weights)
    read = records.read_in_epoch()
    if metadata is not None:
        # The masked-LM loss of a model that knows which directory an example is
        # from, and the frequencies of the pieces there.
        tokens = dict.fromkeys(known, 0.0)
        for file, number in read.items():
            parent = posixpath.dirname(file)
            if found := known.get(parent):
                share = number / max(found.num_rows, 1)
                tokens[parent] += share * found.num_pieces
        mean = np.average(
            [m.unigram_entropy_nats for m in known.values()],
            weights=[max(number, 1) for number in tokens.values()],
        )
        metadata = dataclasses.replace(
            metadata, unigram_entropy_nats=float(mean)
        )
    examples_per_row, useful_share = _mean_content([*read.values()], listings)
    records = dataclasses.replace(
        records,
        checksums={
            file: checksum
            for file, m in zip(files, listings, strict=True)
            if m and (checksum := m.checksums.get(posixpath.basename(file)))
        },
        metadata=metadata,
        directory=directory,
        examples_per_row=examples_per_row,
        useful_share=useful_share,
    )
    _check_directories_match(name, records, metadata_of)
    return records


def _match_files(
    patterns_by_source: Mapping[str, Sequence[str]],
) -> tuple[tuple[str, ...], ...]:
    """The files of each source, sorted, without those of earlier sources."""
    found: set[str] = set()
    sources = []
    for name, patterns in patterns_by_source.items():
        if not patterns:
            raise UserError(
                f"{name} must name files of records",
                received="none",
                remedy="Set files or globs, e.g. records/train/*.tfrecord.",
            )
        # A directory among them would have no shard in its metadata.
        matches = {
            *find_all(
                name,
                patterns,
                "*.tfrecord",
                "Build records with python -m data_prep.build_tfrecords.",
                remote_directories=True,
            )
        }
        if matches - found:
            sources.append(tuple(sorted(matches - found)))
            found |= matches
    return tuple(sources)


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
        if data.packing != "none" and not may_be_unpacked:
            raise UserError(
                f"--packing={data.packing} needs {path}, which says how the "
                "records are packed",
                received="no such file",
                remedy="Copy it from the directory of the build. For records "
                "of google-research/albert, set --packing=none.",
            )
        return
    wanted: dict[str, object] = {
        "max_seq_length": data.max_seq_length,
        "vocab_size": config.model.vocab_size,
    }
    if metadata.masking == "static":
        wanted["max_predictions_per_seq"] = data.max_predictions_per_seq
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

    def count() -> int:
        number = 0
        with open_existing(file, "rb") as opened:
            for record in read_records(opened):
                if record.fault:
                    raise DamagedFileError(
                        f"{file} must be an intact TFRecord file",
                        received=f"record {record.number}, at byte "
                        f"{record.offset}: {record.fault}",
                        remedy="Copy or build it again.",
                    )
                if not number:
                    _check_lengths(file, record.content, config)
                number += 1
        return number

    return read_again_if_damaged(count, file)


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
    stored = {
        feature.name: len(values.float_list.value or values.int64_list.value)
        for feature in features.FEATURES
        for values in [found[feature.name]]
    }
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


def _mean_content(
    counts: Sequence[float],
    listings: Sequence[features.RecordsMetadata | None],
) -> tuple[float, float | None]:
    """`examples_per_row`, `useful_share`; 1 and None without all metadata."""
    examples = tokens = positions = 0.0
    for metadata, count in zip(listings, counts, strict=True):
        if metadata is None:
            return 1.0, None
        share = count / max(metadata.num_rows, 1)
        examples += share * metadata.num_examples
        tokens += share * metadata.num_pieces
        positions += count * metadata.max_seq_length
    return examples / sum(counts), tokens / positions


def _check_directories_match(
    name: str,
    records: RecordSet,
    metadata_of: Mapping[str, features.RecordsMetadata | None],
) -> None:
    """Checks that directories share masking, packing and vocabulary."""
    parts = {
        path or ".": dataclasses.replace(records, directory=path, metadata=m)
        for path, m in metadata_of.items()
    }
    for setting in ("masking", "packing"):
        found = {path: getattr(part, setting) for path, part in parts.items()}
        if len(set(found.values())) > 1:
            raise UserError(
                f"{name} must hold records of one {setting}",
                received="; ".join(f"{v} in {d}" for d, v in found.items()),
                remedy=f"Build all of them with the same --{setting}.",
            )
    for part in parts.values():
        check_same_text(part, records)


def check_same_text(records: RecordSet, other: RecordSet) -> None:
    """Checks that two sets share vocabulary and lower-casing, where known."""
    features.check_values_match(
        records.directory or ".",
        records.text_settings(),
        other.text_settings() if records.metadata else {},
        other=other.directory or ".",
        remedy="Build both with the same --spm_model_file and --do_lower_case.",
    )


def _check_shards_of_lanes(
    name: str, records: RecordSet, num_lanes: int
) -> None:
    """Checks that all lanes get equally many shards, and some records."""
    for files in records.files_by_source:
        if len(files) % num_lanes:
            raise UserError(
                f"the number of shards of {name} must be divisible by "
                f"input_lanes={num_lanes}, in each directory or dataset",
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
