"""Inputs -> documents, each a list of lines.

Text files: a line is a sentence (or a paragraph, see `sentence_breaking`), a
blank line ends a document, and so does the end of a file. JSON lines: each
holds a document. TensorFlow Datasets: each element is a document.
"""

import collections
from collections.abc import Iterator, Sequence

from albert_tf.errors import UserError
from albert_tf.io import files
from data_prep.config import (
    CorpusConfig,
)
from data_prep.text.files import TextFile
from data_prep.text.sources import LONGEST_DOCUMENT, OnBytes, Source

CUT_DOCUMENTS = "cuts of documents of more than 1M characters"


def find_inputs(config: CorpusConfig) -> list[Source]:
    """What `input_file` and `tfds` name, in order, each once.

    Raises:
        UserError: If neither is given, a pattern matches no file, a file is
            empty, or a dataset cannot be had.
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
    for path in sorted(paths):
        size = files.count_bytes(path)
        if not size:
            raise UserError(
                "input files must hold text", received=f"{path}, 0 bytes"
            )
        sources.append(TextFile(path, size))
    if config.tfds:
        from data_prep.text.tfds import find_dataset

        sources += find_dataset(config)
    return sources


def check_and_digest(
    sources: Sequence[Source], config: CorpusConfig, on_bytes: OnBytes
) -> list[str]:
    """Reads all inputs once, and refuses those that cannot be read later.

    Args:
        sources: Of `find_inputs`.
        config: How to read them.
        on_bytes: Called with the number of stored bytes read at every step.

    Returns:
        A digest of the content of each source.

    Raises:
        UserError: For a damaged file, bytes that are not UTF-8, or a line
            that is not JSON; naming file and line.
    """
    return [source.check_and_digest(config, on_bytes) for source in sources]


def read_documents(
    sources: Sequence[Source],
    config: CorpusConfig,
    on_bytes: OnBytes,
    skipped: collections.Counter[str],
) -> Iterator[list[str]]:
    """Documents of all sources, in order; none is empty.

    Args:
        sources: Of `find_inputs`.
        config: How to read them.
        on_bytes: Called with the number of stored bytes read at every step.
        skipped: Where lines and documents left out, and cuts, are counted.

    Yields:
        The stripped lines of a document, none of them empty, of about a
        million characters at the most.

    Raises:
        UserError: As `check_and_digest`.
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
