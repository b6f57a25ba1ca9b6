"""Draws the learning curves of runs as one picture."""

import io
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogFormatter, PercentFormatter

from albert_tf.errors import UserError
from albert_tf.report.runs import RunHistory
from albert_tf.training.pretraining import PAPER_REFERENCE

# One for each run; distinguishable for most people.
COLORS = (
    "#0f7fc8",
    "#d95f02",
    "#2a9d6f",
    "#c2559d",
    "#b8860b",
    "#7a6fd0",
    "#d04545",
    "#6b8e23",
)

STYLE: Any = {
    "agg.path.chunksize": 10_000,  # a long noisy line would exceed a limit
    "axes.titlesize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "text.parse_math": False,  # the name of a run may contain a dollar sign
}


class Panel(NamedTuple):
    """The content of one set of axes."""

    title: str
    metrics: tuple[str, ...]
    scale: str = "linear"  # or log, percent
    late: bool = False  # only the second half of the run is shown


PANELS = (
    Panel("Masked-LM loss (nats)", ("masked_lm_loss",)),
    Panel("Masked-LM loss, second half", ("masked_lm_loss",), late=True),
    Panel("Masked-LM accuracy", ("masked_lm_accuracy",), "percent"),
    Panel("Sentence loss (nats)", ("sentence_order_loss",)),
    Panel("Sentence accuracy", ("sentence_order_accuracy",), "percent"),
    Panel("Learning rate", ("learning_rate",)),
    Panel("Dropout", ("dropout",)),
    Panel("Gradient norm, before clipping", ("gradient_norm",), "log"),
    Panel("Update norm", ("update_norm",), "log"),
    Panel(
        "Trust ratios of LAMB: lowest, mean, highest",
        ("trust_ratio_min", "trust_ratio_mean", "trust_ratio_max"),
        "log",
    ),
    Panel("Tokens per second, padding included", ("tokens_per_second",)),
    Panel("Tokens per second, no padding", ("useful_tokens_per_second",)),
    Panel("Fraction of the peak FLOP/s used (MFU)", ("mfu",), "percent"),
)

# Kind of event -> label in the legend, style of the line.
MARKS: dict[str, tuple[str, Any]] = {
    "resume": ("restart", ":"),
    "dropout": ("dropout switched", "--"),
}

# Curves of at least this number of points are also drawn smoothed.
_SMOOTHED = 100


def find_panels(
    runs: Sequence[RunHistory], metrics: Sequence[str] = ()
) -> list[Panel]:
    """Returns the panels of some metrics, or of all that any run has.

    Raises:
        UserError: If a metric has no panel, or no run has it.
    """
    logged = {metric for run in runs for _, metric in run.curves}
    found = [panel for panel in PANELS if not logged.isdisjoint(panel.metrics)]
    known = dict.fromkeys(metric for panel in found for metric in panel.metrics)
    for metric in metrics:
        if metric not in known:
            raise UserError(
                "--metrics must name metrics of the runs",
                received=metric,
                remedy=f"The runs have {', '.join(known)}.",
            )
    wanted = {*metrics} or known.keys()
    return [panel for panel in found if not wanted.isdisjoint(panel.metrics)]


def references(
    metric: str, runs: Sequence[RunHistory]
) -> Iterator[tuple[float, str]]:
    """Yields values to compare a metric with, each with its label."""
    if metric == "masked_lm_loss":
        found = {run.records.get("unigram_entropy_nats", 0.0) for run in runs}
        for entropy in sorted(found - {0.0}):
            yield entropy, f"unigram entropy {entropy:.2f}"
    name = "training.sentence_objective"
    objectives = {run.settings.get(name) for run in runs} - {None}
    # Both labels are equally frequent.
    if metric == "sentence_order_loss" and objectives:
        yield math.log(2), "chance, ln 2"
    if metric == "sentence_order_accuracy" and objectives:
        yield 0.5, "chance"
    for objective, values in PAPER_REFERENCE.items():
        if objective in objectives and metric in values:
            yield values[metric], f"paper, base, {objective}, 125k steps"


def picture(runs: Sequence[RunHistory], metrics: Sequence[str] = ()) -> bytes:
    """Draws the panels of some metrics, or of all, as PNG.

    Raises:
        UserError: If no run has a metric.
    """
    panels = find_panels(runs, metrics)
    num_columns = 2 if len(panels) <= 4 else 3
    num_rows = -(-len(panels) // num_columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(
            figsize=(5.4 * num_columns, 3.2 * num_rows + 0.6),
            layout="constrained",
        )
        grid = figure.subplots(num_rows, num_columns, squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            draw_panel(axes, panel, runs)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        handles = _legend(runs)
        figure.legend(
            handles=handles,
            loc="outside upper center",
            ncols=min(len(handles), 2 * num_columns),
            frameon=False,
        )
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=110)
        return file.getvalue()


def draw_panel(axes: Axes, panel: Panel, runs: Sequence[RunHistory]) -> None:
    """Draws one panel; see `picture`."""
    right = max(run.last_step for run in runs)
    left = right / 2 if panel.late else 0
    for number, run in enumerate(runs):
        color = COLORS[number % len(COLORS)]
        for metric in panel.metrics:
            trained, held_out = (
                curve[curve[:, 0] >= left]
                for split in ("train", "eval")
                for curve in [run.curve(split, metric)]
            )
            if len(trained) >= _SMOOTHED:
                axes.plot(*trained.T, color=color, alpha=0.4, linewidth=0.7)
                trained = _smooth(trained)
            # A single point needs a marker to be visible.
            marker = "." if len(trained) == 1 else None
            axes.plot(*trained.T, color=color, linewidth=1.3, marker=marker)
            style = "--o" if len(held_out) < _SMOOTHED else "--"
            axes.plot(*held_out.T, style, color=color, lw=1.1, ms=3.5)
        for kind, (_, style) in MARKS.items():
            axes.vlines(
                [e["step"] for e in run.events if e["event"] == kind],
                0,
                1,
                colors=color,
                linestyles=style,
                linewidth=0.8,
                alpha=0.6,
                transform=axes.get_xaxis_transform(),
            )
    if not panel.late:
        for value, label in references(panel.metrics[0], runs):
            axes.axhline(value, color="#858585", ls=":", linewidth=1)
            where = ("axes fraction", "data")
            axes.annotate(label, (0.99, value), xycoords=where, ha="right")
    margin = 0.01 * (right - left) or 0.5
    axes.set_xlim(left - margin, right + margin)
    axes.set_title(panel.title)
    axes.set_xlabel("step")
    axes.grid(alpha=0.15, color="black")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if panel.scale == "log":
        axes.set_yscale("log", nonpositive="mask")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter())
    elif panel.scale == "percent":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _smooth(points: np.ndarray) -> np.ndarray:
    """Moving averages over 2 % of the points, of steps and of values."""
    width = len(points) // 50
    sums = np.cumsum(np.vstack([np.zeros(2), points]), axis=0)
    return (sums[width:] - sums[:-width]) / width


def _legend(runs: Sequence[RunHistory]) -> list[Line2D]:
    handles = [
        Line2D([], [], color=color, label=run.name, linewidth=3)
        for color, run in zip(COLORS * len(runs), runs, strict=False)
    ]
    handles += [
        Line2D([], [], color="gray", label="training, smoothed"),
        Line2D([], [], color="gray", alpha=0.4, label="training, each line"),
        Line2D([], [], color="gray", ls="--", marker="o", label="held-out set"),
        Line2D([], [], color="#858585", ls=":", label="for comparison"),
    ]
    return handles + [
        Line2D([], [], color="gray", ls=style, lw=0.8, label=label)
        for kind, (label, style) in MARKS.items()
        if any(event["event"] == kind for run in runs for event in run.events)
    ]
