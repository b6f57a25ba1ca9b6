"""Shuffles more records than memory holds.

Each record has a random 64-bit key. It decides the shard; within a shard,
records are in the order of their keys. So the shards depend on the records
and their keys alone, not on the order in which they came. While records
come, they are appended to a file for each shard; then each file is mapped
into memory, and its records are copied to the shard in their order.
"""

import os
import posixpath
from collections.abc import Iterator, Sequence

import numpy as np

from albert_tf.files import written_whole

# Of a record in a bucket file: its key and its length in bytes.
_INDEX_DTYPE = np.dtype([("key", "<u8"), ("length", "<u4")])


class Buckets:
    """Records on a local disk, by shard, waiting to be sorted.

    Args:
        directory: Where to write; it must exist.
        num_shards: Number of shards.

    Attributes:
        num_shards: Number of shards.
    """

    def __init__(self, directory: str, num_shards: int) -> None:
        self.num_shards = num_shards
        self._data_paths = [
            os.path.join(directory, f"{i:05d}.data") for i in range(num_shards)
        ]
        self._index_paths = [
            os.path.join(directory, f"{i:05d}.index") for i in range(num_shards)
        ]

    def add(self, records: Sequence[bytes], keys: np.ndarray) -> None:
        """Appends records to the bucket of their shards.

        Args:
            records: Serialized records.
            keys: uint64, `(records,)`, random.
        """
        shards = keys % np.uint64(self.num_shards)
        lengths = np.fromiter(map(len, records), np.uint32, len(records))
        for shard in np.unique(shards).tolist():
            members = np.flatnonzero(shards == shard).tolist()
            index = np.zeros(len(members), _INDEX_DTYPE)
            index["key"] = keys[members]
            index["length"] = lengths[members]
            # Opened anew each time: a process may have few files open.
            with open(self._data_paths[shard], "ab") as data:
                data.write(b"".join(records[i] for i in members))
            with open(self._index_paths[shard], "ab") as file:
                file.write(index.tobytes())

    def read_sorted(self, shard: int) -> Iterator[bytes]:
        """Records of a shard, in the order of their keys."""
        if not os.path.exists(self._data_paths[shard]):
            return
        index = np.fromfile(self._index_paths[shard], _INDEX_DTYPE)
        lengths = index["length"].astype(np.int64)
        ends = np.cumsum(lengths)
        data = np.memmap(self._data_paths[shard], np.uint8, mode="r")
        for i in np.argsort(index["key"], kind="stable"):
            yield data[ends[i] - lengths[i] : ends[i]].tobytes()

    def remove(self, shard: int) -> None:
        """Frees the disk space of a shard."""
        for path in (self._data_paths[shard], self._index_paths[shard]):
            if os.path.exists(path):
                os.remove(path)


def name_shard(split: str, shard: int, num_shards: int) -> str:
    """File name of a shard, e.g. "train-00000-of-00016.tfrecord"."""
    return f"{split}-{shard:05d}-of-{num_shards:05d}.tfrecord"


def write_shard(directory: str, name: str, records: Iterator[bytes]) -> int:
    """Writes a TFRecord file whole.

    Args:
        directory: Where to write, local or gs://.
        name: File name.
        records: Serialized records.

    Returns:
        Number of records.
    """
    import tensorflow as tf

    count = 0
    with (
        written_whole(posixpath.join(directory, name)) as partial,
        tf.io.TFRecordWriter(partial) as writer,
    ):
        for record in records:
            writer.write(record)
            count += 1
    return count
