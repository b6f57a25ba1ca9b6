"""Statistics of a set of records: expected values, and a picture.

The statistics of batches and shards add up, so the use of memory does not
depend on the size of the set. A statistic with a known distribution must lie
within five standard deviations of its mean; chance violates that once in two
million. The other statistics are for the reader to judge.
"""

import io
import math
import operator
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from albert_tf.records.features import (
    MASK_ID,
    SENTENCE_LABEL,
    UNK_ID,
    RecordsMetadata,
)
from albert_tf.records.masking import FIRST_ORDINARY_ID
from albert_tf.records.tokenization import WORD_MARK, Tokenizer
from data_prep.inspection.rows import CheckedRows, RecordRules

_MAX_DEVIATIONS = 5.0
_NUM_BINS = 40
_NUM_PIECES = 25


class Statistics(NamedTuple):
    """Counts over the rows without faults.

    Attributes:
        num_label: Number of examples with label 1.
        replacements: int64, `(3,)`, masked tokens that show `[MASK]`, the
            original token, another token.
        lengths: int64, `(max_seq_length + 1,)`, examples by number of tokens.
        row_lengths: int64, `(max_seq_length + 1,)`, rows by number of tokens.
        masked_positions: int64, `(max_seq_length,)`, masked tokens by position
            in the example.
        tokens: int64, `(vocab_size,)`, occurrences of each id before masking.
    """

    num_label: int
    replacements: np.ndarray
    lengths: np.ndarray
    row_lengths: np.ndarray
    masked_positions: np.ndarray
    tokens: np.ndarray

    @property
    def num_rows(self) -> int:
        """Number of records."""
        return int(self.row_lengths.sum())

    @property
    def num_examples(self) -> int:
        """Number of examples in all records."""
        return int(self.lengths.sum())

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all records, special ones included."""
        return int(self.tokens.sum())

    def plus(self, other: "Statistics") -> "Statistics":
        """The sum of both, which must have the same lengths."""
        return Statistics(*map(operator.add, self, other))


def empty_statistics(rules: RecordRules) -> Statistics:
    """The statistics of no rows."""
    length = rules.max_seq_length
    sizes = (3, length + 1, length + 1, length, rules.vocab_size)
    return Statistics(0, *(np.zeros(n, np.int64) for n in sizes))


def count_rows(rows: CheckedRows, rules: RecordRules) -> Statistics:
    """The statistics of a batch without faults."""
    is_token = rows.features["input_mask"] > 0
    # The tokens of all rows, one example after another.
    tokens, is_masked = rows.restored[is_token], rows.is_masked[is_token]
    begins = np.flatnonzero(rows.is_begin[is_token])
    lengths = np.diff(begins, append=len(tokens))
    positions = np.arange(len(tokens)) - np.repeat(begins, lengths)
    shown = rows.features["input_ids"][is_token][is_masked]
    is_mask, is_kept = shown == MASK_ID, shown == tokens[is_masked]
    size = rules.max_seq_length + 1
    return Statistics(
        num_label=int(rows.features[SENTENCE_LABEL].sum()),
        replacements=np.array(
            [is_mask.sum(), is_kept.sum(), (~is_mask & ~is_kept).sum()]
        ),
        lengths=np.bincount(lengths, minlength=size),
        row_lengths=np.bincount(is_token.sum(axis=1), minlength=size),
        masked_positions=np.bincount(
            positions[is_masked], minlength=rules.max_seq_length
        ),
        tokens=np.bincount(tokens, minlength=rules.vocab_size),
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
    num_examples, num_tokens = statistics.num_examples, statistics.num_tokens
    findings = []
    for name, found, key in (
        ("records", statistics.num_rows, "num_rows"),
        ("examples", num_examples, "num_examples"),
        ("tokens", num_tokens, "num_pieces"),
        ("masked tokens", num_masked, "num_masked"),
    ):
        expected, passed = "", None
        if metadata is not None:
            total = getattr(metadata, key)
            expected = f"{total:,} in metadata"
            passed = found == total
            if not is_complete:
                expected, passed = f"{expected} for all shards", None
        findings.append(Finding(name, f"{found:,}", expected, passed))
    if not num_examples:
        return findings

    def compare(
        name: str,
        fraction: float,
        probability: float,
        num_draws: float,
        is_judged: bool,
    ) -> None:
        """Compares a fraction of random draws with its mean."""
        deviation = math.sqrt(probability * (1 - probability) / num_draws)
        tolerance = _MAX_DEVIATIONS * deviation
        findings.append(
            Finding(
                name,
                _percent(fraction),
                f"{_percent(probability)}, plus or minus {_percent(tolerance)}",
                abs(fraction - probability) <= tolerance if is_judged else None,
            )
        )

    # Equal documents have equal labels, since the random numbers are keyed by
    # the text. So one draw decides the labels of at most this many examples.
    num_equal = 1 + (metadata.num_duplicate_documents if metadata else 0)
    is_sop = rules.sentence_objective == "sop"
    label = statistics.num_label / num_examples
    compare("label 1", label, 0.5, num_examples / num_equal, is_sop)
    if num_masked:
        expected = ""
        if rules.has_metadata:
            expected = f"{_percent(rules.masked_lm_prob)}, rounded per example"
        fraction = _percent(num_masked / num_tokens)
        findings.append(Finding("fraction masked", fraction, expected))
        # A random replacement is by chance the original token.
        chance = 0.1 / (rules.vocab_size - FIRST_ORDINARY_ID)
        for kind, probability, count in zip(
            ("[MASK]", "kept", "random"),
            (0.8, 0.1 + chance, 0.1 - chance),
            statistics.replacements.tolist(),
            strict=True,
        ):
            compare(
                f"masked tokens: {kind}",
                count / num_masked,
                probability,
                num_masked,
                rules.has_metadata,
            )
    num_text = statistics.tokens[FIRST_ORDINARY_ID:].sum()
    unknown = statistics.tokens[UNK_ID] / max(1, num_text)
    mean = num_examples / statistics.num_rows
    capacity = statistics.num_rows * rules.max_seq_length
    return [
        *findings,
        Finding("examples per record", f"{mean:.2f}"),
        Finding("fraction <unk>", _percent(unknown)),
        Finding("positions filled", _percent(num_tokens / capacity)),
    ]


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"


def draw_histograms(
    sets: Mapping[str, tuple[Statistics, Tokenizer | None]],
) -> bytes:
    """A PNG with a line of histograms for each set.

    Args:
        sets: Statistics and vocabulary, if known, by directory.
    """
    import matplotlib

    matplotlib.use("Agg")  # draws without a display
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(
        len(sets), 3, figsize=(14, 3.75 * len(sets)), squeeze=False
    )
    for axes, (name, (statistics, tokenizer)) in zip(
        grid, sets.items(), strict=True
    ):
        axes[0].set_title(name, loc="left")
        edges = _edges(len(statistics.row_lengths))
        counts = np.add.reduceat(statistics.row_lengths, edges[:-1])
        axes[0].stairs(counts, edges, fill=True)
        axes[0].set_xlabel("tokens of a record")
        axes[0].set_ylabel("records")
        # Number of examples with a token at each position.
        num_tokens = np.cumsum(statistics.lengths[::-1])[::-1][1:]
        edges = _edges(len(num_tokens))
        masked = np.add.reduceat(statistics.masked_positions, edges[:-1])
        tokens = np.add.reduceat(num_tokens, edges[:-1])
        axes[1].stairs(masked / np.maximum(1, tokens), edges, fill=True)
        axes[1].set_xlabel("position in an example")
        axes[1].set_ylabel("fraction of tokens masked")
        _draw_tokens(axes[2], statistics.tokens, tokenizer)
    content = io.BytesIO()
    with warnings.catch_warnings():
        # Characters that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure.tight_layout()
        figure.savefig(content, format="png", dpi=100)
    plt.close(figure)
    return content.getvalue()


def _edges(size: int) -> np.ndarray:
    return np.unique(np.linspace(0, size, _NUM_BINS + 1).astype(int))


def _draw_tokens(
    axis: Any, tokens: np.ndarray, tokenizer: Tokenizer | None
) -> None:
    counts = np.where(np.arange(len(tokens)) < FIRST_ORDINARY_ID, 0, tokens)
    most_frequent = np.argsort(counts)[::-1][:_NUM_PIECES]
    names = [
        # Matplotlib reads a pair of dollar signs as a formula.
        tokenizer.id_to_piece(i).replace(WORD_MARK, "_").replace("$", r"\$")
        if tokenizer
        else str(i)
        for i in most_frequent
    ]
    bars = np.arange(len(most_frequent))
    axis.bar(bars, counts[most_frequent] / max(1, counts.sum()))
    axis.set_xticks(bars, names, rotation=70, fontsize=8)
    axis.set_xlabel("most frequent pieces")
    axis.set_ylabel("fraction of tokens")
