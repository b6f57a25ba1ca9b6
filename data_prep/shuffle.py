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
from data_prep.segments import HEADER, UnmaskedExamples, count_tokens

# Bytes of examples sorted at a time. Sorting takes several times the memory.
_RANGE_BYTES = 64 << 20

# A spill file begins with these counts for each shard.
_COUNTS = np.dtype([("examples", "<u8"), ("tokens", "<u8")])


class _Part(NamedTuple):
    """Consecutive examples of a shard in a spill file; offsets are in bytes."""

    path: str
    headers_at: int
    num_examples: int
    tokens_at: int
    num_tokens: int

    def read_headers(self) -> np.ndarray:
        """Returns `HEADER`, `(examples,)`."""
        return np.fromfile(
            self.path, HEADER, self.num_examples, offset=self.headers_at
        )

    def read(self, dtype: np.dtype) -> UnmaskedExamples:
        """Returns headers and tokens."""
        tokens = np.fromfile(
            self.path, dtype, self.num_tokens, offset=self.tokens_at
        )
        return UnmaskedExamples(self.read_headers(), tokens)


class SpillFiles(NamedTuple):
    """How the spill files of a build are written and read.

    Attributes:
        dtype: Type of the tokens.
        range_bytes: Approximate number of bytes to read at a time.
    """

    num_shards: int
    dtype: np.dtype
    range_bytes: int = _RANGE_BYTES

    def write(
        self, path: str, examples: UnmaskedExamples, shards: np.ndarray
    ) -> None:
        """Writes examples, sorted by shard and key, to a file, atomically."""
        counts = np.zeros(self.num_shards, _COUNTS)
        counts["examples"] = np.bincount(shards, minlength=self.num_shards)
        counts["tokens"] = np.bincount(
            shards, weights=examples.lengths, minlength=self.num_shards
        )
        examples = examples.take(np.lexsort((examples.headers["key"], shards)))
        with files.atomic_write(path) as file:
            for array in (counts, *examples):
                file.write(array.tobytes())

    def read_counts(self, path: str) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of examples and of tokens per shard, `(num_shards,)`."""
        counts = np.fromfile(path, _COUNTS, self.num_shards)
        return (
            counts["examples"].astype(np.int64),
            counts["tokens"].astype(np.int64),
        )

    def read_shard(
        self, paths: Sequence[str], shard: int
    ) -> Iterator[UnmaskedExamples]:
        """Yields the examples of a shard, sorted by key and document.

        Each batch has a range of keys, and so all examples of equal keys.
        """
        for parts in self._find_ranges(paths, shard):
            examples = UnmaskedExamples.concatenate(
                (part.read(self.dtype) for part in parts), self.dtype
            )
            yield examples.take(_sort(examples.headers))

    def read_headers(
        self, paths: Sequence[str], shard: int
    ) -> Iterator[np.ndarray]:
        """Yields the headers of the examples that `read_shard` yields."""
        for parts in self._find_ranges(paths, shard):
            headers = np.concatenate([part.read_headers() for part in parts])
            yield headers[_sort(headers)]

    def _find_ranges(
        self, paths: Sequence[str], shard: int
    ) -> list[list[_Part]]:
        """Returns the parts of a shard, by increasing ranges of keys."""
        counts_of_files = [self.read_counts(path) for path in paths]
        total = sum(
            examples[shard] * HEADER.itemsize
            + tokens[shard] * self.dtype.itemsize
            for examples, tokens in counts_of_files
        )
        num_ranges = max(1, -(-int(total) // self.range_bytes))
        bounds = [(n << 64) // num_ranges for n in range(1, num_ranges)]
        ranges: list[list[_Part]] = [[] for _ in range(num_ranges)]
        for path, (examples, tokens) in zip(
            paths, counts_of_files, strict=True
        ):
            # All headers precede all tokens.
            all_headers_at = self.num_shards * _COUNTS.itemsize
            all_tokens_at = all_headers_at + examples.sum() * HEADER.itemsize
            headers_before = examples[:shard].sum() * HEADER.itemsize
            tokens_before = tokens[:shard].sum() * self.dtype.itemsize
            headers_at = all_headers_at + headers_before
            tokens_at = all_tokens_at + tokens_before
            headers = np.fromfile(
                path, HEADER, examples[shard], offset=headers_at
            )
            ends = np.searchsorted(headers["key"], np.array(bounds, np.uint64))
            token_ends = np.append(0, np.cumsum(count_tokens(headers)))
            begin = 0
            for parts, end in zip(ranges, [*ends, len(headers)], strict=True):
                if end > begin:
                    part = _Part(
                        path,
                        headers_at + begin * HEADER.itemsize,
                        end - begin,
                        tokens_at + token_ends[begin] * self.dtype.itemsize,
                        token_ends[end] - token_ends[begin],
                    )
                    parts.append(part)
                begin = end
        return [parts for parts in ranges if parts]


def count_earlier_equals(headers: np.ndarray) -> np.ndarray:
    """Counts, for each example, the earlier examples of equal key and document.

    The headers are sorted by both.
    """
    differs = np.ones(len(headers), bool)
    keys, documents = headers["key"], headers["document"]
    differs[1:] = (keys[1:] != keys[:-1]) | (documents[1:] != documents[:-1])
    positions = np.arange(len(headers))
    return positions - np.maximum.accumulate(np.where(differs, positions, 0))


def _sort(headers: np.ndarray) -> np.ndarray:
    return np.lexsort((headers["document"], headers["key"]))
