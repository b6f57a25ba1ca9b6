"""Rows: examples between the text and the shards, small and not yet masked.

A row holds the pieces of its segments and what must be known of them; all
else of an example (special pieces, padding, masks) follows from it and is
made when its shard is written. So what is shuffled is about a third of the
records, and nothing at all of what masking adds.
"""

from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np

# As stored: a row's random key, which decides its shard and its place there;
# a digest of its document; lengths of its segments in pieces; the label of
# the sentence objective; whether it is the first row of its document.
HEADER = np.dtype(
    [
        ("key", "<u8"),
        ("document", "<u8"),
        ("first_length", "<u4"),
        ("second_length", "<u4"),
        ("label", "u1"),
        ("opens_document", "u1"),
    ]
)


class Rows(NamedTuple):
    """Some rows.

    Attributes:
        headers: `HEADER`, `(rows,)`.
        pieces: uint16 or uint32, `(pieces of all rows,)`; of each row those
            of the first segment, then those of the second.
    """

    headers: np.ndarray
    pieces: np.ndarray

    @classmethod
    def concatenate(cls, parts: Iterable[Self], dtype: np.dtype) -> Self:
        """All rows of some parts, in their order.

        Args:
            parts: Rows.
            dtype: Of the pieces.
        """
        parts = list(parts)
        return cls(
            np.concatenate([p.headers for p in parts] or [np.empty(0, HEADER)]),
            np.concatenate([p.pieces for p in parts] or [np.empty(0, dtype)]),
        )

    @property
    def lengths(self) -> np.ndarray:
        """Pieces of each row; int64, `(rows,)`."""
        return count_pieces(self.headers)

    def take(self, indices: np.ndarray) -> Self:
        """Some rows, in the order of `indices`."""
        ends = np.cumsum(self.lengths)
        begins = (ends - self.lengths)[indices].tolist()
        ends = ends[indices].tolist()
        slices = [
            self.pieces[begin:end]
            for begin, end in zip(begins, ends, strict=True)
        ]
        return type(self)(
            self.headers[indices],
            np.concatenate(slices) if slices else self.pieces[:0],
        )


def count_pieces(headers: np.ndarray) -> np.ndarray:
    """Pieces of each row; int64, `(rows,)`."""
    lengths = headers["first_length"].astype(np.int64)
    return lengths + headers["second_length"]


def piece_dtype(vocab_size: int) -> np.dtype:
    """The smallest type for pieces of a vocabulary."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
