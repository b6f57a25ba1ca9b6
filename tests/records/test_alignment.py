import pathlib
import sys
import unicodedata

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from albert_tf.records.alignment import _normalize, align
from albert_tf.records.tokenization import Tokenizer, normalize
from tests.helpers.docstring_example import run_example

TESTDATA = pathlib.Path(__file__).parents[1] / "testdata"

# Characters that normalisation changes in different ways, and plain ones.
AWKWARD = st.text(
    st.one_of(
        st.sampled_from("ab19,. \t\n\u3000\u00a8é\u0301ﬁ½ΣςİßÅ한🎉नि\u200b™"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=30,
)


@pytest.fixture(scope="module", params=["30k-clean", "self-contained-500"])
def either_tokenizer(request):
    return Tokenizer(str(TESTDATA / f"{request.param}.model"))


@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(AWKWARD)
@hypothesis.example("\u0301 a \u0301")
def test_alignment_normalises_as_the_tokenizer_does(text):
    assert _normalize(text)[0] == normalize(text, do_lower_case=False)
    assert _normalize(text)[0].lower() == normalize(text)


def test_lower_case_keeps_the_length_of_every_decomposed_character():
    for character in map(chr, range(sys.maxunicode + 1)):
        for part in unicodedata.normalize("NFKD", character):
            assert len(part.lower()) == 1 or unicodedata.combining(part)


@hypothesis.settings(
    deadline=None,
    max_examples=100,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(text=AWKWARD)
def test_tokens_are_those_of_the_tokenizer_and_cover_the_text(
    either_tokenizer, text
):
    tokens = align(either_tokenizer, text)
    assert (
        tokens.ids.tolist()
        == either_tokenizer.encode_batch([text]).ids.tolist()
    )
    assert np.all(tokens.begins <= tokens.ends)
    assert np.all(np.diff(tokens.begins) >= 0)
    assert np.all(np.diff(tokens.ends) >= 0)
    covered = np.zeros(len(text), bool)
    for begin, end in zip(tokens.begins, tokens.ends, strict=True):
        covered[begin:end] = True
    for character, is_covered in zip(text, covered, strict=True):
        # SentencePiece drops control and format characters.
        assert is_covered or not character.isalnum()


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("In 2011, we", ["In", "2011", ",", "we"]),
        ("1,000,  ½", ["1,000", ",", "½", "½", "½"]),
        # The combining accent belongs to its letter.
        ("cafe\u0301 is", ["cafe\u0301", "is"]),
    ],
)
def test_tokens_stand_for_characters_of_the_original(tokenizer, text, spans):
    tokens = align(tokenizer, text)
    found = [
        text[begin:end]
        for begin, end in zip(tokens.begins, tokens.ends, strict=True)
    ]
    assert found == spans


def test_the_tokens_of_characters_are_found(tokenizer):
    text = "  In  2011, we"
    tokens = align(tokenizer, text)  # In, 2011, the comma, we
    assert tokens.find(6, 10) == (1, 1)
    assert tokens.find(2, 11) == (0, 2)
    assert tokens.find(7, 13) == (1, 3)
    assert tokens.find(4, 6) is None


def test_the_example_gives_what_it_shows(vocabulary_file, monkeypatch):
    monkeypatch.chdir(pathlib.Path(vocabulary_file).parent)
    run_example(align)
