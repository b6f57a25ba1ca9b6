"""The sources of documents: their interface, and files of text or JSON lines.

`tfds` has another source.
"""

import codecs
import collections
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from albert_tf.errors import UserError
from data_prep.config import CorpusConfig
from data_prep.text.lines import (
    COMPRESSIONS,
    Line,
    OnStored,
    read_lines,
    read_text_blocks,
)

# Longer documents (characters) and lines (bytes) are cut. This bounds memory
# for a book on one line and for a corpus without blank lines.
LONGEST_DOCUMENT = 1 << 20

# Longest line of JSON, in bytes. It is larger than `LONGEST_DOCUMENT`, because
# a cut line of JSON cannot be parsed.
_LONGEST_JSON = 1 << 26

_JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")

# UTF-16 without a byte order mark is valid UTF-8 with zero bytes, if its
# characters are ASCII.
_ZERO = b"\0"

SKIPPED_LINES = "lines that are not UTF-8"
EMPTY_TEXTS = "documents without text"
SKIPPED_TEXTS = "documents that are not Unicode"

OnBytes = Callable[[int], Any]
Skipped = collections.Counter[str]


class Source(Protocol):
    """A source of documents. Small and picklable.

    Attributes:
        name: Name for messages, e.g. the path of a file.
        num_bytes: Stored size.
    """

    @property
    def name(self) -> str: ...

    @property
    def num_bytes(self) -> int: ...

    def check_and_digest(self, config: CorpusConfig, on_bytes: OnBytes) -> str:
        """Returns a digest of the content; see `corpus.check_and_digest`."""

    def read_texts(
        self, config: CorpusConfig, on_bytes: OnBytes, skipped: Skipped
    ) -> Iterator[str]:
        """Yields stripped lines, and an empty line at the end of a document."""


def lines_of_text(
    text: str, where: str, config: CorpusConfig, skipped: Skipped
) -> Iterator[str]:
    """Yields the lines of one document, and the empty line that ends it.

    Args:
        text: The document. Its blank lines are ignored.
        where: Location of the document, for error messages.
        config: What to do with unpaired surrogates.
        skipped: Counter of skipped documents, by reason.

    Raises:
        UserError: For an unpaired surrogate, which JSON can encode.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if config.on_bad_utf8 == "error":
            raise UserError(
                f"{where} must hold Unicode text",
                received=f"the unpaired surrogate "
                f"U+{ord(text[error.start]):04X} at character {error.start}",
                remedy="Set --on_bad_utf8=replace or --on_bad_utf8=skip.",
            ) from None
        if config.on_bad_utf8 == "skip":
            skipped[SKIPPED_TEXTS] += 1
            return
        utf16 = text.encode("utf-16-le", errors="surrogatepass")
        text = utf16.decode("utf-16-le", errors="replace")
    if not text.strip():
        skipped[EMPTY_TEXTS] += 1
    for line in text.split("\n"):
        for begin in range(0, max(1, len(line)), LONGEST_DOCUMENT):
            if part := line[begin : begin + LONGEST_DOCUMENT].strip():
                yield part
    yield ""


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file of text or of JSON lines, as a `Source`.

    Attributes:
        name: Path.
        num_bytes: Stored size.
    """

    name: str
    num_bytes: int

    def check_and_digest(self, config: CorpusConfig, on_bytes: OnBytes) -> str:
        """See `corpus.check_and_digest`."""
        digest = hashlib.sha256()

        def on_stored(block: bytes) -> None:
            digest.update(block)
            on_bytes(len(block))

        if not self._is_json(config):
            self._check_text(config, on_stored)
            return digest.hexdigest()
        for _ in self._read_json(config, on_stored, collections.Counter()):
            pass
        # With --input_format=auto, the suffix decides if the same bytes are
        # text or JSON lines.
        return f"jsonl:{digest.hexdigest()}"

    def read_texts(
        self, config: CorpusConfig, on_bytes: OnBytes, skipped: Skipped
    ) -> Iterator[str]:
        """See `Source`."""
        read = self._read_json if self._is_json(config) else self._read_text
        return read(config, lambda block: on_bytes(len(block)), skipped)

    def _is_json(self, config: CorpusConfig) -> bool:
        if config.input_format != "auto":
            return config.input_format == "jsonl"
        path = self.name
        for suffix in COMPRESSIONS:
            path = path.removesuffix(suffix)
        return path.endswith(_JSON_SUFFIXES)

    def _check_text(self, config: CorpusConfig, on_stored: OnStored) -> None:
        """Reads block by block, and by line only to report a faulty line."""
        decode = codecs.getincrementaldecoder("utf-8")().decode
        try:
            for block in read_text_blocks(self.name, on_stored):
                if config.on_bad_utf8 == "error":
                    decode(block)
                if _ZERO in block:
                    break
            else:
                decode(b"", final=True)
                return
        except UnicodeDecodeError:
            pass
        for _ in self._read_text(config, len, collections.Counter()):
            pass

    def _read_text(
        self, config: CorpusConfig, on_stored: OnStored, skipped: Skipped
    ) -> Iterator[str]:
        for line in read_lines(self.name, on_stored, LONGEST_DOCUMENT):
            if (text := self._decode(line, config, skipped)) is not None:
                yield text.strip()

    def _read_json(
        self, config: CorpusConfig, on_stored: OnStored, skipped: Skipped
    ) -> Iterator[str]:
        for line in read_lines(self.name, on_stored, _LONGEST_JSON):
            encoded = self._decode(line, config, skipped)
            if not encoded or encoded.isspace():
                continue
            where = f"line {line.number} of {self.name}"
            try:
                found = json.loads(encoded)
            except (ValueError, RecursionError) as error:
                fault = str(error)
                if isinstance(error, json.JSONDecodeError):
                    fault = f"{error.msg}, at character {error.pos}"
                raise UserError(
                    f"{where} must be a complete JSON object: the file must be "
                    "JSON lines, one document per line",
                    received=fault,
                    remedy="Convert it, e.g. a list with jq -c '.[]', or set "
                    "--input_format=text.",
                ) from None
            text = None
            if isinstance(found, dict):
                text = found.get(config.text_field)
            if not isinstance(text, str):
                raise UserError(
                    f'{where} must be an object with a string "'
                    f'{config.text_field}"',
                    received=encoded[:80],
                    remedy="Name the field by --text_field.",
                )
            yield from lines_of_text(text, where, config, skipped)

    def _decode(
        self, line: Line, config: CorpusConfig, skipped: Skipped
    ) -> str | None:
        """Returns the text of a line, or None if the line is skipped.

        Raises:
            UserError: For a zero byte, and for bytes that are not UTF-8 unless
                `on_bad_utf8` accepts them.
        """
        if _ZERO in line.content:
            offset = line.offset + line.content.index(_ZERO)
            raise UserError(
                f"{self.name} must be UTF-8 without zero bytes",
                received=f"a zero byte in line {line.number}, at byte offset "
                f"{offset}",
                remedy="If the file is UTF-16, convert it, e.g. with iconv -f "
                "UTF-16LE -t UTF-8. Else remove the bytes, e.g. with tr -d "
                "'\\000'.",
            )
        where = f"in line {line.number}, at byte offset"
        text = decode(line.content, self.name, where, line.offset, config)
        if text is None:
            skipped[SKIPPED_LINES] += 1
        return text


def decode(
    content: bytes, name: str, where: str, offset: int, config: CorpusConfig
) -> str | None:
    """Returns the text of bytes, or None if `on_bad_utf8` skips them.

    Args:
        name: Name of the text for the error message.
        where: Words before the offset of a byte there.
        offset: Offset of the content.
    """
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        if config.on_bad_utf8 == "error":
            raise UserError(
                f"{name} must be UTF-8",
                received=f"byte 0x{content[error.start]:02x} {where} "
                f"{offset + error.start}",
                remedy="Convert the text, e.g. with iconv, or set "
                "--on_bad_utf8=replace or --on_bad_utf8=skip.",
            ) from None
    if config.on_bad_utf8 == "replace":
        return content.decode(errors="replace")
    return None
