"""A report as one HTML page that needs no network and runs no script."""

import base64
import datetime
import string
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from matplotlib.ticker import EngFormatter

from albert_tf.report.curves import MARKS, picture
from albert_tf.report.runs import RunHistory

UNKNOWN = "-"

Row = list[str]

_PAGE = string.Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>$title</title>
<style>
body { font-family: sans-serif; margin: 1rem; }
img { max-width: 100%; height: auto; }
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
<img alt="Learning curves" src="data:image/png;base64,$curves">
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
    return _PAGE.substitute(
        title=escape("Training: " + ", ".join(names)),
        facts=_table(["", *names], facts),
        different=_table(["", *names], different),
        curves=base64.b64encode(picture(runs, metrics)).decode(),
        events=_table(
            ["run", "time (UTC)", "step", "event", "details"],
            [row for run in runs for row in _event_rows(run)],
        ),
        settings=_table(["", *names], settings),
    )


def _table(header: Row, rows: Sequence[Row]) -> str:
    """An HTML table with a heading row and a heading column."""
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
    return [
        [
            run.name,
            f"{datetime.datetime.fromtimestamp(e['time'], datetime.UTC):%F %T}",
            f"{e['step']:,}",
            MARKS[e["event"]][0] if e["event"] in MARKS else e["event"],
            "; ".join(
                f"{name}: {_plain(value)}"
                for name, value in e.items()
                if name not in ("time", "event", "step")
            ),
        ]
        for e in run.events
    ]


def _plain(value: Any) -> str:
    """A JSON value as a person would write it."""
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or UNKNOWN
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(v)}" for name, v in value.items())
    return UNKNOWN if value in ("", None) else str(value)


def _facts(run: RunHistory) -> dict[str, str]:
    """What a run was and did, as far as the run directory has it."""
    steps = run.settings.get("training.num_train_steps")
    facts = {
        "directory": run.run_dir,
        "steps": f"{run.last_step:,}" + (f" of {steps:,}" if steps else ""),
    }
    trained = run.seconds["steps"]
    if run.tokens and trained:
        with_unit = EngFormatter(places=2, sep="")
        facts["tokens trained on, padding included"] = with_unit(run.tokens)
        # Not a mean of rates, which would favor fast steps.
        rate = with_unit(run.tokens / trained)
        facts["tokens per second, over kept steps"] = rate
    if len(mfu := run.curve("train", "mfu")):
        facts["MFU, mean"] = f"{mfu[:, 1].mean():.1%}"
    if run.times:
        facts |= _describe_times(run, run.times[1] - run.times[0])
    facts |= run.usage
    for (split, metric), curve in run.curves.items():
        if metric.endswith(("loss", "accuracy")):
            step, value = curve[-1]
            where = "held-out set" if split == "eval" else "training"
            facts[f"{metric}, {where}, last"] = (
                f"{value:.4g} at step {step:,.0f}"
            )
    return facts


def _describe_times(run: RunHistory, wall: float) -> dict[str, str]:
    """The state, and the parts of the time from first start to last event."""
    known = sum(run.seconds.values())
    total = max(wall, known)
    # The time that no log explains is mostly between two processes.
    parts = run.seconds | {"interruptions and other": total - known}
    return {
        "state": _state(run),
        "restarts": str(run.count_events("resume")),
        "rollbacks": str(run.count_events("rollback")),
        "wall-clock, first start to last event": _duration(wall),
        **{
            f"time for {cause}": f"{seconds / total:.1%}, {_duration(seconds)}"
            for cause, seconds in parts.items()
            if total
        },
    }


def _state(run: RunHistory) -> str:
    for event in reversed(run.events):
        kind = event["event"]
        if kind in ("stop", "diverged"):
            return f"{kind}: {event.get('reason', 'on request')}"
        if kind == "finish":
            return "finished"
        if kind in ("start", "resume", "rollback"):
            break
    return "running, or killed"


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))
