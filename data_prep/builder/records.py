"""Turns the unmasked examples of a shard into serialized records.

An example is `[CLS] A [SEP] B [SEP]`, and its key decides the masks. A record
is an example and padding, or a row of packed examples. TensorFlow is not
imported here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from albert_tf.records.features import (
    CLS_ID,
    SENTENCE_LABEL,
    SEP_ID,
    stored_features,
)
from albert_tf.records.keyed_random import random_bits
from albert_tf.records.masking import mask_batch
from albert_tf.records.tokenization import Tokenizer
from data_prep.builder.examples import UnmaskedExamples
from data_prep.builder.packing import pack_rows
from data_prep.builder.serialization import serialize_examples
from data_prep.config import RecordsConfig

# Examples masked and serialized at a time; they fit the processor's caches.
_BATCH_SIZE = 256


def make_records(
    parts: Iterable[UnmaskedExamples],
    tokenizer: Tokenizer,
    config: RecordsConfig,
    counts: Counter[str],
) -> Iterator[bytes]:
    """Yields the serialized records of a shard, in order.

    Args:
        parts: The examples of the shard, in batches of any size.
        config: Format of the records, see `shards.settings_of_split`.
        counts: Counter of "documents", "examples", "pieces" (tokens without
            padding), "masked" tokens, "label" (examples with label 1) and, if
            examples are packed, "rows".
    """
    stored = [
        feature.name
        for feature in stored_features(config.masking, config.packing)
    ]
    batches: Iterator[Mapping[str, np.ndarray]] = (
        _make_examples(examples, tokenizer, config, counts)
        for examples in _rebatch(parts)
    )
    if config.packing != "none":
        batches = pack_rows(batches, config)
    for features in batches:
        if config.packing != "none":
            counts["rows"] += len(features["input_ids"])
        yield from serialize_examples({name: features[name] for name in stored})


def _make_examples(
    unmasked: UnmaskedExamples,
    tokenizer: Tokenizer,
    config: RecordsConfig,
    counts: Counter[str],
) -> dict[str, np.ndarray]:
    """Returns the features of a batch of unpacked examples, and counts them."""
    if config.sentence_objective == "nsp":
        unmasked = _replace_second_segments(unmasked)
    features = _lay_out(unmasked, tokenizer.starts_word, config)
    if config.masking == "static":
        masked = mask_batch(
            features["input_ids"],
            features["token_boundary"],
            # Independent of the keys, which decide the order of the shard.
            random_bits(unmasked.headers["key"], 0),
            vocab_size=tokenizer.vocab_size,
            max_predictions_per_seq=config.max_predictions_per_seq,
            masked_lm_prob=config.masked_lm_prob,
            ngram=config.ngram,
        )
        features["input_ids"] = masked.input_ids
        features["masked_lm_positions"] = masked.positions
        features["masked_lm_ids"] = masked.ids
        features["masked_lm_weights"] = masked.weights
        counts["masked"] += int(masked.weights.sum())
    counts["documents"] += int(unmasked.headers["opens_document"].sum())
    counts["examples"] += len(unmasked.headers)
    counts["pieces"] += int(features["input_mask"].sum())
    counts["label"] += int(features[SENTENCE_LABEL].sum())
    return features


def _rebatch(parts: Iterable[UnmaskedExamples]) -> Iterator[UnmaskedExamples]:
    """Yields the same examples in batches of at most `_BATCH_SIZE`.

    The second segments of NSP depend on the batches, so these must not depend
    on the sizes of the parts.
    """
    rest: UnmaskedExamples | None = None
    for part in parts:
        examples = part
        if rest is not None:
            examples = UnmaskedExamples.concatenate(
                [rest, part], part.tokens.dtype
            )
        ends = np.concatenate([[0], np.cumsum(examples.lengths)])
        num_examples = len(examples.headers)
        num_batched = num_examples - num_examples % _BATCH_SIZE
        for begin in range(0, num_batched, _BATCH_SIZE):
            end = begin + _BATCH_SIZE
            yield UnmaskedExamples(
                examples.headers[begin:end],
                examples.tokens[ends[begin] : ends[end]],
            )
        rest = UnmaskedExamples(
            examples.headers[num_batched:], examples.tokens[ends[num_batched] :]
        )
    if rest is not None and len(rest.headers):
        yield rest


def _replace_second_segments(examples: UnmaskedExamples) -> UnmaskedExamples:
    """Gives examples with label 1 a second segment of another document.

    It is cut to the length of the segment that it replaces, so that the length
    of an example does not tell its label. If the batch has one document, the
    label becomes 0.

    Reference:
        [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 3.1.
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
    """Returns the example whose second segment an example gets.

    Of the examples of other documents, it is the one with the shortest second
    segment that is long enough, or else with the longest; of several, the next
    one. The search wraps around at the end of the batch, whose order is random.
    So little is cut off. If much more were cut than of segments with label 0,
    fewer would end with a sentence, and the last token would tell the label.

    Args:
        headers: `HEADER`, the examples of the batch.
        index: Index of the example; returned if there is no other document.
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
    examples: UnmaskedExamples, starts_word: np.ndarray, config: RecordsConfig
) -> dict[str, np.ndarray]:
    """Returns the features of unmasked examples.

    Args:
        starts_word: bool, `(vocab_size,)`; True for pieces that begin a word.

    Returns:
        int32 arrays by name: the label is `(examples, 1)`, other features are
        `(examples, max_seq_length)`.
    """
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
    token_boundary = np.zeros(input_mask.shape, np.int32)
    # A mask selects row by row, which is the order of the tokens.
    input_ids[is_token] = examples.tokens
    token_boundary[is_token] = starts_word[examples.tokens]
    input_ids[:, 0] = CLS_ID
    input_ids[is_separator] = SEP_ID
    token_boundary[:, 0] = 1
    token_boundary[is_separator] = 1
    labels = examples.headers["label"].astype(np.int32)[:, np.newaxis]
    return {
        "input_ids": input_ids,
        "input_mask": input_mask.astype(np.int32),
        "segment_ids": (input_mask & (columns > middle)).astype(np.int32),
        "token_boundary": token_boundary,
        SENTENCE_LABEL: labels,
    }
