"""Reads all inputs of a command as documents, each a list of lines.

In text files, a line is a sentence (or a paragraph, see `sentence_breaking`),
and a blank line or the end of the file ends a document. In JSON lines, each
line is a document. In TensorFlow Datasets, each element is a document.
"""

import collections
import os
from collections.abc import Iterable, Iterator, Sequence

from albert_tf.errors import UserError
from albert_tf.io import files
from data_prep.config import CorpusConfig
from data_prep.text.sources import (
    LONGEST_DOCUMENT,
    OnBytes,
    Source,
    TextFile,
)

CUT_DOCUMENTS = "cuts of documents of more than 1M characters"


def find_inputs(config: CorpusConfig) -> list[Source]:
    """Returns the sources that `input_file` and `tfds` name.

    Files come first, sorted by path. Of several paths of one local file, only
    the first is read.

    Raises:
        UserError: If neither setting is given, a pattern matches no file, a
            file is empty, or a dataset is not available.
    """
    if not config.input_file and not config.tfds:
        raise UserError(
            "--input_file or --tfds is required",
            remedy="See --help for their form and an example.",
        )
    paths: set[str] = set()
    for pattern in config.input_file:
        matches = files.find(pattern)
        if not matches:
            raise UserError(
                "input_file must match at least one file", received=pattern
            )
        paths.update(matches)
    sources: list[Source] = []
    for path in _drop_other_paths(sorted(paths)):
        size = files.count_bytes(path)
        if not size:
            raise UserError(
                "input files must not be empty", received=f"{path}, 0 bytes"
            )
        sources.append(TextFile(path, size))
    if config.tfds:
        from data_prep.text.tfds import find_dataset

        sources += find_dataset(config)
    return sources


def _drop_other_paths(paths: Sequence[str]) -> Iterable[str]:
    """Returns the first path of each file; a link is another path of it."""
    first: dict[str, str] = {}
    for path in paths:
        file = path if files.is_remote(path) else os.path.realpath(path)
        first.setdefault(file, path)
    return first.values()


def check_and_digest(
    sources: Sequence[Source], config: CorpusConfig, on_bytes: OnBytes
) -> list[str]:
    """Reads all inputs once, so that unreadable input is reported early.

    Args:
        on_bytes: Called with the number of stored bytes of each read.

    Returns:
        A digest of the content of each source.

    Raises:
        UserError: For a damaged file, bytes that are not UTF-8, or a line
            that is not JSON. The error names file and line.
    """
    return [source.check_and_digest(config, on_bytes) for source in sources]


def read_documents(
    sources: Sequence[Source],
    config: CorpusConfig,
    on_bytes: OnBytes,
    skipped: collections.Counter[str],
) -> Iterator[list[str]]:
    """Yields the documents of all sources, in order.

    Args:
        on_bytes: Called with the number of stored bytes of each read.
        skipped: Counter of skipped lines and documents, and of cuts, by
            reason.

    Yields:
        The lines of a document. Lines are stripped and not empty. A document
        has at least one line and at most about a million characters.

    Raises:
        UserError: See `check_and_digest`.
    """
    for source in sources:
        document: list[str] = []
        size = 0
        for line in source.read_texts(config, on_bytes, skipped):
            if line:
                if size + len(line) > LONGEST_DOCUMENT:
                    skipped[CUT_DOCUMENTS] += 1
                    yield document
                    document, size = [], 0
                document.append(line)
                size += len(line)
            elif document:
                yield document
                document, size = [], 0
        if document:
            yield document
