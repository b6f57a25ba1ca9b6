"""Inputs -> documents, each a list of lines.

Text files: a line is a sentence (or a paragraph, see `sentence_breaking`), a
blank line ends a document, and so does the end of a file. JSON lines: each
holds a document. TensorFlow Datasets: each element is a document.
"""

# TensorFlow is imported where it is used: the worker processes of
# `build_tfrecords` import this module, too, and must not pay for it.

import codecs
import collections
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from albert_tf import files
from albert_tf.config import CorpusConfig
from albert_tf.errors import UserError
from data_prep.text_files import COMPRESSIONS, read_blocks, read_lines

# A document or a line with more characters or bytes is cut, so that memory is
# bounded for a book in a line, or a corpus without a blank one.
LONGEST_DOCUMENT = 1 << 20

# A document of JSON lines must be whole to be parsed.
_LONGEST_JSON = 1 << 26

_JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")

SKIPPED_LINES = "lines that are not UTF-8"
SKIPPED_TEXTS = "documents that are not Unicode"
CUT_DOCUMENTS = "cuts of documents of more than 1M characters"

OnBytes = Callable[[int], Any]
Skipped = collections.Counter[str]


class Source(Protocol):
    """Something to read documents of; small, and picklable.

    Attributes:
        name: What a person knows it by.
        num_bytes: Its size, as stored.
    """

    @property
    def name(self) -> str: ...

    @property
    def num_bytes(self) -> int: ...

    def check_and_digest(self, config: CorpusConfig, on_bytes: OnBytes) -> str:
        """Digest of the content; refuses what cannot be read."""

    def read_texts(
        self, config: CorpusConfig, on_bytes: OnBytes, skipped: Skipped
    ) -> Iterator[str]:
        """Lines; an empty one where a document ends."""


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
        from data_prep.tfds_inputs import find_dataset

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
    skipped: Skipped,
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


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file of text or of JSON lines.

    Attributes:
        name: Its path.
        num_bytes: Its size.
    """

    name: str
    num_bytes: int

    def check_and_digest(self, config: CorpusConfig, on_bytes: OnBytes) -> str:
        """See `corpus.check_and_digest`."""
        digest = hashlib.sha256()
        with files.open_existing(self.name, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                on_bytes(len(block))
        if self._is_json(config):
            for _ in self.read_texts(config, _ignore, collections.Counter()):
                pass
        elif not self._is_sound():
            # Reads on up to the line to name.
            for _ in self.read_texts(config, _ignore, collections.Counter()):
                pass
        return digest.hexdigest()

    def read_texts(
        self, config: CorpusConfig, on_bytes: OnBytes, skipped: Skipped
    ) -> Iterator[str]:
        """See `Source`."""
        if self._is_json(config):
            return self._read_json(config, on_bytes, skipped)
        return self._read_text(config, on_bytes, skipped)

    def _is_json(self, config: CorpusConfig) -> bool:
        if config.input_format != "auto":
            return config.input_format == "jsonl"
        path = self.name
        for suffix in COMPRESSIONS:
            path = path.removesuffix(suffix)
        return path.endswith(_JSON_SUFFIXES)

    def _is_sound(self) -> bool:
        """Whether the whole file is UTF-8; fast.

        Raises:
            UserError: For a damaged compressed file.
        """
        decode = codecs.getincrementaldecoder("utf-8")().decode
        try:
            for block in read_blocks(self.name, _ignore):
                decode(block)
            decode(b"", final=True)
        except UnicodeDecodeError:
            return False
        return True

    def _read_text(
        self, config: CorpusConfig, on_bytes: OnBytes, skipped: Skipped
    ) -> Iterator[str]:
        for line in read_lines(self.name, on_bytes, LONGEST_DOCUMENT):
            try:
                yield line.content.decode("utf-8").strip()
            except UnicodeDecodeError as error:
                if config.on_bad_utf8 == "error":
                    raise UserError(
                        f"{self.name} must be UTF-8",
                        received=f"byte 0x{line.content[error.start]:02x} in "
                        f"line {line.number}, at byte offset "
                        f"{line.offset + error.start}",
                        remedy="Convert the file, e.g. with iconv, or set "
                        "--on_bad_utf8=replace or --on_bad_utf8=skip.",
                    ) from None
                if config.on_bad_utf8 == "replace":
                    yield line.content.decode(errors="replace").strip()
                else:
                    skipped[SKIPPED_LINES] += 1

    def _read_json(
        self, config: CorpusConfig, on_bytes: OnBytes, skipped: Skipped
    ) -> Iterator[str]:
        for line in read_lines(self.name, on_bytes, _LONGEST_JSON):
            if not line.content.strip():
                continue
            where = f"line {line.number} of {self.name}"
            try:
                found = json.loads(line.content)
            except ValueError as error:
                # Bytes that are not UTF-8 are not JSON either.
                raise UserError(
                    f"{where} must be JSON", received=str(error)
                ) from None
            text = (
                found.get(config.text_field)
                if isinstance(found, dict)
                else None
            )
            if not isinstance(text, str):
                raise UserError(
                    f"{where} must be an object with a string "
                    f'"{config.text_field}"',
                    received=line.content[:80].decode(errors="replace"),
                    remedy="Name the field by --text_field.",
                )
            yield from lines_of_text(text, where, config, skipped)


def lines_of_text(
    text: str, where: str, config: CorpusConfig, skipped: Skipped
) -> Iterator[str]:
    """Lines of a whole document, and the empty one that ends it.

    Args:
        text: The document; its blank lines mean nothing.
        where: Where it stands, for the message of an error.
        config: What to do with halves of surrogate pairs.
        skipped: Where a document left out is counted.

    Raises:
        UserError: For half a surrogate pair, which JSON can hold.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if config.on_bad_utf8 == "error":
            raise UserError(
                f"{where} must hold Unicode text",
                received=f"U+{ord(text[error.start]):04X}, half a surrogate "
                f"pair, at character {error.start}",
                remedy="Set --on_bad_utf8=replace or --on_bad_utf8=skip.",
            ) from None
        if config.on_bad_utf8 == "skip":
            skipped[SKIPPED_TEXTS] += 1
            return
        utf16 = text.encode("utf-16-le", errors="surrogatepass")
        text = utf16.decode("utf-16-le", errors="replace")
    for line in text.split("\n"):
        for begin in range(0, max(1, len(line)), LONGEST_DOCUMENT):
            if part := line[begin : begin + LONGEST_DOCUMENT].strip():
                yield part
    yield ""


def _ignore(_num_bytes: int) -> None:
    """Counts no bytes."""
