"""Results of commands: whether they can be written, and how they differ."""

import importlib.metadata
import os
import unicodedata
from collections.abc import Mapping
from typing import Any

import sentencepiece

from albert_tf.config import flatten
from albert_tf.errors import name_faults
from albert_tf.io import files
from data_prep.config import CorpusConfig

# What each digest identifies. Messages name this instead of the digest.
_DIGESTS = {
    "inputs_sha256": "the text",
    "model_sha256": "the model file",
    "vocabulary_sha256": "the vocabulary",
}


def check_writable(path: str) -> None:
    """Checks that a file can be written, or raises the error of the system.

    Unlike `files.check_writable`, it makes no local directories, since a
    command that fails must leave none: it writes to the closest one that
    exists.
    """
    if not files.is_remote(path):
        directory = os.path.dirname(path)
        while not os.path.exists(parent := os.path.dirname(path) or "."):
            path = parent
        if not os.path.isdir(parent):
            files.make_directories(directory)  # raises the error
    files.check_writable(path)


def find_versions(config: CorpusConfig) -> dict[str, str]:
    """Returns the versions that the result of a command depends on, by name."""
    versions = {
        "sentencepiece": sentencepiece.__version__,
        "unicode": unicodedata.unidata_version,
    }
    if config.sentence_breaker == "sentencex":
        versions["sentencex"] = importlib.metadata.version("sentencex")
    return versions


def describe_differences(
    stored: Mapping[str, Any], new: Mapping[str, Any]
) -> str:
    """Names the values that differ from those stored with a result.

    Args:
        stored: Stored values by name; may be nested.
        new: Values of the current command. Stored values of other names are
            ignored.

    Returns:
        Part of an error message; an empty string if no value differs.
    """
    old = flatten(stored)
    return name_faults(
        [
            _DIGESTS.get(name)
            or f"{name.split('.')[-1]} was {old.get(name)} and is {value}"
            for name, value in flatten(new).items()
            if old.get(name) != value
        ]
    )
