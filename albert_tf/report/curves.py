"""The panels of a report, drawn by matplotlib: as one PNG, or as SVGs."""

import dataclasses
import io
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogFormatter, PercentFormatter

from albert_tf.report.runs import RunHistory
from albert_tf.training.metrics import PAPER_REFERENCE

# Told apart by most eyes, on white and on black.
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


@dataclasses.dataclass(frozen=True)
class Panel:
    """What one set of axes shows.

    Attributes:
        figure: Its name in metrics.jsonl.
        title: Above the axes, with the unit.
        low, high: Figures that a band around it lies between; without `low`
            it begins at the figure itself.
        scale: "linear", "log" or "percent".
        smooth: Whether a smoothed line stands above that of all points.
        late: Whether only the second half is shown, on a scale of its own
            that leaves outliers out.
    """

    figure: str
    title: str
    low: str = ""
    high: str = ""
    scale: str = "linear"
    smooth: bool = True
    late: bool = False

    @property
    def key(self) -> str:
        """Tells panels apart."""
        return f"{self.figure}{'_late' if self.late else ''}"


PANELS = (
    Panel("masked_lm_loss", "Masked-LM loss (nats)"),
    Panel(
        "masked_lm_loss",
        "Masked-LM loss, second half without outliers (nats)",
        late=True,
    ),
    Panel("masked_lm_accuracy", "Masked-LM accuracy", scale="percent"),
    Panel("sentence_order_loss", "Sentence-order loss (nats)"),
    Panel(
        "sentence_order_accuracy", "Sentence-order accuracy", scale="percent"
    ),
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
    Panel("tokens_per_second", "Tokens a second, padding included"),
    Panel("mfu", "Share of the peak FLOP/s used (MFU)", scale="percent"),
    Panel(
        "input_bound_share",
        "Share of the time that steps waited for input",
        scale="percent",
    ),
    Panel(
        "step_seconds_median",
        "Seconds a step: median to 95th percentile",
        high="step_seconds_p95",
    ),
    Panel(
        "goodput",
        "Goodput: share of wall-clock that became kept steps",
        scale="percent",
        smooth=False,
    ),
)

AXIS_LABELS = {
    "step": "step",
    "tokens": "tokens trained on, padding included",
    "hours": "hours of training, kept steps alone",
}


@dataclasses.dataclass(frozen=True)
class Mark:
    """How an event is marked.

    Attributes:
        label: For the legend.
        symbol: In a legend that is text.
        marker: matplotlib's.
    """

    label: str
    symbol: str
    marker: str


MARKS = {
    "resume": Mark("restart", "▼", "v"),
    "rollback": Mark("rollback", "✖", "X"),
    "dropout": Mark("dropout switched", "●", "o"),
    "data": Mark("data switched", "■", "s"),
    "corrupt_records": Mark("damaged records left out", "✚", "P"),
}

# A second half is worth its own panel from so many points on.
_POINTS_FOR_LATE = 20
# Held-out points are marked one by one up to so many.
_POINTS_FOR_MARKERS = 40
# Marks nearer to each other than this share of the axis are drawn as one.
_MARK_DISTANCE = 1 / 300
# Drawn in this colour, which the page replaces by that of its text.
_INK = "#010203"


def color_of(number: int) -> str:
    """The colour of a run, by its place among the runs."""
    return COLORS[number % len(COLORS)]


def panels_of(runs: Sequence[RunHistory]) -> list[Panel]:
    """The panels that any of the runs has something for."""

    def num_points(panel: Panel) -> int:
        return max(
            run.curve(split, panel.figure).num_points
            for run in runs
            for split in ("train", "eval")
        )

    return [
        panel
        for panel in PANELS
        if num_points(panel) >= (_POINTS_FOR_LATE if panel.late else 1)
    ]


def marks_of(runs: Sequence[RunHistory]) -> dict[str, Mark]:
    """The kinds of marks that any of the runs has, by kind of event."""
    return {
        kind: mark
        for kind, mark in MARKS.items()
        if any(run.count_events(kind) for run in runs)
    }


def references(
    figure: str, runs: Sequence[RunHistory]
) -> Iterator[tuple[float, str]]:
    """Values to judge a figure by, each with its name."""
    if figure == "masked_lm_loss":
        entropies = {
            round(run.records["unigram_entropy_nats"], 3)
            for run in runs
            if "unigram_entropy_nats" in run.records
        }
        for entropy in sorted(entropies):
            yield entropy, f"unigram entropy {entropy:.2f}"
    objectives = {
        run.settings[name]
        for run in runs
        if (name := "training.sentence_objective") in run.settings
    }
    if figure.startswith("sentence_order") and objectives:
        # Half of the pairs are of either label.
        if figure == "sentence_order_loss":
            yield math.log(2), "chance, ln 2"
        else:
            yield 0.5, "chance"
    for objective in sorted(objectives & set(PAPER_REFERENCE)):
        if figure in PAPER_REFERENCE[objective]:
            yield (
                PAPER_REFERENCE[objective][figure],
                f"paper, base, {objective}, 125k steps",
            )


def picture(runs: Sequence[RunHistory], x_axis: str) -> bytes:
    """All panels as one PNG.

    Args:
        runs: At least one.
        x_axis: "step", "tokens" or "hours".

    Raises:
        UserError: If a run does not tell what the axis needs.
    """
    panels = panels_of(runs)
    num_columns = 2 if len(panels) <= 4 else 3
    num_rows = -(-len(panels) // num_columns)
    with matplotlib.rc_context(_style("black")):
        figure = Figure(
            figsize=(5.4 * num_columns, 3.2 * num_rows + 0.6),
            layout="constrained",
        )
        grid = figure.subplots(num_rows, num_columns, squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            axes.set_title(panel.title)
            draw_panel(axes, panel, runs, x_axis)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        handles = _legend(runs)
        figure.legend(
            handles=handles,
            loc="outside upper center",
            ncols=min(len(handles), 2 * num_columns),
            frameon=False,
        )
        return _saved(figure, format="png", dpi=110)


def panel_svg(panel: Panel, runs: Sequence[RunHistory], x_axis: str) -> str:
    """One panel as an SVG element to stand in a page.

    It takes its ink from the text around it, its width from its place.

    Args:
        panel: What to draw.
        runs: At least one.
        x_axis: As `picture`.

    Raises:
        UserError: As `picture`.
    """
    with matplotlib.rc_context(_style(_INK) | {"svg.hashsalt": panel.key}):
        figure = Figure(figsize=(5.4, 3.1), layout="constrained")
        draw_panel(figure.subplots(), panel, runs, x_axis)
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        image = _saved(
            figure, format="svg", transparent=True, metadata=nothing
        ).decode()
    image = image[image.index("<svg") :].replace(_INK, "currentColor")
    # Names that nothing refers to would stand in the page once a panel.
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', image))
    image = re.sub(
        r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", image
    )
    # Sizes in points would keep it from shrinking to a phone.
    return re.sub(r' (?:width|height)="[^"]*pt"', "", image, count=2)


def describe_panel(
    panel: Panel, runs: Sequence[RunHistory], x_axis: str
) -> str:
    """What a panel shows, for those who do not see it."""
    parts = [f"{panel.title} over {AXIS_LABELS[x_axis]}"]
    for run in runs:
        for split, word in (("train", "training"), ("eval", "held out")):
            points = run.curve(split, panel.figure).extremes()
            if not len(points):
                continue
            (_, first), (step, last) = points[0], points[-1]
            parts.append(
                f"{run.name}, {word}: from {first:.4g} to {last:.4g} at step "
                f"{step:,.0f}, between {points[:, 1].min():.4g} and "
                f"{points[:, 1].max():.4g}"
            )
    for value, label in references(panel.figure, runs):
        parts.append(f"for comparison: {label}, {value:.4g}")
    return ". ".join(parts) + "."


def draw_panel(
    axes: Axes, panel: Panel, runs: Sequence[RunHistory], x_axis: str
) -> None:
    """Draws a panel.

    Args:
        axes: Where.
        panel: What.
        runs: Whose.
        x_axis: Over what, see `picture`.
    """
    right = max(float(run.x_values(run.last_step, x_axis)) for run in runs)
    left = right / 2 if panel.late else 0.0
    for number, run in enumerate(runs):
        _draw_run(axes, panel, run, color_of(number), x_axis, left)
    if not panel.late:
        named = list(references(panel.figure, runs))
        for value, _ in named:
            axes.axhline(value, color=REFERENCE_COLOR, ls=":", linewidth=1)
        for value, label in named:
            _name_reference(axes, value, label)
    if panel.late:
        drawn = [np.asarray(line.get_ydata()) for line in axes.lines]
        # Of normal noise, three standard deviations to each side.
        low, high = np.quantile(np.concatenate(drawn), (0.05, 0.95))
        margin = 0.4 * (high - low) or 0.1
        axes.set_ylim(low - margin, high + margin)
    margin = 0.01 * (right - left) or 0.5
    axes.set_xlim(left - margin, right + margin)
    axes.set_xlabel(AXIS_LABELS[x_axis])
    axes.grid(alpha=0.15)
    if x_axis != "hours":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if panel.scale == "log":
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter())
    elif panel.scale == "percent":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    elif panel.figure == "tokens_per_second":
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    for number, run in enumerate(runs):
        _draw_marks(axes, run, color_of(number), x_axis, (left, right))


def _draw_run(
    axes: Axes,
    panel: Panel,
    run: RunHistory,
    color: str,
    x_axis: str,
    left: float,
) -> None:
    def placed(points: np.ndarray) -> np.ndarray:
        points = points.copy()
        points[:, 0] = run.x_values(points[:, 0], x_axis)
        points = points[points[:, 0] >= left]
        if panel.scale == "log":  # where 0 has no place
            points = points[points[:, 1] > 0]
        return points

    trained = run.curve("train", panel.figure)
    points = placed(trained.extremes())
    smoothed = placed(trained.smoothed())
    is_smoothed = panel.smooth and len(smoothed) >= 100
    if panel.high:
        low = run.curve("train", panel.low or panel.figure)
        high = run.curve("train", panel.high)
        _fill(axes, placed(low.extremes()), placed(high.extremes()), color)
    elif is_smoothed:
        axes.plot(*points.T, color=color, alpha=0.4, linewidth=0.7)
    if panel.high or is_smoothed:
        points = smoothed
    # A single point is no line.
    marker = "." if len(points) == 1 else None
    axes.plot(*points.T, color=color, linewidth=1.3, marker=marker)
    held_out = placed(run.curve("eval", panel.figure).extremes())
    if len(held_out):
        axes.plot(
            *held_out.T,
            color=color,
            linewidth=1.1,
            linestyle="--",
            marker="o" if len(held_out) <= _POINTS_FOR_MARKERS else None,
            markersize=3.5,
        )


def _fill(axes: Axes, low: np.ndarray, high: np.ndarray, color: str) -> None:
    if not (len(low) and len(high)):
        return
    places = np.union1d(low[:, 0], high[:, 0])
    axes.fill_between(
        places,
        np.interp(places, *low.T),
        np.interp(places, *high.T),
        color=color,
        alpha=0.25,
        linewidth=0,
    )


def _name_reference(axes: Axes, value: float, label: str) -> None:
    """On the side where there is room, under the marks at the top."""
    bottom, top = axes.get_ylim()
    axes.annotate(
        label,
        (0.99, value),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="top" if value > (bottom + top) / 2 else "bottom",
        fontsize=8,
        zorder=10,
    )


def _draw_marks(
    axes: Axes,
    run: RunHistory,
    color: str,
    x_axis: str,
    limits: tuple[float, float],
) -> None:
    distance = (limits[1] - limits[0]) * _MARK_DISTANCE
    on_top = axes.get_xaxis_transform()
    for kind, mark in MARKS.items():
        steps = [e["step"] for e in run.events if e["event"] == kind]
        drawn: list[float] = []
        for place in np.sort(run.x_values(steps, x_axis)):
            is_apart = not drawn or place - drawn[-1] >= distance
            if limits[0] <= place <= limits[1] and is_apart:
                drawn.append(place)
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
            marker=mark.marker,
            markersize=5,
            color=color,
            clip_on=False,
        )


def _legend(runs: Sequence[RunHistory]) -> list[Line2D]:
    handles = [
        Line2D([], [], color=color_of(number), label=run.name, linewidth=3)
        for number, run in enumerate(runs)
    ]
    handles += [
        Line2D([], [], color="gray", label="training, smoothed"),
        Line2D([], [], color="gray", alpha=0.4, label="training, each line"),
        Line2D([], [], color="gray", ls="--", marker="o", label="held out"),
        Line2D([], [], color="gray", ls=":", label="for comparison"),
    ]
    handles += [
        Line2D([], [], color="gray", ls="", marker=m.marker, label=m.label)
        for m in marks_of(runs).values()
    ]
    return handles


def _style(ink: str) -> Any:
    return {
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "axes.titlesize": 10,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "font.size": 9,
        "grid.color": ink,
        "svg.fonttype": "none",  # text stays text
        "text.color": ink,
        "text.parse_math": False,  # a run's name may hold a dollar
        "xtick.color": ink,
        "ytick.color": ink,
    }


def _saved(figure: Figure, **options: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, **options)
    return file.getvalue()
