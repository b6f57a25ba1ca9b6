"""Reads text as documents of lines, in bounded memory, and breaks sentences.

Text files are local or gs://, and the suffix names the compression: .gz, .bz2,
.zst. A line, which ends at LF, CR LF or CR, is a sentence or a paragraph; a
blank line or the end of the file ends a document. In JSON lines, each line is a
document. In TensorFlow Datasets, each element is a document.
"""

import bz2
import codecs
import dataclasses
import hashlib
import importlib.metadata
import itertools
import json
import os
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import sentencepiece
import sentencex
import zstandard

from albert_tf.errors import UserError
from albert_tf.io import files
from albert_tf.io.datasets import open_dataset, read_elements
from data_prep.config import CorpusConfig

# Longer documents (characters) and lines (bytes) are cut. This bounds memory
# for a book on one line and for a corpus without blank lines.
LONGEST_DOCUMENT = 1 << 20

# Longest line of JSON, in bytes. It is larger than `LONGEST_DOCUMENT`, because
# a cut line of JSON cannot be parsed.
_LONGEST_JSON = 1 << 26

BLOCK_BYTES = 1 << 20

# Stored bytes that are decompressed at a time. gzip expands them to 4 MB at
# most.
_STORED_BYTES = 1 << 12

_JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")

_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")

# UTF-16 without a byte order mark is valid UTF-8 with zero bytes, if its
# characters are ASCII.
_ZERO = b"\0"

# Makes the decompressor of one stream. By default, zstandard refuses files of
# zstd --long=28 to --long=31.
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),  # with its header
    ".bz2": bz2.BZ2Decompressor,
    ".zst": lambda: zstandard.ZstdDecompressor(
        max_window_size=1 << 31
    ).decompressobj(),
}

SKIPPED_LINES = "lines that are not UTF-8"
SKIPPED_TEXTS = "documents that are not Unicode"
EMPTY_TEXTS = "documents without text"
CUT_DOCUMENTS = "cuts of documents of more than 1M characters"

OnBytes = Callable[[int], Any]
OnStored = Callable[[bytes], Any]
Skipped = Counter[str]


# --- documents ----------------------------------------------------------------


def find_inputs(config: CorpusConfig) -> list["Source"]:
    """Returns the sources that `input_file`, sorted by path, and `tfds` name.

    Of several paths of one local file, only the first is read.

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
                "input_file must match at least one file",
                received=pattern,
                remedy=files.hint_at_directory(pattern, "*.txt"),
            )
        paths.update(matches)
    # A link is another path of its file.
    unique: dict[str, str] = {}
    for path in sorted(paths):
        file = path if files.is_remote(path) else os.path.realpath(path)
        unique.setdefault(file, path)
    sources: list[Source] = []
    for path in unique.values():
        size = files.count_bytes(path)
        if not size:
            raise UserError(
                "input files must not be empty", received=f"{path}, 0 bytes"
            )
        sources.append(TextFile(path, size))
    if config.tfds:
        sources += _find_dataset(config)
    return sources


def read_documents(
    sources: Sequence["Source"],
    config: CorpusConfig,
    on_bytes: OnBytes,
    skipped: Skipped,
) -> Iterator[list[str]]:
    """Yields the stripped lines of each document; none is empty.

    Args:
        on_bytes: Called with the number of stored bytes of each read.
        skipped: Counter of skipped lines and documents, and of cuts, by
            reason.

    Raises:
        UserError: For text that `check_and_digest` of its source refuses.
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


def _lines_of_text(
    text: str, where: str, config: CorpusConfig, skipped: Skipped
) -> Iterator[str]:
    """Yields the lines of one document, and the empty line that ends it.

    JSON can encode unpaired surrogates; `on_bad_utf8` decides about them.
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


def _decode(
    content: bytes, name: str, where: str, offset: int, config: CorpusConfig
) -> str | None:
    """Returns the text of bytes, or None if `on_bad_utf8` skips them.

    An error names the offset of a byte, `where` and from `offset` on.
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


# --- sources ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file of text or of JSON lines."""

    name: str  # its path
    num_bytes: int  # its stored size

    def check_and_digest(self, config: CorpusConfig, on_bytes: OnBytes) -> str:
        """Reads the text once, so that a fault is reported early.

        Args:
            on_bytes: Called with the number of stored bytes of each read.

        Returns:
            A digest of the content.

        Raises:
            UserError: For a damaged file, bytes that are not UTF-8, or a line
                that is not JSON. The error names file and line.
        """
        digest = hashlib.sha256()

        def on_stored(block: bytes) -> None:
            digest.update(block)
            on_bytes(len(block))

        if not self._is_json(config):
            self._check_text(config, on_stored)
            return digest.hexdigest()
        for _ in self._read_json(config, on_stored, Counter()):
            pass
        # With --input_format=auto, the suffix decides if the same bytes are
        # text or JSON lines.
        return f"jsonl:{digest.hexdigest()}"

    def read_texts(
        self, config: CorpusConfig, on_bytes: OnBytes, skipped: Skipped
    ) -> Iterator[str]:
        """Yields stripped lines, and an empty line at the end of a document."""
        read = self._read_json if self._is_json(config) else self._read_text
        return read(config, lambda block: on_bytes(len(block)), skipped)

    def _is_json(self, config: CorpusConfig) -> bool:
        if config.input_format != "auto":
            return config.input_format == "jsonl"
        path = self.name
        for suffix in _DECOMPRESSORS:
            path = path.removesuffix(suffix)
        return path.endswith(_JSON_SUFFIXES)

    def _check_text(self, config: CorpusConfig, on_stored: OnStored) -> None:
        """Reads block by block, and by line only to report a faulty line."""
        decode = codecs.getincrementaldecoder("utf-8")().decode
        try:
            for block in _read_blocks(self.name, on_stored):
                if config.on_bad_utf8 == "error":
                    decode(block)
                if _ZERO in block:
                    break
            else:
                decode(b"", final=True)
                return
        except UnicodeDecodeError:
            pass
        for _ in self._read_text(config, len, Counter()):
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
            yield from _lines_of_text(text, where, config, skipped)

    def _decode(
        self, line: "Line", config: CorpusConfig, skipped: Skipped
    ) -> str | None:
        """Returns the text of a line; None if it is skipped."""
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
        text = _decode(line.content, self.name, where, line.offset, config)
        if text is None:
            skipped[SKIPPED_LINES] += 1
        return text


@dataclasses.dataclass(frozen=True)
class DatasetPart:
    """A split of a dataset of TensorFlow Datasets, or one shard of a split."""

    name: str  # for messages, e.g. "wikipedia/20230601.en/1.0.0:train"
    num_bytes: int
    instruction: str  # to read, e.g. "train[2shard:3shard]"
    paths: Sequence[str]

    def check_and_digest(self, config: CorpusConfig, on_bytes: OnBytes) -> str:
        """Returns a digest of the files, whose content is not checked."""
        del config
        digest = hashlib.sha256(self.instruction.encode())
        for path in self.paths:
            with files.open_existing(path, "rb") as file:
                while block := file.read(BLOCK_BYTES):
                    digest.update(block)
                    on_bytes(len(block))
        return digest.hexdigest()

    def read_texts(
        self, config: CorpusConfig, on_bytes: OnBytes, skipped: Skipped
    ) -> Iterator[str]:
        """See `TextFile.read_texts`."""
        builder = open_dataset(config.tfds, config.tfds_data_dir)
        elements = read_elements(builder, self.instruction)
        total = max(1, builder.info.splits[self.instruction].num_examples)
        for number, element in enumerate(elements):
            where = f"element {number} of {self.name}"
            text = _decode(
                element[config.text_field], where, "at byte offset", 0, config
            )
            if text is None:
                skipped[SKIPPED_TEXTS] += 1
            else:
                yield from _lines_of_text(text, where, config, skipped)
            done = self.num_bytes * (number + 1) // total
            on_bytes(done - self.num_bytes * number // total)


Source = TextFile | DatasetPart


def _find_dataset(config: CorpusConfig) -> list[DatasetPart]:
    """Finds `tfds_split` of `tfds`; a complete split has one part per file."""
    info = open_dataset(config.tfds, config.tfds_data_dir).info
    split = config.tfds_split
    try:
        paths = [str(path) for path in info.splits[split].filepaths]
    except (KeyError, ValueError) as error:
        raise UserError(
            "tfds_split must be a split of the dataset",
            received=split,
            remedy=f"Its splits are {', '.join(info.splits)}. {error}",
        ) from None
    if (
        config.text_field not in info.features
        # TensorFlow Datasets declares strings as NumPy objects, kind "O".
        or np.dtype(info.features[config.text_field].np_dtype).kind != "O"
    ):
        raise UserError(
            f"text_field must be a text feature of {info.full_name}",
            received=config.text_field,
            remedy=f"Its features are {', '.join(info.features)}.",
        )
    parts = {split: paths}
    if split in info.splits:
        parts = {
            f"{split}[{i}shard:{i + 1}shard]": [path]
            for i, path in enumerate(paths)
        }
    return [
        DatasetPart(
            f"{info.full_name}:{instruction}",
            sum(map(files.count_bytes, part_paths)),
            instruction,
            part_paths,
        )
        for instruction, part_paths in parts.items()
    ]


# --- lines of files -----------------------------------------------------------


class Line(NamedTuple):
    """A line, or a part of a very long line."""

    number: int  # from 1
    offset: int  # in the decompressed file, in bytes
    content: bytes  # without its line ending


def read_lines(path: str, on_stored: OnStored, longest: int) -> Iterator[Line]:
    """Yields the lines of a file, without a UTF-8 byte order mark.

    Args:
        on_stored: Called with each block of stored (compressed) bytes.
        longest: Longest line in bytes. Longer lines are cut into parts, after
            a space if possible, else between characters.

    Raises:
        UserError: For a damaged or incomplete compressed file, and for the byte
            order mark of UTF-16.
    """
    number, offset, rest = 1, 0, b""
    for block in _read_blocks(path, on_stored):
        if not offset and not rest and block.startswith(_BOM):
            block, offset = block[len(_BOM) :], len(_BOM)
        lines = (rest + block).splitlines(keepends=True)
        rest = b""
        if lines and not lines[-1].endswith(b"\n"):
            # It continues in the next block; after a CR, perhaps with an LF.
            rest = lines.pop()
        for line in lines:
            end = offset + len(line)
            for part in _cut(line.rstrip(b"\r\n"), longest):
                yield Line(number, offset, part)
                offset += len(part)
            offset = end
            number += 1
        while len(rest) > 2 * longest:
            part = next(_cut(rest, longest))
            yield Line(number, offset, part)
            offset += len(part)
            rest = rest[len(part) :]
    if rest:
        for part in _cut(rest.rstrip(b"\r"), longest):
            yield Line(number, offset, part)
            offset += len(part)


def _cut(content: bytes, longest: int) -> Iterator[bytes]:
    """Yields the content in parts of at most `longest` bytes."""
    begin = 0
    while len(content) - begin > longest:
        end = content.rfind(b" ", begin, begin + longest) + 1
        if not end:
            end = begin + longest
            # Bytes 10xxxxxx continue a character; it has at most 3 of them.
            for _ in range(3):
                if content[end] & 0xC0 == 0x80:
                    end -= 1
        yield content[begin:end]
        begin = end
    yield content[begin:]


def _read_blocks(path: str, on_stored: OnStored) -> Iterator[bytes]:
    """Yields the decompressed content of a file; see `read_lines`."""
    suffix = next(filter(path.endswith, _DECOMPRESSORS), "")
    size = _STORED_BYTES if suffix else BLOCK_BYTES
    with files.open_existing(path, "rb") as file:

        def read() -> bytes:
            block = file.read(size)
            on_stored(block)
            return block

        blocks = iter(read, b"")
        if suffix:
            blocks = _decompress(blocks, suffix, path)
        for number, block in enumerate(blocks):
            if not number and block.startswith(_UTF16_BOMS):
                raise UserError(
                    f"{path} must be UTF-8",
                    received="a UTF-16 byte order mark in line 1",
                    remedy="Convert the file, e.g. with iconv -f UTF-16 -t "
                    "UTF-8.",
                )
            yield block


def _decompress(
    stored_blocks: Iterator[bytes], suffix: str, path: str
) -> Iterator[bytes]:
    """Yields the content of all streams of a file, which follow each other.

    Unlike here, the readers of bz2 and zstandard end without an error at some
    damages of later streams.
    """
    stream = None
    content = bytearray()
    try:
        for stored in stored_blocks:
            while stored:
                stream = stream or _DECOMPRESSORS[suffix]()
                content += stream.decompress(stored)
                stored = b""
                if stream.eof:
                    stored, stream = stream.unused_data, None
            if len(content) >= BLOCK_BYTES:
                yield bytes(content)
                content.clear()
        if stream is not None:
            raise EOFError("the file ended within a stream")
    except (EOFError, zlib.error, zstandard.ZstdError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise UserError(
            f"{path} must be a complete {suffix[1:]} file", received=str(error)
        ) from None
    if content:
        yield bytes(content)


# --- sentences ----------------------------------------------------------------

# sentencex pairs quotes and brackets over its complete input, so it finds fewer
# sentence ends in long lines: of 1,000,000 characters, 20 % instead of 96 %.
# In windows of this many characters, it finds 96 % of the ends at any length,
# and 99 % of the found ends are correct.
WINDOW_CHARACTERS = 2000

# sentencex 1.0.32 panics at some white space of several bytes, since it takes
# the number of its characters for that of its bytes.
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")


def break_sentences(lines: list[str], config: CorpusConfig) -> list[str]:
    """Returns the sentences of a document of lines, or of paragraphs.

    Raises:
        UserError: If sentencex panics.
    """
    if config.sentence_breaker == "none":
        return lines
    return [
        sentence.strip()
        for line in lines
        for sentence in break_line(config.language, line)
        if sentence.strip()
    ]


def describe_breaking(config: CorpusConfig) -> dict[str, Any]:
    """Returns what decides the sentences besides text and settings."""
    if config.sentence_breaker == "none":
        return {}
    return {"window_characters": WINDOW_CHARACTERS, "wide_space": "as space"}


def find_versions(config: CorpusConfig) -> dict[str, str]:
    """Returns the versions that the result of a command depends on, by name."""
    versions = {
        "sentencepiece": sentencepiece.__version__,
        "unicode": unicodedata.unidata_version,
    }
    if config.sentence_breaker == "sentencex":
        versions["sentencex"] = importlib.metadata.version("sentencex")
    return versions


def break_line(language: str, line: str) -> Iterator[str]:
    """Yields the sentences of a line; joined, they are the line.

    A line of up to `WINDOW_CHARACTERS` is one window. A window of a longer line
    grows until it holds a complete sentence. Its last sentence, which may be
    incomplete, begins the next window.
    """
    begin, size = 0, WINDOW_CHARACTERS
    while len(line) - begin > size:
        window = line[begin : begin + size]
        last_space = window.rfind(" ")
        if last_space > 0:
            window = window[:last_space]
        *complete, last = _break_window(language, window)
        yield from complete
        begin += len(window) - len(last)
        size = WINDOW_CHARACTERS if complete else 2 * size
    yield from _break_window(language, line[begin:])


def _break_window(language: str, window: str) -> list[str]:
    """Returns the sentences of a window; joined, they are the window."""
    try:
        parts = sentencex.segment(language, _WIDE_SPACE.sub(" ", window))
    except BaseException as error:
        # pyo3 makes this class, which cannot be imported or pickled.
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(
            "sentencex must be able to break the text into sentences",
            received=f"{error}, for {window[:200]!r}",
            remedy="Change this text, or set --sentence_breaker=none.",
        ) from None
    ends = list(itertools.accumulate(map(len, parts), initial=0))
    return [window[begin:end] for begin, end in itertools.pairwise(ends)]
