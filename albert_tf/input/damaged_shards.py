"""Reads shards, with padding in place of damaged records.

The datasets contain no Python function. On a TPU slice, every host reads
records, but only the controller runs Python.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from albert_tf.input.record_sets import RecordSet
from albert_tf.io.tfrecord import read_records

# An offset after the end of any file: reading from there finds no record.
_NOWHERE = 1 << 62


class Stretch(NamedTuple):
    """Consecutive intact records of a file, and the damaged records after them.

    Attributes:
        offset: Number of bytes before the first intact record.
        num_intact: Number of intact records.
        num_damaged: Number of damaged records.
    """

    offset: int
    num_intact: int
    num_damaged: int


def find_stretches(
    damaged: Mapping[str, frozenset[int]], records: RecordSet
) -> dict[str, list[Stretch]]:
    """Finds the intact records of shards, by reading these shards once.

    Args:
        damaged: Numbers of damaged records, by file.
        records: The set of records; other files are ignored.

    Returns:
        The stretches of each file, in order. If more records are damaged than
        `damaged` lists, a dataset of the stretches raises an error.
    """
    stretches = {}
    for file in damaged.keys() & set(records.files):
        with tf.io.gfile.GFile(file, "rb") as opened:
            offsets = [record.offset for record in read_records(opened)]
        count = records.count_of(file)
        stretches[file] = _join(offsets, damaged[file], count)
    return stretches


def _join(
    offsets: Sequence[int], damaged: frozenset[int], count: int
) -> list[Stretch]:
    """Joins the records of a file to stretches.

    Args:
        offsets: The offset of each record that was found.
        damaged: Numbers of the damaged records.
        count: Number of records that the file must have.

    Example:
        >>> _join([0, 50, 100, 150], frozenset({1, 4}), count=5)
        [Stretch(offset=0, num_intact=1, num_damaged=1),
         Stretch(offset=100, num_intact=2, num_damaged=1)]
    """
    stretches = []
    number = 0
    while number < count:
        first = number
        number = _next(range(first, count), damaged, True)
        end = _next(range(number, count), damaged, False)
        offset = offsets[first] if first < len(offsets) else _NOWHERE
        stretches.append(Stretch(offset, number - first, end - number))
        number = end
    return stretches


def _next(numbers: range, damaged: frozenset[int], is_damaged: bool) -> int:
    """Finds the first damaged record, or intact one if not `is_damaged`.

    Returns:
        The number of the record; the end of the range if there is none.
    """
    found = (n for n in numbers if (n in damaged) == is_damaged)
    return next(found, numbers.stop)


def read_stretches(
    file: tf.Tensor,
    stretches: Mapping[str, Iterable[Stretch]],
    padding: bytes,
    buffer_bytes: int,
) -> tf.data.Dataset:
    """Reads a shard, with padding in place of damaged records.

    Args:
        file: string scalar.
        stretches: From `find_stretches`.
        padding: The record that replaces a damaged one.
        buffer_bytes: Number of bytes to read at a time.

    Returns:
        Serialized records; none if the file has no stretches.
    """
    names = [name for name, items in stretches.items() for _ in items]
    numbers = list(itertools.chain.from_iterable(stretches.values()))
    of_file = tf.boolean_mask(
        tf.constant(numbers, tf.int64, [len(numbers), 3]),
        file == tf.constant(names, tf.string),
    )

    def read(stretch: tf.Tensor) -> tf.data.Dataset:
        # Not by `tf.unstack`: TensorFlow 2.21 crashes on it here.
        offset, num_intact, num_damaged = (stretch[i] for i in range(3))
        # `tf.data.TFRecordDataset` has no argument for the offset.
        from_offset = tf.data.experimental.from_variant(
            tf.raw_ops.TFRecordDatasetV2(
                filenames=[file],
                compression_type="",
                buffer_size=tf.constant(buffer_bytes, tf.int64),
                byte_offsets=[offset],
            ),
            tf.TensorSpec((), tf.string),
        )
        paddings = tf.data.Dataset.from_tensors(padding).repeat(num_damaged)
        return from_offset.take(num_intact).concatenate(paddings)

    return tf.data.Dataset.from_tensor_slices(of_file).flat_map(read)
