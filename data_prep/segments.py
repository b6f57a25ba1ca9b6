"""Makes unmasked examples from documents.

Consecutive sentences of a document are collected into a chunk. The chunk is
split into two segments, which are cut to the length of an example. For
sentence-order prediction, the label is 1 exactly if the segments were swapped;
unlike in google-research/albert, both segments always come from the same
document.

An unmasked example holds the tokens of its segments and a header, a third of
the space of the record, whose special tokens, padding and masks follow from
them. It depends only on the text of its document and on a key of (seed,
document, copy), not on the order of documents or the number of processes.

Reference:
    [Lan et al., 2020](https://arxiv.org/abs/1909.11942), section 3.1.
"""

# TensorFlow is not imported here: each worker process imports this module.

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

from albert_tf.records.array_ops import random_bits, ranges
from albert_tf.records.tokenization import Tokenizer
from data_prep.config import RecordsConfig
from data_prep.text import break_sentences, split_labels

TRAIN, EVAL = "train", "eval"

SKIPPED_DOCUMENTS = "documents of less than two words"
SKIPPED_CHUNKS = "chunks of less than two words"

# The counts of `RecordsMetadata.text_form`.
DOCUMENTS, SINGLE, SENTENCES, TOKENS, EXAMPLES, SPLITS = TEXT_FORM = (
    "documents",
    "documents_of_one_sentence",
    "sentences",
    "tokens",
    "examples",
    "examples_split_within_a_sentence",
)

# Characters encoded at a time. This bounds the memory of their tokens, which
# are first Python objects.
_CHARACTERS_AT_A_TIME = 1 << 17

# The stored header.
HEADER = np.dtype(
    [
        ("key", "<u8"),  # random; decides shard, position in it, and masks
        ("document", "<u8"),  # a digest of the document
        ("first_length", "<u4"),  # of the segments, in tokens
        ("second_length", "<u4"),
        ("label", "u1"),  # of the sentence objective
        ("opens_document", "u1"),  # whether it is the first of its document
    ]
)


class UnmaskedExamples(NamedTuple):
    """A batch of unmasked examples.

    Attributes:
        headers: `HEADER`, `(examples,)`.
        tokens: uint16 or uint32; of each example, the segments. uint64 with
            labels; see `LABEL_SHIFT`.
    """

    headers: np.ndarray
    tokens: np.ndarray

    @classmethod
    def concatenate(cls, parts: Iterable[Self], dtype: np.dtype) -> Self:
        """Returns the examples of all parts; `dtype` is that of the tokens."""
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
        ends = np.cumsum(self.lengths)
        begins = (ends - self.lengths)[indices].tolist()
        slices = [
            self.tokens[begin:end]
            for begin, end in zip(begins, ends[indices].tolist(), strict=True)
        ]
        return type(self)(
            self.headers[indices],
            np.concatenate(slices) if slices else self.tokens[:0],
        )


def count_tokens(headers: np.ndarray) -> np.ndarray:
    """Returns the number of tokens of each example; int64, `(examples,)`."""
    lengths = headers["first_length"].astype(np.int64)
    return lengths + headers["second_length"]


# A token with a label is one number: the label above these bits, the id below.
LABEL_SHIFT = 32


def token_dtype(vocab_size: int, has_labels: bool = False) -> np.dtype:
    """Returns the smallest type that holds the ids of a vocabulary."""
    if has_labels:
        return np.dtype("<u8")
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def make_examples(
    documents: Iterable[list[str]],
    tokenizer: Tokenizer,
    config: RecordsConfig,
    labels: Mapping[str, int] | None = None,
) -> tuple[dict[str, UnmaskedExamples], np.ndarray, Counter[str]]:
    """Makes the examples of all copies of some documents, given by lines.

    Args:
        labels: The label of each word; only with labelled lines.

    Returns:
        The examples by split; the occurrences of each piece in the text, int64,
        `(vocab_size,)`; the number of skipped chunks and documents, by reason,
        and the counts of `TEXT_FORM`.
    """
    counts: Counter[str] = Counter()
    documents = list(documents)
    normalized = [
        _normalize(lines, tokenizer, config, counts) for lines in documents
    ]
    lines_of_documents = iter(documents)
    dtype = token_dtype(tokenizer.vocab_size, config.reads_labels)
    piece_counts = np.zeros(tokenizer.vocab_size, np.int64)
    parts: dict[str, list[UnmaskedExamples]] = {TRAIN: [], EVAL: []}
    for group in group_by_size(normalized, _CHARACTERS_AT_A_TIME):
        encoded = tokenizer.encode_normalized(
            [sentence for document in group for sentence in document]
        )
        piece_counts += np.bincount(encoded.ids, minlength=len(piece_counts))
        cuts = tokenizer.words.find_cuts(encoded.ids)
        first = begin = 0
        for document in group:
            lines = next(lines_of_documents)
            ends = encoded.ends[first : first + len(document)]
            tokens = slice(begin, int(ends[-1]))
            split = choose_split(document, config.holdout_fraction)
            ids = encoded.ids[tokens].astype(dtype)
            if labels is not None:
                found = _find_labels(ids, lines, labels, tokenizer)
                ids |= found << LABEL_SHIFT
            examples = _make_examples_of_document(
                ids,
                np.flatnonzero(cuts[tokens]),
                # A sentence may be empty, e.g. if it has only combining marks.
                np.unique(ends[ends > begin] - begin),
                _digest("\n".join(document)),
                config.dupe_factor if split == TRAIN else 1,
                config,
                counts,
            )
            if examples is None:
                counts[SKIPPED_DOCUMENTS] += 1
            else:
                parts[split].append(examples)
            first += len(document)
            begin = tokens.stop
    examples_by_split = {
        split: UnmaskedExamples.concatenate(examples, dtype)
        for split, examples in parts.items()
    }
    return examples_by_split, piece_counts, counts


def _normalize(
    lines: list[str],
    tokenizer: Tokenizer,
    config: RecordsConfig,
    counts: Counter[str],
) -> list[str]:
    """The normalised sentences of a document."""
    if config.reads_labels:
        sentences = [split_labels(line)[0] for line in lines]
    else:
        sentences = [
            tokenizer.normalize(sentence)
            for sentence in break_sentences(lines, config, counts)
        ]
    ended = [sentence + tokenizer.sentence_end for sentence in sentences[:-1]]
    return ended + sentences[-1:]


def _find_labels(
    ids: np.ndarray,
    lines: list[str],
    labels: Mapping[str, int],
    tokenizer: Tokenizer,
) -> np.ndarray:
    """The label of the word of each token; 0 for the spaces between them."""
    words = [word for line in lines for word in split_labels(line)[1]]
    of_words = np.array([labels.get(word, 0) for word in words], ids.dtype)
    is_space = ids == tokenizer.space_id
    # Words are separated by spaces, as sentences are.
    return of_words[np.cumsum(is_space)] * ~is_space


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
    """Groups documents, of at least `size` characters but for the last."""
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
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _make_examples_of_document(
    ids: np.ndarray,
    word_starts: np.ndarray,
    sentence_ends: np.ndarray,
    document_digest: bytes,
    num_copies: int,
    config: RecordsConfig,
    counts: Counter[str],
) -> UnmaskedExamples | None:
    """Returns the examples of all copies of a document; None if it has none."""
    if len(word_starts) < 2:
        return None
    # [CLS], and a [SEP] after each segment.
    num_special = 2 if config.sentence_objective == "none" else 3
    max_num_tokens = config.max_seq_length - num_special
    ends = cut_long_sentences(sentence_ends, word_starts, max_num_tokens)
    pairs: list[SegmentPair] = []
    copy_keys: list[int] = []
    num_pairs: list[int] = []
    for copy in range(num_copies):
        label = f"{config.seed}:{copy}:".encode()
        key = hashlib.blake2b(label + document_digest, digest_size=8).digest()
        found = pair_segments(
            ends,
            word_starts,
            objective=config.sentence_objective,
            max_num_tokens=max_num_tokens,
            short_seq_prob=config.short_seq_prob,
            rng=random.Random(key),
            counts=counts,
        )
        pairs += found
        copy_keys.append(int.from_bytes(key, "little"))
        num_pairs.append(len(found))
    if not pairs:
        return None
    counts[DOCUMENTS] += 1
    counts[SINGLE] += len(sentence_ends) == 1
    counts[SENTENCES] += len(sentence_ends)
    counts[TOKENS] += len(ids)
    counts[EXAMPLES] += len(pairs)
    bounds = np.array(pairs, np.int64)
    headers = np.empty(len(pairs), HEADER)
    headers["key"] = random_bits(
        np.repeat(np.array(copy_keys, np.uint64), num_pairs),
        ranges(np.array(num_pairs)),
    )
    headers["document"] = int.from_bytes(document_digest[:8], "little")
    headers["first_length"] = bounds[:, 1] - bounds[:, 0]
    headers["second_length"] = bounds[:, 3] - bounds[:, 2]
    headers["label"] = bounds[:, 4]
    headers["opens_document"] = np.arange(len(pairs)) == 0
    slices = []
    for first_begin, first_end, second_begin, second_end, _label in pairs:
        slices += [ids[first_begin:first_end], ids[second_begin:second_end]]
    return UnmaskedExamples(headers, np.concatenate(slices))


# --- pairs of segments --------------------------------------------------------

# Begin and end of the tokens between [CLS] and the first [SEP], and of those
# between the first and the second [SEP], which is an empty range if there is no
# second segment; the label. It is 1 if the second segment precedes the first in
# the document (sop), or must be replaced by one of another document (nsp).
SegmentPair = tuple[int, int, int, int, int]


def pair_segments(
    sentence_ends: Sequence[int],
    word_starts: np.ndarray,
    *,
    objective: str,
    max_num_tokens: int,
    short_seq_prob: float,
    rng: random.Random,
    counts: Counter[str],
) -> list[SegmentPair]:
    """Makes the segment pairs of one pass over a document.

    Args:
        sentence_ends: Index after the last token of each sentence, strictly
            increasing; see `cut_long_sentences`.
        word_starts: int64, increasing; indices of tokens that begin a word.
        objective: "sop", "nsp", or "none" for a single segment.
        max_num_tokens: Largest number of tokens of both segments, >= 2.
        short_seq_prob: Probability that this pass collects shorter chunks,
            of a random length, so that training sees short inputs.
        rng: The source of all random decisions of this pass.
        counts: Counts skipped chunks, by reason, and `SPLITS`.
    """
    target = max_num_tokens
    if rng.random() < short_seq_prob:
        target = rng.randint(2, max_num_tokens)
    pairs: list[SegmentPair] = []
    chunk_ends: list[int] = []
    begin = 0
    last_end = sentence_ends[-1]
    for end in sentence_ends:
        chunk_ends.append(end)
        if end - begin < target and end != last_end:
            continue
        if objective == "none":
            kept = _truncate((begin, end, end, end), max_num_tokens, rng)
            pairs.append((*kept, 0))
        elif (middle := _split_chunk(begin, chunk_ends, word_starts, rng)) < 0:
            counts[SKIPPED_CHUNKS] += 1
        else:
            counts[SPLITS] += len(chunk_ends) == 1
            label = int(rng.random() < 0.5)
            bounds = (begin, middle, middle, end)
            if label and objective == "sop":
                bounds = (middle, end, begin, middle)
            kept = _truncate(bounds, max_num_tokens, rng)
            pairs.append((*kept, label))
        begin, chunk_ends = end, []
    return pairs


def cut_long_sentences(
    sentence_ends: np.ndarray, word_starts: np.ndarray, longest: int
) -> list[int]:
    """Cuts long sentences before words, and returns the ends of the parts.

    Without cuts, a paragraph or a book on one line would give a single
    example. Each part but the last of a sentence has `longest` tokens or a few
    more, so that it forms a chunk, of which less than a word is cut off.
    """
    if np.diff(sentence_ends, prepend=0).max() <= longest:
        return sentence_ends.tolist()
    ends = []
    begin = 0
    for sentence_end in sentence_ends.tolist():
        while sentence_end - begin > longest:
            word = np.searchsorted(word_starts, begin + longest)
            if word == len(word_starts) or word_starts[word] >= sentence_end:
                break
            begin = int(word_starts[word])
            ends.append(begin)
        ends.append(sentence_end)
        begin = sentence_end
    return ends


def _split_chunk(
    begin: int,
    sentence_ends: Sequence[int],
    word_starts: np.ndarray,
    rng: random.Random,
) -> int:
    """Splits a chunk between two sentences, a single sentence between words.

    Returns the index of the split; -1 for a chunk of one word.
    """
    if len(sentence_ends) > 1:
        return sentence_ends[rng.randrange(len(sentence_ends) - 1)]
    first, last = np.searchsorted(word_starts, (begin + 1, sentence_ends[0]))
    if first == last:
        return -1
    return int(word_starts[rng.randrange(int(first), int(last))])


def _truncate(
    bounds: tuple[int, int, int, int], max_num_tokens: int, rng: random.Random
) -> tuple[int, int, int, int]:
    """Cuts the longer segment, then both equally, to `max_num_tokens`.

    Each cut token is the first or the last of its segment, with equal
    probability, so that every position in a segment may be cut.
    """
    first_begin, first_end, second_begin, second_end = bounds
    first_length = first_end - first_begin
    second_length = second_end - second_begin
    excess = first_length + second_length - max_num_tokens
    if excess <= 0:
        return bounds
    # Segments of equal length are cut alternately, the second first.
    until_equal = min(excess, abs(first_length - second_length))
    second_cut = (excess - until_equal + 1) // 2
    first_cut = (excess - until_equal) // 2
    if first_length > second_length:
        first_cut += until_equal
    else:
        second_cut += until_equal
    first_front = rng.getrandbits(first_cut).bit_count() if first_cut else 0
    second_front = rng.getrandbits(second_cut).bit_count() if second_cut else 0
    return (
        first_begin + first_front,
        first_end - first_cut + first_front,
        second_begin + second_front,
        second_end - second_cut + second_front,
    )
