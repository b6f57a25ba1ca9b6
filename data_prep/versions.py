"""The versions of libraries that decide how text becomes tokens."""

import importlib.metadata
import unicodedata

import sentencepiece

from data_prep.config import CorpusConfig


def find_versions(config: CorpusConfig) -> dict[str, str]:
    """Returns the versions that the result of a command depends on, by name.

    Example:
        >>> sorted(find_versions(CorpusConfig(sentence_breaker="sentencex")))
        ['sentencepiece', 'sentencex', 'unicode']
    """
    versions = {
        "sentencepiece": sentencepiece.__version__,
        "unicode": unicodedata.unidata_version,
    }
    if config.sentence_breaker == "sentencex":
        versions["sentencex"] = importlib.metadata.version("sentencex")
    return versions
