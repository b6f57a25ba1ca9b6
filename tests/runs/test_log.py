import time

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.runs import log as run_log
from albert_tf.runs.log import RunLog, read_events, read_metrics

FIGURES = {"masked_lm_loss": 2.5}


def steps_of(lines):
    return [line["step"] for line in lines]


def test_a_line_cut_short_does_not_swallow_the_next(tmp_path):
    """No line is empty, since other programs read these files, too."""
    run_dir = str(tmp_path)
    for step, cut in ((0, '{"step": 4, "spl'), (2, "")):
        log = RunLog(run_dir, step)
        log.write_event("start", step)
        log.write("train", step + 2, FIGURES)
        for path in tmp_path.glob("*.jsonl"):
            with open(path, "a") as file:
                file.write(cut)
    assert steps_of(read_metrics(run_dir)) == [2, 4]
    assert steps_of(read_events(run_dir)) == [0, 2]
    for path in tmp_path.glob("*.jsonl"):
        assert all(path.read_text().splitlines())


def test_a_restart_replaces_the_lines_of_later_steps_but_no_events(tmp_path):
    run_dir = str(tmp_path)
    log = RunLog(run_dir, 0)
    began = time.time()
    log.write_event("stop", 7, reason="SIGTERM")
    for step in (2, 4, 6):
        log.write("train", step, {"masked_lm_loss": float(step)})
    log = RunLog(run_dir, 4)
    assert steps_of(read_metrics(run_dir)) == [2, 4]
    log.write("train", 6, {"masked_lm_loss": 0.5})

    assert read_metrics(run_dir) == [
        {"split": "train", "step": 2, "masked_lm_loss": 2.0},
        {"split": "train", "step": 4, "masked_lm_loss": 4.0},
        {"split": "train", "step": 6, "masked_lm_loss": 0.5},
    ]
    (event,) = read_events(run_dir)
    assert began <= event.pop("time") <= time.time()
    assert event == {
        "event": "stop",
        "step": 7,
        "reason": "SIGTERM",
    }


@pytest.mark.parametrize("again", [False, True])
def test_an_evaluation_made_again_is_in_the_log_once(tmp_path, again):
    run_dir = str(tmp_path)
    log = RunLog(run_dir, 0)
    for step in (2, 4):
        log.write("train", step, FIGURES)
        log.write("eval", step, FIGURES)
    RunLog(run_dir, 4, evaluates_again=again)

    lines = [(line["split"], line["step"]) for line in read_metrics(run_dir)]
    kept = [] if again else [("eval", 4)]
    assert lines == [("train", 2), ("eval", 2), ("train", 4), *kept]


def scalars_in(run_dir):
    """(step, tag, value) of the scalars that TensorBoard finds, by step."""
    found = []
    for file in sorted((run_dir / "tensorboard").iterdir()):
        try:
            for event in tf.compat.v1.train.summary_iterator(str(file)):
                for value in event.summary.value:
                    number = float(tf.make_ndarray(value.tensor))
                    found.append((event.step, value.tag, number))
        except tf.errors.DataLossError:
            continue  # skips the rest of the file, like TensorBoard
    return sorted(found)


def test_scalars_are_in_the_tensorboard_files(tmp_path, monkeypatch):
    """As NumPy numbers: TensorFlow keeps 600 bytes of each Python number."""
    scalar = tf.summary.scalar

    def check_scalar(name, value, step):
        assert isinstance(value, np.generic) and isinstance(step, np.generic)
        scalar(name, value, step)

    monkeypatch.setattr(tf.summary, "scalar", check_scalar)
    RunLog(str(tmp_path), 0).write("eval", 3, FIGURES)
    assert scalars_in(tmp_path) == [(3, "eval/masked_lm_loss", 2.5)]


def test_a_full_disk_stops_the_log_but_not_the_training(
    small_disk, monkeypatch
):
    """The lines until the disk has room again are lost; all others are read."""
    errors = []
    monkeypatch.setattr(
        "absl.logging.error", lambda form, *values: errors.append(form % values)
    )
    run_dir = str(small_disk)
    log = RunLog(run_dir, 0)
    log.write("train", 2, FIGURES)
    log.write_event("start", 0)
    filler = small_disk / "other"
    filler.write_bytes(bytes(small_disk.free()))
    # Each file grows to the end of its last page, within a line.
    for step in range(4, 400, 2):
        log.write("train", step, FIGURES)
        log.write_event("stop", step)
    for file in ("metrics.jsonl", "events.jsonl"):
        of_file = [e for e in errors if file in e]
        assert of_file
        assert all("NOT WRITTEN" in e and "No space" in e for e in of_file)
        assert not any("same command" in e for e in of_file)
    assert not (small_disk / "metrics.jsonl").read_text().endswith("\n")
    assert not (small_disk / "events.jsonl").read_text().endswith("\n")

    filler.unlink()
    del errors[:]
    for step in (400, 402):
        log.write("train", step, FIGURES)
        log.write_event("stop", step)

    assert not errors
    for lines in (read_metrics(run_dir), read_events(run_dir)):
        steps = steps_of(lines)
        assert steps == sorted(set(steps))
        assert steps[-2:] == [400, 402]
        assert len(steps) < 200
    assert [step for step, _, _ in scalars_in(small_disk)][-2:] == [400, 402]


def test_files_of_tensorboard_are_bounded(monkeypatch, tmp_path):
    """On gs://, each line uploads its file again."""
    monkeypatch.setattr(run_log, "LINES_PER_FILE", 2)
    log = RunLog(str(tmp_path), 0)
    for step in range(5):
        log.write("train", step, {"loss": float(step)})
    files = sorted((tmp_path / "tensorboard").iterdir())
    steps = [
        [
            event.step
            for event in tf.compat.v1.train.summary_iterator(str(file))
            if event.HasField("summary")
        ]
        for file in files
    ]
    assert sorted(steps) == [[0, 1], [2, 3], [4]]
