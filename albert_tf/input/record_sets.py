"""The record sets of a run, checked against its settings.

Shards are found by file name and checked against the `metadata.json` in their
directory before any device is initialized. A run trains on one set of records
(`--input_file`), or changes sets at given steps (`--data_schedule`).
"""

import dataclasses
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from albert_tf.config import PretrainingConfig
from albert_tf.errors import UserError
from albert_tf.input import record_files
from albert_tf.input.lane_checks import check_lanes
from albert_tf.records import features


@dataclasses.dataclass(frozen=True)
class RecordSet:
    """Shards and their metadata.

    Attributes:
        files: Paths, sorted.
        counts: Number of records in each file.
        checksums: SHA-256 of each file, or "" where the metadata has none.
        metadata: The metadata of the first directory with metadata, but the
            mean unigram entropy of all; None for google-research's records.
        directory: The directory of `metadata`.
        sets: `files` by dataset, or by directory. In training, records of
            several sets alternate; see `num_of_sets`.
        examples_per_row: Mean number of examples in a record; 1 if they are
            not packed.
        useful_share: Fraction of the positions that hold tokens, not padding;
            None if it is not known.

    Example:
        >>> records = RecordSet(
        ...     files=("books", "wiki"),
        ...     counts=(2, 4),
        ...     checksums=("", ""),
        ...     metadata=None,
        ...     directory="",
        ...     sets=(("books",), ("wiki",)),
        ... )
        >>> records.num_records
        6
        >>> [records.num_of_sets(position) for position in (0, 3, 6)]
        [[0, 0], [1, 2], [2, 4]]
    """

    files: tuple[str, ...]
    counts: tuple[int, ...]
    checksums: tuple[str, ...]
    metadata: features.RecordsMetadata | None
    directory: str
    sets: tuple[tuple[str, ...], ...]
    examples_per_row: float = 1.0
    useful_share: float | None = None

    @property
    def packing(self) -> str:
        """Either "none", or "best_fit" for several examples per record."""
        return self.metadata.packing if self.metadata else "none"

    @property
    def masking(self) -> str:
        """Either "static", or "dynamic" for records without masks."""
        return self.metadata.masking if self.metadata else "static"

    def count_of(self, file: str) -> int:
        """Number of records in a file, from `counts`."""
        return self.counts[self.files.index(file)]

    @property
    def num_records(self) -> int:
        """Number of records in all files: the rows of an epoch."""
        return sum(self.counts)

    def num_of_sets(self, position: Any) -> list[Any]:
        """Splits the first records of an epoch by dataset.

        At any position, the number of records of each dataset is proportional
        to its size, up to a difference below the number of datasets. An epoch
        reads every record once.

        Args:
            position: Number of records read, an integer or int64 tensor.

        Returns:
            Numbers by dataset, of the type of `position`, that sum to
            `position`.
        """
        count_of = dict(zip(self.files, self.counts, strict=True))
        rest, counts = self.num_records, []
        for files in self.sets:
            size = sum(count_of[file] for file in files)
            # The dataset gets its proportion of the positions that the earlier
            # datasets leave. That number also grows by at most one at a time.
            counts.append(position * size // max(rest, 1))
            position -= counts[-1]
            rest -= size
        return counts

    def lane(self, lane: int, num_lanes: int) -> "RecordSet":
        """Returns the shards of one of several streams.

        Args:
            lane: Number of the stream, from 0.
            num_lanes: Number of streams, which share the shards of each
                dataset evenly.
        """
        if num_lanes == 1:
            return self
        sets = tuple(files[lane::num_lanes] for files in self.sets)
        files = tuple(sorted(file for of_set in sets for file in of_set))
        index = [self.files.index(file) for file in files]
        return dataclasses.replace(
            self,
            files=files,
            counts=tuple(self.counts[i] for i in index),
            checksums=tuple(self.checksums[i] for i in index),
            sets=sets,
        )

    def text_settings(self) -> dict[str, object]:
        """Returns the settings that other records must share.

        Records with equal settings have equal tokens for equal text. Empty for
        records without metadata.
        """
        if self.metadata is None:
            return {}
        return {
            "vocabulary_sha256": self.metadata.vocabulary_sha256,
            "do_lower_case": self.metadata.do_lower_case,
        }


@dataclasses.dataclass(frozen=True)
class Phase:
    """A range of steps that train on one set of records.

    Attributes:
        first_step: The step at which the phase begins.
        name: Names of its datasets, joined by `+`; "" for `input_file`.
        records: The records to train on.
    """

    first_step: int
    name: str
    records: RecordSet


@dataclasses.dataclass(frozen=True)
class TrainingData:
    """All phases of a run, in order; the first one begins at step 0.

    Example:
        >>> wiki = RecordSet(("wiki",), (4,), ("",), None, "", (("wiki",),))
        >>> books = RecordSet(("books",), (2,), ("",), None, "", (("books",),))
        >>> data = TrainingData(
        ...     (Phase(0, "wiki", wiki), Phase(100, "books", books))
        ... )
        >>> data.at(99).name, data.at(100).name
        ('wiki', 'books')
        >>> data.next_change(0)
        100
    """

    phases: tuple[Phase, ...]

    def at(self, step: int) -> Phase:
        """Returns the phase of the batch of `step`."""
        return [p for p in self.phases if p.first_step <= step][-1]

    def checksums(self) -> dict[str, str]:
        """Returns the SHA-256 of each file, or "" where it is not known."""
        return {
            file: checksum
            for phase in self.phases
            for file, checksum in zip(
                phase.records.files, phase.records.checksums, strict=True
            )
        }

    def next_change(self, step: int) -> int | None:
        """Returns the first step after `step` that begins a phase, or None."""
        later = [p.first_step for p in self.phases if p.first_step > step]
        return min(later, default=None)


def find_training_data(config: PretrainingConfig) -> TrainingData:
    """Finds the records of `input_file`, or of `data_schedule`.

    A build shuffles only its own records. Therefore, the records of several
    directories of `input_file` alternate like those of several datasets.

    Raises:
        UserError: See `find_records`; also if the phases differ in vocabulary
            or lower-casing.
    """
    data = config.data
    if not data.data_schedule:
        records = find_records("input_file", data.input_file, config)
        records = dataclasses.replace(
            records, sets=_by_directory(records.files)
        )
        _check_lanes("input_file", records, data.input_lanes)
        return TrainingData((Phase(0, "", records),))
    files = data.datasets()
    phases: list[Phase] = []
    for first_step, names in data.data_phases():
        if phases and phases[-1].name == "+".join(names):
            continue  # the same data
        records = _find_sets(
            {f"dataset {name}": files[name] for name in names}, config
        )
        _check_lanes("dataset", records, data.input_lanes)
        for phase in phases:
            check_same_text(records, phase.records)
        phases.append(Phase(first_step, "+".join(names), records))
    return TrainingData(tuple(phases))


def _check_lanes(name: str, records: RecordSet, num_lanes: int) -> None:
    count_of = dict(zip(records.files, records.counts, strict=True))
    check_lanes(name, records.sets, count_of, num_lanes)


def _by_directory(files: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    directories: dict[str, list[str]] = {}
    for file in files:
        directories.setdefault(posixpath.dirname(file), []).append(file)
    return tuple(map(tuple, directories.values()))


def find_held_out(config: PretrainingConfig) -> RecordSet:
    """Finds the records of `eval_input_file`.

    They must have the sentence objective of the run, or that of
    `eval_sentence_objective`.

    Raises:
        UserError: See `find_records`; also if the records hold no masks: all
            evaluations must predict the same tokens.
    """
    training = config.training
    config = dataclasses.replace(
        config,
        training=dataclasses.replace(
            training, sentence_objective=training.held_out_objective()
        ),
    )
    held_out = find_records(
        "eval_input_file",
        config.data.eval_input_file,
        config,
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


def find_records(
    name: str,
    patterns: Sequence[str],
    config: PretrainingConfig,
    may_be_unpacked: bool = False,
) -> RecordSet:
    """Finds shards, reads their metadata and checks it against the run.

    It initializes no device, so it may run before a strategy is created.

    Args:
        name: The setting that holds the patterns.
        patterns: Files or globs.
        may_be_unpacked: Whether records of one example fit a run on packed
            records.

    Raises:
        UserError: If no file matches, a build is unfinished, a file is not
            listed in its metadata, only some of the records hold masks, or
            packing, lengths, vocabulary, lower-casing or sentence objective
            differ.
    """
    return _find_sets({name: patterns}, config, may_be_unpacked)


def _find_sets(
    patterns_by_set: Mapping[str, Sequence[str]],
    config: PretrainingConfig,
    may_be_unpacked: bool = False,
) -> RecordSet:
    """Finds the records of several datasets; see `find_records`."""
    name = ", ".join(patterns_by_set)
    sets = record_files.match_files(patterns_by_set)
    files = sorted(file for set_files in sets for file in set_files)
    metadata_of = {
        directory: record_files.read_metadata(directory)
        for directory in sorted({posixpath.dirname(file) for file in files})
    }
    record_files.check_packing(name, metadata_of, config.data, may_be_unpacked)
    for directory, metadata in metadata_of.items():
        if metadata is not None:
            record_files.check_metadata(directory, metadata, config)
    counts = record_files.count_files(files, metadata_of, config.data)
    if not sum(counts):
        raise UserError(
            f"{name} must hold records",
            received=f"no record in {', '.join(files[:3])}"
            + (", ..." if len(files) > 3 else ""),
        )
    # Vocabulary and lengths are those of the first directory with metadata.
    directory, first = next(
        (item for item in metadata_of.items() if item[1] is not None),
        next(iter(metadata_of.items())),
    )
    examples_per_row, useful_share = record_files.mean_content(
        files, counts, metadata_of
    )
    records = RecordSet(
        files=tuple(files),
        counts=counts,
        checksums=tuple(
            record_files.checksum(file, metadata_of) for file in files
        ),
        metadata=first and record_files.with_mean_entropy(first, metadata_of),
        directory=directory,
        sets=sets,
        examples_per_row=examples_per_row,
        useful_share=useful_share,
    )
    _check_agreement(name, records, metadata_of)
    return records


def _check_agreement(
    name: str, records: RecordSet, metadata_of: record_files.MetadataByDirectory
) -> None:
    """Checks that all directories share one masking and one vocabulary."""
    without_masks = [
        directory
        for directory, metadata in metadata_of.items()
        if metadata is not None and metadata.masking == "dynamic"
    ]
    if 0 < len(without_masks) < len(metadata_of):
        raise UserError(
            f"{name} must hold records of one masking, static or dynamic",
            received=f"dynamic only in {', '.join(without_masks)}",
            remedy="Build all of them with the same --masking.",
        )
    for path, metadata in metadata_of.items():
        part = dataclasses.replace(records, directory=path, metadata=metadata)
        check_same_text(part, records)


def check_same_text(records: RecordSet, other: RecordSet) -> None:
    """Checks that two sets share vocabulary and lower-casing, where known."""
    features.check_agreement(
        records.directory or ".",
        records.text_settings(),
        other.text_settings() if records.metadata else {},
        other=other.directory or ".",
        remedy="Build both with the same --spm_model_file and --do_lower_case.",
    )
