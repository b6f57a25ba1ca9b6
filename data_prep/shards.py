"""The shards of a build: names and content.

An example is `[CLS] A [SEP] B [SEP]`, and its key decides the masks. A record
is a row of one example or, if packed, of several.
"""

import dataclasses
import json
import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from albert_tf.io import files
from albert_tf.io.tfrecord import write_records
from albert_tf.records.array_ops import random_bits
from albert_tf.records.features import (
    CLS_ID,
    SENTENCE_LABEL,
    SEP_ID,
    TOKEN_LABELS,
    stored_features,
)
from albert_tf.records.masking import mask_rows
from albert_tf.records.tokenization import Tokenizer
from albert_tf.records.word_boundaries import WordBoundaries
from data_prep.config import RecordsConfig
from data_prep.packing import pack_rows
from data_prep.segments import (
    EVAL,
    LABEL_SHIFT,
    TRAIN,
    UnmaskedExamples,
)
from data_prep.serialization import serialize_examples

# Directory of notes on the content of the shards that an unfinished build has
# written.
NOTES_DIR = "unfinished"

# Examples masked and serialized at a time; they fit the processor's caches.
_BATCH_SIZE = 256


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
        sha256 = write_records(file, records)
        result = ShardResult(sha256, dict(counts))
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
        for feature in stored_features(
            config.masking, config.packing, config.reads_labels
        )
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
    order = np.where(excess < 0, lengths.max() - excess, excess)
    return int(others[order.argmin()])


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
    tokens = examples.tokens
    features = {}
    if config.reads_labels:
        labels_of_tokens = np.zeros(input_mask.shape, np.int32)
        labels_of_tokens[is_token] = tokens >> LABEL_SHIFT
        features[TOKEN_LABELS] = labels_of_tokens
        tokens = tokens & ((1 << LABEL_SHIFT) - 1)
    input_ids[is_token] = tokens
    input_ids[:, 0] = CLS_ID
    input_ids[is_separator] = SEP_ID
    labels = examples.headers["label"].astype(np.int32)[:, np.newaxis]
    return {
        "input_ids": input_ids,
        "input_mask": input_mask.astype(np.int32),
        "segment_ids": (input_mask & (columns > middle)).astype(np.int32),
        "token_boundary": words.find(input_ids).astype(np.int32),
        SENTENCE_LABEL: labels,
        **features,
    }


def _note_path(shard: Shard, output_dir: str) -> str:
    return posixpath.join(output_dir, NOTES_DIR, shard.name + ".json")
