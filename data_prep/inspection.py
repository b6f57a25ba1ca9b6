"""Reads the rows of shards, and checks the ranges of their values.

A row has 1 to K examples. Records of google-research/albert have no metadata:
their first record shows the lengths of the features.
"""

import contextlib
import dataclasses
import itertools
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from albert_tf.errors import UserError, first_line
from albert_tf.io.files import exists, open_existing
from albert_tf.io.tfrecord import StoredRecord, read_records
from albert_tf.records.features import (
    CLS_ID,
    METADATA_FILE,
    SENTENCE_LABEL,
    SENTENCE_WEIGHTS,
    TOKEN_LABELS,
    read_metadata,
    stored_features,
)

# The features of some rows by name; int64 or float32, `(rows, length)`.
Rows: TypeAlias = Mapping[str, np.ndarray]

_BATCH_SIZE = 512
# A shard is read until so many records are faulty.
MAX_FAULTS = 20


def use_cpu() -> None:
    """Hides the devices that training may use; called before all others."""
    import tensorflow as tf

    for kind in ("GPU", "TPU"):
        tf.config.set_visible_devices([], kind)


@dataclasses.dataclass(frozen=True)
class RowShape:
    """Form of the rows of a shard; see `RecordsMetadata`."""

    max_seq_length: int
    max_predictions_per_seq: int
    max_examples_per_row: int
    vocab_size: int
    sentence_objective: str
    masking: str
    packing: str
    label_vocab_size: int = 0


def read_shape(shard: str, vocab_size: int = 0) -> RowShape:
    """Reads the metadata of a shard or, if it has none, its first record.

    Args:
        vocab_size: Number of pieces if there is no metadata; 0 if unknown.

    Raises:
        UserError: If there is neither metadata nor a readable first record.
    """
    import tensorflow as tf

    directory = posixpath.dirname(shard)
    if exists(posixpath.join(directory, METADATA_FILE)):
        metadata = read_metadata(directory)
        names = [field.name for field in dataclasses.fields(RowShape)]
        return RowShape(**{name: getattr(metadata, name) for name in names})
    with open_existing(shard, "rb") as file:
        record = next(read_records(file), None)
    example = tf.train.Example()
    if record:
        with contextlib.suppress(DecodeError):
            example.ParseFromString(record.content)
    features = example.features.feature
    if "input_ids" not in features:
        fault = record.fault if record else ""
        raise UserError(
            "input_file must hold TFRecords of tf.train.Example with input_ids",
            received=f"{shard}: {fault or 'none in record 0'}",
        )
    num_predictions = len(features["masked_lm_positions"].int64_list.value)
    return RowShape(
        max_seq_length=len(features["input_ids"].int64_list.value),
        max_predictions_per_seq=num_predictions,
        max_examples_per_row=1,
        vocab_size=vocab_size or 1 << 18,  # a larger id is damage
        sentence_objective="",
        masking="static" if num_predictions else "dynamic",
        packing="none",
    )


def read_rows(shard: str, shape: RowShape, faults: list[str]) -> Iterator[Rows]:
    """Yields the rows of the intact records of a shard, in batches.

    Args:
        faults: Gets descriptions of the other records. Reading ends after
            `MAX_FAULTS`.
    """
    import tensorflow as tf

    declared = {
        feature.name: tf.io.FixedLenFeature(
            [feature.length(shape)], feature.dtype
        )
        for feature in stored_features(
            shape.masking, shape.packing, shape.label_vocab_size > 0
        )
    }
    with open_existing(shard, "rb") as file:
        records = read_records(file)
        while batch := list(itertools.islice(records, _BATCH_SIZE)):
            try:
                rows = _parse(batch, declared)
                fault_of = {}
            except tf.errors.InvalidArgumentError:
                fault_of = _find_unreadable(batch, declared)
                batch = [r for r in batch if r.number not in fault_of]
                rows = _parse(batch, declared)
            out_of_range = _check_ranges(rows, shape)
            for index, fault in out_of_range.items():
                fault_of[batch[index].number] = fault
            faults += [
                f"{shard}, record {number}: {fault}"
                for number, fault in sorted(fault_of.items())
            ]
            kept = [i for i in range(len(batch)) if i not in out_of_range]
            yield {name: values[kept] for name, values in rows.items()}
            if len(faults) >= MAX_FAULTS:
                return


def restore_tokens(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The tokens before masking, and which are masked; `(rows, length)`."""
    restored = rows["input_ids"].copy()
    is_masked = np.zeros(restored.shape, bool)
    if "masked_lm_weights" in rows:
        in_use = rows["masked_lm_weights"] > 0
        masked = np.nonzero(in_use)[0], rows["masked_lm_positions"][in_use]
        restored[masked] = rows["masked_lm_ids"][in_use]
        is_masked[masked] = True
    return restored, is_masked


# --- records -----------------------------------------------------------------


def _parse(
    records: Sequence[StoredRecord], declared: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Parses records; raises InvalidArgumentError if one is not as declared."""
    import tensorflow as tf

    contents = tf.constant([r.content for r in records], tf.string)
    parsed = tf.io.parse_example(contents, declared)
    return {name: values.numpy() for name, values in parsed.items()}


def _find_unreadable(
    records: Sequence[StoredRecord], declared: Mapping[str, Any]
) -> dict[int, str]:
    """Faults of damaged or other records, by number."""
    import tensorflow as tf

    faults = {}
    for record in records:
        try:
            _parse([record], declared)
        except tf.errors.InvalidArgumentError as error:
            faults[record.number] = record.fault or first_line(error)
    return faults


def _check_ranges(rows: Rows, shape: RowShape) -> dict[int, str]:
    """Faults of rows with a value out of range, by index."""
    last_position = shape.max_seq_length - 1
    last_piece = shape.vocab_size - 1
    faults = {}
    for name, largest in {
        "input_ids": last_piece,
        "input_mask": shape.max_examples_per_row,
        "segment_ids": 1,
        "token_boundary": 1,
        "masked_lm_positions": last_position,
        "masked_lm_ids": last_piece,
        "masked_lm_weights": 1,
        "next_sentence_positions": last_position,
        SENTENCE_LABEL: int(shape.sentence_objective != "none"),
        SENTENCE_WEIGHTS: 1,
        TOKEN_LABELS: shape.label_vocab_size - 1,
    }.items():
        if name not in rows:
            continue
        lowest, highest = rows[name].min(axis=1), rows[name].max(axis=1)
        is_right = (lowest >= 0) & (highest <= largest)  # NaN is wrong
        for index in np.flatnonzero(~is_right).tolist():
            faults[index] = (
                f"{name} must be from 0 to {largest}. "
                f"Received: {lowest[index]} to {highest[index]}"
            )
    first = rows["input_ids"][:, 0]
    for index in np.flatnonzero(first != CLS_ID).tolist():
        faults[index] = (
            f"input_ids must begin with [CLS], {CLS_ID}. "
            f"Received: {first[index]}"
        )
    return faults
