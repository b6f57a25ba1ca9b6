"""The words of a batch, as the masking rule defines them."""

from typing import NamedTuple

import numpy as np

from albert_tf.records.features import UNK_ID
from albert_tf.records.masking import FIRST_ORDINARY_ID


class Words(NamedTuple):
    """The words of a batch, in order.

    Attributes:
        starts: int64, `(words,)`; index of the first token in the flattened
            batch.
        rows: int64, `(words,)`, not decreasing.
        opens_segment: bool, `(words,)`; True for the first word of a segment.
        of_tokens: int32, `(batch * length,)`; the last word that began at or
            before each token.
        sizes: int64, `(words,)`, number of maskable tokens; `<unk>` is not
            maskable.

    Example:
        >>> ids = np.array([[2, 20, 21, 22, 3]])  # [CLS], a, b, c, [SEP]
        >>> words = find_words(ids, np.array([[1, 1, 0, 1, 1]]))
        >>> words.starts.tolist(), words.sizes.tolist()
        ([1, 3], [2, 1])
    """

    starts: np.ndarray
    rows: np.ndarray
    opens_segment: np.ndarray
    of_tokens: np.ndarray
    sizes: np.ndarray

    def count_tokens(self, is_counted: np.ndarray) -> np.ndarray:
        """Returns how many tokens of each word `is_counted` selects.

        Args:
            is_counted: bool, `(batch, length)`; False for special tokens.

        Returns:
            int64, `(words,)`.
        """
        tokens = np.flatnonzero(is_counted)
        return np.bincount(self.of_tokens[tokens], minlength=len(self.starts))

    def count_spans(self, is_masked: np.ndarray, num_rows: int) -> np.ndarray:
        """Number of contiguous spans of masked words in each row.

        Args:
            is_masked: bool, `(words,)`.

        Returns:
            int64, `(num_rows,)`. A span ends where a segment ends.
        """
        continues = np.zeros(len(is_masked), bool)
        continues[1:] = is_masked[:-1] & ~self.opens_segment[1:]
        return np.bincount(
            self.rows[is_masked & ~continues], minlength=num_rows
        )

    def largest_spans(
        self, num_rows: int, ngram: int, at_most: int
    ) -> np.ndarray:
        """Size of the largest span of each row in maskable tokens.

        Args:
            ngram: Largest number of words in a span.
            at_most: Larger spans are ignored.

        Returns:
            int64, `(num_rows,)`.
        """
        largest = np.zeros(num_rows, np.int64)
        sizes = self.sizes.copy()
        segments = np.cumsum(self.opens_segment)
        for i in range(min(ngram, len(sizes))):
            if i:
                same_segment = segments[i:] == segments[:-i]
                sizes[:-i] += np.where(same_segment, self.sizes[i:], 0)
            np.maximum.at(
                largest, self.rows, np.where(sizes <= at_most, sizes, 0)
            )
        return largest


def find_words(restored: np.ndarray, token_boundary: np.ndarray) -> Words:
    """Words as the masking rule defines them; special tokens separate them.

    Args:
        restored: int32, `(batch, length)`, token ids before masking.
        token_boundary: `(batch, length)`, 1 where a word begins.
    """
    is_maskable = restored >= FIRST_ORDINARY_ID
    is_text = is_maskable | (restored == UNK_ID)
    opens_segment = is_text.copy()
    opens_segment[:, 1:] &= ~is_text[:, :-1]
    opens_word = is_text & (opens_segment | (token_boundary == 1))
    starts = np.flatnonzero(opens_word)
    words = Words(
        starts,
        starts // restored.shape[1],
        opens_segment.ravel()[starts],
        np.cumsum(opens_word, dtype=np.int32) - np.int32(1),
        np.empty(0, np.int64),
    )
    return words._replace(sizes=words.count_tokens(is_maskable))
