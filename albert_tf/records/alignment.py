"""Tokens of a text, and the characters that each token stands for.

`tokenization.normalize` replaces each run of white space by a space, and each
other character by its decomposition without combining marks, independently of
other characters. So each character of the normalised text comes from one place
of the text, which is recorded here.
"""

import re
import unicodedata
from typing import NamedTuple

import numpy as np

from albert_tf.records.tokenization import GOOGLE_ALBERT, Tokenizer

_WORD = re.compile(r"\S+")


class AlignedTokens(NamedTuple):
    """The tokens of a text and their characters.

    Attributes:
        ids: int32, `(tokens,)`, as `Tokenizer.encode_batch` returns them.
        begins, ends: int64, `(tokens,)`. Token i stands for the characters
            `text[begins[i]:ends[i]]`, without white space at the beginning. A
            bare word mark stands for none: its two values are equal.

    Example:
        >>> ids, begins, ends = np.array([[13, 21], [0, 4], [3, 9]])
        >>> AlignedTokens(ids, begins, ends).find(5, 7)
        (1, 1)
    """

    ids: np.ndarray
    begins: np.ndarray
    ends: np.ndarray

    def find(self, begin: int, end: int) -> tuple[int, int] | None:
        """Finds the tokens of the characters `text[begin:end]`.

        Returns:
            Indices of the first and last token; None if the characters have
            no token, because they are white space or combining marks.
        """
        first = int(np.searchsorted(self.ends, begin, side="right"))
        last = int(np.searchsorted(self.begins, end, side="left")) - 1
        return (first, last) if first <= last else None


def align(tokenizer: Tokenizer, text: str) -> AlignedTokens:
    """Tokenizes a raw text, and finds the characters of each token.

    Example:
        >>> tokenizer = Tokenizer("30k-clean.model")  # doctest: +SKIP
        >>> text = "The ﬁnal  Café"
        >>> tokens = align(tokenizer, text)  # doctest: +SKIP
        >>> for begin, end in zip(  # doctest: +SKIP
        ...     tokens.begins, tokens.ends, strict=True
        ... ):
        ...     print(text[begin:end])
        The
        ﬁnal
        Café
    """
    if tokenizer.kind == GOOGLE_ALBERT:
        normalized, origins = _normalize(text)
        if tokenizer.do_lower_case:
            # This changes no length: the only letter with a longer lower case,
            # a dotted capital I, has been decomposed.
            normalized = normalized.lower()
    else:
        normalized = text
        origins = np.stack([np.arange(len(text)), np.arange(len(text)) + 1])
    ids, begins, ends = tokenizer.encode_with_spans(normalized)
    for i, end in enumerate(ends):
        while begins[i] < end and normalized[begins[i]].isspace():
            begins[i] += 1
    first = np.asarray(begins, np.int64)
    last = np.asarray(ends, np.int64) - 1
    # A token without characters stands before the next character.
    origin_begins = np.append(origins[0], len(text))[first]
    origin_ends = np.where(
        last < first, origin_begins, np.append(origins[1], len(text))[last]
    )
    return AlignedTokens(np.asarray(ids, np.int32), origin_begins, origin_ends)


def _normalize(text: str) -> tuple[str, np.ndarray]:
    """Normalises like `tokenization.normalize`, but keeps upper case.

    Returns:
        The normalised text, and int64 `(2, length)`: character i comes from
        `text[origins[0, i]:origins[1, i]]`, which includes combining marks
        that follow it.
    """
    parts: list[str] = []
    begins: list[int] = []
    ends: list[int] = []
    for number, word in enumerate(_WORD.finditer(text)):
        begin, end = word.span()
        if number:
            begins.append(ends[-1] if ends else 0)
            ends.append(begin)
            parts.append(" ")
        if word.group().isascii():
            begins.extend(range(begin, end))
            ends.extend(range(begin + 1, end + 1))
            parts.append(word.group())
            continue
        word_begin = len(begins)
        for i, character in enumerate(word.group(), begin):
            decomposed = unicodedata.normalize("NFKD", character)
            kept = [c for c in decomposed if not unicodedata.combining(c)]
            begins += [i] * len(kept)
            ends += [i + 1] * len(kept)
            parts += kept
            if not kept and len(begins) > word_begin:
                ends[-1] = i + 1
    return "".join(parts), np.array([begins, ends], np.int64).reshape(2, -1)
