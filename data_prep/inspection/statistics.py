"""Figures of a whole set of records, and whether they are as they should be.

Figures of shards are summed up, so that a set of any size is looked at in
bounded memory. A figure is judged where a rule says what it must be, within
five standard deviations, which chance exceeds once in two million figures.
The others are there to be read.
"""

import dataclasses
import hashlib
from typing import Self

import numpy as np

from albert_tf.records.features import (
    MASK_ID,
    SENTENCE_LABEL,
    UNK_ID,
    RecordsMetadata,
)
from albert_tf.records.keyed_random import random_bits
from albert_tf.records.masking import FIRST_ORDINARY_ID, mask_batch
from data_prep.inspection.checks import (
    CheckedExamples,
    RecordRules,
    count_runs,
    find_words,
)

PASS, FAIL, NOTE = "pass", "FAIL", "note"

# Standard deviations that chance is given.
_TOLERANCE = 5.0

# Rows of a shard that are masked anew to compare. Shards are shuffled, so
# the first rows are as good as any.
_ROWS_TO_COMPARE = 2048

# Texts kept to find equal ones, 4 MiB; the share of duplicates is known to a
# tenth of a percent.
_LARGEST_SAMPLE = 1 << 18

_LONGEST_RUN = 8


class TextSample:
    """How often texts occur, of a sample of all texts.

    A text is in the sample if its hash is below a limit, which is halved
    whenever the sample is too large. So all occurrences of a text are in it
    or none, in whatever shards they are, and the share of duplicates in the
    sample is that of the whole.

    Args:
        largest: Different texts to keep at the most.
    """

    def __init__(self, largest: int = _LARGEST_SAMPLE) -> None:
        self._largest = largest
        self._limit = 1 << 64
        self._hashes = np.zeros(0, np.uint64)
        self._counts = np.zeros(0, np.int64)
        self._waiting: list[np.ndarray] = []
        self._num_waiting = 0

    def add(self, hashes: np.ndarray) -> None:
        """Adds texts by their hashes; uint64, `(texts,)`."""
        self._waiting.append(hashes[hashes <= self._limit - 1])
        self._num_waiting += len(self._waiting[-1])
        if self._num_waiting >= self._largest // 4:
            self._collect()

    def merge(self, other: Self) -> None:
        """Adds the texts of another sample."""
        other._collect()
        self._collect()
        self._limit = min(self._limit, other._limit)
        self._insert(other._hashes, other._counts)

    def duplicate_rate(self) -> float:
        """Share of the texts that occurred before."""
        self._collect()
        return 1 - len(self._counts) / max(1, int(self._counts.sum()))

    def mean_multiplicity(self) -> float:
        """How often the text of a random example occurs."""
        self._collect()
        return float((self._counts**2).sum() / max(1, self._counts.sum()))

    def _collect(self) -> None:
        waiting = self._waiting
        self._waiting, self._num_waiting = [], 0
        if waiting:
            hashes, counts = np.unique(
                np.concatenate(waiting), return_counts=True
            )
            self._insert(hashes, counts)

    def _insert(self, hashes: np.ndarray, counts: np.ndarray) -> None:
        self._hashes, places = np.unique(
            np.concatenate([self._hashes, hashes]), return_inverse=True
        )
        counts = np.concatenate([self._counts, counts])
        self._counts = np.bincount(
            places, weights=counts, minlength=len(self._hashes)
        ).astype(np.int64)
        while True:
            limit = np.uint64(self._limit - 1)
            end = int(np.searchsorted(self._hashes, limit, side="right"))
            self._hashes = self._hashes[:end]
            self._counts = self._counts[:end]
            if end <= self._largest:
                break
            self._limit //= 2


@dataclasses.dataclass
class Statistics:
    """What was counted in some records.

    Attributes:
        max_seq_length, max_predictions_per_seq, vocab_size: Of the records.
        num_examples: Examples without faults; all else is of these.
        num_pieces: Real pieces, special ones included.
        num_label: Examples of label 1.
        replacements: int64, `(3,)`, masked pieces that show `[MASK]`, what
            they were, another piece.
        lengths: int64, `(max_seq_length + 1,)`, examples by real pieces.
        masked_counts: int64, `(max_predictions_per_seq + 1,)`, examples by
            masked pieces.
        masked_places: int64, `(max_seq_length,)`, masked pieces by place.
        pieces: int64, `(vocab_size,)`, occurrences before masking, padding
            included.
        masked_pieces: int64, `(vocab_size,)`, occurrences where masked.
        runs, expected_runs: int64, `(_LONGEST_RUN,)`, runs of so many masked
            words in the rows compared, as they are and masked anew.
        run_differences, run_squares: float64, `(_LONGEST_RUN,)`; sums, over
            the rows compared, of the difference of both and of its square.
        texts: Which texts occurred how often.
    """

    max_seq_length: int
    max_predictions_per_seq: int
    vocab_size: int
    num_examples: int = 0
    num_pieces: int = 0
    num_label: int = 0
    replacements: np.ndarray = dataclasses.field(init=False)
    lengths: np.ndarray = dataclasses.field(init=False)
    masked_counts: np.ndarray = dataclasses.field(init=False)
    masked_places: np.ndarray = dataclasses.field(init=False)
    pieces: np.ndarray = dataclasses.field(init=False)
    masked_pieces: np.ndarray = dataclasses.field(init=False)
    runs: np.ndarray = dataclasses.field(init=False)
    expected_runs: np.ndarray = dataclasses.field(init=False)
    run_differences: np.ndarray = dataclasses.field(init=False)
    run_squares: np.ndarray = dataclasses.field(init=False)
    texts: TextSample = dataclasses.field(default_factory=TextSample)

    def __post_init__(self) -> None:
        self.replacements = np.zeros(3, np.int64)
        self.lengths = np.zeros(self.max_seq_length + 1, np.int64)
        self.masked_counts = np.zeros(
            self.max_predictions_per_seq + 1, np.int64
        )
        self.masked_places = np.zeros(self.max_seq_length, np.int64)
        self.pieces = np.zeros(self.vocab_size, np.int64)
        self.masked_pieces = np.zeros(self.vocab_size, np.int64)
        self.runs = np.zeros(_LONGEST_RUN, np.int64)
        self.expected_runs = np.zeros(_LONGEST_RUN, np.int64)
        self.run_differences = np.zeros(_LONGEST_RUN)
        self.run_squares = np.zeros(_LONGEST_RUN)

    @classmethod
    def of_none(cls, rules: RecordRules) -> Self:
        """Those of no records at all."""
        return cls(
            rules.max_seq_length,
            rules.max_predictions_per_seq,
            rules.vocab_size,
        )

    @property
    def num_masked(self) -> int:
        """Masked pieces."""
        return int(self.replacements.sum())

    def merge(self, other: Self) -> None:
        """Adds what was counted in others of the same lengths."""
        for field in dataclasses.fields(self)[3:]:
            value = getattr(other, field.name)
            if isinstance(value, TextSample):
                self.texts.merge(value)
            else:
                mine = getattr(self, field.name)
                setattr(self, field.name, mine + value)

    def add(
        self, examples: CheckedExamples, rules: RecordRules, key: int
    ) -> None:
        """Counts examples without faults.

        Args:
            examples: A batch.
            rules: What they followed.
            key: Of the batch; no other may have it.
        """
        restored, is_masked = examples.restored, examples.is_masked
        lengths = np.count_nonzero(examples.features["input_mask"], axis=1)
        if self.num_examples < _ROWS_TO_COMPARE and rules.ngram:
            self._compare_runs(examples, rules, key)
        self.num_examples += len(restored)
        self.num_pieces += int(lengths.sum())
        self.num_label += int(np.sum(examples.features[SENTENCE_LABEL]))
        self.lengths += np.bincount(lengths, minlength=len(self.lengths))
        self.pieces += np.bincount(restored.ravel(), minlength=self.vocab_size)
        self.texts.add(_hash_texts(restored, lengths))
        if rules.masking == "static":
            shown = examples.features["input_ids"][is_masked]
            originals = restored[is_masked]
            is_mask, is_kept = shown == MASK_ID, shown == originals
            self.replacements += np.array(
                [is_mask.sum(), is_kept.sum(), (~is_mask & ~is_kept).sum()]
            )
            self.masked_pieces += np.bincount(
                originals, minlength=self.vocab_size
            )
            self.masked_places += is_masked.sum(axis=0)
            self.masked_counts += np.bincount(
                is_masked.sum(axis=1), minlength=len(self.masked_counts)
            )

    def _compare_runs(
        self, examples: CheckedExamples, rules: RecordRules, key: int
    ) -> None:
        """Masks examples anew, by other random numbers.

        Adjacent spans merge, budgets cut off long ones, and segments end, so
        that lengths of runs follow p(n) in a way that depends on the text.
        If the rule is the same, an example and its copy masked anew could
        change places.
        """
        features, restored = examples.features, examples.restored
        words = find_words(restored, features["token_boundary"])
        keys = np.full(len(restored), key, np.uint64)
        masked = mask_batch(
            restored,
            features["token_boundary"],
            random_bits(keys, np.arange(len(restored))),
            vocab_size=rules.vocab_size,
            max_predictions_per_seq=rules.max_predictions_per_seq,
            masked_lm_prob=rules.masked_lm_prob,
            ngram=rules.ngram,
        )
        is_masked = np.zeros(restored.shape, bool)
        rows, slots = np.nonzero(masked.weights)
        is_masked[rows, masked.positions[rows, slots]] = True
        runs, expected = (
            count_runs(
                words,
                words.count_pieces(chosen) > 0,
                len(restored),
                _LONGEST_RUN,
            )
            for chosen in (examples.is_masked, is_masked)
        )
        differences = (runs - expected).astype(np.float64)
        self.runs += runs.sum(axis=0)
        self.expected_runs += expected.sum(axis=0)
        self.run_differences += differences.sum(axis=0)
        self.run_squares += (differences**2).sum(axis=0)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A line of the table.

    Attributes:
        name: What was looked at.
        found: The figure.
        wanted: What it must be, or what is known of it.
        verdict: PASS, FAIL or NOTE, which is for the reader to judge.
    """

    name: str
    found: str
    wanted: str
    verdict: str


def judge_statistics(
    statistics: Statistics,
    rules: RecordRules,
    metadata: RecordsMetadata | None,
    *,
    is_whole: bool,
) -> list[Verdict]:
    """The figures of a set.

    Args:
        statistics: Of all records that were looked at.
        rules: What they followed.
        metadata: Of the set; without it nothing is judged.
        is_whole: Whether all shards were looked at.
    """
    verdicts = []
    totals = [("records", statistics.num_examples, "num_examples")]
    totals.append(("real pieces", statistics.num_pieces, "num_pieces"))
    totals.append(("masked pieces", statistics.num_masked, "num_masked"))
    for name, found, key in totals:
        wanted, verdict = "", NOTE
        if metadata is not None:
            total = getattr(metadata, key)
            wanted = f"{total:,} in metadata"
            if is_whole:
                verdict = PASS if found == total else FAIL
            else:
                wanted += " for all shards"
        verdicts.append(Verdict(name, f"{found:,}", wanted, verdict))
    if not statistics.num_examples:
        return verdicts
    verdicts.append(_judge_label(statistics, rules))
    if rules.masking == "static":
        verdicts += _judge_masking(statistics, rules)
    places = statistics.num_examples * rules.max_seq_length
    unknown = statistics.pieces[UNK_ID] / max(
        1, statistics.pieces[FIRST_ORDINARY_ID:].sum()
    )
    verdicts += [
        _note("<unk> among the pieces", unknown),
        _note("places filled", statistics.num_pieces / places),
        _note(
            "texts equal to another before",
            statistics.texts.duplicate_rate(),
            f"--dupe_factor={metadata.dupe_factor} repeats short documents"
            if metadata
            else "",
        ),
    ]
    return verdicts


def _judge_label(statistics: Statistics, rules: RecordRules) -> Verdict:
    share = statistics.num_label / statistics.num_examples
    # Equal texts may have got their label by the same toss of a coin.
    deviation = 0.5 * np.sqrt(
        statistics.texts.mean_multiplicity() / statistics.num_examples
    )
    distance = abs(share - 0.5) / deviation
    if rules.sentence_objective == "none":
        return Verdict("label 1", _percent(share), "none", PASS)
    verdict = NOTE
    wanted = f"50 %, {distance:.1f} sigma away"
    if rules.sentence_objective == "sop":
        verdict = PASS if distance <= _TOLERANCE else FAIL
    elif rules.sentence_objective == "nsp":
        wanted += "; less where documents are few"
    return Verdict("label 1", _percent(share), wanted, verdict)


def _judge_masking(statistics: Statistics, rules: RecordRules) -> list[Verdict]:
    masked = statistics.num_masked
    rate = masked / statistics.num_pieces
    is_judged = bool(rules.ngram)
    wanted = ""
    if is_judged:
        wanted = (
            f"{100 * rules.masked_lm_prob:.1f} %, by budget of each record, "
            f"at most {rules.max_predictions_per_seq}"
        )
    # What each record may and must have masked was checked one by one.
    verdicts = [
        Verdict(
            "masked among the pieces",
            _percent(rate),
            wanted,
            PASS if is_judged else NOTE,
        )
    ]
    if not masked:
        return verdicts
    # A random piece may happen to be the original.
    chance = 0.1 / (rules.vocab_size - FIRST_ORDINARY_ID)
    kinds = (
        ("of these [MASK]", 0.8),
        ("of these left as they are", 0.1 + chance),
        ("of these another piece", 0.1 - chance),
    )
    for (name, share), count in zip(
        kinds, statistics.replacements, strict=True
    ):
        deviation = np.sqrt(share * (1 - share) / masked)
        distance = abs(count / masked - share) / deviation
        verdict = PASS if distance <= _TOLERANCE else FAIL
        verdicts.append(
            Verdict(
                name,
                _percent(count / masked),
                f"{_percent(share)}, {distance:.1f} sigma away",
                verdict if is_judged else NOTE,
            )
        )
    if is_judged:
        verdicts.append(_judge_runs(statistics, rules))
    return verdicts


def _judge_runs(statistics: Statistics, rules: RecordRules) -> Verdict:
    """Whether runs of masked words have the lengths that the rule gives.

    The differences of the examples are independent, and, if the rule is the
    same, as often positive as negative: their sum, over the root of the sum
    of their squares, is distributed as a standard normal variable or, where
    there are few, more narrowly.
    """
    distances = np.abs(statistics.run_differences) / np.sqrt(
        np.maximum(statistics.run_squares, 1)
    )
    return Verdict(
        "runs of 1, 2, ... words",
        _shares(statistics.runs),
        f"{_shares(statistics.expected_runs)} by p(n), ngram "
        f"{rules.ngram}; {distances.max():.1f} sigma away",
        PASS if distances.max() <= _TOLERANCE else FAIL,
    )


def _hash_texts(restored: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Hashes of the pieces of each example; uint64, `(batch,)`."""
    digests = [
        hashlib.blake2b(row[:length].tobytes(), digest_size=8).digest()
        for row, length in zip(restored, lengths, strict=True)
    ]
    return np.frombuffer(b"".join(digests), "<u8")


def _note(name: str, share: float, wanted: str = "") -> Verdict:
    return Verdict(name, _percent(share), wanted, NOTE)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _shares(counts: np.ndarray) -> str:
    """As "52.0, 30.1, 17.9 %"; what is less than a thousandth is left out."""
    shares = 100 * counts / max(1, counts.sum())
    return ", ".join(f"{s:.1f}" for s in shares if s >= 0.1) + " %"
