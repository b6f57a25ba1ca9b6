"""What must hold of every single record; whole batches are checked at once.

A record is refused for the first thing that is wrong with it, going from
what other checks rely on to what relies on them: pieces, padding, masks,
layout, word starts, label, the rule of masking. What google-research/albert
does otherwise is checked only of records with metadata, which are ours.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from albert_tf.records.features import (
    CLS_ID,
    MASK_ID,
    PAD_ID,
    SENTENCE_LABEL,
    SEP_ID,
    SPECIAL_PIECES,
    UNK_ID,
    Feature,
    stored_features,
)
from albert_tf.records.masking import FIRST_ORDINARY_ID

# Of an unknown vocabulary; a larger id is damage.
LARGEST_VOCABULARY = 1 << 18


@dataclasses.dataclass(frozen=True)
class RecordRules:
    """What every record of a set must be.

    Attributes:
        max_seq_length, max_predictions_per_seq: Lengths of the features.
        masking: "static", or "dynamic" for records without masks.
        vocab_size: Pieces of the vocabulary.
        sentence_objective: "sop", "nsp" or "none"; "" if not known.
        masked_lm_prob, ngram: Of the masking rule; 0 if that of others was
            followed, whose details are not checked.
        starts_word: bool, `(vocab_size,)`; None if not known.
    """

    max_seq_length: int
    max_predictions_per_seq: int
    masking: str
    vocab_size: int = LARGEST_VOCABULARY
    sentence_objective: str = ""
    masked_lm_prob: float = 0.0
    ngram: int = 0
    starts_word: np.ndarray | None = None

    def features(self) -> tuple[Feature, ...]:
        """What a record holds."""
        return stored_features(self.masking)

    def lengths(self) -> dict[str, int]:
        """Values of each feature, by name."""
        return {
            feature.name: self.max_seq_length
            if feature.per_token
            else self.max_predictions_per_seq
            if feature.per_prediction
            else 1
            for feature in self.features()
        }


class CheckedExamples(NamedTuple):
    """A batch and what is wrong with it.

    Attributes:
        faults: What is wrong, by row; what follows means nothing there.
        restored: int32, `(batch, length)`, pieces before they were masked.
        is_masked: bool, `(batch, length)`.
        features: The batch.
    """

    faults: dict[int, str]
    restored: np.ndarray
    is_masked: np.ndarray
    features: Mapping[str, np.ndarray]

    def sound(self) -> "CheckedExamples":
        """The rows without faults."""
        if not self.faults:
            return self
        kept = np.ones(len(self.restored), bool)
        kept[list(self.faults)] = False
        return CheckedExamples(
            {},
            self.restored[kept],
            self.is_masked[kept],
            {name: values[kept] for name, values in self.features.items()},
        )


class Words(NamedTuple):
    """The words of a batch, in order.

    Attributes:
        starts: int64, `(words,)`; place of the first piece among all places
            of the batch.
        rows: int64, `(words,)`, rising.
        opens_segment: bool, `(words,)`; the first word of a segment.
        of_places: int32, `(places,)`; the last word that began.
        sizes: int64, `(words,)`, pieces that may be masked; of `<unk>`s
            alone, none.
    """

    starts: np.ndarray
    rows: np.ndarray
    opens_segment: np.ndarray
    of_places: np.ndarray
    sizes: np.ndarray

    def count_pieces(self, is_piece: np.ndarray) -> np.ndarray:
        """Pieces of a kind in each word; int64, `(words,)`.

        Args:
            is_piece: bool, `(batch, length)`; False for special pieces.
        """
        places = np.flatnonzero(is_piece)
        return np.bincount(self.of_places[places], minlength=len(self.starts))


def find_words(restored: np.ndarray, token_boundary: np.ndarray) -> Words:
    """Words as masking sees them: none goes beyond a special piece.

    Args:
        restored: int32, `(batch, length)`, not masked.
        token_boundary: `(batch, length)`, 1 where a word begins.
    """
    is_maskable = restored >= FIRST_ORDINARY_ID
    is_piece = is_maskable | (restored == UNK_ID)
    opens_segment = is_piece.copy()
    opens_segment[:, 1:] &= ~is_piece[:, :-1]
    opens_word = is_piece & (opens_segment | (token_boundary == 1))
    starts = np.flatnonzero(opens_word)
    words = Words(
        starts,
        starts // restored.shape[1],
        opens_segment.ravel()[starts],
        np.cumsum(opens_word, dtype=np.int32) - np.int32(1),
        np.empty(0, np.int64),
    )
    return words._replace(sizes=words.count_pieces(is_maskable))


def count_runs(
    words: Words, is_masked: np.ndarray, num_rows: int, longest: int
) -> np.ndarray:
    """Runs of masked words in each row, by their length.

    Args:
        words: The words.
        is_masked: bool, `(words,)`.
        num_rows: Rows of the batch.
        longest: Longer runs count as this long.

    Returns:
        int64, `(num_rows, longest)`; column i holds runs of i + 1 words.
    """
    goes_on = np.zeros(len(is_masked), bool)
    goes_on[1:] = is_masked[:-1] & is_masked[1:] & ~words.opens_segment[1:]
    begins = np.flatnonzero(is_masked & ~goes_on)
    ends = np.flatnonzero(is_masked & ~np.append(goes_on[1:], False))
    columns = np.minimum(ends - begins, longest - 1)
    counts = np.bincount(
        words.rows[begins] * longest + columns, minlength=num_rows * longest
    )
    return counts.reshape(-1, longest)


def check_examples(
    features: Mapping[str, np.ndarray], rules: RecordRules
) -> CheckedExamples:
    """Checks a batch.

    Args:
        features: Integers and float32, `(batch, length of the feature)`.
        rules: What must hold.
    """
    found = _Findings(len(features["input_ids"]))
    _check_pieces(found, features, rules)
    # What is no id is refused by now, and must not be an index.
    input_ids = np.clip(features["input_ids"], 0, rules.vocab_size - 1)
    input_ids = input_ids.astype(np.int32)
    restored = input_ids
    is_masked = np.zeros(input_ids.shape, bool)
    if rules.masking == "static":
        slots = _check_slots(found, features, rules)
        rows, columns = np.nonzero(slots & ~found.is_bad[:, np.newaxis])
        places = rows, features["masked_lm_positions"][rows, columns]
        is_masked[places] = True
        restored = input_ids.copy()
        restored[places] = features["masked_lm_ids"][rows, columns]
    _check_layout(found, features, restored, rules)
    _check_boundaries(found, features, restored, rules)
    _check_label(found, features, rules)
    if rules.masking == "static" and rules.ngram:
        _check_replacements(found, input_ids, is_masked)
        _check_masking_rule(found, features, restored, is_masked, rules)
    return CheckedExamples(found.faults, restored, is_masked, features)


class _Findings:
    """What is wrong with a batch: the first thing of each row."""

    def __init__(self, num_rows: int) -> None:
        self.faults: dict[int, str] = {}
        self.is_bad = np.zeros(num_rows, bool)

    def refuse(
        self, is_bad: np.ndarray, describe: Callable[[int], str]
    ) -> None:
        """Refuses rows; `is_bad` is bool, `(rows,)`."""
        for row in np.flatnonzero(is_bad & ~self.is_bad):
            self.faults[int(row)] = describe(int(row))
        self.is_bad |= is_bad

    def refuse_values(
        self,
        name: str,
        values: np.ndarray,
        is_bad: np.ndarray,
        wanted: str | Callable[[int, int], object],
    ) -> None:
        """Refuses rows for values of a feature.

        Args:
            name: Of the feature.
            values: `(rows, values)`, those of the feature.
            is_bad: bool, `(rows, values)`.
            wanted: What must be there, in words or as a value.
        """

        def describe(row: int) -> str:
            place = int(is_bad[row].argmax())
            what = wanted if isinstance(wanted, str) else wanted(row, place)
            received = values[row, place]
            return f"{name}[{place}] must be {what}. Received: {received}"

        rows = np.asarray(is_bad.any(axis=1))
        if rows.any():
            self.refuse(rows, describe)


def _check_pieces(
    found: _Findings, features: Mapping[str, np.ndarray], rules: RecordRules
) -> None:
    """Ids, and what tells pieces from padding."""
    ids, mask = features["input_ids"], features["input_mask"]
    found.refuse_values(
        "input_ids",
        ids,
        (ids < 0) | (ids >= rules.vocab_size),
        f"a piece of the vocabulary, from 0 to {rules.vocab_size - 1}",
    )
    lengths = np.count_nonzero(mask, axis=1)
    is_real = np.arange(mask.shape[1]) < lengths[:, np.newaxis]
    found.refuse_values(
        "input_mask",
        mask,
        mask != is_real,
        lambda row, _: f"1 for each of {lengths[row]} pieces, then 0",
    )
    shortest = 3 if rules.sentence_objective in ("none", "") else 5
    found.refuse(
        lengths < shortest,
        lambda row: (
            f"input_mask must be 1 for at least {shortest} pieces. "
            f"Received: {lengths[row]}"
        ),
    )
    found.refuse_values(
        "input_ids", ids, (ids != PAD_ID) & ~is_real, "0 behind the last piece"
    )


def _check_slots(
    found: _Findings, features: Mapping[str, np.ndarray], rules: RecordRules
) -> np.ndarray:
    """Positions, original pieces and weights of the masked pieces.

    Returns:
        bool, `(batch, max_predictions)`; the slots in use.
    """
    weights = features["masked_lm_weights"]
    positions = features["masked_lm_positions"]
    ids = features["masked_lm_ids"]
    counts = np.count_nonzero(weights, axis=1)[:, np.newaxis]
    in_use = np.arange(weights.shape[1]) < counts
    found.refuse_values(
        "masked_lm_weights",
        weights,
        weights != in_use,
        lambda row, _: f"1 for each of {counts[row, 0]} masked pieces, then 0",
    )
    lasts = (
        features["input_mask"].sum(axis=1, dtype=np.int64, keepdims=True) - 1
    )
    found.refuse_values(
        "masked_lm_positions",
        positions,
        in_use & ((positions < 1) | (positions >= lasts)),
        lambda row, _: (
            f"between [CLS] and the last [SEP], below {lasts[row, 0]}"
        ),
    )
    falls = np.zeros(in_use.shape, bool)
    falls[:, 1:] = in_use[:, 1:] & (positions[:, 1:] <= positions[:, :-1])
    found.refuse_values(
        "masked_lm_positions",
        positions,
        falls,
        lambda row, slot: f"above the one before, {positions[row, slot - 1]}",
    )
    first = FIRST_ORDINARY_ID if rules.ngram else PAD_ID + 1
    found.refuse_values(
        "masked_lm_ids",
        ids,
        in_use & ((ids < first) | (ids >= rules.vocab_size)),
        f"a piece that may be masked, from {first} to {rules.vocab_size - 1}",
    )
    for name in ("masked_lm_positions", "masked_lm_ids"):
        values = features[name]
        found.refuse_values(
            name, values, ~in_use & (values != 0), "0 where the weight is 0"
        )
    return in_use


def _check_layout(
    found: _Findings,
    features: Mapping[str, np.ndarray],
    restored: np.ndarray,
    rules: RecordRules,
) -> None:
    """`[CLS] A [SEP] B [SEP]`, and which segment each piece is of."""
    mask, segment_ids = features["input_mask"], features["segment_ids"]
    lasts = np.count_nonzero(mask, axis=1) - 1
    columns = np.arange(restored.shape[1])
    is_cls, is_separator = restored == CLS_ID, restored == SEP_ID
    found.refuse_values(
        "input_ids", restored, ~is_cls & (columns == 0), "[CLS], 2"
    )
    found.refuse_values(
        "input_ids",
        restored,
        is_cls & (columns > 0),
        "no second [CLS], 2",
    )
    found.refuse_values(
        "input_ids",
        restored,
        restored == MASK_ID,
        "[MASK], 4, nowhere but at a masked position",
    )
    found.refuse_values(
        "input_ids",
        restored,
        (restored == PAD_ID) & (mask == 1),
        "no <pad> before the last piece",
    )
    counts = np.count_nonzero(is_separator, axis=1)
    wanted = {"": (1, 2), "none": (1,)}.get(rules.sentence_objective, (2,))
    found.refuse(
        ~np.isin(counts, wanted),
        lambda row: (
            f"input_ids must hold {wanted[-1]} [SEP], 3. "
            f"Received: {counts[row]}"
        ),
    )
    found.refuse_values(
        "input_ids",
        restored,
        ~is_separator & (columns == lasts[:, np.newaxis]),
        "[SEP], 3, the last piece",
    )
    firsts = is_separator.argmax(axis=1)
    found.refuse(
        (firsts == 1) | (lasts == firsts + 1),
        lambda _: "input_ids must hold no empty segment",
    )
    is_second = (columns > firsts[:, np.newaxis]) & (
        columns <= lasts[:, np.newaxis]
    )
    found.refuse_values(
        "segment_ids",
        segment_ids,
        segment_ids != is_second,
        lambda row, place: (
            f"{is_second[row, place]:d}, as the first [SEP] stands at "
            f"{firsts[row]} and the last piece at {lasts[row]}"
        ),
    )


def _check_boundaries(
    found: _Findings,
    features: Mapping[str, np.ndarray],
    restored: np.ndarray,
    rules: RecordRules,
) -> None:
    """Where words begin: by the pieces, if the vocabulary is known."""
    boundary = features["token_boundary"]
    found.refuse_values(
        "token_boundary", boundary, (boundary < 0) | (boundary > 1), "0 or 1"
    )
    if rules.starts_word is None or not rules.ngram:
        return
    table = rules.starts_word.copy()
    table[[CLS_ID, SEP_ID]] = True
    table[[PAD_ID, MASK_ID]] = False
    wanted = table[restored]
    found.refuse_values(
        "token_boundary",
        boundary,
        boundary != wanted,
        lambda row, place: (
            f"{wanted[row, place]:d} for piece {restored[row, place]}"
        ),
    )


def _check_label(
    found: _Findings, features: Mapping[str, np.ndarray], rules: RecordRules
) -> None:
    label = features[SENTENCE_LABEL]
    highest = 0 if rules.sentence_objective == "none" else 1
    found.refuse_values(
        SENTENCE_LABEL,
        label,
        (label < 0) | (label > highest),
        "0 or 1" if highest else "0, as there is no second segment",
    )


def _check_replacements(
    found: _Findings, input_ids: np.ndarray, is_masked: np.ndarray
) -> None:
    """Masked positions show `[MASK]` or an ordinary piece."""
    found.refuse_values(
        "input_ids",
        input_ids,
        is_masked & (input_ids < FIRST_ORDINARY_ID) & (input_ids != MASK_ID),
        f"[MASK], {MASK_ID}, or at least {len(SPECIAL_PIECES)} at a masked "
        "position",
    )


def _check_masking_rule(
    found: _Findings,
    features: Mapping[str, np.ndarray],
    restored: np.ndarray,
    is_masked: np.ndarray,
    rules: RecordRules,
) -> None:
    """Whole words, as many as fit the budget; see `records/masking.py`."""
    words = find_words(restored, features["token_boundary"])
    in_words = words.count_pieces(is_masked)
    num_rows, length = restored.shape

    is_torn = (in_words > 0) & (in_words < words.sizes)
    torn = np.zeros(num_rows, bool)
    torn[words.rows[is_torn]] = True

    def describe_torn(row: int) -> str:
        word = np.flatnonzero(is_torn & (words.rows == row))[0]
        return (
            "masked_lm_positions must take whole words. Received: "
            f"{in_words[word]} of the {words.sizes[word]} pieces of the word "
            f"at {words.starts[word] % length}"
        )

    found.refuse(torn, describe_torn)

    num_pieces = np.count_nonzero(features["input_mask"], axis=1)
    num_masked = np.count_nonzero(is_masked, axis=1)
    budgets = np.clip(
        np.rint(rules.masked_lm_prob * num_pieces),
        1,
        rules.max_predictions_per_seq,
    ).astype(np.int64)
    # A single span may exceed the budget, where none fits it.
    runs = count_runs(words, in_words > 0, num_rows, rules.ngram + 1)
    is_one_span = (runs.sum(axis=1) == 1) & (runs[:, rules.ngram] == 0)
    found.refuse(
        (num_masked > budgets) & ~is_one_span,
        lambda row: (
            f"masked_lm_weights must be 1 for at most {budgets[row]} of "
            f"{num_pieces[row]} pieces. Received: {num_masked[row]}"
        ),
    )

    # However the words are tiled with spans, each not taken is larger than
    # what is left of the budget, and none is larger than the largest that
    # as many words give.
    sizes = words.sizes.copy()
    segments = np.cumsum(words.opens_segment)
    for i in range(1, min(rules.ngram, len(sizes))):
        same = segments[i:] == segments[:-i]
        sizes[:-i] += np.where(same, words.sizes[i:], 0)
    largest = np.zeros(num_rows, np.int64)
    np.maximum.at(largest, words.rows, sizes)
    num_maskable = np.count_nonzero(restored >= FIRST_ORDINARY_ID, axis=1)
    left = budgets - num_masked
    found.refuse(
        (left >= largest) & (num_masked < num_maskable),
        lambda row: (
            f"masked_lm_weights must be 1 for more of {num_pieces[row]} "
            f"pieces: of a budget of {budgets[row]}, {left[row]} are left, "
            f"and no {rules.ngram} words are longer than {largest[row]}. "
            f"Received: {num_masked[row]}"
        ),
    )
