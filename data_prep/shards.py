"""The shards of a build: names, content, bytes, metadata.

An example is `[CLS] A [SEP] B [SEP]`, and its key decides the masks. A record
is a row of one example or, if packed, of several, serialized as a
`tf.train.Example`. TensorFlow is not imported here. Serializing complete arrays
without it is about a hundred times as fast, and worker processes start in a
fraction of a second.

Reference:
    https://protobuf.dev/programming-guides/encoding
"""

import dataclasses
import functools
import itertools
import json
import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from albert_tf.io import files
from albert_tf.io.tfrecord import TFRecordWriter
from albert_tf.records.array_ops import random_bits
from albert_tf.records.features import (
    CLS_ID,
    SENTENCE_LABEL,
    SEP_ID,
    UNK_ID,
    RecordsMetadata,
    stored_features,
)
from albert_tf.records.masking import FIRST_ORDINARY_ID, mask_rows
from albert_tf.records.tokenization import Tokenizer
from albert_tf.records.word_boundaries import WordBoundaries
from data_prep.config import RecordsConfig
from data_prep.packing import pack_rows
from data_prep.segments import (
    DOCUMENTS,
    EVAL,
    SENTENCES,
    SINGLE,
    TOKENS,
    TRAIN,
    UnmaskedExamples,
)

# Directory of notes on the content of the shards that an unfinished build has
# written.
NOTES_DIR = "unfinished"

# Examples masked and serialized at a time; they fit the processor's caches.
_BATCH_SIZE = 256

# Tags of protocol buffers: field number << 3 | wire type 2, "length-delimited".
_FIRST_FIELD = b"\x0a"
_FEATURE_OF_ENTRY = b"\x12"
_FLOAT_LIST = b"\x12"
_INT64_LIST = b"\x1a"

# Largest usual fractions; see `judge_use`.
_USUAL = {
    "unknown": (0.01, "tokens are <unk>"),
    "bytes": (0.05, "tokens are bytes of characters without a piece"),
    "unused": (0.15, "pieces are never used"),
    "capitals": (0.01, "pieces have capitals, which lower-cased text has not"),
}
# "unused" is judged if the text has this many tokens for each piece.
_TOKENS_PER_PIECE = 100
# Of the documents, and tokens; see `judge_form`.
_USUAL_SINGLE, _USUAL_LENGTH = 0.5, 100

# Largest number of bits of the numbers for which varints are tabulated.
_TABLE_BITS = 18


class Shard(NamedTuple):
    """A file of records of a split, TRAIN or EVAL."""

    split: str
    path: str

    @property
    def name(self) -> str:
        """File name, e.g. "train-00000-of-00016.tfrecord"."""
        return posixpath.basename(self.path)


class ShardResult(NamedTuple):
    """The content of a shard."""

    sha256: str
    counts: dict[str, int]  # see `make_records`


@dataclasses.dataclass
class BuiltRecords:
    """The result of a build.

    Attributes:
        piece_counts: int64, `(vocab_size,)`, occurrences in the text.
        skipped: Number of skipped lines, chunks and documents, by reason.
        num_examples: By split, with the examples of duplicate documents.
        text_form: See `RecordsMetadata`.
        duplicates: Number of documents that equal an earlier one, by split.
        shards: Content of each shard.
    """

    piece_counts: np.ndarray
    skipped: Counter[str]
    num_examples: Counter[str]
    text_form: dict[str, int]
    duplicates: Counter[str] = dataclasses.field(default_factory=Counter)
    shards: dict[Shard, ShardResult] = dataclasses.field(default_factory=dict)


def list_shards(config: RecordsConfig) -> list[Shard]:
    """Returns all shards of a build; their order gives their numbers."""
    numbers = {TRAIN: config.num_shards}
    if config.holdout_fraction:
        numbers[EVAL] = config.num_eval_shards
    return [
        Shard(
            split,
            posixpath.join(
                config.output_dir,
                split,
                f"{split}-{i:05d}-of-{number:05d}.tfrecord",
            ),
        )
        for split, number in numbers.items()
        for i in range(number)
    ]


def choose_shards(
    shards: list[Shard], split: str, keys: np.ndarray
) -> np.ndarray:
    """Returns the shard numbers of the examples of a split, int64."""
    numbers = [i for i, shard in enumerate(shards) if shard.split == split]
    return numbers[0] + (keys % np.uint64(len(numbers))).astype(np.int64)


def settings_of_split(split: str, config: RecordsConfig) -> RecordsConfig:
    """Returns the settings of a split; those of EVAL make it comparable."""
    if split == TRAIN:
        return config
    return dataclasses.replace(
        config, dupe_factor=1, masking="static", packing="none"
    )


def find_finished(shard: Shard, output_dir: str) -> ShardResult | None:
    """Returns the content of a shard; None if it is not finished."""
    result = files.load_json_if_any(_note_path(shard, output_dir))
    if result is None or not files.exists(shard.path):
        return None
    return ShardResult(**result)


def write_shard(
    shard: Shard,
    parts: Iterable[UnmaskedExamples],
    tokenizer: Tokenizer,
    config: RecordsConfig,
) -> ShardResult:
    """Writes a shard atomically, and a note for `find_finished`."""
    counts: Counter[str] = Counter()
    settings = settings_of_split(shard.split, config)
    records = make_records(parts, tokenizer, settings, counts)
    with files.atomic_write(shard.path) as file:
        with TFRecordWriter(file) as writer:
            for record in records:
                writer.write(record)
        result = ShardResult(writer.sha256(), dict(counts))
        # Before the shard is renamed, so that every shard has a note.
        files.write_text(
            _note_path(shard, config.output_dir), json.dumps(result._asdict())
        )
    return result


def make_records(
    parts: Iterable[UnmaskedExamples],
    tokenizer: Tokenizer,
    config: RecordsConfig,
    counts: Counter[str],
) -> Iterator[bytes]:
    """Yields the serialized records of a shard, in order.

    Args:
        parts: The examples of the shard, in batches of any size.
        config: The settings of the split.
        counts: Counter of "documents", "examples", "pieces" (tokens without
            padding), "masked" tokens and "rows".
    """
    stored = [
        feature.name
        for feature in stored_features(config.masking, config.packing)
    ]
    batches: Iterator[Mapping[str, np.ndarray]] = (
        _features_of(examples, tokenizer, config, counts)
        for examples in _rebatch(parts)
    )
    if config.packing != "none":
        batches = pack_rows(batches, config)
    for features in batches:
        counts["rows"] += len(features["input_ids"])
        yield from serialize_examples({name: features[name] for name in stored})


# --- content ------------------------------------------------------------------


def _features_of(
    unmasked: UnmaskedExamples,
    tokenizer: Tokenizer,
    config: RecordsConfig,
    counts: Counter[str],
) -> dict[str, np.ndarray]:
    """Returns the features of a batch of unpacked examples, and counts them."""
    if config.sentence_objective == "nsp":
        unmasked = _replace_second_segments(unmasked)
    features = _lay_out(unmasked, tokenizer.words, config)
    if config.masking == "static":
        # Independent of the keys, which decide the order of the shard.
        keys = random_bits(unmasked.headers["key"], 0)[:, np.newaxis]
        features |= mask_rows(features, keys, tokenizer.vocab_size, config)
        counts["masked"] += int(features["masked_lm_weights"].sum())
    counts["documents"] += int(unmasked.headers["opens_document"].sum())
    counts["examples"] += len(unmasked.headers)
    counts["pieces"] += int(features["input_mask"].sum())
    return features


def _rebatch(parts: Iterable[UnmaskedExamples]) -> Iterator[UnmaskedExamples]:
    """Yields the same examples in batches of `_BATCH_SIZE`.

    The second segments of NSP depend on the batches, so these must not depend
    on the sizes of the parts.
    """
    rest: list[UnmaskedExamples] = []
    for part in parts:
        examples = UnmaskedExamples.concatenate(
            [*rest, part], part.tokens.dtype
        )
        borders = np.arange(_BATCH_SIZE, len(examples.headers), _BATCH_SIZE)
        ends = np.cumsum(examples.lengths)
        *batches, last = map(
            UnmaskedExamples,
            np.split(examples.headers, borders),
            np.split(examples.tokens, ends[borders - 1]),
        )
        yield from batches
        rest = [last]
    yield from (examples for examples in rest if len(examples.headers))


def _replace_second_segments(examples: UnmaskedExamples) -> UnmaskedExamples:
    """Gives examples with label 1 a second segment of another document.

    It is cut to the length of the segment that it replaces, so that the length
    of an example does not tell its label. If the batch has one document, the
    label becomes 0 (Devlin et al., 2019, section 3.1).
    """
    headers = examples.headers.copy()
    ends = np.cumsum(examples.lengths)
    middles = ends - headers["second_length"]
    begins = ends - examples.lengths
    segments = []
    for i in range(len(headers)):
        segments.append(examples.tokens[begins[i] : middles[i]])
        partner = i
        if headers["label"][i]:
            partner = _choose_partner(examples.headers, i)
            headers["label"][i] = partner != i
        second = examples.tokens[middles[partner] : ends[partner]]
        segments.append(second[: examples.headers["second_length"][i]])
        headers["second_length"][i] = len(segments[-1])
    return UnmaskedExamples(headers, np.concatenate(segments))


def _choose_partner(headers: np.ndarray, index: int) -> int:
    """Returns the example whose second segment the example `index` gets.

    Of the examples of other documents, it is the one with the shortest second
    segment that is long enough, or else with the longest; of several, the next
    one. The search wraps around at the end of the batch, whose order is random.
    So little is cut off. If much more were cut than of segments with label 0,
    fewer would end with a sentence, and the last token would tell the label.
    Without another document, it is `index` itself.
    """
    following = np.roll(np.arange(len(headers)), -index)
    documents = headers["document"][following]
    others = following[documents != headers["document"][index]]
    if not len(others):
        return index
    lengths = headers["second_length"].astype(np.int64)
    excess = lengths[others] - lengths[index]
    # Segments that are too short come last, the longest of them first.
    return int(
        others[np.where(excess < 0, lengths.max() - excess, excess).argmin()]
    )


def _lay_out(
    examples: UnmaskedExamples, words: WordBoundaries, config: RecordsConfig
) -> dict[str, np.ndarray]:
    """Returns the features of unmasked examples, int32."""
    first = examples.headers["first_length"].astype(np.int32)[:, np.newaxis]
    second = examples.headers["second_length"].astype(np.int32)[:, np.newaxis]
    columns = np.arange(config.max_seq_length, dtype=np.int32)
    middle = first + 1
    last = middle + second + 1
    if config.sentence_objective == "none":
        last = middle
    input_mask = columns <= last
    is_separator = (columns == middle) | (columns == last)
    is_token = input_mask & ~is_separator
    is_token[:, 0] = False
    input_ids = np.zeros(input_mask.shape, np.int32)
    # A mask selects row by row, which is the order of the tokens.
    input_ids[is_token] = examples.tokens
    input_ids[:, 0] = CLS_ID
    input_ids[is_separator] = SEP_ID
    labels = examples.headers["label"].astype(np.int32)[:, np.newaxis]
    return {
        "input_ids": input_ids,
        "input_mask": input_mask.astype(np.int32),
        "segment_ids": (input_mask & (columns > middle)).astype(np.int32),
        "token_boundary": words.find(input_ids).astype(np.int32),
        SENTENCE_LABEL: labels,
    }


# --- bytes --------------------------------------------------------------------


def serialize_examples(features: Mapping[str, np.ndarray]) -> list[bytes]:
    r"""Returns a serialized `tf.train.Example` for each row of the features.

    Args:
        features: Arrays `(rows, values)` by name: float32, or integers that
            are not negative.

    Example:
        >>> serialize_examples({"ids": np.array([[2, 300]])})
        [b'\n\x10\n\x0e\n\x03ids\x12\x07\x1a\x05\n\x03\x02\xac\x02']
    """
    columns = [
        _serialize_feature(name, features[name]) for name in sorted(features)
    ]
    examples = map(b"".join, zip(*columns, strict=True))
    return [_FIRST_FIELD + _length(len(e)) + e for e in examples]


def _serialize_feature(name: str, values: np.ndarray) -> list[bytes]:
    """Returns the map entry "name: values" of each example."""
    if values.dtype == np.float32:
        list_tag = _FLOAT_LIST
        payloads = [row.tobytes() for row in values.astype("<f4")]
    else:
        list_tag = _INT64_LIST
        payloads = _varints(values)
    return [_entry_head(name, list_tag, len(p)) + p for p in payloads]


@functools.lru_cache(maxsize=65536)
def _entry_head(name: str, list_tag: bytes, payload_length: int) -> bytes:
    """Returns the bytes before the packed values of a map entry."""
    values = _FIRST_FIELD + _length(payload_length)
    packed = list_tag + _length(len(values) + payload_length) + values
    key = _FIRST_FIELD + _length(len(name)) + name.encode()
    feature_length = _length(len(packed) + payload_length)
    head = key + _FEATURE_OF_ENTRY + feature_length + packed
    return _FIRST_FIELD + _length(len(head) + payload_length) + head


@functools.lru_cache(maxsize=65536)
def _length(value: int) -> bytes:
    """Encodes a varint: 7 bits per byte, low bits first.

    The high bit is set in all bytes but the last.
    """
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _varints(values: np.ndarray) -> list[bytes]:
    """Returns the concatenated varints of each row."""
    largest = int(values.max(initial=0))
    if largest < 0x80:
        content = values.astype(np.uint8).tobytes()
        lengths = np.full(len(values), values.shape[1])
    elif largest < 1 << _TABLE_BITS:
        varints, are_used, num_bytes = _varint_table(largest.bit_length())
        used = are_used.take(values).view(bool).reshape(-1)
        content = varints.take(values).view(np.uint8).reshape(-1)[used]
        content = content.tobytes()
        lengths = num_bytes.take(values).sum(axis=1)
    else:
        varints, used = _encode_varints(values, -(-largest.bit_length() // 7))
        content = varints[used].tobytes()
        lengths = used.sum(axis=(1, 2))
    ends = [0, *np.cumsum(lengths).tolist()]
    return [content[b:e] for b, e in itertools.pairwise(ends)]


@functools.lru_cache
def _varint_table(num_bits: int) -> tuple[np.ndarray, ...]:
    """Returns the varints of all numbers of at most `num_bits` bits.

    They are three arrays `(numbers,)`: four bytes, packed into one uint32,
    which is fast to look up; a flag per byte, True if the byte is used, also
    packed into one uint32; and the number of used bytes.
    """
    varints, are_used = _encode_varints(np.arange(1 << num_bits), 4)
    return (
        varints.view(np.uint32)[:, 0].copy(),
        are_used.view(np.uint32)[:, 0].copy(),
        are_used.sum(axis=1),
    )


def _encode_varints(
    numbers: np.ndarray, num_bytes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Encodes numbers below 2**(7 * num_bytes).

    Returns:
        uint8 and bool, each `(*shape of numbers, num_bytes)`: the bytes, and
        whether each byte belongs to the varint.
    """
    numbers = numbers.astype(np.int64)[..., np.newaxis]
    digits = numbers >> np.arange(0, 7 * num_bytes, 7)
    are_used = digits > 0
    are_used[..., 0] = True
    has_more = np.zeros_like(are_used)
    has_more[..., :-1] = are_used[..., 1:]
    varints = (digits & 0x7F | has_more.astype(np.int64) << 7).astype(np.uint8)
    return varints, are_used


# --- metadata -----------------------------------------------------------------


def describe_split(
    config: RecordsConfig,
    split: str,
    built: BuiltRecords,
    tokenizer: Tokenizer,
    inputs_sha256: str,
) -> RecordsMetadata:
    """Returns the metadata of one split."""
    config = settings_of_split(split, config)
    shards = {
        shard.name: result
        for shard, result in sorted(built.shards.items())
        if shard.split == split
    }
    counts: Counter[str] = Counter()
    for result in shards.values():
        counts.update(result.counts)
    settings = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(RecordsMetadata)
        if hasattr(config, field.name)
    }
    if config.packing == "none":
        settings["max_examples_per_row"] = 1
    return RecordsMetadata(
        **settings,
        vocab_size=tokenizer.vocab_size,
        vocabulary_sha256=tokenizer.sha256,
        vocabulary_kind=tokenizer.kind,
        num_documents=counts["documents"],
        num_duplicate_documents=built.duplicates[split],
        num_examples=counts["examples"],
        num_pieces=counts["pieces"],
        num_masked=counts["masked"],
        unigram_entropy_nats=unigram_entropy(built.piece_counts),
        shards={
            n: result.counts.get("rows", 0) for n, result in shards.items()
        },
        checksums={name: result.sha256 for name, result in shards.items()},
        skipped=dict(sorted(built.skipped.items())),
        inputs_sha256=inputs_sha256,
        num_rows=counts["rows"],
        vocabulary_use=measure_use(built.piece_counts, tokenizer),
        text_form=built.text_form,
    )


def judge_form(form: Mapping[str, int]) -> str:
    """Says what to do about text whose form defeats the objective, or ""."""
    single = form[SINGLE] / form[DOCUMENTS]
    length = form[TOKENS] / form[SENTENCES]
    if single <= _USUAL_SINGLE and length <= _USUAL_LENGTH:
        return ""
    return (
        f"{single:.0%} of the documents have one sentence (usual: up to "
        f"{_USUAL_SINGLE:.0%}), and a sentence has {length:.0f} tokens (usual: "
        f"up to {_USUAL_LENGTH}). If a line is a paragraph, set "
        "--sentence_breaker=sentencex and --language; if a blank line follows "
        "each line, remove it; else set --sentence_objective=none."
    )


def unigram_entropy(piece_counts: np.ndarray) -> float:
    """Returns the entropy in nats of the pieces without the special ones."""
    counts = piece_counts[FIRST_ORDINARY_ID:]
    probabilities = counts[counts > 0] / max(1, counts.sum())
    return float(-(probabilities * np.log(probabilities)).sum())


def measure_use(
    piece_counts: np.ndarray, tokenizer: Tokenizer
) -> dict[str, float]:
    """Returns `RecordsMetadata.vocabulary_use`; see `judge_use`."""
    num_tokens = max(1, int(piece_counts.sum()))
    is_byte = tokenizer.words.is_byte
    ordinary = piece_counts[FIRST_ORDINARY_ID:][~is_byte[FIRST_ORDINARY_ID:]]
    return {
        "unknown": int(piece_counts[UNK_ID]) / num_tokens,
        "bytes": int(piece_counts[is_byte].sum()) / num_tokens,
        "unused": int((ordinary == 0).sum()) / max(1, len(ordinary)),
    }


def judge_use(piece_counts: np.ndarray, tokenizer: Tokenizer) -> str:
    """Describes what shows that a vocabulary does not suit a text, or "".

    Args:
        piece_counts: int64, `(vocab_size,)`, occurrences in the text.
    """
    use = measure_use(piece_counts, tokenizer)
    if piece_counts.sum() < _TOKENS_PER_PIECE * tokenizer.vocab_size:
        use["unused"] = 0.0
    if tokenizer.do_lower_case:
        ordinary = np.flatnonzero(~tokenizer.words.is_byte)[FIRST_ORDINARY_ID:]
        pieces = [tokenizer.id_to_piece(i) for i in ordinary.tolist()]
        capitals = sum(piece != piece.lower() for piece in pieces)
        use["capitals"] = capitals / len(pieces)
    return "; ".join(
        f"{fraction:.1%} of the {_USUAL[name][1]} (usual: up to "
        f"{_USUAL[name][0]:.0%})"
        for name, fraction in use.items()
        if fraction > _USUAL[name][0]
    )


def _note_path(shard: Shard, output_dir: str) -> str:
    return posixpath.join(output_dir, NOTES_DIR, shard.name + ".json")
