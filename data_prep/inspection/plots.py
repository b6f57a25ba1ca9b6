"""Histograms of sets of records, in one picture."""

import io
import warnings
from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np

from albert_tf.records.masking import FIRST_ORDINARY_ID
from albert_tf.records.tokenization import WORD_MARK, Tokenizer
from data_prep.inspection.statistics import Statistics

matplotlib.use("Agg")  # no screen is needed
import matplotlib.pyplot as plt

_NUM_BINS = 40
_NUM_PIECES = 25


def draw_histograms(
    sets: Mapping[str, tuple[Statistics, Tokenizer | None]],
) -> bytes:
    """A PNG with six histograms of each set.

    Args:
        sets: What was counted and the vocabulary, by directory.
    """
    figure, grid = plt.subplots(
        2 * len(sets), 3, figsize=(14, 7.5 * len(sets)), squeeze=False
    )
    for number, (name, (statistics, tokenizer)) in enumerate(sets.items()):
        panels = list(grid[2 * number : 2 * number + 2].flat)
        _draw_counts(
            panels[0], "pieces of an example", "examples", statistics.lengths
        )
        panels[0].set_title(name, loc="left")
        _draw_counts(
            panels[1],
            "masked pieces of an example",
            "examples",
            statistics.masked_counts,
        )
        _draw_runs(panels[2], statistics)
        _draw_places(panels[3], statistics)
        _draw_labels(panels[4], statistics)
        _draw_pieces(panels[5], statistics, tokenizer)
    content = io.BytesIO()
    with warnings.catch_warnings():
        # Pieces of scripts that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        figure.tight_layout()
        figure.savefig(content, format="png", dpi=100)
    plt.close(figure)
    return content.getvalue()


def _draw_counts(axis: Any, what: str, unit: str, counts: np.ndarray) -> None:
    """How often each value occurs; `counts` is int64, `(values,)`."""
    edges = np.unique(np.linspace(0, len(counts), _NUM_BINS + 1).astype(int))
    heights = np.add.reduceat(counts, edges[:-1])
    axis.stairs(heights, edges, fill=True)
    axis.set_xlabel(what)
    axis.set_ylabel(unit)


def _draw_runs(axis: Any, statistics: Statistics) -> None:
    words = np.arange(1, len(statistics.runs) + 1)
    for shift, counts, label in (
        (-0.2, statistics.runs, "found"),
        (0.2, statistics.expected_runs, "by p(n)"),
    ):
        shares = counts / max(1, counts.sum())
        axis.bar(words + shift, shares, 0.4, label=label)
    axis.set_xlabel("words of a run of masked words (adjacent spans merge)")
    axis.set_ylabel("share of the runs")
    axis.legend()


def _draw_places(axis: Any, statistics: Statistics) -> None:
    # Examples that have a piece at each place.
    reach = np.cumsum(statistics.lengths[::-1])[::-1][1:]
    edges = np.unique(np.linspace(0, len(reach), _NUM_BINS + 1).astype(int))
    masked = np.add.reduceat(statistics.masked_places, edges[:-1])
    pieces = np.add.reduceat(reach, edges[:-1])
    axis.stairs(masked / np.maximum(1, pieces), edges, fill=True)
    axis.set_xlabel("place in the sequence")
    axis.set_ylabel("share of its pieces masked")


def _draw_labels(axis: Any, statistics: Statistics) -> None:
    ones = statistics.num_label
    axis.bar([0, 1], [statistics.num_examples - ones, ones], 0.6)
    axis.set_xticks([0, 1])
    axis.set_xlabel("label")
    axis.set_ylabel("examples")


def _draw_pieces(
    axis: Any, statistics: Statistics, tokenizer: Tokenizer | None
) -> None:
    ordinary = statistics.pieces.copy()
    ordinary[:FIRST_ORDINARY_ID] = 0
    most = np.argsort(ordinary)[::-1][:_NUM_PIECES]
    names = [
        # A pair of dollar signs would be a formula.
        tokenizer.id_to_piece(i).replace(WORD_MARK, "_").replace("$", r"\$")
        if tokenizer
        else str(i)
        for i in most
    ]
    places = np.arange(len(most))
    for shift, counts, label in (
        (-0.2, ordinary, "in the text"),
        (0.2, statistics.masked_pieces, "where masked"),
    ):
        shares = counts[most] / max(1, counts.sum())
        axis.bar(places + shift, shares, 0.4, label=label)
    axis.set_xticks(places, names, rotation=70, fontsize=8)
    axis.set_xlabel("most frequent pieces")
    axis.set_ylabel("share of the pieces")
    axis.legend()
