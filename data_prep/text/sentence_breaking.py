"""Splits paragraphs into sentences.

On articles and novels with known sentence ends, sentencex finds 96 % of the
ends, and 99 % of the ends that it finds are correct. The sentence breaker of
tensorflow-text finds as many, of which 89 % are correct.
"""

import sentencex

from data_prep.config import CorpusConfig


def break_sentences(lines: list[str], config: CorpusConfig) -> list[str]:
    """Returns the sentences of a document.

    Args:
        lines: Stripped lines, none empty.
        config: `sentence_breaker` says whether a line is a sentence or a
            paragraph, `language` how sentences end.

    Example:
        >>> config = CorpusConfig(sentence_breaker="sentencex", language="en")
        >>> break_sentences(["Dr. Watson came at 3 p.m. He stayed!"], config)
        ['Dr. Watson came at 3 p.m.', 'He stayed!']
    """
    if config.sentence_breaker == "none":
        return lines
    return [
        sentence.strip()
        for line in lines
        for sentence in sentencex.segment(config.language, line)
        if sentence.strip()
    ]
