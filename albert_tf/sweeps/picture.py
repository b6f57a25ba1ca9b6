"""Draws the results of a sweep as one picture."""

import io
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, PercentFormatter

from albert_tf.report.curves import COLORS, REFERENCE_COLOR, STYLE
from albert_tf.report.runs import RunHistory
from albert_tf.sweeps.plan import Plan
from albert_tf.sweeps.results import Results
from albert_tf.sweeps.run_state import is_trained

CURVE = "masked_lm_loss"

# The first variants have solid lines in all colors, the next ones dashed lines,
# and so on. The marker is that of the runs. An empty diamond is the paper.
_LINES_AND_MARKERS = (("-", "o"), ("--", "^"), (":", "s"), ("-.", "X"))


def picture(
    results: Results, sweep_dir: str, file_format: str = "png"
) -> bytes:
    """Draws the loss of all finished runs, and their metrics by variant.

    Args:
        results: The metrics of the finished runs.
        sweep_dir: `--output_dir` of the sweep.
        file_format: "png" or "svg".
    """
    plan = results.plan
    with matplotlib.rc_context(STYLE):
        num_panels = 1 + len(plan.metrics)
        num_columns = min(3, num_panels)
        num_rows = -(-num_panels // num_columns)
        figure = Figure(
            figsize=(4.6 * num_columns, 3.4 * num_rows), layout="constrained"
        )
        grid = figure.subplots(num_rows, num_columns, squeeze=False)
        curves, *others = grid.flat
        draw_curves(curves, plan, sweep_dir)
        for axes, metric in zip(others, plan.metrics, strict=False):
            draw_metric(axes, results, metric)
        for axes in others[len(plan.metrics) :]:
            axes.set_axis_off()
        handles = legend_handles(plan)
        # In inches: a character of the longest name, and the line before it.
        longest = max(len(str(handle.get_label())) for handle in handles)
        entry_width = 0.075 * longest + 0.8
        figure.legend(
            handles=handles,
            loc="outside upper center",
            ncols=max(1, int(figure.get_figwidth() / entry_width)),
            frameon=False,
            handlelength=3.6,  # a dash-dotted line shows its pattern
        )
        file = io.BytesIO()
        figure.savefig(file, format=file_format, dpi=110)
        return file.getvalue()


def _look(plan: Plan, variant: str) -> dict[str, Any]:
    """Color, line style and marker of a variant; 32 variants differ."""
    line, color = divmod(plan.variants.index(variant), len(COLORS))
    style, marker = _LINES_AND_MARKERS[line % len(_LINES_AND_MARKERS)]
    return {"color": COLORS[color], "linestyle": style, "marker": marker}


def draw_curves(axes: Axes, plan: Plan, sweep_dir: str) -> None:
    """Draws the loss of all finished runs, with a marker at the last step."""
    for run in plan.runs:
        if is_trained(run, sweep_dir):
            history = RunHistory(run.run_dir(sweep_dir), run.name)
            points = history.curve("train", CURVE).smoothed()
            axes.plot(
                *points.T,
                **_look(plan, run.variant),
                linewidth=1,
                markersize=4,
                markevery=[-1],
            )
    axes.set_title("Masked-LM loss in training (nats)")
    axes.set_xlabel("step")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def draw_metric(axes: Axes, results: Results, metric: str) -> None:
    """Draws a metric: a dot per run, a line at the mean, the paper's value."""
    plan = results.plan
    places = dict(zip(plan.variants, range(len(plan.variants)), strict=True))
    for variant, place in places.items():
        look = _look(plan, variant)
        color = look["color"]
        values: Sequence[float] = list(results.of(variant, metric).values())
        # Dots of equal values stay visible.
        offsets = np.linspace(-0.15, 0.15, len(values) + 2)[1:-1]
        axes.plot(
            place + offsets,
            values,
            color=color,
            marker=look["marker"],
            linestyle="",
            markersize=4,
        )
        if len(values) > 1:
            axes.hlines(
                np.mean(values), place - 0.3, place + 0.3, color, linewidth=1.5
            )
        published = results.paper(variant, metric)
        if published is not None:
            axes.plot(place, published, "D", mfc="none", mec=REFERENCE_COLOR)
    axes.set_title(metric)
    axes.set_xticks(
        list(places.values()), list(places), rotation=30, ha="right"
    )
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.grid(alpha=0.15, color="black", axis="y")
    if metric.endswith("accuracy"):
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def legend_handles(plan: Plan) -> list[Line2D]:
    """Makes the entries of the legend: variants, runs, means, the paper."""
    handles = [
        Line2D(
            [],
            [],
            **_look(plan, variant),
            label=variant,
            linewidth=2,
            markersize=4,
        )
        for variant in plan.variants
    ]
    handles.append(Line2D([], [], color="gray", marker="o", ls="", label="run"))
    if any(run.seed is not None for run in plan.runs):
        handles.append(Line2D([], [], color="gray", label="mean of the runs"))
    if plan.paper:
        handles.append(
            Line2D(
                [],
                [],
                mec=REFERENCE_COLOR,
                mfc="none",
                marker="D",
                ls="",
                label="paper",
            )
        )
    return handles
