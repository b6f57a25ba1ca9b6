"""Shuffles more rows than memory holds, and finds equal ones.

A row's random 64-bit key decides its shard, and its place in it. While rows
come, those of each unit of work are written to a spill file, sorted by shard
and key. A shard is then a merge: for one range of keys after another, the
rows of that range are read from all spill files and sorted in memory. So the
shards depend on the rows and their keys alone, not on how they were divided
into units, and memory is bounded whatever the size of a shard.

Rows of equal documents have equal keys, which is how equal documents are
found, however far apart. The first of them stays; the others are left out,
or given keys of their own, so that they do not end up side by side.
"""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

from albert_tf.io.files import PARTIAL_SUFFIX
from albert_tf.records.keyed_random import random_bits
from data_prep.builder.rows import HEADER, Rows, count_pieces

# Bytes of rows sorted at a time; several times as much is in use meanwhile.
_RANGE_BYTES = 64 << 20

# What stands at the beginning of a spill file, for each shard.
_COUNTS = np.dtype([("rows", "<u8"), ("pieces", "<u8")])


class _Part(NamedTuple):
    """Rows of a shard that stand together in a spill file.

    Attributes:
        path: The file.
        keys: uint64, `(rows,)`, rising.
        piece_ends: int64, `(rows,)`, behind the last piece of each row.
        headers_at, pieces_at: Offsets of the first row in bytes.
    """

    path: str
    keys: np.ndarray
    piece_ends: np.ndarray
    headers_at: int
    pieces_at: int

    def slice(self, begin: int, end: int, dtype: np.dtype) -> Self:
        """Some rows."""
        pieces_before = int(self.piece_ends[begin - 1]) if begin else 0
        return self._replace(
            keys=self.keys[begin:end],
            piece_ends=self.piece_ends[begin:end] - pieces_before,
            headers_at=self.headers_at + begin * HEADER.itemsize,
            pieces_at=self.pieces_at + pieces_before * dtype.itemsize,
        )


def write_spill(
    path: str, rows: Rows, shards: np.ndarray, num_shards: int
) -> None:
    """Writes rows, sorted by shard and key, whole or not at all.

    Args:
        path: A local file.
        rows: The rows.
        shards: int64, `(rows,)`.
        num_shards: Number of all shards.
    """
    order = np.lexsort((rows.headers["key"], shards))
    rows = rows.take(order)
    lengths = rows.lengths
    counts = np.zeros(num_shards, _COUNTS)
    counts["rows"] = np.bincount(shards, minlength=num_shards)
    counts["pieces"] = np.bincount(
        shards[order], weights=lengths, minlength=num_shards
    )
    with open(path + PARTIAL_SUFFIX, "wb") as file:
        file.write(counts.tobytes())
        file.write(rows.headers.tobytes())
        file.write(rows.pieces.tobytes())
    os.replace(path + PARTIAL_SUFFIX, path)


def read_counts(path: str, num_shards: int) -> np.ndarray:
    """Rows of each shard in a spill file; int64, `(num_shards,)`."""
    return np.fromfile(path, _COUNTS, num_shards)["rows"].astype(np.int64)


def read_shard(
    paths: Sequence[str],
    shard: int,
    num_shards: int,
    dtype: np.dtype,
    range_bytes: int = _RANGE_BYTES,
) -> Iterator[Rows]:
    """The rows of a shard, sorted by key and document.

    Args:
        paths: Spill files.
        shard: Which one.
        num_shards: Number of all shards.
        dtype: Of the pieces.
        range_bytes: About how much is read at a time.

    Yields:
        Rows of rising ranges of keys; all rows of a key together.
    """
    for parts in _read_ranges(paths, shard, num_shards, dtype, range_bytes):
        rows = Rows.concatenate((_read_rows(p, dtype) for p in parts), dtype)
        yield rows.take(_sort(rows.headers))


def read_headers(
    paths: Sequence[str],
    shard: int,
    num_shards: int,
    dtype: np.dtype,
    range_bytes: int = _RANGE_BYTES,
) -> Iterator[np.ndarray]:
    """As `read_shard`, the headers alone."""
    for parts in _read_ranges(paths, shard, num_shards, dtype, range_bytes):
        headers = np.concatenate([_read_headers(part) for part in parts])
        yield headers[_sort(headers)]


def count_earlier_equals(headers: np.ndarray) -> np.ndarray:
    """How many rows before each have its key and document; int64, `(rows,)`.

    Args:
        headers: `HEADER`, sorted by key and document.
    """
    differs = np.ones(len(headers), bool)
    keys, documents = headers["key"], headers["document"]
    differs[1:] = (keys[1:] != keys[:-1]) | (documents[1:] != documents[:-1])
    places = np.arange(len(headers))
    return places - np.maximum.accumulate(np.where(differs, places, 0))


def give_new_keys(rows: Rows, occurrences: np.ndarray) -> Rows:
    """Rows of a document's repetitions, to be shuffled on their own.

    Args:
        rows: The rows, with the keys of the document's first occurrence.
        occurrences: `(rows,)`, how many equal documents came before; rows
            of occurrence 0 stay as they are.
    """
    headers = rows.headers.copy()
    keys = headers["key"]
    headers["key"] = np.where(
        occurrences > 0, random_bits(keys, occurrences), keys
    )
    return Rows(headers, rows.pieces)


def _read_ranges(
    paths: Sequence[str],
    shard: int,
    num_shards: int,
    dtype: np.dtype,
    range_bytes: int,
) -> Iterator[list[_Part]]:
    """Parts of a shard by rising ranges of keys; none is empty."""
    parts = [
        part
        for path in paths
        if (part := _open_part(path, shard, num_shards, dtype)) is not None
    ]
    num_bytes = sum(
        len(p.keys) * HEADER.itemsize + int(p.piece_ends[-1]) * dtype.itemsize
        for p in parts
    )
    num_ranges = max(1, -(-num_bytes // range_bytes))
    begins = [0] * len(parts)
    for number in range(1, num_ranges + 1):
        found = []
        for i, part in enumerate(parts):
            end = len(part.keys)
            if number < num_ranges:
                bound = np.uint64((number << 64) // num_ranges)
                end = int(np.searchsorted(part.keys, bound))
            if end > begins[i]:
                found.append(part.slice(begins[i], end, dtype))
            begins[i] = end
        if found:
            yield found


def _open_part(
    path: str, shard: int, num_shards: int, dtype: np.dtype
) -> _Part | None:
    """None if the file has no row of the shard."""
    counts = np.fromfile(path, _COUNTS, num_shards)
    num_rows = int(counts["rows"][shard])
    if not num_rows:
        return None
    rows_before = int(counts["rows"][:shard].sum())
    pieces_before = int(counts["pieces"][:shard].sum())
    first_header = num_shards * _COUNTS.itemsize
    first_piece = first_header + int(counts["rows"].sum()) * HEADER.itemsize
    headers_at = first_header + rows_before * HEADER.itemsize
    headers = np.fromfile(path, HEADER, num_rows, offset=headers_at)
    return _Part(
        path,
        headers["key"].copy(),
        np.cumsum(count_pieces(headers)),
        headers_at,
        first_piece + pieces_before * dtype.itemsize,
    )


def _read_headers(part: _Part) -> np.ndarray:
    return np.fromfile(
        part.path, HEADER, len(part.keys), offset=part.headers_at
    )


def _read_rows(part: _Part, dtype: np.dtype) -> Rows:
    pieces = np.fromfile(
        part.path, dtype, int(part.piece_ends[-1]), offset=part.pieces_at
    )
    return Rows(_read_headers(part), pieces)


def _sort(headers: np.ndarray) -> np.ndarray:
    return np.lexsort((headers["document"], headers["key"]))
