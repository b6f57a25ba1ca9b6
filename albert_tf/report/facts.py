"""The tables of a report: facts, settings and events of runs, as text."""

import datetime
import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.ticker import EngFormatter

from albert_tf.report.curves import MARKS
from albert_tf.report.runs import CAUSES, SECONDS_PER_HOUR, RunHistory

# The table lists the first and the last MAX_EVENTS events of a run.
MAX_EVENTS = 100

UNKNOWN = "-"

# The time that no log explains, mostly between two processes of a run.
OTHER = "interruptions and other"

Row = list[str]


def fact_rows(runs: Sequence[RunHistory]) -> list[Row]:
    """Returns a row per fact that any run has, and a column per run."""
    rows = [
        [label, *(describe(run) or UNKNOWN for run in runs)]
        for label, describe in FACTS.items()
    ]
    return [row for row in rows if set(row[1:]) != {UNKNOWN}]


def setting_rows(runs: Sequence[RunHistory]) -> list[Row]:
    """Returns a row per setting and fact of the records, a column per run."""
    columns = [
        run.settings
        | {f"records.{name}": value for name, value in run.records.items()}
        for run in runs
    ]
    names = dict.fromkeys(name for column in columns for name in column)
    names.pop("training.output_dir", None)
    return [
        [name, *(_plain(column.get(name)) for column in columns)]
        for name in names
    ]


def event_rows(runs: Sequence[RunHistory]) -> list[Row]:
    """Returns a row per event: run, UTC time, step, event, details."""
    rows = []
    for run in runs:
        events = [_event_row(run, event) for event in run.events]
        if (omitted := len(events) - 2 * MAX_EVENTS) > 0:
            events[MAX_EVENTS:-MAX_EVENTS] = [
                [run.name, UNKNOWN, UNKNOWN, f"{omitted:,} more", ""]
            ]
        rows += events
    return rows


def _event_row(run: RunHistory, event: dict[str, Any]) -> Row:
    kind, time = event["event"], event["time"]
    details = "; ".join(
        f"{name}: {_plain(value)}"
        for name, value in event.items()
        if name not in ("time", "event", "step")
    )
    return [
        run.name,
        f"{datetime.datetime.fromtimestamp(time, datetime.UTC):%F %T}",
        f"{event['step']:,}",
        MARKS[kind][0] if kind in MARKS else kind,
        details,
    ]


def _plain(value: Any) -> str:
    """Returns a JSON value as a person would write it."""
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or UNKNOWN
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(v)}" for name, v in value.items())
    return UNKNOWN if value in ("", None) else str(value)


# --- facts: each function returns "" if the run directory lacks the fact ------


def _state(run: RunHistory) -> str:
    kinds = ("start", "resume", "stop", "finish", "diverged", "rollback")
    turns = [event for event in run.events if event["event"] in kinds]
    if not turns:
        return ""
    last = turns[-1]
    if last["event"] == "finish":
        return "finished"
    if last["event"] == "stop":
        return f"stopped: {last.get('reason', 'on request')}"
    if last["event"] == "diverged":  # no rollback followed
        return f"diverged: {last['reason']}"
    return "running, or killed"


def _steps(run: RunHistory) -> str:
    total = run.settings.get("training.num_train_steps")
    return f"{run.last_step:,}" + (f" of {total:,}" if total else "")


def _tokens(run: RunHistory) -> str:
    tokens = run.tokens()
    return "" if tokens is None else _short(tokens)


def _wall_clock(run: RunHistory) -> str:
    return _duration(run.times[1] - run.times[0]) if run.times else ""


def _kept_time(run: RunHistory) -> str:
    hours = run.hours()
    return "" if hours is None else _duration(hours * SECONDS_PER_HOUR)


def _tokens_per_second(run: RunHistory) -> str:
    """Tokens divided by time, since a mean of rates would favor fast steps."""
    tokens, hours = run.tokens(), run.hours()
    if not (tokens and hours):
        return ""
    return _short(tokens / (hours * SECONDS_PER_HOUR))


def _rate(metric: str, form: str) -> Callable[[RunHistory], str]:
    return lambda run: _format(run.mean_rate(metric), form)


def _mean(metric: str, form: str) -> Callable[[RunHistory], str]:
    return lambda run: _format(run.curve("train", metric).mean, form)


def _goodput(run: RunHistory) -> str:
    return _format(run.curve("train", "goodput").last[1], ".1%")


def _count(kind: str) -> Callable[[RunHistory], str]:
    return lambda run: str(run.count_events(kind)) if run.events else ""


def _software(run: RunHistory) -> str:
    """That of the last start."""
    starts = [event for event in run.events if "software" in event]
    return _plain(starts[-1]["software"]) if starts else ""


def _damaged_records(run: RunHistory) -> str:
    damaged = sum(len(event.get("records", ())) for event in run.events)
    return str(damaged) if run.events else ""


def _not_finite(run: RunHistory) -> str:
    return ", ".join(
        f"{name} ({split}) {curve.num_not_finite}"
        for (split, name), curve in run.curves.items()
        if curve.num_not_finite
    )


def _last(split: str, task: str) -> Callable[[RunHistory], str]:
    def describe(run: RunHistory) -> str:
        loss = run.curve(split, f"{task}_loss")
        accuracy = run.curve(split, f"{task}_accuracy")
        if not loss:
            return ""
        fraction = f" ({accuracy.last[1]:.1%})" if accuracy else ""
        return f"{loss.last[1]:.3f}{fraction} at step {loss.last[0]:,.0f}"

    return describe


def _lowest_held_out(run: RunHistory) -> str:
    curve = run.curve("eval", "loss")
    if not curve:
        return ""
    step, loss = curve.lowest
    return f"{loss:.3f} at step {step:,.0f}"


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


def _stall(run: RunHistory) -> str:
    if not run.num_checkpoints:
        return ""
    stalled = run.seconds["checkpoints"]
    return f"{_duration(stalled)} for {run.num_checkpoints:,}"


def _time_share(cause: str) -> Callable[[RunHistory], str]:
    """Formats a cause's part of the time from first start to last event."""

    def describe(run: RunHistory) -> str:
        if not run.times or not any(run.seconds.values()):
            return ""
        known = sum(run.seconds.values())
        total = max(run.times[1] - run.times[0], known)
        seconds = total - known if cause == OTHER else run.seconds[cause]
        return f"{seconds / total:.1%}, {_duration(seconds)}" if total else ""

    return describe


FACTS: dict[str, Callable[[RunHistory], str]] = {
    "directory": lambda run: run.run_dir,
    "software, last start": _software,
    "state": _state,
    "steps": _steps,
    "tokens trained on, padding included": _tokens,
    "wall-clock, first start to last event": _wall_clock,
    "time in kept steps": _kept_time,
    "goodput": _goodput,
    "tokens per second, over kept steps": _tokens_per_second,
    "examples per second, over kept steps": _rate("examples_per_second", ".3g"),
    "positions that hold tokens, mean": _mean("useful_share", ".1%"),
    "model TFLOP/s, over kept steps": _rate("tflops", ".3g"),
    "MFU, over kept steps": _rate("mfu", ".1%"),
    "MFU of useful tokens, over kept steps": _rate("useful_mfu", ".1%"),
    "waiting for input, mean": _mean("input_bound_share", ".1%"),
    "restarts": _count("resume"),
    "rollbacks": _count("rollback"),
    "damaged records left out": _damaged_records,
    "metrics that are NaN or infinite": _not_finite,
    "masked LM, training, last": _last("train", "masked_lm"),
    "masked LM, held-out set, last": _last("eval", "masked_lm"),
    "sentence head, held-out set, last": _last("eval", "sentence_order"),
    "sum of losses, held-out set, lowest": _lowest_held_out,
    "checkpoints kept": _checkpoints,
    "waiting for checkpoints": _stall,
    **{f"time for {c}": _time_share(c) for c in (*CAUSES, OTHER)},
}


def _format(value: float, form: str) -> str:
    return "" if math.isnan(value) else format(value, form)


def _short(number: float) -> str:
    return EngFormatter(places=2, sep="")(number)


def _duration(seconds: float) -> str:
    """Formats a duration, without units that are small compared with it.

    Example:
        >>> _duration(12.34), _duration(61), _duration(183900)
        ('12.3 s', '1 min 1 s', '2 d 3 h 05 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < SECONDS_PER_HOUR:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    days, minutes = divmod(round(seconds / 60), 24 * 60)
    text = f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{days} d {text}" if days else text
