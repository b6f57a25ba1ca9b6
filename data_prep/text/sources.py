"""The interface of the sources of documents: text files and datasets."""

import collections
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from albert_tf.errors import UserError
from data_prep.config import CorpusConfig

# Longer documents (characters) and lines (bytes) are cut. This bounds memory
# for a book on one line and for a corpus without blank lines.
LONGEST_DOCUMENT = 1 << 20

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
