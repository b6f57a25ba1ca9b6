"""Refuses documents that look like lists, tables or spam.

The rules and limits of Gopher for documents of the web: length, symbols and
repetition. Left out are its upper limit of words, since long documents are cut
anyway; its stop words, which are English; and its rules of paragraphs, since a
document here is lines without blank ones. A word is what spaces surround, so
the rules fit no script without spaces.

A repeated line or n-gram is one that occurred before in the document.

Reference:
    [Rae et al., 2021](https://arxiv.org/abs/2112.11446), appendix A.1.1 and
    table A1.
"""

# TensorFlow is not imported here: each worker process imports this module.

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

_ELLIPSES = ("...", "…")
_BULLETS = tuple("•‣▪◦●*-")
_LETTER = re.compile(r"[^\W\d_]")

# By what a rule measures: the lowest and the highest value. All but the first
# two are fractions: per word, of the lines, of the words, of the characters.
LIMITS: dict[str, tuple[float, float]] = {
    "number of words": (50, math.inf),
    "mean length of words": (3, 10),
    "hash signs per word": (0, 0.1),
    "ellipses per word": (0, 0.1),
    "lines that begin with a bullet": (0, 0.9),
    "lines that end in an ellipsis": (0, 0.3),
    "words with a letter": (0.8, 1),
    "repeated lines": (0, 0.3),
    "characters in repeated lines": (0, 0.2),
    **{
        f"characters in the most frequent {n}-gram": (0, limit)
        for n, limit in ((2, 0.2), (3, 0.18), (4, 0.16))
    },
    **{
        f"characters in repeated {n}-grams": (0, (20 - n) / 100)
        for n in range(5, 11)
    },
}


def find_fault(lines: Sequence[str]) -> str:
    """Returns the first of `LIMITS` that a document is beyond, or ""."""
    # `_measure` computes a value only if all rules before hold.
    for (name, (low, high)), value in zip(
        LIMITS.items(), _measure(lines), strict=True
    ):
        if not low <= value <= high:
            return name
    return ""


def _measure(lines: Sequence[str]) -> Iterator[float]:
    """Yields the values to compare with `LIMITS`, in their order."""
    text = "\n".join(lines)
    words = text.split()
    number = len(words)
    yield number
    lengths = np.array([*map(len, words)])
    characters = int(lengths.sum())
    yield characters / number
    yield text.count("#") / number
    yield sum(map(text.count, _ELLIPSES)) / number
    yield sum(line.startswith(_BULLETS) for line in lines) / len(lines)
    yield sum(line.endswith(_ELLIPSES) for line in lines) / len(lines)
    yield sum(map(bool, map(_LETTER.search, words))) / number

    repeats = {line: n - 1 for line, n in Counter(lines).items() if n > 1}
    yield sum(repeats.values()) / len(lines)
    yield sum(len(line) * n for line, n in repeats.items()) / len(text)

    # Of each position, a number for the n-gram that begins there.
    numbers = {word: i for i, word in enumerate(dict.fromkeys(words))}
    of_word = np.array([numbers[word] for word in words])
    grams = of_word
    ends = np.append(0, np.cumsum(lengths))
    for n in range(2, 11):
        longer = grams[:-1] * len(numbers) + of_word[n - 1 :]
        _, firsts, grams, counts = np.unique(
            longer, return_index=True, return_inverse=True, return_counts=True
        )
        if n < 5:
            top = int(firsts[counts.argmax()])
            size = ends[top + n] - ends[top]
            yield counts.max() * size / characters
            continue
        is_repeat = np.ones(len(grams), int)
        is_repeat[firsts] = 0
        # How many repeated n-grams cover a word.
        covered = np.convolve(is_repeat, np.ones(n, int))
        yield lengths[covered > 0].sum() / characters
