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
        num_rows: Number of records.
        num_tokens: Number of tokens, special ones included.
        num_label: Number of examples with label 1.
        replacements: int64, `(3,)`, masked tokens that show `[MASK]`, the
            original token, another token.
        lengths: int64, `(max_seq_length + 1,)`, examples by number of tokens.
        row_lengths: int64, `(max_seq_length + 1,)`, records by number of
            tokens.
        masked_positions: int64, `(max_seq_length,)`, masked tokens by position.
        tokens: int64, `(vocab_size,)`, occurrences of each id before masking,
            padding included.
    """

    num_rows: int
    num_examples: int
    num_tokens: int
    num_label: int
    replacements: np.ndarray
    lengths: np.ndarray
    row_lengths: np.ndarray
    masked_positions: np.ndarray
    tokens: np.ndarray

    def plus(self, other: "Statistics") -> "Statistics":
        """The sum of both, which must have the same lengths."""
        return Statistics(*map(operator.add, self, other))


def empty_statistics(rules: RecordRules) -> Statistics:
    """The statistics of no examples."""
    length = rules.max_seq_length
    sizes = (3, length + 1, length + 1, length, rules.vocab_size)
    return Statistics(0, 0, 0, 0, *(np.zeros(n, np.int64) for n in sizes))


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
    is_mask, is_kept = shown == MASK_ID, shown == restored[is_masked]
    _, row_of = np.unique(rows, return_inverse=True)
    row_lengths = np.bincount(row_of, lengths).astype(np.int64)
    size = rules.max_seq_length + 1
    return Statistics(
        num_rows=len(row_lengths),
        num_examples=len(restored),
        num_tokens=int(lengths.sum()),
        num_label=int(examples.features[SENTENCE_LABEL].sum()),
        replacements=np.array(
            [is_mask.sum(), is_kept.sum(), (~is_mask & ~is_kept).sum()]
        ),
        lengths=np.bincount(lengths, minlength=size),
        row_lengths=np.bincount(row_lengths, minlength=size),
        masked_positions=is_masked.sum(axis=0),
        tokens=np.bincount(restored.ravel(), minlength=rules.vocab_size),
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
    num_masked = int(statistics.replacements.sum())
    totals = {
        "records": (statistics.num_rows, "num_rows"),
        "examples": (statistics.num_examples, "num_examples"),
        "tokens": (statistics.num_tokens, "num_pieces"),
        "masked tokens": (num_masked, "num_masked"),
    }
    if rules.packing == "none":
        del totals["examples"]
    findings = []
    for name, (found, key) in totals.items():
        expected, passed = "", None
        if metadata is not None:
            total = getattr(metadata, key)
            expected = f"{total:,} in metadata"
            if is_complete:
                passed = found == total
            else:
                expected += " for all shards"
        findings.append(Finding(name, f"{found:,}", expected, passed))
    if not statistics.num_examples:
        return findings

    # Equal documents have equal labels, since the random numbers are keyed by
    # the text. So one draw decides the labels of at most this many examples.
    num_equal = 1 + (metadata.num_duplicate_documents if metadata else 0)
    label = _compare_fraction(
        "label 1",
        statistics.num_label / statistics.num_examples,
        0.5,
        statistics.num_examples / num_equal,
        is_judged=rules.sentence_objective == "sop",
    )
    if rules.sentence_objective == "none":
        # The label of every record was checked.
        label = label._replace(expected="none")
    elif rules.sentence_objective == "nsp":
        label = label._replace(expected="50 %; less if there are few documents")
    findings.append(label)
    if rules.masking == "static":
        expected = ""
        if rules.has_metadata:
            expected = f"{_percent(rules.masked_lm_prob)}, rounded per example"
        fraction = num_masked / statistics.num_tokens
        findings.append(
            Finding("fraction masked", _percent(fraction), expected)
        )
    if num_masked:
        # A random replacement is by chance the original token.
        chance = 0.1 / (rules.vocab_size - FIRST_ORDINARY_ID)
        findings += [
            _compare_fraction(
                f"masked tokens: {kind}",
                int(count) / num_masked,
                probability,
                num_masked,
                is_judged=rules.has_metadata,
            )
            for kind, probability, count in zip(
                ("[MASK]", "kept", "random"),
                (0.8, 0.1 + chance, 0.1 - chance),
                statistics.replacements,
                strict=True,
            )
        ]
    num_text = statistics.tokens[FIRST_ORDINARY_ID:].sum()
    unknown = statistics.tokens[UNK_ID] / max(1, num_text)
    capacity = statistics.num_rows * rules.max_seq_length
    if rules.packing != "none":
        mean = statistics.num_examples / statistics.num_rows
        findings.append(Finding("examples per record", f"{mean:.2f}"))
    return [
        *findings,
        Finding("fraction <unk>", _percent(unknown)),
        Finding("positions filled", _percent(statistics.num_tokens / capacity)),
    ]


def _compare_fraction(
    name: str,
    fraction: float,
    probability: float,
    num_draws: float,
    *,
    is_judged: bool,
) -> Finding:
    """Compares a fraction of random draws with its mean, `probability`."""
    deviation = math.sqrt(probability * (1 - probability) / num_draws)
    tolerance = _MAX_DEVIATIONS * deviation
    return Finding(
        name,
        _percent(fraction),
        f"{_percent(probability)}, plus or minus {_percent(tolerance)}",
        abs(fraction - probability) <= tolerance if is_judged else None,
    )


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"
