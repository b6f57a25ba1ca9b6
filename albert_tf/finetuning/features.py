"""The features of a task: text -> records -> TFRecord files, used again.

A record is what one call of the model reads: a text or a pair of texts, all
choices of a question, or one window of a document. A record of zeros is an
example of weight 0.

    OUTPUT_DIR/features/train-ID/train-00000-of-00001.tfrecord, dev-...
    OUTPUT_DIR/features/train-ID/metadata.json
    OUTPUT_DIR/features/predict-ID/...

ID is the beginning of the SHA-256 of everything that determines the features,
so a refused command leaves those of a run as they are. Sequences have the
length of the longest one, rounded up: the model computes less padding, with
the same result.
"""

import functools
import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from absl import logging

from albert_tf.config import FinetuningConfig
from albert_tf.config.task import TaskHeadConfig
from albert_tf.errors import UserError
from albert_tf.finetuning.kinds import (
    KINDS,
    ExampleSet,
    Reader,
    TaskFeature,
)
from albert_tf.finetuning.tasks import TRAIN
from albert_tf.input.record_format import serialize
from albert_tf.input.record_sets import RecordSet
from albert_tf.io.files import (
    atomic_write,
    load_json_if_any,
    write_json,
)
from albert_tf.io.tfrecord import write_records
from albert_tf.records.features import METADATA_FILE, sha256_of

FEATURES_DIR = "features"
RECORDS_PER_SHARD = 16384

# Lengths are multiples of this number, which suits matrix units.
LENGTH_MULTIPLE = 64

# Number of characters of the SHA-256 in the name of a directory.
_ID_LENGTH = 16

# Seed of the order of training records. Official files may be sorted.
_ORDER_SEED = 0

# The values of a record by feature, int64 or float32, each `(length,)`.
Record = Mapping[str, np.ndarray]


def make_records(examples: ExampleSet, reader: Reader) -> Iterator[Record]:
    """Yields the records of examples, in order, with the features of the kind.

    A question has a record for each window of its document. A question whose
    answer cannot be found is added to `examples.bad`; in training, it has no
    record.

    Raises:
        UserError: If the lengths leave no room for a document.
    """
    kind = KINDS[examples.task.kind]
    features = kind.features(examples.task)
    for values in kind.records(examples, reader):
        values["example_weight"] = 1.0
        yield {
            feature.name: np.ravel(values[feature.name]).astype(feature.dtype)
            for feature in features
        }


# --- records -> files ---------------------------------------------------------


class FeatureFiles(NamedTuple):
    """A directory of features.

    Attributes:
        splits: Number of records by file name, by split.
        checksums: SHA-256 by file name.
        inputs_sha256: SHA-256 of everything that determines the features.
    """

    directory: str
    max_seq_length: int
    splits: dict[str, dict[str, int]]
    checksums: dict[str, str]
    inputs_sha256: str

    def records(self, split: str) -> RecordSet:
        """The records of a split; none without that split."""
        path = functools.partial(posixpath.join, self.directory)
        counts = self.splits.get(split, {})
        return RecordSet(
            {path(name): count for name, count in counts.items()},
            checksums={path(name): self.checksums[name] for name in counts},
            directory=self.directory,
        )


def find_or_write(
    config: FinetuningConfig,
    head: TaskHeadConfig,
    reader: Reader,
    sets: Mapping[str, ExampleSet],
    scratch: str = "",
) -> FeatureFiles:
    """Returns the features of examples; writes them if there are none.

    Args:
        head: What the model predicts.
        sets: The examples of each split.
        scratch: Where to write instead of `output_dir`, for a dry run.
    """
    task, length = config.task, reader.length
    inputs = {
        "examples": {
            split: sha256_of("\n".join(map(repr, examples.examples)).encode())
            for split, examples in sets.items()
        },
        "vocabulary": reader.tokenizer.describe(),
        "max_seq_length": length,
        "kind": head.kind,
        "doc_stride": task.doc_stride,
        "max_query_length": task.max_query_length,
        "max_qa_length": task.max_qa_length,
    }
    inputs_sha256 = sha256_of(json.dumps(inputs, sort_keys=True).encode())
    purpose = "train" if TRAIN in sets else "predict"
    name = f"{purpose}-{inputs_sha256[:_ID_LENGTH]}"
    parent = posixpath.join(config.training.output_dir, FEATURES_DIR)
    directory = posixpath.join(parent, name)
    stored = load_json_if_any(posixpath.join(directory, METADATA_FILE))
    if stored and stored["inputs_sha256"] == inputs_sha256:
        logging.info("using the features in %s", directory)
        return FeatureFiles(directory, **stored)
    records = {
        split: make_records(examples, reader)
        for split, examples in sets.items()
    }
    directory = posixpath.join(scratch or parent, name)
    return write(directory, records, head, length, inputs_sha256)


def write(
    directory: str,
    splits: Mapping[str, Iterable[Record]],
    head: TaskHeadConfig,
    max_seq_length: int,
    inputs_sha256: str = "",
) -> FeatureFiles:
    """Writes records; those of "train" in random order, the others in order."""
    features = KINDS[head.kind].features(head)
    records = {
        split: [_without_padding(record, features) for record in found]
        for split, found in splits.items()
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
    files = FeatureFiles(
        directory,
        min(rounded, max_seq_length),
        {split: {} for split in records},
        {},
        inputs_sha256,
    )
    for split, rows in records.items():
        order = np.arange(len(rows))
        if split == TRAIN:
            order = np.random.default_rng(_ORDER_SEED).permutation(order)
        num_shards = -(-len(rows) // RECORDS_PER_SHARD)
        for shard in range(num_shards):
            begin = shard * RECORDS_PER_SHARD
            of_shard = order[begin : begin + RECORDS_PER_SHARD]
            name = f"{split}-{shard:05d}-of-{num_shards:05d}.tfrecord"
            padded = (
                _padded(rows[i], features, files.max_seq_length)
                for i in of_shard
            )
            serialized = (serialize(features, row) for row in padded)
            with atomic_write(posixpath.join(directory, name)) as file:
                files.checksums[name] = write_records(file, serialized)
            files.splits[split][name] = len(of_shard)
    metadata = files._asdict()
    del metadata["directory"]
    write_json(posixpath.join(directory, METADATA_FILE), metadata)
    return files


def _without_padding(
    record: Record, features: Sequence[TaskFeature]
) -> dict[str, np.ndarray]:
    """Sequences of the longest length and in the smallest type; saves memory.

    They are `(num_sequences, length)`.
    """
    count = features[0].num_sequences
    length = int(record["input_mask"].reshape(count, -1).sum(axis=1).max())
    cut = dict(record)
    for name, _, num_sequences, _ in features:
        if num_sequences:
            values = record[name].reshape(count, -1)[:, :length]
            cut[name] = values.astype(np.min_scalar_type(values.max()))
    return cut


def _padded(
    record: Record, features: Sequence[TaskFeature], length: int
) -> dict[str, list[float]]:
    """Lists the values of a record, with sequences padded to `length`."""
    values = dict(record)
    for name, _, num_sequences, _ in features:
        if num_sequences:
            padding = ((0, 0), (0, length - values[name].shape[1]))
            is_p_mask = int(name == "p_mask")  # no answer contains padding
            values[name] = np.pad(
                values[name], padding, constant_values=is_p_mask
            )
    return {name: value.ravel().tolist() for name, value in values.items()}
