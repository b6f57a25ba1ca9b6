"""A report as one HTML page, which needs no network and runs no script."""

import datetime
import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from matplotlib.ticker import EngFormatter

from albert_tf.report import curves as report_curves
from albert_tf.report.runs import SECONDS_PER_HOUR, RunHistory

# Events of a run that the page lists: the first and the last so many.
MAX_EVENTS = 100

_UNKNOWN = "-"

# Nothing may be loaded from anywhere, whatever the names of runs hold.
_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1b1b1b; --paper: #fff;
  --soft: #5c5c5c; --rule: #d8d8d8; --shade: #f3f3f3; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e8e8e8;
  --paper: #161616; --soft: #a8a8a8; --rule: #3c3c3c; --shade: #222; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; max-width: 110rem; padding: 1rem;
  font: 1rem/1.45 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); }}
h1 {{ font-size: 1.4rem; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
p {{ color: var(--soft); max-width: 60rem; }}
.legend {{ display: flex; flex-wrap: wrap; gap: .3rem 1.4rem; padding: 0;
  list-style: none; overflow-wrap: anywhere; }}
.sample {{ display: inline-block; width: 1.6rem; margin-right: .4rem;
  vertical-align: middle; border-top: .18rem solid; }}
.run {{ border-top-width: .4rem; }}
.each {{ opacity: .4; border-top-width: .1rem; }}
.held-out {{ border-top-style: dashed; }}
.reference {{ border-top-style: dotted; color: #858585; }}
.panels {{ display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }}
figure {{ margin: 0; }}
figcaption {{ font-weight: 600; font-size: .95rem; }}
svg {{ width: 100%; height: auto; display: block; }}
svg text {{ font-family: system-ui, sans-serif !important; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: .88rem;
  font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25rem .7rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); overflow-wrap: anywhere;
  min-width: 5rem; max-width: 26rem; }}
thead th {{ background: var(--shade); }}
tbody th {{ font-weight: 500; color: var(--soft);
  overflow-wrap: normal; }}
summary {{ cursor: pointer; margin-top: 2rem; font-weight: 600; }}
</style>
</head>
"""


def page(runs: Sequence[RunHistory], x_axis: str) -> str:
    """The whole page.

    Args:
        runs: At least one.
        x_axis: "step", "tokens" or "hours".

    Raises:
        UserError: If a run does not tell what the axis needs.
    """
    title = "Pretraining: " + ", ".join(run.name for run in runs)
    names = [run.name for run in runs]
    parts = [
        _HEAD.format(title=escape(title)),
        f"<body>\n<main>\n<h1>{escape(title)}</h1>",
        "<h2>Runs</h2>",
        _table("Runs", ["", *names], _rows(runs, FACTS)),
    ]
    different = [row for row in _settings(runs) if len(set(row[1:])) > 1]
    if different:
        parts += [
            "<h2>Settings that differ</h2>",
            _table("Settings that differ", ["", *names], different),
        ]
    parts += ["<h2>Curves</h2>", _legend(runs), '<div class="panels">']
    parts += [
        _figure(panel, runs, x_axis) for panel in report_curves.panels_of(runs)
    ]
    parts += ["</div>", "<h2>Events</h2>", _events(runs)]
    settings = _settings(runs)
    if settings:
        parts.append(
            "<details><summary>All settings</summary>"
            + _table("All settings", ["", *names], settings)
            + "</details>"
        )
    return "\n".join([*parts, "</main>\n</body>\n</html>\n"])


def _figure(
    panel: report_curves.Panel, runs: Sequence[RunHistory], x_axis: str
) -> str:
    image = report_curves.panel_svg(panel, runs, x_axis)
    words = escape(report_curves.describe_panel(panel, runs, x_axis))
    image = image.replace("<svg", f'<svg role="img" aria-label="{words}"', 1)
    return (
        f"<figure><figcaption>{escape(panel.title)}</figcaption>"
        f"{image}</figure>"
    )


def _legend(runs: Sequence[RunHistory]) -> str:
    items = [
        (
            '<span class="sample run" style="border-color:'
            f'{report_curves.color_of(number)}"></span>',
            run.name,
        )
        for number, run in enumerate(runs)
    ]
    items += [
        ('<span class="sample"></span>', "training, smoothed"),
        (
            '<span class="sample each"></span>',
            "training, each line of the log; of many, the lowest and highest",
        ),
        ('<span class="sample held-out"></span>', "held out"),
        ('<span class="sample reference"></span>', "for comparison"),
    ]
    items += [
        (mark.symbol + " ", mark.label)
        for mark in report_curves.marks_of(runs).values()
    ]
    listed = "".join(
        f"<li>{sample}{escape(label)}</li>" for sample, label in items
    )
    return f'<ul class="legend">{listed}</ul>'


def _table(
    label: str, header: Sequence[str], rows: Iterable[Sequence[str]]
) -> str:
    """A table whose first column heads its rows; it scrolls by itself."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide" role="region" tabindex="0" '
        f'aria-label="{escape(label)}"><table><thead><tr>{head}</tr></thead>'
        f"\n<tbody>\n{body}\n</tbody></table></div>"
    )


# --- what is told of each run -------------------------------------------------


def _rows(
    runs: Sequence[RunHistory],
    facts: Sequence[tuple[str, Callable[[RunHistory], str]]],
) -> list[list[str]]:
    """A row a fact; those that no run knows are left out."""
    rows = [[name, *(tell(run) for run in runs)] for name, tell in facts]
    return [row for row in rows if set(row[1:]) != {_UNKNOWN}]


def _state(run: RunHistory) -> str:
    kinds = ("start", "resume", "stop", "finish")
    turns = [event for event in run.events if event["event"] in kinds]
    if not turns:
        return _UNKNOWN
    last = turns[-1]
    if last["event"] == "finish":
        return "finished"
    if last["event"] == "stop":
        return f"stopped: {last.get('reason', 'on request')}"
    return "running, or killed"


def _steps(run: RunHistory) -> str:
    wanted = run.settings.get("training.num_train_steps")
    of_all = f" of {wanted:,}" if wanted else ""
    return f"{run.last_step:,}{of_all}"


def _tokens(run: RunHistory) -> str:
    per_step = run.tokens_per_step()
    return _UNKNOWN if per_step is None else _short(run.last_step * per_step)


def _wall_clock(run: RunHistory) -> str:
    if run.times is None:
        return _UNKNOWN
    return _duration(run.times[1] - run.times[0])


def _hours(run: RunHistory) -> str:
    hours = run.hours()
    return _UNKNOWN if hours is None else _duration(hours * SECONDS_PER_HOUR)


def _tokens_per_second(run: RunHistory) -> str:
    """Over all kept steps: a mean of rates would favour the fast ones."""
    per_step, hours = run.tokens_per_step(), run.hours()
    if not (per_step and hours):
        return _UNKNOWN
    trained = run.curve("train", "loop_seconds").last[0]
    return _short(trained * per_step / (hours * SECONDS_PER_HOUR))


def _mean_share(figure: str) -> Callable[[RunHistory], str]:
    def tell(run: RunHistory) -> str:
        mean = run.curve("train", figure).mean()
        return _UNKNOWN if math.isnan(mean) else f"{mean:.1%}"

    return tell


def _tflops(run: RunHistory) -> str:
    mean = run.curve("train", "tflops").mean()
    return _UNKNOWN if math.isnan(mean) else f"{mean:.3g}"


def _goodput(run: RunHistory) -> str:
    last = run.curve("train", "goodput").last[1]
    return _UNKNOWN if math.isnan(last) else f"{last:.1%}"


def _count(kind: str) -> Callable[[RunHistory], str]:
    def tell(run: RunHistory) -> str:
        return str(run.count_events(kind)) if run.events else _UNKNOWN

    return tell


def _damaged_records(run: RunHistory) -> str:
    if not run.events:
        return _UNKNOWN
    named = [e.get("records", ()) for e in run.events]
    return str(sum(len(records) for records in named))


def _not_finite(run: RunHistory) -> str:
    """Figures of lines that no curve can show."""
    names = [
        f"{name} ({split}) {curve.num_not_finite}"
        for (split, name), curve in run.curves.items()
        if curve.num_not_finite
    ]
    return ", ".join(names) or _UNKNOWN


def _last(split: str, loss: str, accuracy: str) -> Callable[[RunHistory], str]:
    def tell(run: RunHistory) -> str:
        curve = run.curve(split, loss)
        if not curve.num_points:
            return _UNKNOWN
        text = f"{curve.last[1]:.3f}"
        share = run.curve(split, accuracy)
        if share.num_points:
            text += f" ({share.last[1]:.1%})"
        return f"{text} at step {curve.last[0]:,.0f}"

    return tell


def _best_held_out(run: RunHistory) -> str:
    curve = run.curve("eval", "loss")
    if not curve.num_points:
        return _UNKNOWN
    step, loss = curve.lowest()
    return f"{loss:.3f} at step {step:,.0f}"


def _checkpoints(run: RunHistory) -> str:
    whole = [c.step for c in run.checkpoints if not c.fault]
    best = [c.step for c in run.best_checkpoints if not c.fault]
    num_torn = len(run.checkpoints) - len(whole)
    parts = []
    if whole:
        parts.append(f"{len(whole)}, newest of step {whole[-1]:,}")
    if best:
        parts.append(f"best of step {best[-1]:,}")
    if num_torn:
        parts.append(f"{num_torn} torn")
    return ", ".join(parts) or _UNKNOWN


def _stall(run: RunHistory) -> str:
    number, stalled = run.checkpoint_events
    if not number:
        return _UNKNOWN
    return f"{_duration(stalled)} for {number:,}"


def _vocabulary(run: RunHistory) -> str:
    records = run.records
    if "vocab_size" not in records:
        return _UNKNOWN
    kind = str(records.get("vocabulary_kind", "")).replace("_", "-")
    sha256 = str(records.get("vocabulary_sha256", ""))[:12]
    return f"{records['vocab_size']:,} pieces, {kind}, sha256 {sha256}…"


def _records(run: RunHistory) -> str:
    records = run.records
    if "num_examples" not in records:
        return _UNKNOWN
    text = f"{records['num_examples']:,} records"
    if "num_documents" in records:
        text += f" of {records['num_documents']:,} documents"
    if "masking" in records:
        text += f", {records['masking']} masking"
    return text


def _entropy(run: RunHistory) -> str:
    entropy = run.records.get("unigram_entropy_nats")
    return _UNKNOWN if entropy is None else f"{entropy:.3f} nats"


def _architecture(run: RunHistory) -> str:
    names = ("num_hidden_layers", "hidden_size", "embedding_size")
    values = [run.settings.get(f"model.{name}") for name in names]
    if None in values:
        return _UNKNOWN
    return f"{values[0]} layers, H={values[1]}, E={values[2]}"


def _batch(run: RunHistory) -> str:
    batch = run.settings.get("data.global_batch_size")
    length = run.settings.get("data.max_seq_length")
    return f"{batch:,} x {length}" if batch and length else _UNKNOWN


def _short(number: float) -> str:
    return EngFormatter(places=2, sep="")(number)


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < SECONDS_PER_HOUR:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    days, minutes = divmod(round(seconds / 60), 24 * 60)
    text = f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{days} d {text}" if days else text


FACTS: tuple[tuple[str, Callable[[RunHistory], str]], ...] = (
    ("directory", lambda run: run.run_dir),
    ("state", _state),
    ("architecture", _architecture),
    ("batch: examples x positions", _batch),
    ("steps", _steps),
    ("tokens trained on, padding included", _tokens),
    ("wall-clock, first to last event", _wall_clock),
    ("time in kept steps", _hours),
    ("goodput", _goodput),
    ("tokens a second, over kept steps", _tokens_per_second),
    ("model TFLOP/s, mean", _tflops),
    ("MFU, mean", _mean_share("mfu")),
    ("waiting for input, mean", _mean_share("input_bound_share")),
    ("restarts", _count("resume")),
    ("rollbacks", _count("rollback")),
    ("damaged records left out", _damaged_records),
    ("figures that are no finite numbers", _not_finite),
    (
        "masked LM, training, last",
        _last("train", "masked_lm_loss", "masked_lm_accuracy"),
    ),
    (
        "masked LM, held out, last",
        _last("eval", "masked_lm_loss", "masked_lm_accuracy"),
    ),
    (
        "sentence order, held out, last",
        _last("eval", "sentence_order_loss", "sentence_order_accuracy"),
    ),
    ("sum of losses, held out, lowest", _best_held_out),
    ("unigram entropy of the corpus", _entropy),
    ("checkpoints kept", _checkpoints),
    ("waiting for checkpoints", _stall),
    ("vocabulary", _vocabulary),
    ("records", _records),
)


def _settings(runs: Sequence[RunHistory]) -> list[list[str]]:
    """A row a setting, the run's own directory left out."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    names.pop("training.output_dir", None)

    return [
        [name, *(_plain(run.settings.get(name)) for run in runs)]
        for name in names
    ]


def _plain(value: Any) -> str:
    """A value of JSON as a person would write it."""
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or _UNKNOWN
    return _UNKNOWN if value in ("", None) else str(value)


def _events(runs: Sequence[RunHistory]) -> str:
    rows = []
    for run in runs:
        events = run.events
        omitted = len(events) - 2 * MAX_EVENTS
        for number, event in enumerate(events):
            if omitted > 0 and number == MAX_EVENTS:
                rows.append(
                    [run.name, _UNKNOWN, _UNKNOWN, f"{omitted:,} more", ""]
                )
            if omitted <= 0 or not (
                MAX_EVENTS <= number < MAX_EVENTS + omitted
            ):
                rows.append(_event_row(run, event))
    if not rows:
        return "<p>None was noted.</p>"
    header = ["run", "time (UTC)", "step", "event", "facts"]
    return _table("Events", header, rows)


def _event_row(run: RunHistory, event: dict[str, Any]) -> list[str]:
    mark = report_curves.MARKS.get(event["event"])
    facts = "; ".join(
        f"{name}: {_plain(value)}"
        for name, value in event.items()
        if name not in ("time", "event", "step")
    )
    return [
        run.name,
        datetime.datetime.fromtimestamp(event["time"], datetime.UTC).strftime(
            "%Y-%m-%d %H:%M:%S"
        ),
        f"{event['step']:,}",
        f"{mark.symbol} {mark.label}" if mark else event["event"],
        facts,
    ]
