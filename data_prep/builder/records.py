"""Rows -> serialized records; the second half of a process's work.

Rows come in the order of their shard. An example is `[CLS] A [SEP] B [SEP]`,
padded; its masks are drawn by the row's key. No TensorFlow is imported here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

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
from data_prep.builder.rows import Rows
from data_prep.builder.serialization import serialize_examples
from data_prep.config import RecordsConfig

# Examples masked and serialized at a time; fits the processor's caches.
_ROWS_AT_A_TIME = 256


def make_records(
    parts: Iterable[Rows],
    tokenizer: Tokenizer,
    config: RecordsConfig,
    masking: str,
    counts: Counter[str],
) -> Iterator[bytes]:
    """Serialized records of the rows of a shard, in their order.

    Args:
        parts: The rows.
        tokenizer: The vocabulary.
        config: How records are to be.
        masking: "static" or "dynamic", of this shard.
        counts: Where "documents", "examples", real "pieces" with special
            ones, "masked" pieces and examples with "label" 1 are counted.
    """
    stored = [feature.name for feature in stored_features(masking)]
    for rows in _cut_evenly(parts):
        if config.sentence_objective == "nsp":
            rows = _replace_second_segments(rows, config.max_seq_length)
        features = _lay_out(rows, tokenizer.starts_word, config)
        if masking == "static":
            masked = mask_batch(
                features["input_ids"],
                features["token_boundary"],
                # Other bits than those that the order of the shard shows.
                random_bits(rows.headers["key"], 0),
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
        counts["documents"] += int(rows.headers["opens_document"].sum())
        counts["examples"] += len(rows.headers)
        counts["pieces"] += int(features["input_mask"].sum())
        counts["label"] += int(features[SENTENCE_LABEL].sum())
        yield from serialize_examples({name: features[name] for name in stored})


def _cut_evenly(parts: Iterable[Rows]) -> Iterator[Rows]:
    """The same rows, always so many at a time but for the last."""
    rest: Rows | None = None
    for part in parts:
        rows = part
        if rest is not None:
            rows = Rows.concatenate([rest, part], part.pieces.dtype)
        ends = np.concatenate([[0], np.cumsum(rows.lengths)])
        num_rows = len(rows.headers)
        num_whole = num_rows - num_rows % _ROWS_AT_A_TIME
        for begin in range(0, num_whole, _ROWS_AT_A_TIME):
            end = begin + _ROWS_AT_A_TIME
            yield Rows(
                rows.headers[begin:end], rows.pieces[ends[begin] : ends[end]]
            )
        rest = Rows(rows.headers[num_whole:], rows.pieces[ends[num_whole] :])
    if rest is not None and len(rest.headers):
        yield rest


def _replace_second_segments(rows: Rows, max_seq_length: int) -> Rows:
    """Rows with label 1 get the second segment of another document.

    That of the next row of another document, in a circle: the order of the
    rows is random. Where there is none, the label becomes 0.

    Reference:
        [Devlin et al., 2019](https://arxiv.org/abs/1810.04805), section 3.1.
    """
    headers = rows.headers.copy()
    documents = headers["document"]
    ends = np.cumsum(rows.lengths)
    middles = ends - headers["second_length"]
    begins = ends - rows.lengths
    segments = []
    for row in range(len(headers)):
        segments.append(rows.pieces[begins[row] : middles[row]])
        partner = row
        if headers["label"][row]:
            others = np.flatnonzero(np.roll(documents, -row) != documents[row])
            if len(others):
                partner = (row + int(others[0])) % len(headers)
            else:
                headers["label"][row] = 0
        second = rows.pieces[middles[partner] : ends[partner]]
        room = max_seq_length - 3 - len(segments[-1])
        segments.append(second[:room])
        headers["second_length"][row] = len(segments[-1])
    return Rows(headers, np.concatenate(segments))


def _lay_out(
    rows: Rows, starts_word: np.ndarray, config: RecordsConfig
) -> dict[str, np.ndarray]:
    """Features of examples that are not masked.

    Args:
        rows: The rows.
        starts_word: bool, `(vocab_size,)`; the pieces that begin a word.
        config: How records are to be.

    Returns:
        By name, int32, `(rows, max_seq_length)`; the label `(rows, 1)`.
    """
    first = rows.headers["first_length"].astype(np.int32)[:, np.newaxis]
    second = rows.headers["second_length"].astype(np.int32)[:, np.newaxis]
    columns = np.arange(config.max_seq_length, dtype=np.int32)
    middle = first + 1
    last = middle + second + 1
    if config.sentence_objective == "none":
        last = middle
    input_mask = columns <= last
    is_separator = (columns == middle) | (columns == last)
    is_piece = input_mask & ~is_separator
    is_piece[:, 0] = False
    input_ids = np.zeros(input_mask.shape, np.int32)
    token_boundary = np.zeros(input_mask.shape, np.int32)
    # A mask selects row by row, as the pieces stand.
    input_ids[is_piece] = rows.pieces
    token_boundary[is_piece] = starts_word[rows.pieces]
    input_ids[:, 0] = CLS_ID
    input_ids[is_separator] = SEP_ID
    token_boundary[:, 0] = 1
    token_boundary[is_separator] = 1
    return {
        "input_ids": input_ids,
        "input_mask": input_mask.astype(np.int32),
        "segment_ids": (input_mask & (columns > middle)).astype(np.int32),
        "token_boundary": token_boundary,
        SENTENCE_LABEL: rows.headers["label"].astype(np.int32)[:, np.newaxis],
    }
