import html.parser
import json
import math
import os
import pathlib
import re
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf
from matplotlib.figure import Figure

from albert_tf.config import ReportConfig
from albert_tf.errors import UserError
from albert_tf.report import (
    __main__ as report,
)
from albert_tf.report import (
    curves as report_curves,
)
from albert_tf.report import (
    page as report_page,
)
from albert_tf.report import (
    runs as report_runs,
)
from albert_tf.report.runs import Curve, RunHistory
from albert_tf.runs.checkpoints import CheckpointStore
from albert_tf.training import train
from tests.helpers import tiny_run

REPOSITORY = pathlib.Path(__file__).parents[2]


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_run(directory, losses, events=(), settings=None, **figures):
    """A run of a line a step; `figures` are those of training, by step."""
    directory.mkdir(parents=True)
    lines = []
    for step, loss in enumerate(losses):
        line = {
            "step": step,
            "masked_lm_loss": loss,
            "masked_lm_accuracy": 0.25,
            "sentence_order_loss": 0.7,
            "sentence_order_accuracy": 0.5,
        }
        rates = {"learning_rate": 0.001, "dropout": 0.1}
        timed = {name: values[step] for name, values in figures.items()}
        lines.append({"split": "train", **line, **rates, **timed})
        lines.append({"split": "eval", "loss": loss + 0.7, **line})
    write_lines(directory / "metrics.jsonl", lines)
    if events:
        write_lines(directory / "events.jsonl", events)
    if settings is not None:
        (directory / "config.json").write_text(json.dumps(settings))
    metadata = {"unigram_entropy_nats": 6.5}
    (directory / "records_metadata.json").write_text(json.dumps(metadata))
    return str(directory)


def read_run(*args, **kwargs):
    run_dir = write_run(*args, **kwargs)
    return RunHistory(run_dir, pathlib.Path(run_dir).name)


class Page(html.parser.HTMLParser):
    """What a browser finds in a page: elements, texts, rows of tables."""

    VOID = ("meta", "br", "img", "link", "input")

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.rows = [], [], {}
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.cells = []
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag == "tr":
            self.rows.setdefault(self.cells[0], []).append(self.cells[1:])

    def handle_data(self, data):
        self.text += data
        if "tr" in self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(*runs, x_axis="step"):
    return Page(report_page.page(runs, x_axis))


# --- curves of any length ---------------------------------------------------


def test_a_spike_of_one_step_in_a_hundred_thousand_is_kept():
    curve = Curve(max_buckets=50)
    values = 3 + np.random.default_rng(0).normal(size=100_000) / 100
    values[77_777], values[123] = 50.0, -40.0
    for step, value in enumerate(values):
        curve.add(step, value)
    points = curve.extremes()

    assert len(points) <= 4 * 50 + 1
    assert [77_777, 50.0] in points.tolist()
    assert [123, -40.0] in points.tolist()
    assert curve.lowest() == (123, -40.0)
    assert points[-1].tolist() == [99_999, values[-1]]
    assert np.all(np.diff(points[:, 0]) > 0)
    # A power of two to a bucket, so many that a hundred buckets suffice.
    mean = values[:1024].mean()
    assert curve.smoothed(0)[0].tolist() == pytest.approx([511.5, mean])
    assert len(curve.smoothed(0)) == math.ceil(100_000 / 1024)
    assert curve.mean() == pytest.approx(values.mean(), rel=1e-12)


def test_few_points_are_drawn_as_they_are():
    curve = Curve()
    points = [(10 * step, math.sin(step)) for step in range(1200)]
    for point in points:
        curve.add(*point)
    np.testing.assert_array_equal(curve.extremes(), points)


def test_smoothing_takes_noise_away_and_leaves_a_steep_beginning():
    """The mean of a window in the middle of a straight line is its middle."""
    line, noise = Curve(), Curve()
    for step in range(1000):
        line.add(step, 20 - 3 * step)
        noise.add(step, (-1) ** step)
    smoothed = line.smoothed(window=0.02)
    np.testing.assert_array_equal(smoothed[:, 0], range(1000))
    np.testing.assert_allclose(
        smoothed[:-10, 1], 20 - 3 * np.arange(990), rtol=1e-9, atol=1e-9
    )
    # Of the last eleven, whose mean is five steps before the end.
    assert smoothed[-1, 1] == pytest.approx(20 - 3 * 994)
    # One of 21 is left over.
    assert np.abs(noise.smoothed(window=0.02)[10:-10, 1]).max() <= 1 / 20
    assert np.abs(noise.smoothed(window=0)[:, 1]).min() == 1


def test_what_is_no_finite_number_is_counted_and_left_out(tmp_path):
    run = read_run(tmp_path / "run", [5.0, math.nan, 4.0, math.inf])
    curve = run.curve("train", "masked_lm_loss")
    np.testing.assert_array_equal(curve.extremes(), [[0, 5.0], [2, 4.0]])
    (cells,) = page_of(run).rows["figures that are no finite numbers"]
    assert "masked_lm_loss (train) 2" in cells[0]


# --- what is read of a run ---------------------------------------------------


def test_names_are_as_short_as_tells_runs_apart():
    assert report_runs.short_names(["gs://b/x/run", "y/run/", "y/other"]) == [
        "x/run",
        "y/run",
        "y/other",
    ]
    assert report_runs.short_names(["runs/base/"]) == ["base"]
    with pytest.raises(UserError, match="each run once"):
        report_runs.short_names(["runs/base", "runs/base/"])


def test_a_directory_without_metrics_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
        report_runs.read_runs([str(tmp_path)])


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path):
    run_dir = write_run(tmp_path / "run", [5.0, 4.0])
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"split": "train", "step": 2, "masked_lm_l')
    assert RunHistory(run_dir, "run").last_step == 1


SETTINGS = {
    "data": {"global_batch_size": 8, "max_seq_length": 32},
    "training": {"sentence_objective": "sop", "num_train_steps": 400},
}


def test_steps_stand_where_their_tokens_and_hours_are(tmp_path):
    run_dir = write_run(tmp_path / "run", [], settings=SETTINGS)
    lines = [
        {"split": "train", "step": step, "loop_seconds": seconds}
        for step, seconds in ((1, 1800.0), (2, 3600.0), (3, 1800.0))
    ]
    write_lines(tmp_path / "run" / "metrics.jsonl", lines)
    run = RunHistory(run_dir, "run")
    assert run.x_values([0, 3], "step").tolist() == [0, 3]
    assert run.x_values([1, 3], "tokens").tolist() == [256, 768]
    # Half an hour, one and a half, two; in between as in proportion.
    assert run.x_values([0, 1, 1.5, 3], "hours").tolist() == [0, 0.5, 1, 2]
    assert run.x_values(0.5, "hours") == 0.25


@pytest.mark.parametrize("x_axis", ["tokens", "hours"])
def test_a_run_that_cannot_tell_tokens_or_hours_is_refused(tmp_path, x_axis):
    run = read_run(tmp_path / "run", [5.0, 4.0])
    with pytest.raises(UserError, match=f"x_axis={x_axis}.*{run.run_dir}"):
        report_curves.picture([run], x_axis)


# --- panels -------------------------------------------------------------------


def test_the_panels_show_the_curves(tmp_path):
    """Another loss is another picture of the loss, and of nothing else."""
    losses = [9.0 - step / 10 for step in range(30)]
    one = read_run(tmp_path / "a" / "run", losses)
    other = read_run(tmp_path / "b" / "run", [*losses[:-1], 8.0])
    differ = {
        panel.key
        for panel in report_curves.panels_of([one])
        if report_curves.panel_svg(panel, [one], "step")
        != report_curves.panel_svg(panel, [other], "step")
    }
    assert differ == {"masked_lm_loss", "masked_lm_loss_late"}


def axes_of(figure, *runs, x_axis="step", late=False):
    (panel,) = [
        panel
        for panel in report_curves.PANELS
        if panel.figure == figure and panel.late == late
    ]
    axes = Figure().subplots()
    report_curves.draw_panel(axes, panel, runs, x_axis)
    return axes


def lines_of(*args, **kwargs):
    """What is drawn in a panel: points, dashes and marker of each line."""
    return [
        (
            np.asarray(line.get_xydata()).tolist(),
            line.get_linestyle(),
            line.get_marker(),
        )
        for line in axes_of(*args, **kwargs).lines
    ]


def test_training_is_solid_and_held_out_dashed(tmp_path):
    run = read_run(tmp_path / "run", [8.0, 7.0, 5.0])
    points = [[0, 8.0], [1, 7.0], [2, 5.0]]
    trained, held_out, *_ = lines_of("masked_lm_loss", run)
    assert trained[:2] == (points, "-")
    assert held_out == (points, "--", "o")


def test_a_long_run_is_smoothed_above_all_its_points(tmp_path):
    losses = [7.0 + (-1) ** step for step in range(300)]
    run = read_run(tmp_path / "run", losses)
    each, smoothed, *_ = lines_of("masked_lm_loss", run)
    assert {value for _, value in each[0]} == {6.0, 8.0}
    middle = [value for _, value in smoothed[0][10:-10]]
    assert np.abs(np.array(middle) - 7).max() < 0.5


def test_the_second_half_has_a_panel_of_its_own(tmp_path):
    run = read_run(tmp_path / "run", [9.0 - step / 10 for step in range(41)])
    trained = lines_of("masked_lm_loss", run, late=True)[0]
    assert [step for step, _ in trained[0]] == list(range(20, 41))


def test_a_spike_hides_nothing_of_the_second_half(tmp_path):
    """It stands in the panel of the whole run."""
    losses = [5.0 + step % 2 for step in range(400)]
    losses[300] = 60.0
    run = read_run(tmp_path / "run", losses)
    bottom, top = axes_of("masked_lm_loss", run, late=True).get_ylim()
    assert 4.5 < bottom < 5.0 and 6.0 < top < 6.5
    assert axes_of("masked_lm_loss", run).get_ylim()[1] > 60


def test_what_happened_is_marked_where_it_happened(tmp_path):
    kinds = ["resume", "rollback", "dropout", "data", "corrupt_records"]
    events = [
        {"time": 0.0, "event": kind, "step": 3 * number}
        for number, kind in enumerate([*kinds, "checkpoint", "finish"], 1)
    ]
    run = read_run(tmp_path / "run", [5.0] * 31, events, SETTINGS)
    lines = lines_of("masked_lm_loss", run, x_axis="tokens")
    marks = [
        (x / 256, marker)
        for points, _, marker in lines
        for x, y in points
        if y == 1.0
    ]
    assert lines[0][0][:2] == [[0, 5.0], [256, 5.0]]
    symbols = [report_curves.MARKS[kind].marker for kind in kinds]
    assert marks == [
        (3 * number, symbol) for number, symbol in enumerate(symbols, 1)
    ]
    assert len(set(symbols)) == len(symbols)
    # Marks need no room of their own.
    plain = read_run(tmp_path / "plain", [5.0] * 31, settings=SETTINGS)
    axes, unmarked = axes_of("dropout", run), axes_of("dropout", plain)
    assert axes.get_ylim() == unmarked.get_ylim()


def test_marks_too_near_to_be_told_apart_are_drawn_once(tmp_path):
    events = [
        {"time": 0.0, "event": "resume", "step": step}
        for step in (1000, 1001, 1002, 2000)
    ]
    losses = [5.0, 5.0]
    run_dir = write_run(tmp_path / "run", losses, events)
    line = {"split": "train", "step": 3000, "masked_lm_loss": 4.0}
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    lines = lines_of("masked_lm_loss", RunHistory(run_dir, "run"))
    assert [xs for xs, _, marker in lines if marker == "v"] == [
        [[1000, 1], [2000, 1]]
    ]


def test_curves_stand_beside_the_papers_and_the_corpus(tmp_path):
    """Table 5 of the paper, two labels in even parts, the metadata."""
    run = read_run(tmp_path / "run", [5.0], settings=SETTINGS)

    def values(figure):
        named = report_curves.references(figure, [run])
        return [value for value, _ in named]

    assert values("masked_lm_loss") == [6.5]
    assert values("masked_lm_accuracy") == [0.540]
    assert values("sentence_order_accuracy") == [0.5, 0.865]
    assert values("sentence_order_loss") == pytest.approx([0.6931], abs=1e-4)
    assert values("learning_rate") == []
    drawn = [xs for xs, style, _ in lines_of("masked_lm_loss", run)]
    assert [[0.0, 6.5], [1.0, 6.5]] in drawn


def test_the_band_of_the_trust_ratios_has_all_of_them(tmp_path):
    ratios = [0.5, 1.0, 2.0]
    run = read_run(
        tmp_path / "run",
        [5.0, 5.0, 5.0],
        trust_ratio_min=[r / 10 for r in ratios],
        trust_ratio_mean=ratios,
        trust_ratio_max=[r * 10 for r in ratios],
    )
    axes = axes_of("trust_ratio_mean", run)
    corners = axes.collections[0].get_paths()[0].vertices
    assert corners[:, 1].min() == pytest.approx(0.05)
    assert corners[:, 1].max() == pytest.approx(20.0)
    assert axes.get_yscale() == "log"


def test_the_picture_has_all_panels(tmp_path):
    run = read_run(tmp_path / "run", [8.0, 7.0], goodput=[0.5, 0.6])
    one, other = tmp_path / "one.png", tmp_path / "other.png"
    report.draw([run], str(one))
    second = read_run(tmp_path / r"$\frac$", [7.0, 6.0])
    report.draw([run, second], str(other))
    pixels = matplotlib.image.imread(one)
    # Seven panels in three rows of three.
    assert pixels.shape[0] > 900 and pixels.shape[1] > 1500
    for row, column, drawn in ((0, 0, True), (2, 0, True), (2, 2, False)):
        height, width = pixels.shape[0] // 3, pixels.shape[1] // 3
        part = pixels[row * height :, column * width :][60:height, :width]
        assert (part[..., :3] < 0.9).any() == drawn
    assert one.read_bytes() != other.read_bytes()


# --- the page -----------------------------------------------------------------


def test_the_page_needs_no_network(tmp_path):
    text = report_page.page([read_run(tmp_path / "run", [8.0] * 30)], "step")
    page = Page(text)
    for _, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "data", "action"):
            assert attributes.get(name, "#").startswith("#")
    assert not {"script", "link", "img", "iframe"} & {
        e[0] for e in page.elements
    }
    assert not re.findall(r"url\((?!#)|@import", text)
    (policy,) = [m for m in page.all("meta") if "http-equiv" in m]
    assert policy["content"].startswith("default-src 'none'")


def test_each_panel_is_told_to_those_who_do_not_see_it(tmp_path):
    run = read_run(tmp_path / "run", [8.0, 6.0, 7.0], settings=SETTINGS)
    page = page_of(run)
    images = page.all("svg")
    assert len(images) == len(report_curves.panels_of([run]))
    assert {image["role"] for image in images} == {"img"}
    words = images[0]["aria-label"]
    assert "run, training: from 8 to 7 at step 2, between 6 and 8" in words
    assert "unigram entropy 6.50, 6.5" in words
    # A page is no page of ids that two elements share.
    ids = [
        attributes["id"]
        for _, attributes in page.elements
        if "id" in attributes
    ]
    assert len(ids) == len(set(ids))


def test_names_of_runs_are_text_whatever_they_hold(tmp_path):
    name = "a <b> & \"c\" 'd' $x$"
    events = [
        {"time": 0.0, "event": "stop", "step": 1, "reason": "<i>&amp;"},
        {"time": 1.0, "event": "resume", "step": 1},
    ]
    settings = {"data": {"input_file": ["<u>", "x&y"]}}
    run = read_run(tmp_path / name, [8.0, 7.0], events, settings)
    page = page_of(run)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"b", "i", "u"}
    assert page.text.count(name) >= 3
    assert page.rows["data.input_file"] == [["<u>, x&y"]]
    assert page.rows[name][0] == [
        "1970-01-01 00:00:00",
        "1",
        "stop",
        "reason: <i>&amp;",
    ]
    assert name in page.all("svg")[0]["aria-label"]


def test_the_table_tells_what_became_of_a_run(tmp_path):
    """Expected values by hand: two loops of 10 and 30 seconds."""
    day = 24 * 3600.0
    events = [
        {"time": 1000.0, "event": "start", "step": 0},
        {"time": 1010.0, "event": "checkpoint", "step": 1, "stalled_s": 2.0},
        {"time": 1020.0, "event": "checkpoint", "step": 2, "stalled_s": 1.5},
        {"time": 1030.0, "event": "rollback", "step": 1, "diverged_at": 2},
        {"time": 2000.0, "event": "resume", "step": 1},
        {
            "time": 2001.0,
            "event": "corrupt_records",
            "step": 1,
            "records": ["one", "two"],
        },
        {
            "time": 1000.0 + 2 * day + 3 * 3600 + 240,
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
        goodput=[0.0, 0.5, 0.1],
        mfu=[0.2, 0.3, 0.4],
    )
    store = CheckpointStore(run_dir, {"weight": tf.Variable([1.0])})
    store.save_best(1, {}, loss=6.7)
    for step in (1, 2, 3):
        store.save(step, {})
    store.wait()
    torn = tmp_path / "run" / "checkpoints" / "step-00000003"
    (torn / "checkpoint.json").write_text("{")
    rows = page_of(RunHistory(run_dir, "run")).rows
    told = {name: cells[0][0] for name, cells in rows.items()}
    assert told["state"] == "stopped: signal 15 (SIGTERM)"
    assert told["steps"] == "2 of 400"
    assert told["tokens trained on, padding included"] == "512.00"
    assert told["wall-clock, first to last event"] == "2 d 3 h 04 min"
    assert told["time in kept steps"] == "40.0 s"
    assert told["goodput"] == "10.0%"
    assert told["tokens a second, over kept steps"] == "12.80"
    assert told["MFU, mean"] == "30.0%"
    assert told["restarts"] == told["rollbacks"] == "1"
    assert told["damaged records left out"] == "2"
    assert told["masked LM, held out, last"] == "7.000 (25.0%) at step 2"
    assert told["sum of losses, held out, lowest"] == "6.700 at step 1"
    assert told["checkpoints kept"] == (
        "2, newest of step 2, best of step 1, 1 torn"
    )
    assert told["waiting for checkpoints"] == "3.5 s for 2"
    # Of which this run knows nothing.
    assert "vocabulary" not in told and "waiting for input, mean" not in told


@pytest.mark.parametrize(
    ("last", "state"),
    [("resume", "running, or killed"), ("finish", "finished")],
)
def test_a_run_without_an_end_is_not_called_finished(tmp_path, last, state):
    events = [
        {"time": 0.0, "event": "start", "step": 0},
        {"time": 1.0, "event": "stop", "step": 0},
        {"time": 2.0, "event": last, "step": 1},
    ]
    run = read_run(tmp_path / "run", [8.0, 7.0], events)
    assert page_of(run).rows["state"] == [[state]]


def test_only_settings_that_differ_stand_first(tmp_path):
    first = {"optimizer": {"learning_rate": 0.1, "optimizer": "lamb"}}
    second = {"optimizer": {"learning_rate": 0.2, "optimizer": "lamb"}}
    page = page_of(
        read_run(tmp_path / "first", [8.0], settings=first),
        read_run(tmp_path / "second", [8.0], settings=second),
    )
    assert page.rows["optimizer.learning_rate"] == [["0.1", "0.2"]] * 2
    assert page.rows["optimizer.optimizer"] == [["lamb", "lamb"]]


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
    (run,) = report_runs.read_runs([run_dir])
    text = report_page.page([run], "step")
    assert len(text.encode()) < 2.5e6
    assert f"{900 - 2 * report_page.MAX_EVENTS} more" in text
    assert len(Page(text).rows["run"]) == 2 * report_page.MAX_EVENTS + 2


# --- the command --------------------------------------------------------------


def test_the_newest_held_out_figures_stand_beside_the_unigram_entropy(tmp_path):
    run = read_run(tmp_path / "run", [8.0, 7.0])
    assert report.summarize(run) == (
        f"{run.run_dir}, step 1, held out: mlm 7.000 (25.0%), "
        "sop 0.700 (50.0%); unigram entropy of the corpus 6.500"
    )


def test_an_ending_of_another_kind_is_refused():
    with pytest.raises(UserError, match=r"\.png or \.html.*curves\.pdf"):
        ReportConfig(output_file=("report.html", "curves.pdf"))


def test_a_real_run_is_drawn_as_a_page_and_as_a_picture(tiny_records, tmp_path):
    """With a switch of dropout, and started again when it was done."""
    run_dir = tmp_path / "run"
    config = tiny_run.make_config(
        tiny_records,
        run_dir,
        num_train_steps=4,
        dropout_schedule="0:0.1,2:0.0",
        peak_tflops=0.5,
    )
    assert train.train(config) == 0
    assert train.train(config) == 0
    page_file, picture_file = tmp_path / "out.html", tmp_path / "out.png"
    command = [
        *(sys.executable, "-m", "albert_tf.report"),
        f"--run_dirs={run_dir}",
        f"--output_file={page_file},{picture_file}",
        "--x_axis=hours",
    ]
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "MPLBACKEND": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert f"page: {page_file}\ncurves: {picture_file}\n" in done.stdout
    page = Page(page_file.read_text())
    events = [cells[2] for cells in page.rows["run"][1:]]
    assert [event.split()[-1] for event in events] == [
        "start",
        "switched",
        "finish",
        "restart",
        "finish",
    ]
    assert page.rows["restarts"] == [["1"]]
    assert page.rows["state"] == [["finished"]]
    assert page.rows["steps"] == [["4 of 4"]]
    assert page.rows["architecture"] == [["2 layers, H=16, E=8"]]
    assert page.rows["vocabulary"][0][0].startswith("400 pieces, ")
    drawn = {panel.key for panel in report_curves.PANELS} - {
        "masked_lm_loss_late"
    }
    assert len(page.all("svg")) == len(drawn)
    assert "over hours of training" in page.all("svg")[0]["aria-label"]
    assert matplotlib.image.imread(picture_file).size > 1e6
