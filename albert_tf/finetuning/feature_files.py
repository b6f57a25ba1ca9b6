"""The features of a task as TFRecord files, written once and used again.

    OUTPUT_DIR/features/train-ID/train-00000-of-00001.tfrecord, dev-...
    OUTPUT_DIR/features/train-ID/metadata.json
    OUTPUT_DIR/features/predict-ID/...

ID is the beginning of the SHA-256 of everything that determines the features.
So a command with other examples or lengths leaves the features of a run as they
are, and its settings can be refused after it has written its own. The
directories of earlier versions have names without ID.

The sequences of a directory have the same length: that of the longest one,
rounded up. The model then computes less padding, with the same result.
"""

import dataclasses
import json
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from scipy.special import entr

from albert_tf.config.task_head import (
    QUESTION_ANSWERING,
    REGRESSION,
    TaskHeadConfig,
)
from albert_tf.errors import UserError
from albert_tf.finetuning.features import (
    Record,
    TaskFeature,
    task_features,
)
from albert_tf.finetuning.tasks import TRAIN
from albert_tf.input.record_format import serialize
from albert_tf.input.record_sets import RecordSet
from albert_tf.io.files import (
    atomic_write,
    load_json,
    load_json_if_any,
    write_json,
)
from albert_tf.io.tfrecord import TFRecordWriter
from albert_tf.records.features import METADATA_FILE, sha256_of

RECORDS_PER_SHARD = 16384

# Lengths are multiples of this number, which suits matrix units.
LENGTH_MULTIPLE = 64

# Number of characters of the SHA-256 in the name of a directory.
_ID_LENGTH = 16

# Seed of the order of training records. Official files may be sorted.
_ORDER_SEED = 0

MakeRecords = Callable[[], Iterable[Record]]


@dataclasses.dataclass(frozen=True)
class FeatureFiles:
    """A directory of features.

    Attributes:
        max_seq_length: Length of every sequence.
        splits: Number of records by file name, by split.
        checksums: SHA-256 by file name.
        constant_loss: By split, the least loss of predictions that do not
            depend on the input: chance, if labels are balanced.
        inputs_sha256: SHA-256 of everything that determines the features.

    Example:
        >>> files = FeatureFiles(
        ...     "run/features/train-ba7816", 64,
        ...     {"train": {"train-00000-of-00001.tfrecord": 67}},
        ...     {"train-00000-of-00001.tfrecord": "2c26b4"},
        ...     {"train": 0.69}, "ba7816",
        ... )
        >>> files.records("train").num_records
        67
    """

    directory: str
    max_seq_length: int
    splits: Mapping[str, Mapping[str, int]]
    checksums: Mapping[str, str]
    constant_loss: Mapping[str, float]
    inputs_sha256: str

    def names(self, split: str) -> tuple[str, ...]:
        """Paths of the files of a split; () without that split."""
        return tuple(
            posixpath.join(self.directory, name)
            for name in self.splits.get(split, ())
        )

    def records(self, split: str) -> RecordSet:
        """The records of a split."""
        counts, files = self.splits[split], self.names(split)
        return RecordSet(
            files=files,
            counts=tuple(counts.values()),
            checksums=tuple(self.checksums[name] for name in counts),
            metadata=None,
            directory=self.directory,
            sets=(files,),
        )


def find_or_write(
    parent: str,
    purpose: str,
    splits: Mapping[str, MakeRecords],
    head: TaskHeadConfig,
    max_seq_length: int,
    inputs: Mapping[str, Any],
    scratch: str = "",
) -> FeatureFiles:
    """Returns the features with these inputs; writes them if there are none.

    Args:
        parent: Has a directory for each purpose and all inputs.
        purpose: "train" or "predict".
        splits: Makes the records of each split. Those of "train" are written
            in random order, the others in order.
        head: What the model predicts.
        max_seq_length: Length of the sequences in the records.
        inputs: Everything that determines the features, as JSON values.
        scratch: Where to write instead of `parent`, for a dry run.
    """
    inputs_sha256 = sha256_of(json.dumps(inputs, sort_keys=True).encode())
    name = f"{purpose}-{inputs_sha256[:_ID_LENGTH]}"
    for known in (name, purpose):  # the latter from an earlier version
        directory = posixpath.join(parent, known)
        stored = load_json_if_any(posixpath.join(directory, METADATA_FILE))
        if stored and stored["inputs_sha256"] == inputs_sha256:
            logging.info("using the features in %s", directory)
            return FeatureFiles(directory, **stored)
    directory = posixpath.join(scratch or parent, name)
    metadata = _write(directory, splits, head, max_seq_length)
    metadata["inputs_sha256"] = inputs_sha256
    path = posixpath.join(directory, METADATA_FILE)
    write_json(path, metadata)
    return FeatureFiles(directory, **load_json(path))


def _write(
    directory: str,
    splits: Mapping[str, MakeRecords],
    head: TaskHeadConfig,
    max_seq_length: int,
) -> dict[str, Any]:
    """Writes the shards; returns the metadata."""
    features = task_features(head.kind, head.num_choices)
    records = {
        split: [_without_padding(record, features) for record in make()]
        for split, make in splits.items()
    }
    for split, rows in records.items():
        if not rows:
            raise UserError(
                f"at least one example of the {split} set must be usable",
                received="none: no window has a complete answer",
                remedy="Check the file, or set a smaller --doc_stride.",
            )
    longest = max(
        record["input_ids"].shape[1]
        for rows in records.values()
        for record in rows
    )
    rounded = -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
    length = min(rounded, max_seq_length)
    counts: dict[str, dict[str, int]] = {}
    checksums: dict[str, str] = {}
    for split, rows in records.items():
        if split == TRAIN:
            order = np.random.default_rng(_ORDER_SEED).permutation(len(rows))
            rows = [rows[i] for i in order]
        num_shards = -(-len(rows) // RECORDS_PER_SHARD)
        counts[split] = {}
        for shard in range(num_shards):
            begin = shard * RECORDS_PER_SHARD
            of_shard = rows[begin : begin + RECORDS_PER_SHARD]
            name = f"{split}-{shard:05d}-of-{num_shards:05d}.tfrecord"
            with (
                atomic_write(posixpath.join(directory, name)) as file,
                TFRecordWriter(file) as writer,
            ):
                for record in of_shard:
                    padded = _padded(record, features, length)
                    writer.write(serialize(features, padded))
                checksums[name] = writer.sha256()
            counts[split][name] = len(of_shard)
    return {
        "max_seq_length": length,
        "splits": counts,
        "checksums": checksums,
        "constant_loss": {
            split: constant_loss(rows, head) for split, rows in records.items()
        },
    }


def _without_padding(
    record: Record, features: Sequence[TaskFeature]
) -> dict[str, np.ndarray]:
    """Cuts sequences to the longest of the record; saves memory.

    Returns:
        Sequences as `(num_sequences, length)`, in the smallest type.
    """
    num_sequences = features[0].num_sequences
    mask = record["input_mask"].reshape(num_sequences, -1)
    length = int(mask.sum(axis=1).max())
    cut = dict(record)
    for feature in features:
        if feature.num_sequences:
            rows = record[feature.name].reshape(num_sequences, -1)[:, :length]
            cut[feature.name] = rows.astype(np.min_scalar_type(rows.max()))
    return cut


def _padded(
    record: Record, features: Sequence[TaskFeature], length: int
) -> dict[str, list[float]]:
    """Lists the values of a record, with sequences padded to `length`."""
    values = dict(record)
    for feature in features:
        if feature.num_sequences:
            cut = record[feature.name]
            values[feature.name] = np.pad(
                cut,
                ((0, 0), (0, length - cut.shape[1])),
                # No answer contains padding.
                constant_values=int(feature.name == "p_mask"),
            )
    return {name: value.ravel().tolist() for name, value in values.items()}


def constant_loss(records: Sequence[Record], head: TaskHeadConfig) -> float:
    """The least loss of predictions that do not depend on the input.

    It is the entropy of the labels or, for regression, their variance. A model
    at this loss has learned only how frequent each label is.

    Example:
        >>> head = TaskHeadConfig("regression")
        >>> records = [{"label": np.array([x])} for x in (1.0, 3.0)]
        >>> constant_loss(records, head)
        1.0
    """

    def entropy(name: str) -> float:
        values = np.concatenate([record[name] for record in records])
        _, counts = np.unique(values, return_counts=True)
        return float(entr(counts / counts.sum()).sum())

    if head.kind == REGRESSION:
        return float(np.var([record["label"][0] for record in records]))
    if head.kind != QUESTION_ANSWERING:
        return entropy("label")
    loss = (entropy("start_position") + entropy("end_position")) / 2
    return loss + 0.5 * entropy("is_impossible") * head.is_beam
