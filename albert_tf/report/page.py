"""A report as one HTML page that needs no network and runs no script."""

import string
from collections.abc import Sequence
from html import escape

from albert_tf.report.curves import picture
from albert_tf.report.facts import Row, event_rows, fact_rows, setting_rows
from albert_tf.report.runs import RunHistory

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


def page(
    runs: Sequence[RunHistory], x_axis: str, metrics: Sequence[str] = ()
) -> str:
    """Returns the page.

    Args:
        runs: At least one.
        x_axis: "step", "tokens" or "hours".
        metrics: Names of the metrics to draw; empty for all.

    Raises:
        UserError: If a run directory lacks the data of the axis, or if no run
            has a metric.
    """
    names = [run.name for run in runs]
    settings = setting_rows(runs)
    different = [row for row in settings if len(set(row[1:])) > 1]
    image = picture(runs, x_axis, metrics, "svg").decode()
    return _PAGE.substitute(
        title=escape("Training: " + ", ".join(names)),
        facts=_table(["", *names], fact_rows(runs)),
        different=_table(["", *names], different),
        curves=image[image.index("<svg") :],
        events=_table(
            ["run", "time (UTC)", "step", "event", "details"], event_rows(runs)
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
