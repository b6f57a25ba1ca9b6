"""Documents -> rows; the first half of a process's work.

Everything that a row depends on is the text of its document and a key made
of (seed, document, copy), so that neither the order of documents nor the
number of processes has an influence. No TensorFlow is imported here.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from albert_tf.records.keyed_random import random_bits
from albert_tf.records.tokenization import EncodedTexts, Tokenizer
from data_prep.builder.rows import HEADER, Rows, piece_dtype
from data_prep.builder.segments import (
    SegmentPair,
    cut_long_sentences,
    pair_segments,
)
from data_prep.config import RecordsConfig
from data_prep.text.sentence_breaking import break_sentences

SKIPPED_DOCUMENTS = "documents of less than two words"

TRAIN, EVAL = "train", "eval"

# Characters encoded at a time; their pieces are Python objects for a moment.
_CHARACTERS_AT_A_TIME = 1 << 17


class MadeRows(NamedTuple):
    """What some documents gave.

    Attributes:
        rows: By split, TRAIN and EVAL.
        piece_counts: int64, `(vocab_size,)`, occurrences in the text.
        skipped: Counts of what was left out, by reason.
    """

    rows: dict[str, Rows]
    piece_counts: np.ndarray
    skipped: Counter[str]


def normalize_document(
    lines: list[str], tokenizer: Tokenizer, config: RecordsConfig
) -> list[str]:
    """Sentences of a document, as the vocabulary is to see them."""
    return [
        tokenizer.normalize(sentence)
        for sentence in break_sentences(lines, config)
    ]


def digest(sentences: Sequence[str]) -> bytes:
    """16 bytes that are the same for equal documents.

    Args:
        sentences: Of `normalize_document`.
    """
    return _digest("\n".join(sentences))


def make_rows(
    documents: Sequence[list[str]], tokenizer: Tokenizer, config: RecordsConfig
) -> MadeRows:
    """All copies of all rows of some documents.

    Args:
        documents: Of each document, what `normalize_document` gives.
        tokenizer: The vocabulary.
        config: How records are to be.
    """
    dtype = piece_dtype(tokenizer.vocab_size)
    piece_counts = np.zeros(tokenizer.vocab_size, np.int64)
    skipped: Counter[str] = Counter()
    parts: dict[str, list[Rows]] = {TRAIN: [], EVAL: []}
    for some in _group_by_size(documents):
        encoded = tokenizer.encode_normalized(
            [sentence for document in some for sentence in document]
        )
        piece_counts += np.bincount(encoded.ids, minlength=len(piece_counts))
        first = 0
        for document in some:
            end = first + len(document)
            split = choose_split(document, config.holdout_fraction)
            rows = _make_rows_of_one(
                _slice_texts(encoded, first, end),
                digest(document),
                config.dupe_factor if split == TRAIN else 1,
                config,
                dtype,
                skipped,
            )
            if rows is None:
                skipped[SKIPPED_DOCUMENTS] += 1
            else:
                parts[split].append(rows)
            first = end
    rows_by_split = {
        split: Rows.concatenate(rows, dtype) for split, rows in parts.items()
    }
    return MadeRows(rows_by_split, piece_counts, skipped)


def choose_split(sentences: Sequence[str], holdout_fraction: float) -> str:
    """TRAIN or EVAL, by the letters and words of a document.

    A document in capitals or with other line breaks is not held out from
    itself.
    """
    share = int.from_bytes(_digest(" ".join(sentences).lower())[:8], "little")
    return EVAL if share / 2**64 < holdout_fraction else TRAIN


def _group_by_size(documents: Iterable[list[str]]) -> Iterator[list[list[str]]]:
    group: list[list[str]] = []
    size = 0
    for document in documents:
        group.append(document)
        size += sum(map(len, document))
        if size >= _CHARACTERS_AT_A_TIME:
            yield group
            group, size = [], 0
    if group:
        yield group


def _digest(text: str) -> bytes:
    content = text.encode("utf-8", errors="surrogatepass")
    return hashlib.blake2b(content, digest_size=16).digest()


def _slice_texts(encoded: EncodedTexts, first: int, end: int) -> EncodedTexts:
    """Some of the texts, as if they had been encoded alone."""
    begin = int(encoded.ends[first - 1]) if first else 0
    ends = encoded.ends[first:end] - begin
    pieces = slice(begin, begin + int(ends[-1]))
    return EncodedTexts(encoded.ids[pieces], encoded.word_starts[pieces], ends)


def _make_rows_of_one(
    encoded: EncodedTexts,
    document_digest: bytes,
    num_copies: int,
    config: RecordsConfig,
    dtype: np.dtype,
    skipped: Counter[str],
) -> Rows | None:
    """The rows of all copies of a document; None if it gives none."""
    word_starts = np.flatnonzero(encoded.word_starts)
    if len(word_starts) < 2:
        return None
    # [CLS] and a [SEP] behind each segment make an example whole.
    num_special = 2 if config.sentence_objective == "none" else 3
    max_num_pieces = config.max_seq_length - num_special
    sentence_ends = cut_long_sentences(
        # A sentence can be empty here: of combining marks alone, say.
        np.unique(encoded.ends[encoded.ends > 0]),
        word_starts,
        max_num_pieces,
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
            max_num_pieces=max_num_pieces,
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
    return Rows(headers, np.concatenate(slices))
