"""Ids made in the graph against those of `tokenization.Tokenizer`."""

import gzip
import itertools
import pathlib
import sys
import unicodedata

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.records import gaps
from albert_tf.records.tokenization import (
    Tokenizer,
    cut_choices,
    first_tokens,
    make_inputs,
    normalize,
    truncate,
)
from albert_tf.serving import text_tokenizer
from albert_tf.serving.text_tokenizer import (
    TextTokenizer,
    fill_gaps,
    pack,
    pack_choices,
)

pytestmark = pytest.mark.text

PUBLISHED = "tests/testdata/30k-clean.model"
TESTDATA = pathlib.Path("tests/testdata")
DEMO = "data_prep/sample_corpus/wiki-books-demo.txt.gz"


def raw_lines():
    """Lines of the test data, and some edge cases."""
    lines = [
        line
        for path in sorted(TESTDATA.glob("*.txt"))
        for line in path.read_bytes().split(b"\n")
    ]
    with gzip.open(DEMO) as file:
        lines += itertools.islice(file, 3000)
    return [
        *lines,
        b"",
        b"  in 2011, 1,000,\t12, x3, \xc2\xa0we\xe3\x80\x80 7,",
        "ÉCOLE ΟΔΟΣ ΣΑΣ'Σ İstanbul ﬁn \uff21\uff22 e\u0301".encode(),
        "\ufeff \u200b \u2603\ufe0f \U0001f468\u200d\U0001f469".encode(),
        b"a\x00B \x00C \x01 \x1c \x85",
        b"\xff\xfe broken \xe4\xb8 \xf0\x9f\x98 end \xed\xa0\x80",
        b"[CLS] [MASK] <unk> \xe2\x96\x81x \xe2\x80\x9cquoted\xe2\x80\x9d",
    ]


def expected_ids(tokenizer, lines):
    encoded = tokenizer.encode_batch(
        [line.decode("utf-8", "replace") for line in lines]
    )
    return [ids.tolist() for ids in np.split(encoded.ids, encoded.ends[:-1])]


@pytest.mark.parametrize("do_lower_case", [True, False, None])
def test_ids_are_equal(do_lower_case, self_contained):
    """Of both kinds of vocabulary, with byte pieces and without."""
    lines = raw_lines()
    vocabulary = self_contained if do_lower_case is None else PUBLISHED
    tokenizer = Tokenizer(vocabulary, do_lower_case)
    wanted = expected_ids(tokenizer, lines)
    got = TextTokenizer(vocabulary, do_lower_case).encode(tf.constant(lines))
    assert got.dtype == tf.int32
    for line, ids, wanted_ids in zip(lines, got.to_list(), wanted, strict=True):
        assert ids == wanted_ids, line
    spelled = {tokenizer.id_to_piece(i) for i in itertools.chain(*wanted)}
    has_bytes = any(piece.startswith("<0x") for piece in spelled)
    assert has_bytes == (do_lower_case is None)


def test_characters_of_unicode_3_2_are_normalised_equally():
    """Later characters depend on the versions of Python and TensorFlow."""
    texts = [
        f"a{chr(i)}B"
        for i in range(1, sys.maxunicode + 1)
        if unicodedata.ucd_3_2_0.category(chr(i)) not in ("Cn", "Cs", "Co")
    ]
    tokenizer = TextTokenizer(PUBLISHED)
    normalized = tokenizer.normalize(tf.constant(texts)).numpy()
    assert len(texts) > 90_000
    assert [text.decode() for text in normalized] == [
        normalize(text) for text in texts
    ]


@pytest.mark.parametrize("vocabulary", ["published", "self_contained"])
def test_mask_becomes_one_token(vocabulary, self_contained):
    model = PUBLISHED if vocabulary == "published" else self_contained
    texts = [
        "[MASK]",
        "[MASK][MASK]",
        "The [MASK] sat on [MASK].",
        "un[MASK]able, [MASK]able",
        "[MASK] 2011, [MASK]2011, x",
        "a[MASK]\u3000b [MASK]\tc[MASK]\u00a0d[MASK]\x1ce",
        "[MASK]\u0301e [MASK]   ",
        "[MASK]漢字 [MASK]の",
        "[MASK] a\nb [MASK]\nc\nd",
        "[mask] [MASK [[MASK]]",
        "no mask",
        "",
        " ",
    ]
    tokenizer = Tokenizer(model)
    got = TextTokenizer(model).encode_with_masks(tf.constant(texts))
    for text, ids in zip(texts, got.to_list(), strict=True):
        assert ids == tokenizer.encode_with_masks(text), text


def cut_as_bert(first, second, max_tokens):
    """The loop of google-research/bert, but it always cuts at the end."""
    first, second = list(first), list(second)
    while len(first) + len(second) > max_tokens:
        longer = first if len(first) > len(second) else second
        longer.pop()
    return first, second


def test_pairs_are_cut_as_in_bert():
    """By Python and in the graph."""
    lengths = list(itertools.product([0, 1, 3, 4, 5, 9], repeat=2))
    firsts = [list(range(100, 100 + n)) for n, _ in lengths]
    seconds = [list(range(200, 200 + n)) for _, n in lengths]
    for max_length in (11, 12):
        packed = pack(
            max_length,
            tf.ragged.constant(firsts, tf.int32),
            tf.ragged.constant(seconds, tf.int32),
        )
        pairs = [
            cut_as_bert(*pair, max_length - 3)
            for pair in zip(firsts, seconds, strict=True)
        ]
        wanted = make_inputs(*map(list, zip(*pairs, strict=True)))
        in_python = make_inputs(*truncate(firsts, seconds, max_length))
        for values, others in zip(wanted, in_python, strict=True):
            np.testing.assert_array_equal(values, others)
        for name, values in wanted._asdict().items():
            np.testing.assert_array_equal(getattr(packed, name), values)


# Tokens of a context, of two choices, the longest choice, the longest
# sequence; the first and last token kept of each.
CHOICE_CASES = [
    (5, (2, 3), 9, 20, [(0, 5, 0, 2), (0, 5, 0, 3)]),
    (9, (2, 6), 4, 11, [(0, 6, 0, 2), (0, 4, 2, 6)]),
    (9, (9, 0), 30, 11, [(0, 0, 1, 9), (0, 8, 0, 0)]),
    (0, (1, 8), 8, 11, [(0, 0, 0, 1), (0, 0, 0, 8)]),
]


@pytest.mark.parametrize("case", CHOICE_CASES)
def test_choices_are_cut_by_one_table(case):
    """By Python and in the graph: the end of a context, and of a choice."""
    num_context, nums, longest, max_length, kept = case
    context = list(range(100, 100 + num_context))
    choices = [list(range(200, 200 + num)) for num in nums]
    wanted = make_inputs(
        [context[begin:end] for begin, end, _, _ in kept],
        [
            choice[begin:end]
            for choice, (_, _, begin, end) in zip(choices, kept, strict=True)
        ],
    )
    in_python = make_inputs(*cut_choices(context, choices, longest, max_length))
    in_graph = pack_choices(
        tf.ragged.constant([context], tf.int32, ragged_rank=1),
        tf.ragged.constant(choices, tf.int32),
        *(longest, max_length),
    )
    for found in (in_python, in_graph):
        for values, others in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(values, others)


def test_first_tokens_of_words_are_found_by_one_table():
    """By Python and in the graph: tokens of words, length, words found."""
    for num_tokens, max_length, found in (
        ([1, 2, 3], 20, {0: 1, 1: 2, 2: 4}),
        ([1, 0, 3, 1], 20, {0: 1, 2: 2, 3: 5}),
        ([2, 3, 1, 1], 8, {0: 1, 1: 3, 2: 6}),
        ([9, 1], 5, {0: 1}),
    ):
        in_python = first_tokens(np.array(num_tokens), max_length)
        in_graph = text_tokenizer.first_tokens(
            tf.constant([num_tokens]), max_length
        )
        graph = [values[0].numpy() for values in in_graph]
        for positions, is_read in (in_python, graph):
            words = np.flatnonzero(is_read)
            assert [*words] == [*found]
            assert [*positions[words]] == [*found.values()]


# Questions, choices, and what a choice makes of its question.
GAP_CASES = [
    ("Paris lies on the ____ .", "Seine", "Paris lies on the Seine ."),
    ("What does user_name hold?", "it", "What does user_name hold? it"),
    ("_, _ or __", "a", "a, a or a"),
    ("_ _x y_ ___", "a", "a ax ya a"),
    ("a_b_c_d and _", "x", "a_b_c_d and x"),
    ("snake_ case__ _case", "x", "snakex casex xcase"),
    ("größe_in_м _", "ä", "größe_in_м ä"),
    ("日本_語 (_)", "は", "日本_語 (は)"),
    ("name__in 我____你", "爱", "name__in 我爱你"),
    ("1_000 is _\n", "x", "1_000 is x\n"),
    ("_\n_", "x", "x\nx"),
    ("It is _.", r"\1_\\", r"It is \1_\\."),
    ("It is _.", "", "It is ."),
    ("", "here", " here"),
    ("_", "here", "here"),
]


def test_gaps_are_filled_by_one_table():
    """By Python and in the graph."""
    questions, choices, filled = zip(*GAP_CASES, strict=True)
    assert tuple(map(gaps.fill_gaps, questions, choices)) == filled
    pairs = [[choice, "other"] for choice in choices]
    found = fill_gaps(tf.constant(questions), tf.constant(pairs)).numpy()
    assert [text.decode() for text in found[:, 0]] == list(filled)
