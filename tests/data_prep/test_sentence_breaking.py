import dataclasses
import gzip
import unittest.mock

import hypothesis
import pytest
import sentencex
from hypothesis import strategies as st

from albert_tf.errors import UserError
from data_prep import train_tokenizer
from data_prep.builder import build as builder
from data_prep.config import CorpusConfig, RecordsConfig, TokenizerConfig
from data_prep.text import sentence_breaking
from data_prep.text.sentence_breaking import break_sentences, check_language

WINDOW = "data_prep.text.sentence_breaking.WINDOW_CHARACTERS"

BREAKING = CorpusConfig(sentence_breaker="sentencex")
DEMO = "data_prep/sample_corpus/wiki-books-demo.txt.gz"


def test_by_default_a_line_is_a_sentence():
    lines = ["One. Two.", "Three."]
    assert break_sentences(lines, CorpusConfig()) == lines


def test_paragraphs_are_broken_into_sentences():
    paragraphs = [
        "Dr. Watson came at 3 p.m. on Monday.  He stayed!",
        "“Why?” she asked. Nobody knew",
    ]
    assert break_sentences(paragraphs, BREAKING) == [
        "Dr. Watson came at 3 p.m. on Monday.",
        "He stayed!",
        "“Why?” she asked.",
        "Nobody knew",
    ]


def test_language_decides_where_sentences_end():
    config = dataclasses.replace(BREAKING, language="de")
    sentences = ["Am 3. Mai kam er.", "Sie ging."]
    assert break_sentences([" ".join(sentences)], config) == sentences


@pytest.mark.parametrize(
    "language", ["", "DE", "de-DE", "german", "klingon", "d", "de\n", "dé"]
)
def test_other_forms_of_language_codes_are_refused(language):
    """sentencex breaks text of unknown codes as English."""
    with pytest.raises(UserError, match=r"language must be .*two or three"):
        CorpusConfig(language=language)


@pytest.mark.parametrize("language", ["en", "de", "hi", "oc", "hsb"])
def test_no_warning_is_logged_for_languages_with_rules(language, caplog):
    check_language(dataclasses.replace(BREAKING, language=language))
    assert not caplog.text


@pytest.mark.parametrize(
    ("language", "remedy"),
    [("deu", "de instead of deu"), ("sw", ""), ("xx", "")],
)
def test_rules_for_english_instead_are_logged_once(
    language, remedy, caplog, tmp_path
):
    """At the begin of both commands."""
    settings = {"sentence_breaker": "sentencex", "language": language}
    path = str(tmp_path / "none")
    for build, config in (
        (
            train_tokenizer.main,
            TokenizerConfig(model_prefix=path, **settings),
        ),
        (
            builder.build_records,
            RecordsConfig(output_dir=path, spm_model_file=path, **settings),
        ),
    ):
        caplog.clear()
        with pytest.raises(UserError, match=r"input_file|none. must"):
            build(config)
        (record,) = caplog.records
        message = record.getMessage()
        assert f"--language={language} by its rules for English" in message
        assert message.endswith(remedy or "scripts")
    caplog.clear()
    check_language(CorpusConfig(language=language))
    assert not caplog.records


def test_most_sentence_ends_of_real_text_are_found():
    """In a line of 1,990 sentences, 300,000 characters. As one window, 57 % of
    their ends are found."""
    num_joined = 1990
    with gzip.open(DEMO, "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file.read(300_000).split("\n")]
    lines = [line for line in lines if line]
    found = wanted = right = 0
    for begin in range(0, len(lines) - num_joined, num_joined):
        some = lines[begin : begin + num_joined]
        ends = [
            ends_of(part)
            for part in (some, break_sentences([" ".join(some)], BREAKING))
        ]
        wanted += len(ends[0])
        found += len(ends[1])
        right += len(ends[0] & ends[1])
    assert right / wanted > 0.95
    assert right / found > 0.93


@hypothesis.settings(max_examples=500, deadline=None)
@hypothesis.given(
    words=st.lists(
        st.sampled_from(["A", "b.", "C!", "“D.", "E.”", "(", "", "。"])
    ),
    separator=st.sampled_from([" ", "", "\t", "\xa0", "\u3000"]),
    window=st.integers(1, 12),
)
def test_windows_lose_and_change_no_text(words, separator, window):
    line = separator.join(words)
    with unittest.mock.patch(WINDOW, window):
        parts = list(sentence_breaking._segment("en", line))
    assert "".join(parts) == line
    if len(line) <= window:
        with_spaces = line.replace("\xa0", " ").replace("\u3000", " ")
        expected = sentencex.segment("en", with_spaces)
        assert list(map(len, parts)) == list(map(len, expected))


@pytest.mark.parametrize(
    "space",
    ["\xa0", "\u202f", "\u2003", "\u2009", "\u3000", "\u2028", "\x85"],
)
def test_white_space_beyond_ascii_breaks_as_a_space(space):
    """sentencex 1.0.32 panics at the single letter before the full stop."""
    config = dataclasses.replace(BREAKING, language="fr")
    text = f"Il{space}prend la vitamine C{space}. Puis il dort. Le{space}soir !"
    found = break_sentences([text], config)
    expected = break_sentences([text.replace(space, " ")], config)
    assert len(expected) > 1
    assert [s.replace(space, " ") for s in found] == expected


def test_the_text_of_a_panic_is_shown(monkeypatch):
    """An error of pyo3 is no Exception, and worker processes cannot return
    it."""

    class PanicException(BaseException):
        pass

    def panic(language, text):
        raise PanicException("byte index 26 is not a char boundary")

    monkeypatch.setattr(sentencex, "segment", panic)
    message = r"sentencex.*byte index 26.*'Vitamine C\.'.*sentence_breaker"
    with pytest.raises(UserError, match=message):
        break_sentences(["Vitamine C."], BREAKING)


def test_a_sentence_longer_than_a_window_stays_complete():
    sentences = ["He " + "really " * 90 + "came.", "She left."] * 3
    with unittest.mock.patch(WINDOW, 30):
        assert break_sentences([" ".join(sentences)], BREAKING) == sentences


def ends_of(sentences):
    """Number of letters up to the end of each sentence."""
    ends, count = set(), 0
    for sentence in sentences:
        count += len("".join(sentence.split()))
        ends.add(count)
    return ends
