"""Documents that the builder leaves out: Gopher's rules, near-duplicates."""

import itertools
import math

import pytest

from albert_tf.records.features import read_metadata
from data_prep import near_duplicates
from data_prep.build import NEAR_DOCUMENTS, NEAR_PARAGRAPHS
from data_prep.quality import LIMITS, find_fault
from data_prep.segments import EVAL, TRAIN
from tests.helpers.small_builds import build, read_files

# Different words of five letters.
WORDS = [
    "".join(letters) for letters in itertools.product("bdfg", "aeiou", "lmnr")
]
WORDS = [a + b for a, b in itertools.product(WORDS, ("ak", "ed", "ix"))]
LINES = [" ".join(WORDS[i : i + 10]) for i in range(0, 100, 10)]


def repeat(phrases, length):
    """`length` words; between the phrases, which hold words, others."""
    rest = iter(WORDS[: length - sum(map(len, phrases))])
    parts = [part for p in phrases for part in (*p, next(rest))]
    return [" ".join([*parts, *rest])]


def top(n, count, length):
    """A phrase of n words, `count` times."""
    return repeat([WORDS[-n:]] * count, length)


def twice(n, length):
    """Two phrases of n words, each of them twice."""
    return repeat([WORDS[-n:], WORDS[-2 * n : -n]] * 2, length)


# By rule: a document at or below the limit, and one beyond it.
DOCUMENTS = {
    "number of words": ([" ".join(WORDS[:50])], [" ".join(WORDS[:49])]),
    "mean length of words": (
        [" ".join(word * 2 for word in WORDS)],
        [" ".join(word * 2 for word in WORDS) + "s"],
    ),
    "hash signs per word": (
        [*LINES[:5], "#####"],
        [*LINES[:5], "######"],
    ),
    "ellipses per word": (
        [*LINES[:5], "...… ...… … a"],
        [*LINES[:5], "...… ...… …… a"],
    ),
    "lines that begin with a bullet": (
        [*("• " + line for line in LINES[:9]), LINES[9]],
        ["• " + line for line in LINES],
    ),
    "lines that end in an ellipsis": (
        [*(line + "…" for line in LINES[:3]), *LINES[3:]],
        [*(line + "..." for line in LINES[:4]), *LINES[4:]],
    ),
    "words with a letter": (
        [" ".join([*WORDS[:48], *map(str, range(10_000, 10_012))])],
        [" ".join([*WORDS[:48], *map(str, range(10_000, 10_013))])],
    ),
    "repeated lines": ([*LINES[:6], *"aaaa"], [*LINES[:6], *"aaaaa"]),
    "characters in repeated lines": (
        [*LINES[:8], *LINES[:2]],  # 118 of 599
        [*LINES[:8], *LINES[:3]],  # 177 of 659
    ),
    "characters in the most frequent 2-gram": (top(2, 7, 70), top(2, 7, 69)),
    "characters in the most frequent 3-gram": (top(3, 6, 100), top(3, 6, 99)),
    "characters in the most frequent 4-gram": (top(4, 4, 100), top(4, 4, 99)),
    **{
        f"characters in repeated {n}-grams": (
            twice(n, length),
            twice(n, length - 1),
        )
        for n in range(5, 11)
        for length in [math.ceil(200 * n / (20 - n))]
    },
}


def assert_same_shards(one, other, split):
    """Metadata differ."""
    assert {
        name: content
        for name, content in read_files(one / split).items()
        if name.endswith(".tfrecord")
    } == {
        name: content
        for name, content in read_files(other / split).items()
        if name.endswith(".tfrecord")
    }


@pytest.mark.parametrize("rule", LIMITS)
def test_documents_beyond_a_limit_are_refused(rule):
    allowed, refused = DOCUMENTS[rule]
    assert find_fault(allowed) != rule
    assert find_fault(refused) == rule


def test_a_filtered_build_has_the_records_of_the_other_documents(
    documents, built, tmp_path
):
    """And says how many each rule refused. No document of the sample is."""
    path = tmp_path / "text.txt"
    refused = ["\n".join(bad) for _, bad in DOCUMENTS.values()]
    mixed = "\n\n".join([*documents[:5], *refused, *documents[5:]])
    path.write_text(mixed, encoding="utf-8")
    out = build(tmp_path / "out", path, quality_filter="gopher", num_workers=2)
    for split in (TRAIN, EVAL):
        assert_same_shards(out, built, split)
    skipped = read_metadata(str(out / TRAIN)).skipped
    assert skipped == read_metadata(str(built / TRAIN)).skipped | {
        f"documents refused by {rule}": 1 for rule in DOCUMENTS
    }


def change(text, positions):
    """Replaces some words."""
    words = text.split(" ")
    for position in positions:
        words[position] = "other"
    return " ".join(words)


def test_one_of_near_duplicates_stays(documents, tmp_path, monkeypatch):
    """In any order, by any number of workers, in one part or several."""
    first, second, third, fourth, fifth, *_ = documents
    paragraphs = [n for n in fifth.split("\n") if n.count(" ") > 25][:4]
    short = [n for n in fifth.split("\n") if n.count(" ") < 18][:3]
    texts = [
        *documents,
        first.upper(),
        change(second, [40]),
        change(third, range(0, third.count(" "), 4)),  # no 5-gram is equal
        fourth,
        "\n".join([*LINES, *short, *(change(p, [-1]) for p in paragraphs)]),
    ]
    settings = {"near_duplicates": "paragraphs"}
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    one = build(tmp_path / "1", tmp_path / "a.txt", num_workers=3, **settings)
    (tmp_path / "b.txt").write_text("\n\n".join(texts[::-1]))
    monkeypatch.setattr(near_duplicates, "LARGEST_PART", 1000)
    other = build(tmp_path / "2", tmp_path / "b.txt", **settings)

    number = 0
    for split in (TRAIN, EVAL):
        assert_same_shards(one, other, split)
        metadata = read_metadata(str(one / split))
        number += metadata.num_documents
        assert metadata.skipped[NEAR_DOCUMENTS] == 2
        assert metadata.skipped[NEAR_PARAGRAPHS] == 4
    assert number == len(documents) + 2
