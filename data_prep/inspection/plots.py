"""Histograms of sets of records, as one PNG."""

import io
import warnings
from collections.abc import Mapping
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
    """A PNG with a line of histograms for each set.

    Args:
        sets: Statistics and vocabulary, if known, by directory.
    """
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
        _draw_tokens(axes[2], statistics, tokenizer)
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
    axis: Any, statistics: Statistics, tokenizer: Tokenizer | None
) -> None:
    counts = statistics.tokens.copy()
    counts[:FIRST_ORDINARY_ID] = 0
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
