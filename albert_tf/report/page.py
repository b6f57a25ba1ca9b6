"""A report as one HTML page that needs no network and runs no script."""

import datetime
import string
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from matplotlib.ticker import EngFormatter

from albert_tf.report.curves import MARKS, picture
from albert_tf.report.runs import SECONDS_PER_HOUR, RunHistory

# The table lists the first and the last MAX_EVENTS events of a run.
MAX_EVENTS = 100

UNKNOWN = "-"

Row = list[str]

_PAGE = string.Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>$title</title>
<style>
body { font-family: sans-serif; margin: 1rem; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { border-bottom: 1px solid #ccc; padding: .2rem .6rem;
  text-align: left; vertical-align: top; }
</style>
</head>
<body>
<h1>$title</h1>
<h2>Runs</h2>
$facts
<h2>Settings that differ</h2>
$different
<h2>Curves</h2>
$curves
<h2>Events</h2>
$events
<details><summary>All settings, and facts of the records</summary>
$settings
</details>
</body>
</html>
""")


def page(runs: Sequence[RunHistory], metrics: Sequence[str] = ()) -> str:
    """Returns the page; the arguments are those of `curves.picture`."""
    names = [run.name for run in runs]
    settings = _rows(
        [
            run.settings
            | {f"records.{name}": value for name, value in run.records.items()}
            for run in runs
        ]
    )
    settings = [row for row in settings if row[0] != "training.output_dir"]
    different = [row for row in settings if len(set(row[1:])) > 1]
    facts = _rows([_facts(run) for run in runs])
    known = [row for row in facts if set(row[1:]) != {UNKNOWN}]
    image = picture(runs, metrics, "svg").decode()
    return _PAGE.substitute(
        title=escape("Training: " + ", ".join(names)),
        facts=_table(["", *names], known),
        different=_table(["", *names], different),
        curves=image[image.index("<svg") :],
        events=_table(
            ["run", "time (UTC)", "step", "event", "details"],
            [row for run in runs for row in _event_rows(run)],
        ),
        settings=_table(["", *names], settings),
    )


def _table(header: Row, rows: Sequence[Row]) -> str:
    """Returns an HTML table with a heading row and a heading column."""
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "\n".join(
        f"<tr><th>{escape(row[0])}</th>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return f"<table>\n<tr>{head}</tr>\n{body}\n</table>"


def _rows(columns: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row per name, with its value in each column."""
    names = dict.fromkeys(name for column in columns for name in column)
    return [
        [name, *(_plain(column.get(name)) for column in columns)]
        for name in names
    ]


def _event_rows(run: RunHistory) -> list[Row]:
    """A row per event: run, UTC time, step, event, details."""
    rows = []
    for event in run.events:
        kind, time = event["event"], event["time"]
        details = "; ".join(
            f"{name}: {_plain(value)}"
            for name, value in event.items()
            if name not in ("time", "event", "step")
        )
        rows.append(
            [
                run.name,
                f"{datetime.datetime.fromtimestamp(time, datetime.UTC):%F %T}",
                f"{event['step']:,}",
                MARKS[kind][0] if kind in MARKS else kind,
                details,
            ]
        )
    if (omitted := len(rows) - 2 * MAX_EVENTS) > 0:
        rows[MAX_EVENTS:-MAX_EVENTS] = [
            [run.name, UNKNOWN, UNKNOWN, f"{omitted:,} more", ""]
        ]
    return rows


def _plain(value: Any) -> str:
    """Returns a JSON value as a person would write it."""
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or UNKNOWN
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(v)}" for name, v in value.items())
    return UNKNOWN if value in ("", None) else str(value)


def _facts(run: RunHistory) -> dict[str, str]:
    """What a run was and did; "" if the run directory lacks the fact."""

    def last(split: str, task: str) -> str:
        loss = run.curve(split, f"{task}_loss")
        accuracy = run.curve(split, f"{task}_accuracy")
        if not loss:
            return ""
        fraction = f" ({accuracy.last[1]:.1%})" if accuracy else ""
        return f"{loss.last[1]:.3f}{fraction} at step {loss.last[0]:,.0f}"

    def share(seconds: float) -> str:
        """A part of the time from the first start to the last event."""
        return f"{seconds / total:.1%}, {_duration(seconds)}" if total else ""

    software = [e["software"] for e in run.events if "software" in e]
    tokens, trained = run.tokens, run.seconds["steps"] + run.seconds["input"]
    with_unit = EngFormatter(places=2, sep="")
    mfu = run.curve("train", "mfu")
    waiting = run.curve("train", "input_bound_share")
    steps = run.settings.get("training.num_train_steps")
    known = sum(run.seconds.values())
    wall = run.times[1] - run.times[0] if run.times else 0.0
    total = max(wall, known) if run.times and known else 0.0
    return {
        "directory": run.run_dir,
        "software, last start": _plain(software[-1]) if software else "",
        "state": _state(run),
        "steps": f"{run.last_step:,}" + (f" of {steps:,}" if steps else ""),
        "tokens trained on, padding included": (
            with_unit(tokens) if tokens else ""
        ),
        # Not a mean of rates, which would favor fast steps.
        "tokens per second, over kept steps": (
            with_unit(tokens / trained) if tokens and trained else ""
        ),
        "MFU, mean": f"{mfu.mean:.1%}" if mfu else "",
        "waiting for input, mean": f"{waiting.mean:.1%}" if waiting else "",
        "wall-clock, first start to last event": (
            _duration(wall) if run.times else ""
        ),
        **{f"time for {c}": share(s) for c, s in run.seconds.items()},
        # The time that no log explains, mostly between two processes.
        "time for interruptions and other": share(total - known),
        "restarts": str(run.count_events("resume")) if run.events else "",
        "rollbacks": str(run.count_events("rollback")) if run.events else "",
        "metrics that are NaN or infinite": ", ".join(
            f"{name} ({split}) {curve.num_not_finite}"
            for (split, name), curve in run.curves.items()
            if curve.num_not_finite
        ),
        "masked LM, training, last": last("train", "masked_lm"),
        "masked LM, held-out set, last": last("eval", "masked_lm"),
        "sentence head, held-out set, last": last("eval", "sentence_order"),
        "checkpoints kept": _checkpoints(run),
    }


def _state(run: RunHistory) -> str:
    kinds = ("start", "resume", "stop", "finish", "diverged", "rollback")
    turns = [event for event in run.events if event["event"] in kinds]
    if not turns:
        return ""
    last = turns[-1]
    return {
        "finish": "finished",
        "stop": f"stopped: {last.get('reason', 'on request')}",
        # No rollback followed.
        "diverged": f"diverged: {last.get('reason')}",
    }.get(last["event"], "running, or killed")


def _checkpoints(run: RunHistory) -> str:
    intact = [c.step for c in run.checkpoints if not c.fault]
    best = [c.step for c in run.best_checkpoints if not c.fault]
    num_damaged = len(run.checkpoints) - len(intact)
    parts = []
    if intact:
        parts.append(f"{len(intact)}, newest of step {intact[-1]:,}")
    if best:
        parts.append(f"best of step {best[-1]:,}")
    if num_damaged:
        parts.append(f"{num_damaged} damaged")
    return ", ".join(parts)


def _duration(seconds: float) -> str:
    """Formats a duration, e.g. 12.3 s, 1 min 1 s or 2 d 3 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < SECONDS_PER_HOUR:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    days, minutes = divmod(round(seconds / 60), 24 * 60)
    text = f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{days} d {text}" if days else text
