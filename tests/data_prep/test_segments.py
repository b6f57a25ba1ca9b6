import collections
import random
from typing import NamedTuple

import hypothesis
import numpy as np
from hypothesis import strategies as st

from data_prep.segments import (
    EVAL,
    SKIPPED_CHUNKS,
    SPLITS,
    TRAIN,
    choose_split,
    cut_long_sentences,
    pair_segments,
)


class Range(NamedTuple):
    begin: int
    end: int


def pair(
    lengths, word_starts=None, seed=0, longest=30, short=0.0, objective="sop"
):
    """Returns the pairs of a document with sentences of these lengths, and the
    counts of skipped chunks and of splits."""
    if word_starts is None:
        word_starts = np.ones(sum(lengths), bool)
    words = np.flatnonzero(word_starts)
    counts = collections.Counter()
    pairs = pair_segments(
        cut_long_sentences(np.cumsum(lengths), words, longest),
        words,
        objective=objective,
        max_num_tokens=longest,
        short_seq_prob=short,
        rng=random.Random(seed),
        counts=counts,
    )
    return [(Range(a, b), Range(c, d), e) for a, b, c, d, e in pairs], counts


def test_chunk_is_split_between_any_two_sentences():
    """Sentences of 4, 5 and 6 tokens are split after 4 or after 9 tokens, with
    equal probability."""
    middles = collections.Counter()
    for seed in range(400):
        ((first, second, swapped),), _ = pair([4, 5, 6], seed=seed)
        earlier, later = (second, first) if swapped else (first, second)
        assert (earlier.begin, later.end) == (0, 15)
        assert earlier.end == later.begin
        middles[later.begin] += 1
    assert set(middles) == {4, 9}
    assert abs(middles[4] - 200) < 4 * np.sqrt(400 / 4)


def test_chunk_of_one_word_is_skipped_and_counted():
    """Each sentence of 30 tokens is a chunk; the second has one word. A chunk
    of a single sentence is split before a word."""
    starts = np.ones(60, bool)
    starts[31:] = False
    pairs, counts = pair([30, 30], starts)
    ((first, second, _),) = pairs
    assert max(first.end, second.end) == 30
    assert counts == {SKIPPED_CHUNKS: 1, SPLITS: 1}
    starts = np.isin(np.arange(9), [0, 3, 7])
    middles = set()
    for seed in range(60):
        ((first, second, _),), counts = pair([9], starts, seed)
        middles.add(max(first.begin, second.begin))
        assert counts == {SPLITS: 1}
    assert middles == {3, 7}


def test_sentence_longer_than_an_example_is_cut_before_words():
    """100 tokens in words of 7 are cut before tokens 35 and 70, the first words
    after at least 30 tokens. Each part gives an example of 30 tokens."""
    starts = np.arange(100) % 7 == 0
    for seed in range(20):
        pairs, counts = pair([100], starts, seed)
        assert counts == {SPLITS: 3}
        for (first, second, _), part in zip(
            pairs, ((0, 35), (35, 70), (70, 100)), strict=True
        ):
            assert first.end - first.begin + second.end - second.begin == 30
            assert part[0] <= min(first.begin, second.begin)
            assert max(first.end, second.end) <= part[1]


def test_longer_segment_is_cut_at_both_ends():
    """Sentences of 3 and 39 tokens exceed 30 by 12 tokens, which are cut from
    the second. A binomial number of them, 6 on average with a standard
    deviation of 1.73, is cut at the beginning."""
    fronts = []
    words = np.isin(np.arange(42), [0, 3])  # the long sentence is one word
    for seed in range(400):
        ((first, second, swapped),), _ = pair([3, 39], words, seed)
        short, long = (second, first) if swapped else (first, second)
        assert short == Range(0, 3)
        assert long.end - long.begin == 27
        fronts.append(long.begin - 3)
    assert abs(np.mean(fronts) - 6) < 4 * np.sqrt(12 / 4 / 400)
    assert abs(np.var(fronts) - 3) < 1


def test_short_passes_collect_fewer_sentences():
    """A random target of 2 to 30 tokens gives shorter chunks than one of 30."""
    few, _ = pair([3] * 40, short=0.0)
    counts = [len(pair([3] * 40, seed=s, short=1.0)[0]) for s in range(50)]
    assert len(few) == 4
    assert min(counts) >= 4
    assert max(counts) > 10


def test_without_sentence_objective_a_chunk_is_one_segment():
    """10 + 10 + 12 tokens are cut to 30 at both ends; 14 follow. A chunk of one
    word is enough."""
    begins = set()
    for seed in range(40):
        pairs, counts = pair([10, 10, 12, 9, 5], seed=seed, objective="none")
        (first, second, label), (rest, _, _) = pairs
        assert first.end - first.begin == 30
        assert (second.begin == second.end, label) == (True, 0)
        assert rest == Range(32, 46)
        begins.add(first.begin)
        assert not counts
    assert begins == {0, 1, 2}
    starts = np.arange(9) == 0
    ((first, _, _),), _ = pair([9], starts, objective="none")
    assert first == Range(0, 9)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    words=st.floats(0, 1),
    seed=st.integers(0, 2**32),
    longest=st.integers(2, 40),
    short=st.sampled_from([0.0, 0.5, 1.0]),
    objective=st.sampled_from(["sop", "nsp"]),
)
def test_pairs_are_adjacent_and_fit(
    lengths, words, seed, longest, short, objective
):
    starts = np.random.default_rng(seed).random(sum(lengths)) < words
    pairs, _ = pair(lengths, starts, seed, longest, short, objective)
    end_before = 0
    for first, second, swapped in pairs:
        swapped = swapped and objective == "sop"
        earlier, later = (second, first) if swapped else (first, second)
        assert end_before <= earlier.begin < earlier.end <= later.begin
        assert later.begin < later.end <= sum(lengths)
        size = earlier.end - earlier.begin + later.end - later.begin
        assert size <= longest
        if size < longest:
            assert earlier.end == later.begin  # nothing was cut
        end_before = later.end


def test_holdout_fraction_is_the_fraction_of_held_out_documents():
    """A quarter of 4,000 documents, within four standard deviations. Case and
    line breaks have no influence."""
    held_out = 0
    for i in range(4000):
        split = choose_split([f"One is {i}.", "Two."], 0.25)
        assert choose_split([f"ONE is {i}. TWO."], 0.25) == split
        held_out += split == EVAL
    assert abs(held_out - 1000) < 4 * np.sqrt(4000 * 3 / 16)
    assert choose_split(["One."], 0.0) == TRAIN
