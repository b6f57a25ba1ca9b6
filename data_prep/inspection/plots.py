"""Histograms of sets of records, as one PNG."""

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np

from albert_tf.records.masking import FIRST_ORDINARY_ID
from albert_tf.records.tokenization import WORD_MARK, Tokenizer
from data_prep.inspection.statistics import Statistics

matplotlib.use("Agg")  # draws without a display
import matplotlib.pyplot as plt

_NUM_BINS = 40
_NUM_PIECES = 25


def draw_histograms(
    sets: Mapping[str, tuple[Statistics, Tokenizer | None]],
) -> bytes:
    """A PNG with six histograms of each set, and two more if it is packed.

    Args:
        sets: Statistics and vocabulary, if known, by directory.
    """
    is_packed = any(len(s.row_sizes) > 2 for s, _ in sets.values())
    num_lines = 3 if is_packed else 2
    figure, grid = plt.subplots(
        num_lines * len(sets),
        3,
        figsize=(14, 3.75 * num_lines * len(sets)),
        squeeze=False,
    )
    for number, (name, (statistics, tokenizer)) in enumerate(sets.items()):
        begin = num_lines * number
        axes = list(grid[begin : begin + num_lines].flat)
        axes[0].set_title(name, loc="left")
        _draw_counts(axes[0], "tokens of an example", statistics.lengths)
        _draw_counts(
            axes[1], "masked tokens of an example", statistics.masked_counts
        )
        _draw_bars(
            axes[2],
            ("[MASK]", "kept", "random"),
            statistics.replacements,
            ("input at masked positions", "masked tokens"),
        )
        _draw_positions(axes[3], statistics)
        num_ones = statistics.num_label
        _draw_bars(
            axes[4],
            ("0", "1"),
            (statistics.num_examples - num_ones, num_ones),
            ("label", "examples"),
        )
        _draw_tokens(axes[5], statistics, tokenizer)
        for axis in axes[6:]:
            axis.set_axis_off()
        if len(statistics.row_sizes) > 2:
            _draw_rows(axes[6], axes[7], statistics)
    content = io.BytesIO()
    with warnings.catch_warnings():
        # Characters that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure.tight_layout()
        figure.savefig(content, format="png", dpi=100)
    plt.close(figure)
    return content.getvalue()


def _draw_counts(axis: Any, label: str, counts: np.ndarray) -> None:
    """A histogram of examples; `counts` is int64, `(values,)`."""
    edges = np.unique(np.linspace(0, len(counts), _NUM_BINS + 1).astype(int))
    heights = np.add.reduceat(counts, edges[:-1])
    axis.stairs(heights, edges, fill=True)
    axis.set_xlabel(label)
    axis.set_ylabel("examples")


def _draw_bars(
    axis: Any,
    names: Sequence[str],
    counts: Sequence[int] | np.ndarray,
    labels: tuple[str, str],
) -> None:
    """A bar for each name; `labels` are those of the two axes."""
    axis.bar(names, counts, 0.6)
    axis.set_xlabel(labels[0])
    axis.set_ylabel(labels[1])


def _draw_positions(axis: Any, statistics: Statistics) -> None:
    # Number of examples with a token at each position.
    num_tokens = np.cumsum(statistics.lengths[::-1])[::-1][1:]
    edges = np.linspace(0, len(num_tokens), _NUM_BINS + 1).astype(int)
    edges = np.unique(edges)
    masked = np.add.reduceat(statistics.masked_positions, edges[:-1])
    tokens = np.add.reduceat(num_tokens, edges[:-1])
    axis.stairs(masked / np.maximum(1, tokens), edges, fill=True)
    axis.set_xlabel("position in the sequence")
    axis.set_ylabel("fraction of tokens masked")


def _draw_rows(sizes: Any, lengths: Any, statistics: Statistics) -> None:
    """Histograms of packed records, by number of examples and of tokens."""
    for axis in (sizes, lengths):
        axis.set_axis_on()
    numbers = range(1, len(statistics.row_sizes))
    mean = statistics.num_examples / max(1, statistics.num_rows)
    sizes.bar(numbers, statistics.row_sizes[1:], 0.6)
    sizes.set_xlabel(f"examples of a record; mean {mean:.2f}")
    sizes.set_ylabel("records")
    capacity = statistics.num_rows * (len(statistics.row_lengths) - 1)
    fill = 100 * statistics.num_tokens / max(1, capacity)
    _draw_counts(
        lengths,
        f"tokens of a record; {fill:.2f} % of the positions filled",
        statistics.row_lengths,
    )
    lengths.set_ylabel("records")


def _draw_tokens(
    axis: Any, statistics: Statistics, tokenizer: Tokenizer | None
) -> None:
    ordinary = statistics.tokens.copy()
    ordinary[:FIRST_ORDINARY_ID] = 0
    most_frequent = np.argsort(ordinary)[::-1][:_NUM_PIECES]
    names = [
        # Matplotlib reads a pair of dollar signs as a formula.
        tokenizer.id_to_piece(i).replace(WORD_MARK, "_").replace("$", r"\$")
        if tokenizer
        else str(i)
        for i in most_frequent
    ]
    bars = np.arange(len(most_frequent))
    for shift, counts, label in (
        (-0.2, ordinary, "all positions"),
        (0.2, statistics.masked_tokens, "masked positions"),
    ):
        fractions = counts[most_frequent] / max(1, counts.sum())
        axis.bar(bars + shift, fractions, 0.4, label=label)
    axis.set_xticks(bars, names, rotation=70, fontsize=8)
    axis.set_xlabel("most frequent pieces")
    axis.set_ylabel("fraction of tokens")
    axis.legend()
