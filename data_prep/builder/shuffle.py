"""Shuffles more examples than fit in memory, and finds duplicates.

The random 64-bit key of an example decides its shard and its position in the
shard. Each unit of work writes its examples to a spill file, sorted by shard
and key. A shard is a merge of all spill files: for one range of keys after
another, the examples of the range are read from all files and sorted in memory.
So a shard depends only on the examples and their keys, not on the units, and
memory is bounded for shards of any size, unless they have millions of copies of
a document: all examples of equal keys are sorted at a time.

Examples of equal documents have equal keys, so the merge brings duplicates
together. The first of equal documents keeps its keys. The others are dropped,
or get different keys, so that they are not adjacent in the shards.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

from albert_tf.io import files
from albert_tf.records.keyed_random import random_bits
from data_prep.builder.examples import (
    HEADER,
    UnmaskedExamples,
    count_tokens,
)

# Bytes of examples sorted at a time. Sorting takes several times the memory.
_RANGE_BYTES = 64 << 20

# A spill file begins with these counts for each shard.
_COUNTS = np.dtype([("examples", "<u8"), ("tokens", "<u8")])


class _Part(NamedTuple):
    """Consecutive examples of a shard in a spill file.

    Attributes:
        keys: uint64, `(examples,)`, increasing.
        token_ends: int64, `(examples,)`, index after the last token of each
            example.
        headers_at: Offset of the first header, in bytes.
        tokens_at: Offset of the first token, in bytes.
    """

    path: str
    keys: np.ndarray
    token_ends: np.ndarray
    headers_at: int
    tokens_at: int

    def slice(self, begin: int, end: int, dtype: np.dtype) -> Self:
        """Returns the examples from `begin` to `end`."""
        tokens_before = int(self.token_ends[begin - 1]) if begin else 0
        return self._replace(
            keys=self.keys[begin:end],
            token_ends=self.token_ends[begin:end] - tokens_before,
            headers_at=self.headers_at + begin * HEADER.itemsize,
            tokens_at=self.tokens_at + tokens_before * dtype.itemsize,
        )


def write_spill(
    path: str, examples: UnmaskedExamples, shards: np.ndarray, num_shards: int
) -> None:
    """Writes examples, sorted by shard and key, to a local file, atomically.

    Args:
        shards: int64, `(examples,)`; the shard number of each example.
    """
    order = np.lexsort((examples.headers["key"], shards))
    examples = examples.take(order)
    lengths = examples.lengths
    counts = np.zeros(num_shards, _COUNTS)
    counts["examples"] = np.bincount(shards, minlength=num_shards)
    counts["tokens"] = np.bincount(
        shards[order], weights=lengths, minlength=num_shards
    )
    with files.atomic_write(path) as file:
        file.write(counts.tobytes())
        file.write(examples.headers.tobytes())
        file.write(examples.tokens.tobytes())


def is_complete(path: str, num_shards: int, dtype: np.dtype) -> bool:
    """Whether a spill file exists and has the size that its counts imply."""
    if not files.exists(path):
        return False
    counts = np.fromfile(path, _COUNTS, num_shards)
    # Python integers: the counts of a damaged file may be of any size.
    examples = sum(counts["examples"].tolist())
    tokens = sum(counts["tokens"].tolist())
    return len(counts) == num_shards and files.count_bytes(path) == (
        counts.nbytes + examples * HEADER.itemsize + tokens * dtype.itemsize
    )


def read_counts(path: str, num_shards: int) -> np.ndarray:
    """Returns the number of examples per shard; int64, `(num_shards,)`."""
    return np.fromfile(path, _COUNTS, num_shards)["examples"].astype(np.int64)


def read_shard(
    paths: Sequence[str],
    shard: int,
    num_shards: int,
    dtype: np.dtype,
    range_bytes: int = _RANGE_BYTES,
) -> Iterator[UnmaskedExamples]:
    """Yields the examples of a shard, sorted by key and document.

    Args:
        paths: Spill files.
        shard: Number of the shard.
        range_bytes: Approximate number of bytes to read at a time.

    Yields:
        The examples of increasing ranges of keys. Examples with equal keys are
        in the same range.
    """
    for parts in _read_ranges(paths, shard, num_shards, dtype, range_bytes):
        examples = UnmaskedExamples.concatenate(
            (_read_examples(part, dtype) for part in parts), dtype
        )
        yield examples.take(_sort(examples.headers))


def read_headers(
    paths: Sequence[str],
    shard: int,
    num_shards: int,
    dtype: np.dtype,
    range_bytes: int = _RANGE_BYTES,
) -> Iterator[np.ndarray]:
    """Yields the headers of the examples that `read_shard` yields."""
    for parts in _read_ranges(paths, shard, num_shards, dtype, range_bytes):
        headers = np.concatenate([_read_headers(part) for part in parts])
        yield headers[_sort(headers)]


def count_earlier_equals(headers: np.ndarray) -> np.ndarray:
    """Counts, for each example, the earlier examples of equal key and document.

    Args:
        headers: `HEADER`, sorted by key and document.

    Returns:
        int64, `(examples,)`.
    """
    differs = np.ones(len(headers), bool)
    keys, documents = headers["key"], headers["document"]
    differs[1:] = (keys[1:] != keys[:-1]) | (documents[1:] != documents[:-1])
    positions = np.arange(len(headers))
    return positions - np.maximum.accumulate(np.where(differs, positions, 0))


def rekey_duplicates(
    examples: UnmaskedExamples, occurrences: np.ndarray
) -> UnmaskedExamples:
    """Gives the examples of duplicate documents different keys.

    Args:
        examples: Examples with the keys of the first of equal documents.
        occurrences: `(examples,)`, the number of earlier equal documents, at
            least 1.
    """
    headers = examples.headers.copy()
    headers["key"] = random_bits(headers["key"], occurrences)
    return UnmaskedExamples(headers, examples.tokens)


def _read_ranges(
    paths: Sequence[str],
    shard: int,
    num_shards: int,
    dtype: np.dtype,
    range_bytes: int,
) -> Iterator[list[_Part]]:
    """Yields the parts of a shard, by increasing ranges of keys."""
    parts = [
        part
        for path in paths
        if (part := _open_part(path, shard, num_shards, dtype)) is not None
    ]
    num_bytes = sum(
        len(p.keys) * HEADER.itemsize + int(p.token_ends[-1]) * dtype.itemsize
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
    """Returns the part of a shard; None if the file has no example of it."""
    counts = np.fromfile(path, _COUNTS, num_shards)
    num_examples = int(counts["examples"][shard])
    if not num_examples:
        return None
    examples_before = int(counts["examples"][:shard].sum())
    tokens_before = int(counts["tokens"][:shard].sum())
    first_header = num_shards * _COUNTS.itemsize
    header_bytes = int(counts["examples"].sum()) * HEADER.itemsize
    headers_at = first_header + examples_before * HEADER.itemsize
    headers = np.fromfile(path, HEADER, num_examples, offset=headers_at)
    return _Part(
        path,
        headers["key"].copy(),
        np.cumsum(count_tokens(headers)),
        headers_at,
        first_header + header_bytes + tokens_before * dtype.itemsize,
    )


def _read_headers(part: _Part) -> np.ndarray:
    return np.fromfile(
        part.path, HEADER, len(part.keys), offset=part.headers_at
    )


def _read_examples(part: _Part, dtype: np.dtype) -> UnmaskedExamples:
    tokens = np.fromfile(
        part.path, dtype, int(part.token_ends[-1]), offset=part.tokens_at
    )
    return UnmaskedExamples(_read_headers(part), tokens)


def _sort(headers: np.ndarray) -> np.ndarray:
    return np.lexsort((headers["document"], headers["key"]))
