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
from typing import NamedTuple

import numpy as np

from albert_tf.io import files
from albert_tf.records.array_ops import random_bits
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

    def read_headers(self) -> np.ndarray:
        """Returns `HEADER`, `(examples,)`."""
        return np.fromfile(
            self.path, HEADER, len(self.keys), offset=self.headers_at
        )


class SpillFiles(NamedTuple):
    """How the spill files of a build are written and read.

    Attributes:
        num_shards: Number of shards of the build.
        dtype: Type of the tokens.
        range_bytes: Approximate number of bytes to read at a time.
    """

    num_shards: int
    dtype: np.dtype
    range_bytes: int = _RANGE_BYTES

    def write(
        self, path: str, examples: UnmaskedExamples, shards: np.ndarray
    ) -> None:
        """Writes examples, sorted by shard and key, to a file, atomically.

        Args:
            shards: int64, `(examples,)`; the shard number of each example.
        """
        order = np.lexsort((examples.headers["key"], shards))
        examples = examples.take(order)
        counts = np.zeros(self.num_shards, _COUNTS)
        counts["examples"] = np.bincount(shards, minlength=self.num_shards)
        counts["tokens"] = np.bincount(
            shards[order], weights=examples.lengths, minlength=self.num_shards
        )
        with files.atomic_write(path) as file:
            file.write(counts.tobytes())
            file.write(examples.headers.tobytes())
            file.write(examples.tokens.tobytes())

    def is_complete(self, path: str) -> bool:
        """Whether a file exists and has the size that its counts imply."""
        if not files.exists(path):
            return False
        counts = np.fromfile(path, _COUNTS, self.num_shards)
        # Python integers: the counts of a damaged file may be of any size.
        num_examples = sum(counts["examples"].tolist())
        num_tokens = sum(counts["tokens"].tolist())
        size = counts.nbytes + num_examples * HEADER.itemsize
        size += num_tokens * self.dtype.itemsize
        return (
            len(counts) == self.num_shards and files.count_bytes(path) == size
        )

    def read_counts(self, path: str) -> np.ndarray:
        """Returns the number of examples per shard; int64, `(num_shards,)`."""
        counts = np.fromfile(path, _COUNTS, self.num_shards)
        return counts["examples"].astype(np.int64)

    def read_shard(
        self, paths: Sequence[str], shard: int
    ) -> Iterator[UnmaskedExamples]:
        """Yields the examples of a shard, sorted by key and document.

        Yields:
            The examples of increasing ranges of keys. Examples with equal keys
            are in the same range.
        """
        for parts in self._read_ranges(paths, shard):
            examples = UnmaskedExamples.concatenate(
                (self._read_examples(part) for part in parts), self.dtype
            )
            yield examples.take(_sort(examples.headers))

    def read_headers(
        self, paths: Sequence[str], shard: int
    ) -> Iterator[np.ndarray]:
        """Yields the headers of the examples that `read_shard` yields."""
        for parts in self._read_ranges(paths, shard):
            headers = np.concatenate([part.read_headers() for part in parts])
            yield headers[_sort(headers)]

    def _read_ranges(
        self, paths: Sequence[str], shard: int
    ) -> Iterator[list[_Part]]:
        """Yields the parts of a shard, by increasing ranges of keys."""
        opened = [self._open_part(path, shard) for path in paths]
        parts = [part for part in opened if part is not None]
        num_bytes = sum(
            len(p.keys) * HEADER.itemsize
            + int(p.token_ends[-1]) * self.dtype.itemsize
            for p in parts
        )
        num_ranges = max(1, -(-num_bytes // self.range_bytes))
        begins = [0] * len(parts)
        for number in range(1, num_ranges + 1):
            found = []
            for i, part in enumerate(parts):
                end = len(part.keys)
                if number < num_ranges:
                    bound = np.uint64((number << 64) // num_ranges)
                    end = int(np.searchsorted(part.keys, bound))
                if end > begins[i]:
                    found.append(self._slice(part, begins[i], end))
                begins[i] = end
            if found:
                yield found

    def _open_part(self, path: str, shard: int) -> _Part | None:
        """Returns the part of a shard; None if the file has none."""
        counts = np.fromfile(path, _COUNTS, self.num_shards)
        num_examples = int(counts["examples"][shard])
        if not num_examples:
            return None
        examples_before = int(counts["examples"][:shard].sum())
        tokens_before = int(counts["tokens"][:shard].sum())
        header_bytes = int(counts["examples"].sum()) * HEADER.itemsize
        headers_at = counts.nbytes + examples_before * HEADER.itemsize
        tokens_at = counts.nbytes + header_bytes
        tokens_at += tokens_before * self.dtype.itemsize
        headers = np.fromfile(path, HEADER, num_examples, offset=headers_at)
        token_ends = np.cumsum(count_tokens(headers))
        keys = headers["key"].copy()
        return _Part(path, keys, token_ends, headers_at, tokens_at)

    def _slice(self, part: _Part, begin: int, end: int) -> _Part:
        """Returns the examples from `begin` to `end`."""
        tokens_before = int(part.token_ends[begin - 1]) if begin else 0
        return _Part(
            part.path,
            part.keys[begin:end],
            part.token_ends[begin:end] - tokens_before,
            part.headers_at + begin * HEADER.itemsize,
            part.tokens_at + tokens_before * self.dtype.itemsize,
        )

    def _read_examples(self, part: _Part) -> UnmaskedExamples:
        num_tokens = int(part.token_ends[-1])
        tokens = np.fromfile(
            part.path, self.dtype, num_tokens, offset=part.tokens_at
        )
        return UnmaskedExamples(part.read_headers(), tokens)


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


def _sort(headers: np.ndarray) -> np.ndarray:
    return np.lexsort((headers["document"], headers["key"]))
