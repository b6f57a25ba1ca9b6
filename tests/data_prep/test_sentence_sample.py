import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.vocabulary.sentence_sample import SentenceSample, draw_priorities

SENTENCES = st.lists(
    st.tuples(
        st.integers(min_value=0, max_value=2**64 - 1),
        st.text("ab", min_size=1, max_size=9),
    ),
    unique_by=lambda sentence: sentence[0],
    max_size=20,
)


@given(
    SENTENCES,
    st.integers(min_value=1, max_value=12),
    st.integers(min_value=1, max_value=60),
)
@settings(max_examples=200, deadline=None)
def test_sample_keeps_the_sentences_of_smallest_priority(
    sentences, max_sentences, max_characters
):
    """Up to the first that does not fit, so the order has no influence."""
    expected = []
    for _, text in sorted(sentences)[:max_sentences]:
        if sum(map(len, expected)) + len(text) > max_characters:
            break
        expected.append(text)
    sample = SentenceSample(max_sentences, max_characters)
    for priority, text in sentences:
        sample.add(priority, text)
    assert sample.num_characters == sum(map(len, expected))
    assert len(sample) == len(expected)
    assert list(sample.take()) == expected


@given(SENTENCES, st.integers(min_value=0, max_value=2**64 - 1))
@settings(max_examples=100, deadline=None)
def test_limit_keeps_the_sentences_below_it(sentences, threshold):
    sample = SentenceSample(99, 999)
    for priority, text in sentences:
        sample.add(priority, text)
    sample.limit(threshold)
    sample.add(threshold, "not below")
    expected = [text for p, text in sorted(sentences) if p < threshold]
    assert sample.num_characters == sum(map(len, expected))
    assert list(sample.take()) == expected


def test_each_sentence_is_equally_likely():
    """At any position, in documents of any length."""
    threshold = 2**62  # a quarter
    rng = np.random.default_rng(3)
    by_place = np.zeros(8)
    for number in range(2000):
        lines = [f"{number} {rng.integers(9)}"] * (1 + number % 3)
        priorities = draw_priorities(lines, 8)
        assert priorities == draw_priorities(list(lines), 8)
        assert len(set(priorities)) == 8
        by_place += np.array(priorities, float) < threshold
    # Four standard deviations of 2,000 draws.
    assert np.abs(by_place / 2000 - 0.25).max() < 4 * (0.1875 / 2000) ** 0.5
