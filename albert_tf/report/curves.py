"""Draws the learning curves of runs as one picture, PNG or SVG."""

import dataclasses
import io
import math
from collections.abc import Iterator, Sequence
from typing import Any

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
REFERENCE_COLOR = "#858585"

STYLE: Any = {
    "axes.titlesize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # the name of a run may contain a dollar sign
}


@dataclasses.dataclass(frozen=True)
class Panel:
    """The content of one set of axes.

    Attributes:
        low, high: Metrics that bound a shaded band; without `low` the band
            begins at the metric.
        scale: "linear", "log" or "percent".
        smooth: Whether a smoothed line is drawn over the line of all points.
        late: Only the second half of the run, with limits without outliers.
    """

    metric: str
    title: str
    low: str = ""
    high: str = ""
    scale: str = "linear"
    smooth: bool = True
    late: bool = False


PANELS = (
    Panel("masked_lm_loss", "Masked-LM loss (nats)"),
    Panel(
        "masked_lm_loss",
        "Masked-LM loss, second half without outliers (nats)",
        late=True,
    ),
    Panel("masked_lm_accuracy", "Masked-LM accuracy", scale="percent"),
    Panel("sentence_order_loss", "Sentence loss (nats)"),
    Panel("sentence_order_accuracy", "Sentence accuracy", scale="percent"),
    Panel("learning_rate", "Learning rate", smooth=False),
    Panel("dropout", "Dropout", smooth=False),
    Panel("gradient_norm", "Gradient norm, before clipping", scale="log"),
    Panel("update_norm", "Update norm", scale="log"),
    Panel(
        "trust_ratio_mean",
        "Trust ratios of LAMB: lowest, mean, highest",
        low="trust_ratio_min",
        high="trust_ratio_max",
        scale="log",
    ),
    Panel("tokens_per_second", "Tokens per second, padding included"),
    Panel("useful_tokens_per_second", "Tokens per second, without padding"),
    Panel("mfu", "Fraction of the peak FLOP/s used (MFU)", scale="percent"),
    Panel(
        "input_bound_share",
        "Fraction of time that steps waited for input",
        scale="percent",
    ),
    Panel(
        "step_seconds_median",
        "Seconds per step: median to 95th percentile",
        high="step_seconds_p95",
    ),
)

# Kind of event -> label in the legend, marker of matplotlib.
MARKS = {
    "resume": ("restart", "v"),
    "rollback": ("rollback", "X"),
    "dropout": ("dropout switched", "o"),
    "data": ("data switched", "s"),
}

# Smallest number of points of a run for a panel of its second half.
_POINTS_FOR_LATE = 20
# Largest number of held-out points that are drawn with markers.
_POINTS_FOR_MARKERS = 40
# Marks closer than this fraction of the axis are drawn as one.
_MARK_DISTANCE = 1 / 300


def find_panels(
    runs: Sequence[RunHistory], metrics: Sequence[str] = ()
) -> list[Panel]:
    """Returns the panels in which any run has points; see `picture`.

    Raises:
        UserError: If a metric has no panel, or no run has it.
    """

    def has_points(panel: Panel) -> bool:
        left, _ = _limits(panel, runs)
        least = _POINTS_FOR_LATE if panel.late else 1
        return any(
            len(curve) >= least and curve.last[0] >= left
            for run in runs
            for split in ("train", "eval")
            for curve in [run.curve(split, panel.metric)]
        )

    found = [panel for panel in PANELS if has_points(panel)]
    known = list(dict.fromkeys(panel.metric for panel in found))
    for metric in metrics:
        if metric not in known:
            raise UserError(
                "--metrics must name metrics of the runs",
                received=metric,
                remedy=f"The runs have {', '.join(known)}.",
            )
    return [panel for panel in found if not metrics or panel.metric in metrics]


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


def picture(
    runs: Sequence[RunHistory],
    metrics: Sequence[str] = (),
    file_format: str = "png",
) -> bytes:
    """Draws the panels of some metrics, or of all, as "png" or "svg".

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
        figure.savefig(file, format=file_format, dpi=110)
        return file.getvalue()


def draw_panel(axes: Axes, panel: Panel, runs: Sequence[RunHistory]) -> None:
    """Draws one panel, which `find_panels` returns; see `picture`."""
    left, right = _limits(panel, runs)
    for number, run in enumerate(runs):
        _draw_run(axes, panel, run, _color(number), left)
    if panel.late:
        drawn = [np.asarray(line.get_ydata()) for line in axes.lines]
        # For normal noise, the limits are three standard deviations from the
        # mean.
        low, high = np.quantile(np.concatenate(drawn), (0.05, 0.95))
        margin = 0.4 * (high - low) or 0.1
        axes.set_ylim(low - margin, high + margin)
    else:
        _draw_references(axes, list(references(panel.metric, runs)))
    margin = 0.01 * (right - left) or 0.5
    axes.set_xlim(left - margin, right + margin)
    axes.set_title(panel.title)
    axes.set_xlabel("step")
    axes.grid(alpha=0.15, color="black")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if panel.scale == "log":
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter())
    elif panel.scale == "percent":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    elif panel.metric.endswith("tokens_per_second"):
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    for number, run in enumerate(runs):
        _draw_marks(axes, run, _color(number), (left, right))


def _limits(panel: Panel, runs: Sequence[RunHistory]) -> tuple[float, float]:
    """The first and the last step of a panel."""
    right = max(run.last_step for run in runs)
    return (right / 2 if panel.late else 0.0), right


def _color(number: int) -> str:
    return COLORS[number % len(COLORS)]


def _draw_run(
    axes: Axes, panel: Panel, run: RunHistory, color: str, left: float
) -> None:
    """Draws the curves of a run: training, its band, and the held-out set."""

    def visible(points: np.ndarray) -> np.ndarray:
        points = points[points[:, 0] >= left]
        # A logarithmic axis has no 0.
        return points[points[:, 1] > 0] if panel.scale == "log" else points

    trained = run.curve("train", panel.metric)
    points = visible(trained.extremes())
    smoothed = visible(trained.smoothed())
    is_smoothed = panel.smooth and len(smoothed) >= 100
    if panel.high:
        low = visible(run.curve("train", panel.low or panel.metric).extremes())
        high = visible(run.curve("train", panel.high).extremes())
        if len(low) and len(high):
            x_values = np.union1d(low[:, 0], high[:, 0])
            bounds = (np.interp(x_values, *band.T) for band in (low, high))
            axes.fill_between(
                x_values, *bounds, color=color, alpha=0.25, linewidth=0
            )
    elif is_smoothed:
        axes.plot(*points.T, color=color, alpha=0.4, linewidth=0.7)
    if panel.high or is_smoothed:
        points = smoothed
    # A single point needs a marker to be visible.
    marker = "." if len(points) == 1 else None
    axes.plot(*points.T, color=color, linewidth=1.3, marker=marker)
    held_out = visible(run.curve("eval", panel.metric).extremes())
    if len(held_out):
        axes.plot(
            *held_out.T,
            color=color,
            linewidth=1.1,
            linestyle="--",
            marker="o" if len(held_out) <= _POINTS_FOR_MARKERS else None,
            markersize=3.5,
        )


def _draw_references(axes: Axes, named: Sequence[tuple[float, str]]) -> None:
    """Draws lines to compare with, each with its label."""
    for value, _ in named:
        axes.axhline(value, color=REFERENCE_COLOR, ls=":", linewidth=1)
    bottom, top = axes.get_ylim()
    for value, label in named:
        axes.annotate(
            label,
            (0.99, value),
            xycoords=("axes fraction", "data"),
            ha="right",
            # The label goes to the side of the line with more space.
            va="top" if value > (bottom + top) / 2 else "bottom",
            fontsize=8,
            zorder=10,
        )


def _draw_marks(
    axes: Axes, run: RunHistory, color: str, limits: tuple[float, float]
) -> None:
    """Marks the events of a run at the top of the panel."""
    distance = (limits[1] - limits[0]) * _MARK_DISTANCE or 1.0
    on_top = axes.get_xaxis_transform()
    for kind, (_, marker) in MARKS.items():
        steps = [e["step"] for e in run.events if e["event"] == kind]
        inside = (x for x in steps if limits[0] <= x <= limits[1])
        drawn = sorted({x // distance: x for x in inside}.values())
        if not drawn:
            continue
        axes.vlines(
            drawn, 0, 1, color, linewidth=0.7, alpha=0.45, transform=on_top
        )
        axes.plot(
            drawn,
            [1.0] * len(drawn),
            transform=on_top,
            linestyle="",
            marker=marker,
            markersize=5,
            color=color,
            clip_on=False,
        )


def _legend(runs: Sequence[RunHistory]) -> list[Line2D]:
    handles = [
        Line2D([], [], color=_color(number), label=run.name, linewidth=3)
        for number, run in enumerate(runs)
    ]
    handles += [
        Line2D([], [], color="gray", label="training, smoothed"),
        Line2D([], [], color="gray", alpha=0.4, label="training, each line"),
        Line2D([], [], color="gray", ls="--", marker="o", label="held-out set"),
        Line2D([], [], color="gray", ls=":", label="for comparison"),
    ]
    return handles + [
        Line2D([], [], color="gray", ls="", marker=marker, label=label)
        for kind, (label, marker) in MARKS.items()
        if any(run.count_events(kind) for run in runs)
    ]
