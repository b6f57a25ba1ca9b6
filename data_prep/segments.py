"""A document -> pairs of adjacent segments, half of them swapped.

A document is a row of pieces in which sentences and words are marked, and a
segment is a range of it. Consecutive sentences are collected into a chunk;
the chunk is split in two; both parts together are cut to the length of an
example. The label is 1 exactly where the parts were swapped: unlike
google-research/albert, no segment ever comes from another document.

Reference:
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 3.1.
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SKIPPED_CHUNKS = "chunks of less than two words"


class Range(NamedTuple):
    """Pieces `begin`, ..., `end - 1` of a document."""

    begin: int
    end: int


class SegmentPair(NamedTuple):
    """The two segments of an example, as they stand in it.

    Attributes:
        first: Pieces between `[CLS]` and the first `[SEP]`.
        second: Pieces between the first and the second `[SEP]`.
        swapped: Whether `second` comes before `first` in the document.
    """

    first: Range
    second: Range
    swapped: bool


def pair_segments(
    sentence_ends: Sequence[int],
    word_starts: np.ndarray,
    *,
    max_num_pieces: int,
    short_seq_prob: float,
    rng: random.Random,
    skipped: Counter[str],
) -> list[SegmentPair]:
    """One pass over a document.

    Args:
        sentence_ends: Index behind the last piece of each sentence, rising;
            no sentence is empty.
        word_starts: bool, `(pieces,)`; True where a word begins.
        max_num_pieces: Pieces that both segments may have together, >= 2.
        short_seq_prob: Probability that this pass collects shorter chunks,
            of a random length, so that short inputs are seen in training.
        rng: Where all decisions of this pass come from.
        skipped: Where chunks left out are counted.

    Returns:
        Pairs in the order of the document.
    """
    target = max_num_pieces
    if rng.random() < short_seq_prob:
        target = rng.randint(2, max_num_pieces)
    pairs = []
    chunk_ends: list[int] = []
    begin = 0
    ends = _cut_long_sentences(sentence_ends, word_starts, max_num_pieces)
    for end in ends:
        chunk_ends.append(end)
        if end - begin < target and end != ends[-1]:
            continue
        middle = _split_chunk(begin, chunk_ends, word_starts, rng)
        if middle is None:
            skipped[SKIPPED_CHUNKS] += 1
        else:
            first, second = Range(begin, middle), Range(middle, end)
            swapped = rng.random() < 0.5
            if swapped:
                first, second = second, first
            first, second = _truncate(first, second, max_num_pieces, rng)
            pairs.append(SegmentPair(first, second, swapped))
        begin, chunk_ends = end, []
    return pairs


def _cut_long_sentences(
    sentence_ends: Sequence[int], word_starts: np.ndarray, longest: int
) -> list[int]:
    """Ends of sentences, where long ones are cut before a word.

    Text with a paragraph or a book in a line would else lose all but one
    example of it. A part has at least `longest` pieces, so that it is a
    chunk of its own and loses less than a word.
    """
    if np.diff(sentence_ends, prepend=0).max() <= longest:
        return list(sentence_ends)
    words = np.flatnonzero(word_starts)
    ends = []
    begin = 0
    for sentence_end in sentence_ends:
        while sentence_end - begin > longest:
            word = np.searchsorted(words, begin + longest)
            if word == len(words) or words[word] >= sentence_end:
                break
            begin = int(words[word])
            ends.append(begin)
        ends.append(sentence_end)
        begin = sentence_end
    return ends


def _split_chunk(
    begin: int,
    sentence_ends: Sequence[int],
    word_starts: np.ndarray,
    rng: random.Random,
) -> int | None:
    """Where the second segment begins; None for a chunk of one word.

    Between two sentences, or, in a chunk of one, between two words.
    """
    if len(sentence_ends) > 1:
        return sentence_ends[rng.randrange(len(sentence_ends) - 1)]
    starts = np.flatnonzero(word_starts[begin + 1 : sentence_ends[0]])
    if not len(starts):
        return None
    return begin + 1 + int(starts[rng.randrange(len(starts))])


def _truncate(
    first: Range, second: Range, max_num_pieces: int, rng: random.Random
) -> tuple[Range, Range]:
    """Cuts the longer segment, then both alike, to `max_num_pieces`.

    Each piece cut is the foremost or the last one of its segment, by a toss
    of a coin, so that no place in a segment is always kept.
    """
    lengths = [first.end - first.begin, second.end - second.begin]
    excess = max(0, sum(lengths) - max_num_pieces)
    # Equal lengths are cut in turn, the second segment first.
    longer = 0 if lengths[0] > lengths[1] else 1
    until_equal = min(excess, abs(lengths[0] - lengths[1]))
    cuts = [0, 0]
    cuts[longer] = until_equal
    cuts[1] += (excess - until_equal + 1) // 2
    cuts[0] += (excess - until_equal) // 2
    ranges = []
    for segment, cut in zip((first, second), cuts, strict=True):
        front = rng.getrandbits(cut).bit_count() if cut else 0
        ranges.append(Range(segment.begin + front, segment.end - cut + front))
    return ranges[0], ranges[1]
