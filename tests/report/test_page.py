import math

import matplotlib.image
import pytest

from albert_tf.config import ReportConfig
from albert_tf.errors import UserError
from albert_tf.report.__main__ import main
from albert_tf.report.page import page
from albert_tf.report.runs import read_runs
from albert_tf.runs.log import read_events
from albert_tf.runs.usage import time_of_start
from albert_tf.training import train
from tests.helpers import tiny_run
from tests.helpers.html_page import Page
from tests.helpers.logged_run import SETTINGS, read_run, write_run


def page_of(*runs):
    return Page(page(runs, ["masked_lm_accuracy"]))


def facts_of(run):
    return {name: cells[0][0] for name, cells in page_of(run).rows.items()}


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
    assert not tags & {"b", "i", "u", "script", "link"}
    (image,) = parsed.all("img")
    assert image["src"].startswith("data:image/png;base64,")
    assert parsed.rows["data.input_file"] == [["<u>, x&y"]]
    assert parsed.rows[name][0] == [
        "1970-01-01 00:00:00",
        "1",
        "stop",
        "reason: <i>&amp;",
    ]


def test_the_table_sums_up_a_run(tmp_path):
    """By hand; the run began 8 s before its first event."""
    events = [
        {
            "time": 1000.0,
            "event": "start",
            "step": 0,
            "start_up_s": 6.0,
            "restore_s": 2.0,
        },
        {"time": 1010.0, "event": "checkpoint", "step": 0, "stalled_s": 1.0},
        {"time": 1020.0, "event": "rollback", "step": 0, "lost_s": 4.0},
        {
            "time": 992.0 + 3600 + 64,
            "event": "stop",
            "step": 1,
            "reason": "signal 15 (SIGTERM)",
        },
    ]
    run = read_run(
        tmp_path / "run",
        [8.0, 6.0, math.nan],
        events,
        SETTINGS,
        loop_seconds=[10.0, 5.0, 5.0],
        compile_seconds=[3.0, 0.0, 0.0],
        evaluation_seconds=[4.0, 1.0, 0.0],
        tokens_per_second=[64.0, 128.0, 128.0],
        mfu=[0.2, 0.1, 0.6],
    )
    facts = facts_of(run)
    parts = {
        name.removeprefix("time for "): value.partition("%, ")[2]
        for name, value in facts.items()
        if name.startswith("time for ")
    }
    assert parts == {
        "steps": "0:00:20",
        "compiling": "0:00:03",
        "evaluation": "0:00:05",
        "start-up": "0:00:06",
        "restoring": "0:00:02",
        "checkpoints": "0:00:01",
        "lost steps": "0:00:04",
        "interruptions and other": "1:00:23",
    }
    assert facts["time for steps"].startswith("0.5%")
    assert facts["wall-clock, first start to last event"] == "1:01:04"
    assert facts["state"] == "stop: signal 15 (SIGTERM)"
    assert facts["steps"] == "2 of 400"
    # 13 s of 64 and 10 s of 128, in 20 s without compiling.
    assert facts["tokens trained on, padding included"] == "2.11k"
    assert facts["tokens per second, over kept steps"] == "105.60"
    assert facts["MFU, mean"] == "30.0%"
    assert (facts["restarts"], facts["rollbacks"]) == ("0", "1")
    assert facts["masked_lm_loss, held-out set, last"] == "6 at step 1"


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


def test_runs_of_one_name_are_named_by_their_paths(tmp_path):
    for run_dir in ("x/run", "y/run", "y/other"):
        write_run(tmp_path / run_dir, [5.0])

    def names(*run_dirs):
        return [
            r.name for r in read_runs([f"{tmp_path}/{d}" for d in run_dirs])
        ]

    assert names("x/run/", "y/other") == ["run", "other"]
    assert names("x/run", "y/run") == [f"{tmp_path}/{d}/run" for d in "xy"]
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
        read_runs([str(tmp_path)])


def test_another_file_suffix_is_refused():
    with pytest.raises(UserError, match=r"\.png or \.html.*curves\.pdf"):
        ReportConfig(output_file=("report.html", "curves.pdf"))


@pytest.mark.slow
def test_a_real_run_is_drawn_as_a_page_and_as_a_picture(
    tiny_records, tmp_path, capsys, caplog
):
    """With a switch of dropout, and restarted after its last step.

    Its price is that of both processes.
    """
    caplog.set_level("INFO", "absl")
    run_dir = tmp_path / "run"
    config = tiny_run.make_config(
        tiny_records,
        run_dir,
        num_train_steps=4,
        dropout_schedule="0:0.1,2:0.0",
        price_per_device_hour=3600.0,
        watts_per_device=1000.0,
    )
    assert train.train(config) == 0
    assert train.train(config) == 0
    page_file, picture_file = tmp_path / "out.html", tmp_path / "out.png"
    main(
        ReportConfig(
            run_dirs=(str(run_dir),),
            output_file=(str(page_file), str(picture_file)),
        )
    )
    said = capsys.readouterr().out
    assert f"page: {page_file}\ncurves: {picture_file}\n" in said
    assert f"{run_dir}, step 4, held-out set: loss " in said
    page = Page(page_file.read_text())
    assert [cells[2] for cells in page.rows["run"][1:]] == [
        "start",
        "dropout switched",
        "finish",
        "restart",
        "finish",
    ]
    assert page.rows["restarts"] == [["1"]]
    assert page.rows["state"] == [["finished"]]
    assert page.rows["steps"] == [["4 of 4"]]
    starts, ends = (
        [e for e in read_events(str(run_dir)) if e["event"] in kinds]
        for kinds in (("start", "resume"), ("finish",))
    )
    seconds = sum(
        end["time"] - time_of_start(start)
        for start, end in zip(starts, ends, strict=True)
    )
    assert page.rows["price"] == [[f"${seconds:.3g}"]]
    kwh = f"{seconds / 3600:.3g} kWh, at 1000 W per device"
    assert page.rows["energy"] == [[kwh]]
    assert f"price: ${seconds:.3g}; energy: {kwh}" in caplog.text
    assert page.rows["records.vocab_size"] == [["400"]]
    assert matplotlib.image.imread(picture_file).size > 1e6
