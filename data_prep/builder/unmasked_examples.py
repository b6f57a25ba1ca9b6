"""Unmasked examples, the form in which a build shuffles its examples.

An unmasked example holds the tokens of its segments and a header. The rest of
a record (special tokens, padding, masks) follows from them and is added when
the shard is written. So spill files take about a third of the space of the
records.
"""

from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np

# The stored header: a random key, which decides the shard and the position in
# it; a digest of the document; the lengths of the segments in tokens; the
# label of the sentence objective; whether the example is the first of its
# document.
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


# Examples copied at a time. Meanwhile, each needs about 250 bytes of Python
# objects.
_EXAMPLES_AT_A_TIME = 1 << 14


class UnmaskedExamples(NamedTuple):
    """A batch of unmasked examples.

    Attributes:
        headers: `HEADER`, `(examples,)`.
        tokens: uint16 or uint32, `(tokens of all examples,)`; for each
            example the first segment, then the second.

    Example:
        >>> headers = np.zeros(2, HEADER)
        >>> headers["first_length"] = [2, 1]
        >>> examples = UnmaskedExamples(headers, np.array([7, 8, 9], np.uint16))
        >>> examples.take(np.array([1])).tokens
        array([9], dtype=uint16)
    """

    headers: np.ndarray
    tokens: np.ndarray

    @classmethod
    def concatenate(cls, parts: Iterable[Self], dtype: np.dtype) -> Self:
        """Returns the examples of all parts, in order.

        Args:
            parts: Batches of examples.
            dtype: Type of the tokens, for the case that there are no parts.
        """
        parts = list(parts)
        return cls(
            np.concatenate([p.headers for p in parts] or [np.empty(0, HEADER)]),
            np.concatenate([p.tokens for p in parts] or [np.empty(0, dtype)]),
        )

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each example; int64, `(examples,)`."""
        return count_tokens(self.headers)

    def take(self, indices: np.ndarray) -> Self:
        """Returns some examples, in the order of `indices`."""
        lengths = self.lengths
        begins = (np.cumsum(lengths) - lengths)[indices]
        lengths = lengths[indices]
        tokens = np.empty(lengths.sum(), self.tokens.dtype)
        filled = 0
        for first in range(0, len(indices), _EXAMPLES_AT_A_TIME):
            part = slice(first, first + _EXAMPLES_AT_A_TIME)
            ends = (begins[part] + lengths[part]).tolist()
            slices = [
                self.tokens[begin:end]
                for begin, end in zip(begins[part].tolist(), ends, strict=True)
            ]
            size = int(lengths[part].sum())
            np.concatenate(slices, out=tokens[filled : filled + size])
            filled += size
        return type(self)(self.headers[indices], tokens)


def count_tokens(headers: np.ndarray) -> np.ndarray:
    """Returns the number of tokens of each example; int64, `(examples,)`."""
    lengths = headers["first_length"].astype(np.int64)
    return lengths + headers["second_length"]


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the smallest type that holds the ids of a vocabulary.

    Example:
        >>> token_dtype(30_000).name, token_dtype(120_000).name
        ('uint16', 'uint32')
    """
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
