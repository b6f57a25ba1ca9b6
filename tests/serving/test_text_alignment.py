"""Characters of tokens, found in the graph, against `records.alignment`."""

import pytest
import tensorflow as tf

from albert_tf.records import alignment
from albert_tf.records.tokenization import Tokenizer
from albert_tf.serving.text_alignment import align
from albert_tf.serving.text_tokenizer import TextTokenizer
from tests.helpers.docstring_example import run_example
from tests.helpers.tiny_albert import VOCABULARY
from tests.serving.test_text_tokenizer import PUBLISHED, TESTDATA

AWKWARD = [
    "",
    " \t ",
    "  in 2011, 1,000,\t12, x3, \xa0we\u3000 7,",
    "ÉCOLE ΟΔΟΣ ΣΑΣ'Σ İstanbul ﬁn \uff21\uff22 e\u0301",
    # Combining marks without a letter, at either end and as a word.
    "\u0301 x\u0301\u0302 y \u0301 z 12,\u0301 \u0301",
    # A spacing diaeresis decomposes into a space.
    "a \xa8 b \xa8",
    "a \xa8b\u0301  ",
    "a\x00B \x00C \x01 \x1c \x85",
    "\u2603\ufe0f \U0001f468\u200d\U0001f469 \ufdfa x",
]


def texts():
    """The lines of the test data, and some edge cases."""
    return AWKWARD + [
        line.decode("utf-8", "replace")
        for path in sorted(TESTDATA.glob("*.txt"))
        for line in path.read_bytes().split(b"\n")
    ]


@pytest.mark.parametrize(
    ("kind", "do_lower_case"),
    [("published", True), ("published", False), ("self_contained", None)],
)
def test_tokens_and_their_characters_are_equal(
    kind, do_lower_case, self_contained
):
    """The self-contained vocabulary has byte pieces."""
    model_file = PUBLISHED if kind == "published" else self_contained
    tokenizer = Tokenizer(model_file, do_lower_case)
    lines = texts()
    found = align(TextTokenizer(model_file, do_lower_case), tf.constant(lines))
    lists = [values.to_list() for values in found]
    moved = 0
    for text, ids, begins, ends, is_white_space in zip(
        lines, *lists, strict=True
    ):
        expected = alignment.align(tokenizer, text)
        assert ids == expected.ids.tolist(), text
        assert begins == expected.begins.tolist(), text
        assert ends == expected.ends.tolist(), text
        assert is_white_space == [c.isspace() for c in text]
        moved += sum(a == b for a, b in zip(begins, ends, strict=True))
    assert moved > 5  # tokens without characters


def test_a_batch_of_empty_texts_has_no_tokens():
    found = align(TextTokenizer(PUBLISHED), tf.constant(["", ""]))
    assert [values.to_list() for values in found] == [[[], []]] * 4


def test_the_example_of_the_docstring_gives_what_it_shows(
    tmp_path, monkeypatch
):
    (tmp_path / "30k-clean.model").symlink_to(VOCABULARY)
    monkeypatch.chdir(tmp_path)
    run_example(align)
