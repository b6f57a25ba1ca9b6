"""Makes unmasked examples from documents.

An unmasked example holds the tokens of its segments and a header. The rest of
a record (special tokens, padding, masks) follows from them and is added when
the shard is written. So spill files take about a third of the space of the
records.

An example depends only on the text of its document and on a key of (seed,
document, copy). So neither the order of the documents nor the number of
processes has an influence. TensorFlow is not imported here.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

from albert_tf.records.array_ops import random_bits
from albert_tf.records.tokenization import EncodedTexts, Tokenizer
from data_prep.builder.segments import (
    SegmentPair,
    cut_long_sentences,
    pair_segments,
)
from data_prep.config import RecordsConfig
from data_prep.text import break_sentences

SKIPPED_DOCUMENTS = "documents of less than two words"

TRAIN, EVAL = "train", "eval"

# Characters encoded at a time. This bounds the memory of their tokens, which
# are first Python objects.
_CHARACTERS_AT_A_TIME = 1 << 17

# The stored header: a random key, which decides the shard and the position in
# it; a digest of the document; the lengths of the segments in tokens; the
# label of the sentence objective; whether the example is the first of its
# document.
HEADER = np.dtype(
    [
        ("key", "<u8"),
        ("document", "<u8"),
        ("first_length", "<u4"),
        ("second_length", "<u4"),
        ("label", "u1"),
        ("opens_document", "u1"),
    ]
)

# Examples copied at a time. Meanwhile, each needs about 250 bytes of Python
# objects.
_EXAMPLES_AT_A_TIME = 1 << 14


class UnmaskedExamples(NamedTuple):
    """A batch of unmasked examples.

    Attributes:
        headers: `HEADER`, `(examples,)`.
        tokens: uint16 or uint32, `(tokens of all examples,)`; for each
            example the first segment, then the second.
    """

    headers: np.ndarray
    tokens: np.ndarray

    @classmethod
    def concatenate(cls, parts: Iterable[Self], dtype: np.dtype) -> Self:
        """Returns the examples of all parts, in order.

        Args:
            parts: Batches of examples.
            dtype: Type of the tokens, for the case that there are no parts.
        """
        parts = list(parts)
        return cls(
            np.concatenate([p.headers for p in parts] or [np.empty(0, HEADER)]),
            np.concatenate([p.tokens for p in parts] or [np.empty(0, dtype)]),
        )

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each example; int64, `(examples,)`."""
        return count_tokens(self.headers)

    def take(self, indices: np.ndarray) -> Self:
        """Returns some examples, in the order of `indices`."""
        lengths = self.lengths
        begins = (np.cumsum(lengths) - lengths)[indices]
        lengths = lengths[indices]
        tokens = np.empty(lengths.sum(), self.tokens.dtype)
        filled = 0
        for first in range(0, len(indices), _EXAMPLES_AT_A_TIME):
            part = slice(first, first + _EXAMPLES_AT_A_TIME)
            ends = (begins[part] + lengths[part]).tolist()
            slices = [
                self.tokens[begin:end]
                for begin, end in zip(begins[part].tolist(), ends, strict=True)
            ]
            size = int(lengths[part].sum())
            np.concatenate(slices, out=tokens[filled : filled + size])
            filled += size
        return type(self)(self.headers[indices], tokens)


def count_tokens(headers: np.ndarray) -> np.ndarray:
    """Returns the number of tokens of each example; int64, `(examples,)`."""
    lengths = headers["first_length"].astype(np.int64)
    return lengths + headers["second_length"]


def token_dtype(vocab_size: int) -> np.dtype:
    """Returns the smallest type that holds the ids of a vocabulary."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def make_examples(
    documents: Iterable[list[str]], tokenizer: Tokenizer, config: RecordsConfig
) -> tuple[dict[str, UnmaskedExamples], np.ndarray, Counter[str]]:
    """Makes the examples of all copies of some documents.

    Args:
        documents: The lines of each document.

    Returns:
        The examples by split, TRAIN and EVAL; the occurrences of each piece in
        the text, int64, `(vocab_size,)`; and the number of skipped chunks and
        documents, by reason.
    """
    normalized = [
        [
            tokenizer.normalize(sentence)
            for sentence in break_sentences(lines, config)
        ]
        for lines in documents
    ]
    dtype = token_dtype(tokenizer.vocab_size)
    piece_counts = np.zeros(tokenizer.vocab_size, np.int64)
    skipped: Counter[str] = Counter()
    parts: dict[str, list[UnmaskedExamples]] = {TRAIN: [], EVAL: []}
    for group in group_by_size(normalized, _CHARACTERS_AT_A_TIME):
        encoded = tokenizer.encode_normalized(
            [sentence for document in group for sentence in document]
        )
        piece_counts += np.bincount(encoded.ids, minlength=len(piece_counts))
        first = 0
        for document in group:
            end = first + len(document)
            split = choose_split(document, config.holdout_fraction)
            examples = _make_examples_of_document(
                _slice_texts(encoded, first, end),
                _digest("\n".join(document)),
                config.dupe_factor if split == TRAIN else 1,
                config,
                dtype,
                skipped,
            )
            if examples is None:
                skipped[SKIPPED_DOCUMENTS] += 1
            else:
                parts[split].append(examples)
            first = end
    examples_by_split = {
        split: UnmaskedExamples.concatenate(examples, dtype)
        for split, examples in parts.items()
    }
    return examples_by_split, piece_counts, skipped


def choose_split(sentences: Sequence[str], holdout_fraction: float) -> str:
    """Returns TRAIN or EVAL, by a hash of the text of a document.

    Documents that differ only in case or line breaks get the same split.
    """
    words_digest = _digest(" ".join(sentences).lower())
    fraction = int.from_bytes(words_digest[:8], "little") / 2**64
    return EVAL if fraction < holdout_fraction else TRAIN


def group_by_size(
    documents: Iterable[list[str]], size: int
) -> Iterator[list[list[str]]]:
    """Groups documents; all groups but the last have `size` characters."""
    group: list[list[str]] = []
    characters = 0
    for document in documents:
        group.append(document)
        characters += sum(map(len, document))
        if characters >= size:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _digest(text: str) -> bytes:
    content = text.encode("utf-8", errors="surrogatepass")
    return hashlib.blake2b(content, digest_size=16).digest()


def _slice_texts(encoded: EncodedTexts, first: int, end: int) -> EncodedTexts:
    """Returns the texts from `first` to `end`, as if encoded alone."""
    begin = int(encoded.ends[first - 1]) if first else 0
    ends = encoded.ends[first:end] - begin
    tokens = slice(begin, begin + int(ends[-1]))
    return EncodedTexts(encoded.ids[tokens], encoded.word_starts[tokens], ends)


def _make_examples_of_document(
    encoded: EncodedTexts,
    document_digest: bytes,
    num_copies: int,
    config: RecordsConfig,
    dtype: np.dtype,
    skipped: Counter[str],
) -> UnmaskedExamples | None:
    """Returns the examples of all copies of a document; None if it has none."""
    word_starts = np.flatnonzero(encoded.word_starts)
    if len(word_starts) < 2:
        return None
    # [CLS], and a [SEP] after each segment.
    num_special = 2 if config.sentence_objective == "none" else 3
    max_num_tokens = config.max_seq_length - num_special
    sentence_ends = cut_long_sentences(
        # A sentence may be empty, e.g. if it has only combining marks.
        np.unique(encoded.ends[encoded.ends > 0]),
        word_starts,
        max_num_tokens,
    )
    pairs: list[SegmentPair] = []
    copy_keys: list[int] = []
    num_pairs: list[int] = []
    for copy in range(num_copies):
        label = f"{config.seed}:{copy}:".encode()
        key = hashlib.blake2b(label + document_digest, digest_size=8).digest()
        found = pair_segments(
            sentence_ends,
            word_starts,
            objective=config.sentence_objective,
            max_num_tokens=max_num_tokens,
            short_seq_prob=config.short_seq_prob,
            rng=random.Random(key),
            skipped=skipped,
        )
        pairs += found
        copy_keys.append(int.from_bytes(key, "little"))
        num_pairs.append(len(found))
    if not pairs:
        return None
    numbers = np.concatenate([np.arange(n) for n in num_pairs])
    bounds = np.array(pairs, np.int64)
    headers = np.empty(len(pairs), HEADER)
    headers["key"] = random_bits(
        np.repeat(np.array(copy_keys, np.uint64), num_pairs), numbers
    )
    headers["document"] = int.from_bytes(document_digest[:8], "little")
    headers["first_length"] = bounds[:, 1] - bounds[:, 0]
    headers["second_length"] = bounds[:, 3] - bounds[:, 2]
    headers["label"] = bounds[:, 4]
    headers["opens_document"] = np.arange(len(pairs)) == 0
    ids = encoded.ids.astype(dtype)
    slices = [
        part for a, b, c, d, _label in pairs for part in (ids[a:b], ids[c:d])
    ]
    return UnmaskedExamples(headers, np.concatenate(slices))
