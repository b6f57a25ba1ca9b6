"""Splits paragraphs into sentences.

On articles and novels with known sentence ends, sentencex finds 96 % of the
ends, and 99 % of the ends that it finds are correct. The sentence breaker of
tensorflow-text finds as many, of which 89 % are correct.

sentencex pairs quotes and brackets over its complete input, so it finds fewer
ends in long lines. Therefore it gets long lines in windows. Found ends of the
sample corpus, whose lines are sentences, joined to longer lines:

    characters per line     500    2,000   10,000   50,000   1,000,000
    complete lines         96.8 %  96.2 %   94.7 %   84.3 %      20.0 %
    windows of 8,000       96.8 %  96.2 %   95.5 %   94.6 %      94.7 %
    windows of 2,000       96.8 %  96.4 %   96.1 %   96.1 %      96.0 %

In windows, 99 % of the found ends are correct, at any length.
"""

import importlib.metadata
import itertools
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

import sentencepiece
import sentencex
from absl import logging

from albert_tf.errors import UserError
from data_prep.config import CorpusConfig

WINDOW_CHARACTERS = 2000

# sentencex does not tell which rules it uses for a language. It breaks this
# text in one way by the rules for English, and in other ways by those for other
# languages: an abbreviation of English, then an abbreviation, an ordinal number
# or a sentence end of German, Arabic, Bengali, Greek, Gujarati, Hindi, Kannada,
# Malayalam, Burmese, Punjabi, Tamil and Telugu.
_PROBE = (
    "A Wisc. B 3. Mai C ا. D জি. E; F એ. "  # noqa: RUF001
    "G ए. H ಎ. I ജി. J က၏ K ਬੀ. L பி. M బి. N"
)


# sentencex 1.0.32 panics at some white space of several bytes, since it takes
# the number of its characters for that of its bytes.
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")

# What the error for text that sentencex cannot break shows of it.
_SHOWN_CHARACTERS = 200


def break_sentences(lines: list[str], config: CorpusConfig) -> list[str]:
    """Returns the sentences of a document.

    Args:
        lines: Stripped lines, none empty.
        config: `sentence_breaker` says whether a line is a sentence or a
            paragraph, `language` how sentences end.
    """
    if config.sentence_breaker == "none":
        return lines
    return [
        sentence.strip()
        for line in lines
        for sentence in _segment(config.language, line)
        if sentence.strip()
    ]


def check_language(config: CorpusConfig) -> None:
    """Logs a warning if sentencex uses its rules for English instead.

    sentencex has rules for about 30 languages. It uses these rules also for
    some related languages, and those for English for any other code.
    """
    language = config.language
    if config.sentence_breaker == "none" or language == "en":
        return
    if sentencex.segment(language, _PROBE) == sentencex.segment("en", _PROBE):
        remedy = ""
        if len(language) == 3:
            remedy = (
                ". If the language has a code of two letters, use it, e.g. de "
                "instead of deu"
            )
        logging.warning(
            "sentencex breaks text of --language=%s by its rules for English: "
            "their abbreviations, and the sentence ends of all scripts%s",
            language,
            remedy,
        )


def describe_breaking(config: CorpusConfig) -> dict[str, Any]:
    """Returns what decides the sentences besides text and settings."""
    if config.sentence_breaker == "none":
        return {}
    return {"window_characters": WINDOW_CHARACTERS, "wide_space": "as space"}


def find_versions(config: CorpusConfig) -> dict[str, str]:
    """Returns the versions that the result of a command depends on, by name."""
    versions = {
        "sentencepiece": sentencepiece.__version__,
        "unicode": unicodedata.unidata_version,
    }
    if config.sentence_breaker == "sentencex":
        versions["sentencex"] = importlib.metadata.version("sentencex")
    return versions


def _segment(language: str, line: str) -> Iterator[str]:
    """Yields the sentences of a line; joined, they are the line.

    A line of up to `WINDOW_CHARACTERS` is one window. A window of a longer line
    grows until it holds a complete sentence. Its last sentence, which may be
    incomplete, begins the next window.
    """
    begin, size = 0, WINDOW_CHARACTERS
    while len(line) - begin > size:
        window = line[begin : begin + size]
        last_space = window.rfind(" ")
        if last_space > 0:
            window = window[:last_space]
        *complete, last = _segment_window(language, window)
        yield from complete
        # The window may have cut the last sentence.
        begin += len(window) - len(last)
        size = WINDOW_CHARACTERS if complete else 2 * size
    yield from _segment_window(language, line[begin:])


def _segment_window(language: str, window: str) -> list[str]:
    """Returns the sentences of a window; joined, they are the window.

    sentencex gets a space for each white-space character beyond ASCII.

    Raises:
        UserError: If sentencex panics.
    """
    try:
        parts = sentencex.segment(language, _WIDE_SPACE.sub(" ", window))
    except BaseException as error:
        # pyo3 makes this class, which cannot be imported or pickled.
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(
            "sentencex must be able to break the text into sentences",
            received=f"{error}, for {window[:_SHOWN_CHARACTERS]!r}",
            remedy="Change this text, or set --sentence_breaker=none.",
        ) from None
    ends = list(itertools.accumulate(map(len, parts), initial=0))
    return [window[begin:end] for begin, end in itertools.pairwise(ends)]
