"""Finds documents and paragraphs that repeat others almost word for word.

A text is the set of its 5-grams of words. MinHash makes 14 bands of 8 hashes of
it. Two texts share a band with a probability of 1 - (1 - s^8)^14, where s is
the fraction of 5-grams that they share: 77 % for s = 0.75, 99 % for 0.85, 5 %
for 0.5. A text is dropped if it shares a band with one of a lower digest, so
that the result depends neither on the order of the documents nor on the number
of processes. A paragraph is a line of at least 20 words; of those that share a
band, one stays, in a document that is kept.

Memory is bounded: a band is compared in parts, by ranges of its hashes, and
the result has 16 bytes for each dropped text.

Reference:
    [Broder, 1997](https://doi.org/10.1109/SEQUEN.1997.666900); bands as in
    [FineWeb, 2024](https://arxiv.org/abs/2406.17557), section 3.4.
"""

# TensorFlow is not imported here: each worker process imports this module.

import hashlib
import re
from collections.abc import Sequence

import numpy as np

BANDS, _ROWS = 14, 8
_NGRAM = 5
_SHORTEST_PARAGRAPH = 20  # words

# The rows of a table of sketches, before those of the bands. Line 0 stands for
# the document.
_DOCUMENT, _LINE, _FIRST_BAND = range(3)

# This bounds memory, of the hashes of a text, and of the sketches of a part.
_NGRAMS_AT_A_TIME = 1 << 14
LARGEST_PART = 1 << 21

_WORD = re.compile(r"\w+")


def sketch(documents: Sequence[list[str]], paragraphs: bool) -> np.ndarray:
    """Returns the bands of documents, given by lines, and of their paragraphs.

    Returns:
        uint64, `(2 + BANDS, texts)`: digest of the document, number of the
        line from 1 or 0 for all of it, a hash of each band. Texts without
        words are left out.
    """
    from datasketch import MinHash

    template = MinHash(num_perm=BANDS * _ROWS)
    columns = []
    for lines in documents:
        texts = ["\n".join(lines), *(lines if paragraphs else ())]
        for number, text in enumerate(texts):
            words = _WORD.findall(text.lower())
            if len(words) < (_SHORTEST_PARAGRAPH if number else 1):
                continue
            ngrams = [
                " ".join(words[i : i + _NGRAM]).encode(errors="surrogatepass")
                for i in range(max(1, len(words) - _NGRAM + 1))
            ]
            minhash = template.copy()
            for begin in range(0, len(ngrams), _NGRAMS_AT_A_TIME):
                minhash.update_batch(ngrams[begin : begin + _NGRAMS_AT_A_TIME])
            bands = minhash.hashvalues.astype("<u4").reshape(BANDS, _ROWS)
            hashes = [_digest(band.tobytes()) for band in bands]
            columns.append([_digest_document(lines), number, *hashes])
    shape = len(columns), _FIRST_BAND + BANDS
    return np.array(columns, np.uint64).reshape(shape).T


def find_repeats(
    tables: Sequence[str],
    band: int,
    part: tuple[int, int],
    dropped: np.ndarray | None = None,
) -> np.ndarray:
    """Finds the texts that share a band with a text of a lower digest.

    Equal documents have equal digests, so all of them stay.

    Args:
        tables: Files of `sketch`.
        part: Number of the part, and of all parts.
        dropped: None compares documents. The result for documents compares
            the paragraphs of the others.

    Returns:
        uint64, `(2, repeats)`: document and line, sorted.
    """
    rows = [_DOCUMENT, _LINE, _FIRST_BAND + band]
    found = []
    for path in tables:
        texts = np.load(path, mmap_mode="r")[rows]
        chosen = texts[2] % part[1] == part[0]
        chosen &= (texts[_LINE] > 0) == (dropped is not None)
        if dropped is not None:
            chosen &= ~np.isin(texts[_DOCUMENT], dropped[_DOCUMENT])
        found.append(texts[:, chosen])
    texts = np.concatenate(found, axis=1)
    texts = texts[:, np.lexsort(texts[[_LINE, _DOCUMENT, 2]])]
    keys, hashes = texts[:2], texts[2]
    is_first = np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)]
    firsts = np.maximum.accumulate(
        np.where(is_first, np.arange(len(hashes)), 0)
    )
    return np.unique(keys[:, (keys != keys[:, firsts]).any(axis=0)], axis=1)


def drop(lines: list[str], dropped: np.ndarray) -> list[str]:
    """Returns the lines of a document that are not dropped."""
    key = np.uint64(_digest_document(lines))
    first, last = (
        int(np.searchsorted(dropped[_DOCUMENT], key, side))
        for side in ("left", "right")
    )
    numbers = {*dropped[_LINE, first:last].tolist()}
    if 0 in numbers:
        return []
    return [line for n, line in enumerate(lines, 1) if n not in numbers]


def _digest_document(lines: list[str]) -> int:
    return _digest("\n".join(lines).encode(errors="surrogatepass"))


def _digest(content: bytes) -> int:
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "little")
