"""A document -> pairs of adjacent segments, by the sentence objective.

A document is a row of pieces in which sentences and words are marked, and a
segment is a range of it. Consecutive sentences are collected into a chunk;
the chunk is split in two; both parts together are cut to the length of an
example. For sentence order, the label is 1 exactly where the parts were
swapped: unlike in google-research/albert, no segment ever comes from another
document.

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
    """The two segments of an example, as they stand in it.

    Attributes:
        first_begin, first_end: Pieces between `[CLS]` and the first `[SEP]`.
        second_begin, second_end: Pieces between the first and the second
            `[SEP]`; none where there is no second segment.
        label: 1 where the second segment stands before the first in the
            document (sop), or must be replaced by that of another document
            (nsp); else 0.

    Example:
        >>> document = ["it", "rains", "we", "stay", "in"]
        >>> pair = SegmentPair(2, 5, 0, 2, label=1)  # swapped
        >>> document[pair.first_begin : pair.first_end]
        ['we', 'stay', 'in']
        >>> document[pair.second_begin : pair.second_end]
        ['it', 'rains']
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
    max_num_pieces: int,
    short_seq_prob: float,
    rng: random.Random,
    skipped: Counter[str],
) -> list[SegmentPair]:
    """One pass over a document.

    Args:
        sentence_ends: Index behind the last piece of each sentence, rising;
            no sentence is empty. See `cut_long_sentences`.
        word_starts: int64, rising; the pieces that begin a word.
        objective: "sop", "nsp" or "none", which gives a single segment.
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
    last_end = sentence_ends[-1]
    for end in sentence_ends:
        chunk_ends.append(end)
        if end - begin < target and end != last_end:
            continue
        if objective == "none":
            kept = _truncate((begin, end, end, end), max_num_pieces, rng)
            pairs.append(SegmentPair(*kept, 0))
        elif (middle := _split_chunk(begin, chunk_ends, word_starts, rng)) < 0:
            skipped[SKIPPED_CHUNKS] += 1
        else:
            label = int(rng.random() < 0.5)
            bounds = (begin, middle, middle, end)
            if label and objective == "sop":
                bounds = (middle, end, begin, middle)
            kept = _truncate(bounds, max_num_pieces, rng)
            pairs.append(SegmentPair(*kept, label))
        begin, chunk_ends = end, []
    return pairs


def cut_long_sentences(
    sentence_ends: np.ndarray, word_starts: np.ndarray, longest: int
) -> list[int]:
    """Ends of sentences, where long ones are cut before a word.

    Text with a paragraph or a book in a line would else lose all but one
    example of it. A part has at least `longest` pieces, so that it is a
    chunk of its own and loses less than a word.

    Args:
        sentence_ends: int64, rising.
        word_starts: int64, rising; the pieces that begin a word.
        longest: Pieces of a sentence that is left alone, at the most.
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
    """Where the second segment begins; -1 for a chunk of one word.

    Between two sentences, or, in a chunk of one, between two words.
    """
    if len(sentence_ends) > 1:
        return sentence_ends[rng.randrange(len(sentence_ends) - 1)]
    first, last = np.searchsorted(word_starts, (begin + 1, sentence_ends[0]))
    if first == last:
        return -1
    return int(word_starts[rng.randrange(int(first), int(last))])


def _truncate(
    bounds: tuple[int, int, int, int], max_num_pieces: int, rng: random.Random
) -> tuple[int, int, int, int]:
    """Cuts the longer segment, then both alike, to `max_num_pieces`.

    Each piece cut is the foremost or the last one of its segment, by a toss
    of a coin, so that no place in a segment is always kept.

    Args:
        bounds: Begin and end of the first segment and of the second.
        max_num_pieces: Pieces of both together.
        rng: The coin.
    """
    first_begin, first_end, second_begin, second_end = bounds
    first_length = first_end - first_begin
    second_length = second_end - second_begin
    excess = first_length + second_length - max_num_pieces
    if excess <= 0:
        return bounds
    # Equal lengths are cut in turn, the second segment first.
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
