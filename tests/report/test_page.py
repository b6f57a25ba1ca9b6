import math
import re

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.report.page import MAX_EVENTS, page
from albert_tf.report.runs import RunHistory, read_runs
from albert_tf.runs.checkpoints import CheckpointStore
from tests.helpers.html_page import Page
from tests.helpers.logged_run import SETTINGS, read_run, write_run


def page_of(*runs):
    return Page(page(runs))


def test_nan_and_infinity_are_counted_and_left_out(tmp_path):
    run = read_run(tmp_path / "run", [5.0, math.nan, 4.0, math.inf])
    curve = run.curve("train", "masked_lm_loss")
    np.testing.assert_array_equal(curve.extremes(), [[0, 5.0], [2, 4.0]])
    (cells,) = page_of(run).rows["metrics that are NaN or infinite"]
    assert "masked_lm_loss (train) 2" in cells[0]


def test_the_page_needs_no_network(tmp_path):
    text = page([read_run(tmp_path / "run", [8.0] * 30)])
    elements = Page(text).elements
    for _, attributes in elements:
        for name in ("src", "href", "xlink:href", "data", "action"):
            assert attributes.get(name, "#").startswith("#")
    assert not {"script", "link", "img", "iframe"} & {e[0] for e in elements}
    assert not re.findall(r"url\((?!#)|@import", text)


def test_names_and_settings_with_markup_are_shown_as_text(tmp_path):
    name = "a <b> & \"c\" 'd' $x$"
    events = [
        {"time": 0.0, "event": "stop", "step": 1, "reason": "<i>&amp;"},
        {"time": 1.0, "event": "resume", "step": 1},
    ]
    settings = {"data": {"input_file": ["<u>", "x&y"]}}
    run = read_run(tmp_path / name, [8.0, 7.0], events, settings)
    parsed = page_of(run)
    tags = {tag for tag, _ in parsed.elements}
    assert not tags & {"b", "i", "u"}
    # Title, heading, tables and the legend of the picture.
    assert parsed.text.count(name) >= 4
    assert parsed.rows["data.input_file"] == [["<u>, x&y"]]
    assert parsed.rows[name][0] == [
        "1970-01-01 00:00:00",
        "1",
        "stop",
        "reason: <i>&amp;",
    ]


def facts_of(run):
    return {name: cells[0][0] for name, cells in page_of(run).rows.items()}


def test_the_table_sums_up_a_run(tmp_path):
    """Expected values by hand: two loops of 10 and 30 seconds."""
    events = [
        {"time": 1000.0, "event": "start", "step": 0},
        {"time": 1030.0, "event": "rollback", "step": 1, "diverged_at": 2},
        {
            "time": 2000.0,
            "event": "resume",
            "step": 1,
            "software": {"keras": "3.15", "LIBTPU_INIT_ARGS": "--a --b"},
        },
        {
            "time": 1000.0 + (2 * 24 + 3) * 3600 + 240,
            "event": "stop",
            "step": 2,
            "reason": "signal 15 (SIGTERM)",
        },
    ]
    run_dir = write_run(
        tmp_path / "run",
        [8.0, 6.0, 7.0],
        events,
        SETTINGS,
        loop_seconds=[0.0, 10.0, 30.0],
        mfu=[0.2, 0.1, 0.6],
    )
    store = CheckpointStore(run_dir, {"weight": tf.Variable([1.0])})
    store.save_best(1, {}, loss=6.7)
    for step in (1, 2, 3):
        store.save(step, {})
    store.wait()
    torn = tmp_path / "run" / "checkpoints" / "step-00000003"
    (torn / "checkpoint.json").write_text("{")
    facts = facts_of(RunHistory(run_dir, "run"))
    assert facts["state"] == "stopped: signal 15 (SIGTERM)"
    assert facts["steps"] == "2 of 400"
    assert facts["tokens trained on, padding included"] == "512.00"
    assert facts["wall-clock, first start to last event"] == "2 d 3 h 04 min"
    assert facts["tokens per second, over kept steps"] == "12.80"
    assert facts["MFU, mean"] == "30.0%"
    assert facts["software, last start"] == (
        "keras 3.15, LIBTPU_INIT_ARGS --a --b"
    )
    assert facts["restarts"] == facts["rollbacks"] == "1"
    assert facts["masked LM, held-out set, last"] == "7.000 (25.0%) at step 2"
    assert facts["checkpoints kept"] == (
        "2, newest of step 2, best of step 1, 1 damaged"
    )
    # The log of this run holds nothing about it.
    assert "waiting for input, mean" not in facts


def test_the_parts_of_the_time_add_up_to_the_time_of_the_run(tmp_path):
    """Expected values by hand; the run began 8 s before its first event."""
    events = [
        {
            "time": 1000.0,
            "event": "start",
            "step": 0,
            "start_up_s": 6.0,
            "restore_s": 2.0,
        },
        {"time": 1010.0, "event": "checkpoint", "step": 0, "stalled_s": 1.5},
        {"time": 1020.0, "event": "rollback", "step": 0, "lost_s": 4.0},
        {"time": 1050.0, "event": "finish", "step": 1},
    ]
    run = read_run(
        tmp_path / "run",
        [8.0, 6.0],
        events,
        loop_seconds=[10.0, 5.0],
        input_bound_share=[0.2, 0.1],
        compile_seconds=[3.0, 0.0],
        evaluation_seconds=[4.0, 1.0],
    )
    facts = facts_of(run)
    parts = {
        name.removeprefix("time for "): value.partition("%, ")[2]
        for name, value in facts.items()
        if name.startswith("time for ")
    }
    assert parts == {
        "steps": "12.5 s",  # 80 % of 10 s, and 90 % of 5 s
        "input": "2.5 s",
        "compiling": "3.0 s",
        "evaluation": "5.0 s",
        "start-up": "6.0 s",
        "restoring": "2.0 s",
        "checkpoints": "1.5 s",
        "lost steps": "4.0 s",
        "interruptions and other": "21.5 s",
    }
    assert facts["wall-clock, first start to last event"] == "58.0 s"
    assert sum(float(value.split()[0]) for value in parts.values()) == 58.0
    assert facts["time for steps"].startswith("21.6%")


@pytest.mark.parametrize(
    ("last", "state"),
    [
        ("resume", "running, or killed"),
        ("finish", "finished"),
        ("diverged", "diverged: loss nan"),
        ("rollback", "running, or killed"),
    ],
)
def test_only_a_run_that_ended_is_called_finished(tmp_path, last, state):
    events = [
        {"time": 0.0, "event": "start", "step": 0},
        {"time": 1.0, "event": "stop", "step": 0},
        {"time": 2.0, "event": last, "step": 1, "reason": "loss nan"},
    ]
    run = read_run(tmp_path / "run", [8.0, 7.0], events)
    assert page_of(run).rows["state"] == [[state]]


def test_settings_that_differ_have_a_table_of_their_own(tmp_path):
    first = {"optimizer": {"learning_rate": 0.1, "optimizer": "lamb"}}
    second = {"optimizer": {"learning_rate": 0.2, "optimizer": "lamb"}}
    parsed = page_of(
        read_run(tmp_path / "first", [8.0], settings=first),
        read_run(tmp_path / "second", [8.0], settings=second),
    )
    assert parsed.rows["optimizer.learning_rate"] == [["0.1", "0.2"]] * 2
    assert parsed.rows["optimizer.optimizer"] == [["lamb", "lamb"]]


def test_the_page_of_a_long_run_stays_small(tmp_path):
    """Twenty thousand lines of noise, and more restarts than one can read."""
    noise = np.random.default_rng(0).uniform(1, 2, size=20_000).tolist()
    events = [
        {"time": float(step), "event": "resume", "step": 20 * step}
        for step in range(900)
    ]
    run_dir = write_run(
        tmp_path / "run",
        noise,
        events,
        gradient_norm=noise,
        update_norm=noise,
        tokens_per_second=noise,
        input_bound_share=noise,
    )
    (run,) = read_runs([run_dir])
    text = page([run])
    assert len(text.encode()) < 2.5e6
    assert f"{900 - 2 * MAX_EVENTS} more" in text
    assert len(Page(text).rows["run"]) == 2 * MAX_EVENTS + 2
