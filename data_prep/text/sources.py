"""What documents are read from, of whatever kind."""

import collections
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from albert_tf.errors import UserError
from data_prep.config import (
    CorpusConfig,
)

# A document or a line with more characters or bytes is cut, so that memory is
# bounded for a book in a line, or a corpus without a blank one.
LONGEST_DOCUMENT = 1 << 20

EMPTY_TEXTS = "documents without text"
SKIPPED_TEXTS = "documents that are not Unicode"

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


def lines_of_text(
    text: str, where: str, config: CorpusConfig, skipped: Skipped
) -> Iterator[str]:
    """Lines of a whole document, and the empty one that ends it.

    Args:
        text: The document; its blank lines mean nothing.
        where: Where it stands, for the message of an error.
        config: What to do with halves of surrogate pairs.
        skipped: Where a document without text, or left out, is counted.

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
    if not text.strip():
        skipped[EMPTY_TEXTS] += 1
    for line in text.split("\n"):
        for begin in range(0, max(1, len(line)), LONGEST_DOCUMENT):
            if part := line[begin : begin + LONGEST_DOCUMENT].strip():
                yield part
    yield ""
