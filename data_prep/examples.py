"""Documents -> serialized pretraining examples; the work of a process.

Everything that an example depends on is the text of its document and a key
made of (seed, document, copy), so that neither the order of documents nor
the number of processes has an influence. No TensorFlow is imported here.
"""

import dataclasses
import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from albert_tf.config import RecordsConfig
from albert_tf.features import CLS_ID, SENTENCE_LABEL, SEP_ID
from albert_tf.keyed_random import random_bits
from albert_tf.masking import FIRST_ORDINARY_ID, mask_batch
from albert_tf.tokenization import EncodedTexts, Tokenizer, normalize
from data_prep.segments import SegmentPair, pair_segments
from data_prep.serialization import serialize_examples

SKIPPED_DOCUMENTS = "documents of less than two words"

TRAIN, EVAL = "train", "eval"

# Examples masked and serialized at a time; fits the processor's caches.
_ROWS_AT_A_TIME = 256

# What the key of a copy of a document is used for.
_MASKING, _SHUFFLING = range(2)


class Document(NamedTuple):
    """A document on its way to a process.

    Attributes:
        sentences: Raw text.
        occurrence: How many documents before it had the very same text, so
            that repeated documents are masked differently.
    """

    sentences: list[str]
    occurrence: int


@dataclasses.dataclass
class Examples:
    """Examples of some documents, of train/ or of eval/.

    Attributes:
        records: Serialized examples.
        shuffle_keys: uint64, `(examples,)`, random: their order in shards.
        counts: "documents" that gave examples, "examples", real "pieces"
            with special ones, "masked" pieces, "swapped" examples.
    """

    records: list[bytes] = dataclasses.field(default_factory=list)
    shuffle_keys: np.ndarray = dataclasses.field(
        default_factory=lambda: np.zeros(0, np.uint64)
    )
    counts: Counter[str] = dataclasses.field(default_factory=Counter)


class Batch(NamedTuple):
    """What some documents gave.

    Attributes:
        splits: Examples by split, TRAIN and EVAL.
        piece_counts: int64, `(vocab_size,)`, occurrences in the text.
        skipped: Counts of what was left out, by reason.
    """

    splits: dict[str, Examples]
    piece_counts: np.ndarray
    skipped: Counter[str]


class _Rows(NamedTuple):
    """Examples before they are masked.

    Attributes:
        pairs: Segments; ranges count from the document's first piece.
        document_begins: First piece of each pair's document.
        keys: uint64, a key for each pair.
    """

    pairs: list[SegmentPair]
    document_begins: list[int]
    keys: list[np.ndarray]


def build_examples(
    documents: Sequence[Document], tokenizer: Tokenizer, config: RecordsConfig
) -> Batch:
    """All copies of all examples of some documents.

    Args:
        documents: Some documents; each goes to train/ or eval/ by its text.
        tokenizer: The vocabulary.
        config: How records are to be.
    """
    lengths = [len(document.sentences) for document in documents]
    texts = [
        normalize(sentence, config.do_lower_case)
        for document in documents
        for sentence in document.sentences
    ]
    encoded = tokenizer.encode_normalized(texts)
    skipped: Counter[str] = Counter()
    rows = {split: _Rows([], [], []) for split in (TRAIN, EVAL)}
    splits = {split: Examples() for split in rows}
    first_text = 0
    for document, length in zip(documents, lengths, strict=True):
        end_text = first_text + length
        digest = _digest(texts[first_text:end_text])
        split = choose_split(digest, config.holdout_fraction)
        found = _pair_document(
            _slice_texts(encoded, first_text, end_text),
            digest,
            document.occurrence,
            config.dupe_factor if split == TRAIN else 1,
            config,
            skipped,
        )
        if found.pairs:
            splits[split].counts["documents"] += 1
            begin = int(encoded.ends[first_text - 1]) if first_text else 0
            rows[split].pairs.extend(found.pairs)
            rows[split].document_begins.extend([begin] * len(found.pairs))
            rows[split].keys.extend(found.keys)
        else:
            skipped[SKIPPED_DOCUMENTS] += 1
        first_text = end_text
    for split, found in rows.items():
        _add_examples(splits[split], found, encoded, tokenizer, config)
    counts = np.bincount(encoded.ids, minlength=tokenizer.vocab_size)
    return Batch(splits, counts, skipped)


def choose_split(digest: bytes, holdout_fraction: float) -> str:
    """TRAIN or EVAL, by a document's text: equal texts go together."""
    share = int.from_bytes(digest[:8], "little") / 2**64
    return EVAL if share < holdout_fraction else TRAIN


def unigram_entropy(piece_counts: np.ndarray) -> float:
    """Entropy of the ordinary pieces, in nats.

    Args:
        piece_counts: int64, `(vocab_size,)`.
    """
    counts = piece_counts[FIRST_ORDINARY_ID:]
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log(shares)).sum())


def _digest(texts: Sequence[str]) -> bytes:
    joined = "\n".join(texts).encode("utf-8", errors="surrogatepass")
    return hashlib.blake2b(joined, digest_size=16).digest()


def _slice_texts(encoded: EncodedTexts, first: int, end: int) -> EncodedTexts:
    """Some of the texts, as if they had been encoded alone."""
    begin = int(encoded.ends[first - 1]) if first else 0
    ends = encoded.ends[first:end] - begin
    pieces = slice(begin, begin + int(ends[-1]))
    return EncodedTexts(encoded.ids[pieces], encoded.word_starts[pieces], ends)


def _pair_document(
    encoded: EncodedTexts,
    digest: bytes,
    occurrence: int,
    num_copies: int,
    config: RecordsConfig,
    skipped: Counter[str],
) -> _Rows:
    """The pairs of all copies of a document, each pair with its key."""
    rows = _Rows([], [], [])
    if np.count_nonzero(encoded.word_starts) < 2:
        return rows
    # A sentence can be empty here: of combining marks alone, for example.
    sentence_ends = np.unique(encoded.ends[encoded.ends > 0]).tolist()
    for copy in range(num_copies):
        label = f"{config.seed}:{occurrence}:{copy}:".encode()
        key = hashlib.blake2b(label + digest, digest_size=8).digest()
        pairs = pair_segments(
            sentence_ends,
            encoded.word_starts,
            # [CLS] and two [SEP] make an example whole.
            max_num_pieces=config.max_seq_length - 3,
            short_seq_prob=config.short_seq_prob,
            rng=random.Random(key),
            skipped=skipped,
        )
        rows.pairs.extend(pairs)
        copy_key = np.full(len(pairs), int.from_bytes(key, "little"), "u8")
        rows.keys.append(random_bits(copy_key, np.arange(len(pairs))))
    return rows


def _add_examples(
    examples: Examples,
    rows: _Rows,
    encoded: EncodedTexts,
    tokenizer: Tokenizer,
    config: RecordsConfig,
) -> None:
    """Masks and serializes rows, some at a time."""
    if not rows.pairs:
        return
    keys = np.concatenate(rows.keys)
    pairs = (
        np.array(
            [(*first, *second) for first, second, _ in rows.pairs], np.int64
        )
        + np.array(rows.document_begins)[:, np.newaxis]
    )
    swapped = np.array([pair.swapped for pair in rows.pairs])
    for begin in range(0, len(keys), _ROWS_AT_A_TIME):
        some = slice(begin, begin + _ROWS_AT_A_TIME)
        features = _fill_features(pairs[some], encoded, config.max_seq_length)
        features[SENTENCE_LABEL] = swapped[some, np.newaxis].astype(np.int32)
        masked = mask_batch(
            features["input_ids"],
            features["token_boundary"],
            random_bits(keys[some], _MASKING),
            vocab_size=tokenizer.vocab_size,
            max_predictions_per_seq=config.max_predictions_per_seq,
            masked_lm_prob=config.masked_lm_prob,
            ngram=config.ngram,
        )
        features["input_ids"] = masked.input_ids
        features["masked_lm_positions"] = masked.positions
        features["masked_lm_ids"] = masked.ids
        features["masked_lm_weights"] = masked.weights
        examples.records.extend(serialize_examples(features))
        examples.counts["pieces"] += int(features["input_mask"].sum())
        examples.counts["masked"] += int(masked.weights.sum())
    examples.counts["examples"] += len(pairs)
    examples.counts["swapped"] += int(swapped.sum())
    examples.shuffle_keys = random_bits(keys, _SHUFFLING)


def _fill_features(
    pairs: np.ndarray, encoded: EncodedTexts, max_seq_length: int
) -> dict[str, np.ndarray]:
    """`[CLS] A [SEP] B [SEP]`, padded, for each pair.

    Args:
        pairs: int64, `(examples, 4)`: beginning and end of A and of B.
        encoded: The pieces that `pairs` counts.
        max_seq_length: Length of an example.

    Returns:
        Features per token, int32, `(examples, max_seq_length)`.
    """
    shape = (len(pairs), max_seq_length)
    input_ids = np.zeros(shape, np.int32)
    token_boundary = np.zeros(shape, np.int32)
    examples = np.arange(len(pairs))
    first_lengths = pairs[:, 1] - pairs[:, 0]
    second_lengths = pairs[:, 3] - pairs[:, 2]
    middles = first_lengths + 1
    lasts = middles + second_lengths + 1
    for column, piece in ((0, CLS_ID), (middles, SEP_ID), (lasts, SEP_ID)):
        input_ids[examples, column] = piece
        token_boundary[examples, column] = 1
    for begins, lengths, left in (
        (pairs[:, 0], first_lengths, np.ones_like(middles)),
        (pairs[:, 2], second_lengths, middles + 1),
    ):
        rows = np.repeat(examples, lengths)
        offsets = np.arange(len(rows)) - np.repeat(
            np.cumsum(lengths) - lengths, lengths
        )
        sources = begins[rows] + offsets
        columns = left[rows] + offsets
        input_ids[rows, columns] = encoded.ids[sources]
        token_boundary[rows, columns] = encoded.word_starts[sources]
    columns = np.arange(max_seq_length)
    input_mask = columns <= lasts[:, np.newaxis]
    segment_ids = input_mask & (columns > middles[:, np.newaxis])
    return {
        "input_ids": input_ids,
        "input_mask": input_mask.astype(np.int32),
        "segment_ids": segment_ids.astype(np.int32),
        "token_boundary": token_boundary,
    }
