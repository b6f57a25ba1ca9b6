"""Statistics of a set of records, and their comparison with expected values.

The statistics of batches and shards add up, so the use of memory does not
depend on the size of the set. A statistic with a known distribution must lie
within five standard deviations of its mean; chance violates that once in two
million. The other statistics are for the reader to judge.
"""

import math
import operator
from typing import NamedTuple

import numpy as np

from albert_tf.records.features import (
    MASK_ID,
    SENTENCE_LABEL,
    UNK_ID,
    RecordsMetadata,
)
from albert_tf.records.masking import FIRST_ORDINARY_ID
from data_prep.inspection.checks import CheckedExamples, RecordRules

_MAX_DEVIATIONS = 5.0


class Statistics(NamedTuple):
    """Counts over the examples without faults.

    Attributes:
        num_tokens: Number of tokens, special ones included.
        num_label: Number of examples with label 1.
        replacements: int64, `(3,)`, masked tokens that show `[MASK]`, the
            original token, another token.
        lengths: int64, `(max_seq_length + 1,)`, examples by number of tokens.
        masked_counts: int64, `(max_predictions_per_seq + 1,)`, examples by
            number of masked tokens.
        masked_positions: int64, `(max_seq_length,)`, masked tokens by position.
        tokens: int64, `(vocab_size,)`, occurrences of each id before masking,
            padding included.
        masked_tokens: int64, `(vocab_size,)`, occurrences at masked positions.
        row_sizes: int64, `(max_examples_per_row + 1,)`, records by number of
            examples.
        row_lengths: int64, `(max_seq_length + 1,)`, records by number of
            tokens.
    """

    num_examples: int
    num_tokens: int
    num_label: int
    replacements: np.ndarray
    lengths: np.ndarray
    masked_counts: np.ndarray
    masked_positions: np.ndarray
    tokens: np.ndarray
    masked_tokens: np.ndarray
    row_sizes: np.ndarray
    row_lengths: np.ndarray

    @property
    def num_rows(self) -> int:
        """Number of records."""
        return int(self.row_sizes.sum())

    @property
    def num_masked(self) -> int:
        """Number of masked tokens."""
        return int(self.replacements.sum())

    def plus(self, other: "Statistics") -> "Statistics":
        """The sum of both, which must have the same lengths."""
        return Statistics(*map(operator.add, self, other))


def empty_statistics(rules: RecordRules) -> Statistics:
    """The statistics of no examples."""
    return Statistics(
        *(0, 0, 0),
        *(
            np.zeros(size, np.int64)
            for size in (
                3,
                rules.max_seq_length + 1,
                rules.max_predictions_per_seq + 1,
                rules.max_seq_length,
                rules.vocab_size,
                rules.vocab_size,
                rules.max_examples_per_row + 1,
                rules.max_seq_length + 1,
            )
        ),
    )


def count_examples(
    examples: CheckedExamples, rules: RecordRules, rows: np.ndarray
) -> Statistics:
    """The statistics of a batch without faults.

    Args:
        rows: int64, `(batch,)`, not decreasing: the record of each example.
    """
    restored, is_masked = examples.restored, examples.is_masked
    lengths = np.count_nonzero(examples.features["input_mask"], axis=1)
    shown = examples.features["input_ids"][is_masked]
    originals = restored[is_masked]
    is_mask, is_kept = shown == MASK_ID, shown == originals
    _, row_of, row_sizes = np.unique(
        rows, return_inverse=True, return_counts=True
    )
    row_lengths = np.bincount(row_of, lengths).astype(np.int64)
    return Statistics(
        num_examples=len(restored),
        num_tokens=int(lengths.sum()),
        num_label=int(examples.features[SENTENCE_LABEL].sum()),
        replacements=np.array(
            [is_mask.sum(), is_kept.sum(), (~is_mask & ~is_kept).sum()]
        ),
        lengths=np.bincount(lengths, minlength=rules.max_seq_length + 1),
        masked_counts=np.bincount(
            is_masked.sum(axis=1), minlength=rules.max_predictions_per_seq + 1
        ),
        masked_positions=is_masked.sum(axis=0),
        tokens=np.bincount(restored.ravel(), minlength=rules.vocab_size),
        masked_tokens=np.bincount(originals, minlength=rules.vocab_size),
        row_sizes=np.bincount(
            row_sizes, minlength=rules.max_examples_per_row + 1
        ),
        row_lengths=np.bincount(
            row_lengths, minlength=rules.max_seq_length + 1
        ),
    )


class Finding(NamedTuple):
    """A line of the table that the inspector prints.

    Attributes:
        passed: None if the reader must judge.
    """

    name: str
    found: str
    expected: str = ""
    passed: bool | None = None


def judge_statistics(
    statistics: Statistics,
    rules: RecordRules,
    metadata: RecordsMetadata | None,
    *,
    is_complete: bool,
) -> list[Finding]:
    """Compares statistics with the metadata and with the rules.

    Args:
        statistics: Statistics of all inspected records.
        metadata: None if there is no metadata; nothing is judged then.
        is_complete: Whether all shards of the metadata were inspected.
    """
    findings = []
    is_packed = rules.packing != "none"
    num_rows = statistics.num_rows if is_packed else statistics.num_examples
    for name, found, key in (
        ("records", num_rows, "num_rows"),
        *(
            [("examples", statistics.num_examples, "num_examples")]
            if is_packed
            else []
        ),
        ("tokens", statistics.num_tokens, "num_pieces"),
        ("masked tokens", statistics.num_masked, "num_masked"),
    ):
        finding = Finding(name, f"{found:,}")
        if metadata is not None:
            total = getattr(metadata, key)
            expected = f"{total:,} in metadata"
            if is_complete:
                finding = finding._replace(passed=found == total)
            else:
                expected += " for all shards"
            finding = finding._replace(expected=expected)
        findings.append(finding)
    if not statistics.num_examples:
        return findings
    findings.append(_judge_label(statistics, rules, metadata))
    if rules.masking == "static":
        findings += _judge_masking(statistics, rules)
    num_text = statistics.tokens[FIRST_ORDINARY_ID:].sum()
    unknown = statistics.tokens[UNK_ID] / max(1, num_text)
    capacity = num_rows * rules.max_seq_length
    if is_packed:
        mean = statistics.num_examples / num_rows
        findings.append(Finding("examples per record", f"{mean:.2f}"))
    return [
        *findings,
        Finding("fraction <unk>", _percent(unknown)),
        Finding("positions filled", _percent(statistics.num_tokens / capacity)),
    ]


def _judge_label(
    statistics: Statistics,
    rules: RecordRules,
    metadata: RecordsMetadata | None,
) -> Finding:
    fraction = statistics.num_label / statistics.num_examples
    finding = Finding("label 1", _percent(fraction))
    if rules.sentence_objective == "none":
        # The label of every record was checked.
        return finding._replace(expected="none", passed=True)
    # Equal documents have equal labels, since the random numbers are keyed by
    # the text. So one draw decides the labels of at most this many examples.
    num_equal = 1 + (metadata.num_duplicate_documents if metadata else 0)
    distance, expected = _compare_fraction(
        fraction, 0.5, statistics.num_examples / num_equal
    )
    if rules.sentence_objective == "nsp":
        expected += "; less if there are few documents"
    return finding._replace(
        expected=expected,
        passed=distance <= _MAX_DEVIATIONS
        if rules.sentence_objective == "sop"
        else None,
    )


def _judge_masking(statistics: Statistics, rules: RecordRules) -> list[Finding]:
    num_masked = statistics.num_masked
    finding = Finding(
        "fraction masked", _percent(num_masked / statistics.num_tokens)
    )
    is_judged = bool(rules.ngram)
    if is_judged:
        # The budget of every record was checked.
        finding = finding._replace(
            expected=f"{100 * rules.masked_lm_prob:.1f} %, rounded for each "
            f"record, at most {rules.max_predictions_per_seq}",
            passed=True,
        )
    findings = [finding]
    if not num_masked:
        return findings
    # A random replacement is by chance the original token.
    chance = 0.1 / (rules.vocab_size - FIRST_ORDINARY_ID)
    for name, probability, count in zip(
        (
            "masked tokens: [MASK]",
            "masked tokens: kept",
            "masked tokens: random",
        ),
        (0.8, 0.1 + chance, 0.1 - chance),
        statistics.replacements,
        strict=True,
    ):
        fraction = int(count) / num_masked
        distance, expected = _compare_fraction(
            fraction, probability, num_masked
        )
        passed = distance <= _MAX_DEVIATIONS if is_judged else None
        findings.append(Finding(name, _percent(fraction), expected, passed))
    return findings


def _compare_fraction(
    fraction: float, probability: float, num_draws: float
) -> tuple[float, str]:
    """Compares a fraction with its mean, `probability`.

    Returns:
        The distance in standard deviations, and a description.
    """
    deviation = math.sqrt(probability * (1 - probability) / num_draws)
    distance = abs(fraction - probability) / deviation
    return distance, f"{_percent(probability)}, {distance:.1f} sigma away"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"
