import ctypes
import gc
import itertools
import json
import types

import pytest
import tensorflow as tf

from albert_tf.errors import UserError
from albert_tf.runs import log as run_log
from albert_tf.runs.log import RunLog, read_events, read_metrics

FIGURES = {"masked_lm_loss": 2.5}


def steps_of(lines):
    return [line["step"] for line in lines]


def test_every_line_of_a_resumed_log_is_json(tmp_path):
    """No line is empty, since other programs read these files, too."""
    for step in 0, 1:
        log = RunLog.open(str(tmp_path), step)
        log.write_event("start", step)
        log.write("train", step + 1, {"loss": 6.5})
    for file in tmp_path.glob("*.jsonl"):
        lines = file.read_text().splitlines()
        steps = [json.loads(line)["step"] for line in lines]
        assert steps == ([0, 1] if file.name == "events.jsonl" else [1, 2])


def test_a_line_cut_short_does_not_swallow_the_next(tmp_path):
    run_dir = str(tmp_path)
    log = RunLog.open(run_dir, 0)
    log.write("train", 2, FIGURES)
    log.write_event("start", 0)
    for name in ("metrics.jsonl", "events.jsonl"):
        with open(tmp_path / name, "a") as file:
            file.write('{"step": 4, "spl')

    log = RunLog.open(run_dir, 2)
    log.write_event("resume", 2)
    log.write("train", 4, FIGURES)

    assert steps_of(read_metrics(run_dir)) == [2, 4]
    assert steps_of(read_events(run_dir)) == [0, 2]


def test_events_are_noted_with_their_time(monkeypatch, tmp_path):
    clock = types.SimpleNamespace(time=lambda: 1700000000.5)
    monkeypatch.setattr(run_log, "time", clock)
    log = RunLog.open(str(tmp_path), 0)
    log.write_event("start", 0)
    log.write_event("rollback", 7, to_step=4, reason="loss")
    log.rewind(0)

    assert read_events(str(tmp_path)) == [
        {"time": 1700000000.5, "event": "start", "step": 0},
        {
            "time": 1700000000.5,
            "event": "rollback",
            "step": 7,
            "to_step": 4,
            "reason": "loss",
        },
    ]


def test_going_back_replaces_the_lines_of_later_steps(tmp_path):
    run_dir = str(tmp_path)
    log = RunLog.open(run_dir, 0)
    for step in (2, 4, 6):
        log.write("train", step, {"masked_lm_loss": float(step)})
    log.rewind(4)
    assert steps_of(read_metrics(run_dir)) == [2, 4]
    log.write("train", 6, {"masked_lm_loss": 0.5})

    assert read_metrics(run_dir) == [
        {"split": "train", "step": 2, "masked_lm_loss": 2.0},
        {"split": "train", "step": 4, "masked_lm_loss": 4.0},
        {"split": "train", "step": 6, "masked_lm_loss": 0.5},
    ]


@pytest.mark.parametrize("again", [False, True])
def test_an_evaluation_made_again_is_in_the_log_once(tmp_path, again):
    run_dir = str(tmp_path)
    log = RunLog.open(run_dir, 0)
    for step in (2, 4):
        log.write("train", step, FIGURES)
        log.write("eval", step, FIGURES)
    RunLog.open(run_dir, 4, evaluates_again=again)

    lines = [(line["split"], line["step"]) for line in read_metrics(run_dir)]
    kept = [] if again else [("eval", 4)]
    assert lines == [("train", 2), ("eval", 2), ("train", 4), *kept]


def scalars_in(run_dir):
    """(step, tag, value) of the scalars that TensorBoard finds."""
    found = []
    for file in sorted((run_dir / "tensorboard").iterdir()):
        try:
            for event in tf.compat.v1.train.summary_iterator(str(file)):
                for value in event.summary.value:
                    number = float(tf.make_ndarray(value.tensor))
                    found.append((event.step, value.tag, number))
        except tf.errors.DataLossError:
            continue  # skips the rest of the file, like TensorBoard
    return found


def test_scalars_are_in_the_tensorboard_files(tmp_path):
    RunLog.open(str(tmp_path), 0).write("eval", 3, FIGURES)
    assert scalars_in(tmp_path) == [(3, "eval/masked_lm_loss", 2.5)]


def test_a_full_disk_stops_the_log_but_not_the_training(
    small_disk, monkeypatch
):
    errors = []
    monkeypatch.setattr(
        "absl.logging.error", lambda form, *values: errors.append(form % values)
    )
    run_dir = str(small_disk)
    log = RunLog.open(run_dir, 0)
    log.write("train", 2, FIGURES)
    log.write_event("start", 0)
    filler = small_disk / "other"
    filler.write_bytes(bytes(small_disk.free()))
    # Each file grows to the end of its last page, within a line.
    for step in range(4, 400, 2):
        log.write("train", step, FIGURES)
        log.write_event("stop", step)
    for file in ("metrics.jsonl", "events.jsonl", "tensorboard"):
        told = [e for e in errors if file in e]
        assert told
        assert all("NOT WRITTEN" in e and "No space" in e for e in told)
        assert not any("same command" in e for e in told)
    assert not (small_disk / "metrics.jsonl").read_text().endswith("\n")
    assert not (small_disk / "events.jsonl").read_text().endswith("\n")
    with pytest.raises(UserError, match=r"all lines of .* must be written"):
        log.finish()

    filler.unlink()
    del errors[:]
    for step in (400, 402):
        log.write("train", step, FIGURES)
        log.write_event("stop", step)

    assert not errors
    log.finish()
    assert steps_of(read_metrics(run_dir)) == list(range(2, 404, 2))
    assert steps_of(read_events(run_dir)) == [0, *range(4, 404, 2)]
    assert [step for step, _, _ in scalars_in(small_disk)][-2:] == [400, 402]


def test_files_of_tensorboard_are_bounded(monkeypatch, tmp_path):
    """On gs://, each line uploads its file again."""
    monkeypatch.setattr(run_log, "LINES_PER_FILE", 2)
    log = RunLog.open(str(tmp_path), 0)
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


def test_files_of_metrics_and_events_are_bounded_on_gs(monkeypatch, tmp_path):
    """Each line uploads its file again. Readers join the files."""
    monkeypatch.setattr(run_log, "LINES_PER_FILE", 3)
    run_dir = f"file://{tmp_path}"  # a remote file system for TensorFlow

    def files():
        return {
            path.name: len(list(filter(None, path.read_text().split("\n"))))
            for path in tmp_path.glob("*.jsonl*")
        }

    log = RunLog.open(run_dir, 0)
    for step in range(1, 8):
        log.write("train", step, FIGURES)
        log.write_event("checkpoint", step)
    parts = {"": 3, ".1": 3, ".2": 1}
    assert files() == {
        f"{name}.jsonl{part}": lines
        for name in ("metrics", "events")
        for part, lines in parts.items()
    }
    assert steps_of(read_metrics(run_dir)) == [*range(1, 8)]
    assert steps_of(read_events(run_dir)) == [*range(1, 8)]

    # A new process goes back to step 5, and begins the next part.
    log = RunLog.open(run_dir, 5)
    log.write_event("resume", 5)
    log.write("train", 6, FIGURES)
    assert steps_of(read_metrics(run_dir)) == [1, 2, 3, 4, 5, 6]
    assert steps_of(read_events(run_dir)) == [*range(1, 8), 5]
    assert files()["metrics.jsonl"] == 5 and files()["metrics.jsonl.1"] == 1
    assert "metrics.jsonl.2" not in files()
    assert files()["events.jsonl.2"] == 2

    # The same process goes back, as after a divergence.
    log.rewind(3)
    log.write("train", 4, FIGURES)
    assert steps_of(read_metrics(run_dir)) == [1, 2, 3, 4]


def test_an_interrupted_rewind_is_finished(monkeypatch, tmp_path):
    monkeypatch.setattr(run_log, "LINES_PER_FILE", 1)
    run_dir = f"file://{tmp_path}"
    log = RunLog.open(run_dir, 0)
    for step in (2, 4, 6):
        log.write("train", step, FIGURES)
    removed, remove = [], run_log.remove

    def remove_and_stop(path):
        remove(path)
        removed.append(path)
        if len(removed) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_log, "remove", remove_and_stop)
        log.rewind(4)
    RunLog.open(run_dir, 4)
    assert steps_of(read_metrics(run_dir)) == [2, 4]


class Heap(ctypes.Structure):
    """`struct mallinfo2` of glibc; `uordblks` is the number of bytes in use."""

    _fields_ = (
        *((f"other{n}", ctypes.c_size_t) for n in range(7)),
        ("uordblks", ctypes.c_size_t),
        *((f"other{n}", ctypes.c_size_t) for n in (8, 9)),
    )


def test_lines_leave_nothing_in_memory(tmp_path):
    """TensorFlow keeps 600 bytes of each Python number in a summary."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        pytest.skip("needs glibc 2.33")
    libc.mallinfo2.restype = Heap
    numbers = itertools.count(1)

    def measure_growth(write):
        """The bytes that ten calls of `write` leave in memory."""
        used = []
        for _ in range(5):
            for step in range(10):
                metrics = {f"m{n}": next(numbers) + 1 / 3 for n in range(40)}
                write("train", step, metrics)
            gc.collect()
            used.append(libc.mallinfo2().uordblks)
        return min(b - a for a, b in itertools.pairwise(used))

    def write_python_numbers(name, step, metrics):
        for key, value in metrics.items():
            tf.summary.scalar(f"{name}/{key}", value, step)

    log = RunLog.open(str(tmp_path / "log"), 0)
    assert measure_growth(log.write) < 50_000
    with tf.summary.create_file_writer(str(tmp_path / "other")).as_default():
        assert measure_growth(write_python_numbers) > 200_000
