"""Pairs adjacent segments of a document, by the sentence objective.

A document is a sequence of tokens with marked sentences and words, and a
segment is a range of tokens. Consecutive sentences are collected into a chunk.
The chunk is split into two segments, which are cut to the length of an example.
For sentence-order prediction, the label is 1 exactly if the segments were
swapped; unlike in google-research/albert, both segments always come from the
same document.

Reference:
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 3.1.
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SKIPPED_CHUNKS = "chunks of less than two words"


class SegmentPair(NamedTuple):
    """The two segments of an example, as ranges of tokens of a document.

    Attributes:
        first_begin, first_end: Tokens between `[CLS]` and the first `[SEP]`.
        second_begin, second_end: Tokens between the first and the second
            `[SEP]`; an empty range if there is no second segment.
        label: 1 if the second segment precedes the first in the document
            (sop), or must be replaced by a segment of another document (nsp);
            else 0.
    """

    first_begin: int
    first_end: int
    second_begin: int
    second_end: int
    label: int


def pair_segments(
    sentence_ends: Sequence[int],
    word_starts: np.ndarray,
    *,
    objective: str,
    max_num_tokens: int,
    short_seq_prob: float,
    rng: random.Random,
    skipped: Counter[str],
) -> list[SegmentPair]:
    """Makes the segment pairs of one pass over a document.

    Args:
        sentence_ends: Index after the last token of each sentence, strictly
            increasing; see `cut_long_sentences`.
        word_starts: int64, increasing; indices of tokens that begin a word.
        objective: "sop", "nsp", or "none" for a single segment.
        max_num_tokens: Largest number of tokens of both segments, >= 2.
        short_seq_prob: Probability that this pass collects shorter chunks,
            of a random length, so that training sees short inputs.
        rng: The source of all random decisions of this pass.
        skipped: Counter of skipped chunks, by reason.

    Returns:
        Pairs in the order of the document.

    Example:
        A document of four sentences of 5 tokens, each token a word. Each pair
        has two sentences, and both pairs are swapped.

        >>> pairs = pair_segments(
        ...     [5, 10, 15, 20],
        ...     np.arange(20),
        ...     objective="sop",
        ...     max_num_tokens=10,
        ...     short_seq_prob=0.0,
        ...     rng=random.Random(7),
        ...     skipped=Counter(),
        ... )
        >>> for pair in pairs:
        ...     print(*pair)
        5 10 0 5 1
        15 20 10 15 1
    """
    target = max_num_tokens
    if rng.random() < short_seq_prob:
        target = rng.randint(2, max_num_tokens)
    pairs = []
    chunk_ends: list[int] = []
    begin = 0
    last_end = sentence_ends[-1]
    for end in sentence_ends:
        chunk_ends.append(end)
        if end - begin < target and end != last_end:
            continue
        if objective == "none":
            kept = _truncate((begin, end, end, end), max_num_tokens, rng)
            pairs.append(SegmentPair(*kept, 0))
        elif (middle := _split_chunk(begin, chunk_ends, word_starts, rng)) < 0:
            skipped[SKIPPED_CHUNKS] += 1
        else:
            label = int(rng.random() < 0.5)
            bounds = (begin, middle, middle, end)
            if label and objective == "sop":
                bounds = (middle, end, begin, middle)
            kept = _truncate(bounds, max_num_tokens, rng)
            pairs.append(SegmentPair(*kept, label))
        begin, chunk_ends = end, []
    return pairs


def cut_long_sentences(
    sentence_ends: np.ndarray, word_starts: np.ndarray, longest: int
) -> list[int]:
    """Cuts long sentences before words, and returns the ends of the parts.

    Without cuts, a paragraph or a book on one line would give a single
    example. Each part but the last of a sentence has `longest` tokens or a few
    more, so that it forms a chunk, of which less than a word is cut off.

    Args:
        sentence_ends: int64, strictly increasing.
        word_starts: int64, increasing; indices of tokens that begin a word.
        longest: Sentences of up to this many tokens are not cut.
    """
    if np.diff(sentence_ends, prepend=0).max() <= longest:
        return sentence_ends.tolist()
    ends = []
    begin = 0
    for sentence_end in sentence_ends.tolist():
        while sentence_end - begin > longest:
            word = np.searchsorted(word_starts, begin + longest)
            if word == len(word_starts) or word_starts[word] >= sentence_end:
                break
            begin = int(word_starts[word])
            ends.append(begin)
        ends.append(sentence_end)
        begin = sentence_end
    return ends


def _split_chunk(
    begin: int,
    sentence_ends: Sequence[int],
    word_starts: np.ndarray,
    rng: random.Random,
) -> int:
    """Returns the index of the split; -1 for a chunk of one word.

    A chunk is split between two sentences; a chunk of one sentence is split
    between two words.
    """
    if len(sentence_ends) > 1:
        return sentence_ends[rng.randrange(len(sentence_ends) - 1)]
    first, last = np.searchsorted(word_starts, (begin + 1, sentence_ends[0]))
    if first == last:
        return -1
    return int(word_starts[rng.randrange(int(first), int(last))])


def _truncate(
    bounds: tuple[int, int, int, int], max_num_tokens: int, rng: random.Random
) -> tuple[int, int, int, int]:
    """Cuts the longer segment, then both equally, to `max_num_tokens`.

    Each cut token is the first or the last of its segment, with equal
    probability, so that every position in a segment may be cut.

    Args:
        bounds: Begin and end of the first segment and of the second.
        max_num_tokens: Largest number of tokens of both segments.
        rng: The source of random bits.
    """
    first_begin, first_end, second_begin, second_end = bounds
    first_length = first_end - first_begin
    second_length = second_end - second_begin
    excess = first_length + second_length - max_num_tokens
    if excess <= 0:
        return bounds
    # Segments of equal length are cut alternately, the second first.
    until_equal = min(excess, abs(first_length - second_length))
    second_cut = (excess - until_equal + 1) // 2
    first_cut = (excess - until_equal) // 2
    if first_length > second_length:
        first_cut += until_equal
    else:
        second_cut += until_equal
    first_front = rng.getrandbits(first_cut).bit_count() if first_cut else 0
    second_front = rng.getrandbits(second_cut).bit_count() if second_cut else 0
    return (
        first_begin + first_front,
        first_end - first_cut + first_front,
        second_begin + second_front,
        second_end - second_cut + second_front,
    )
