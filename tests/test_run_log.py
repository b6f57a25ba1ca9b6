import numpy as np
import tensorflow as tf

from albert_tf.run_log import Progress, RunLog, read_metrics

FIGURES = {"masked_lm_loss": 2.5}


def test_lines_after_the_checkpoint_are_dropped_on_resume(tmp_path):
    log = RunLog(str(tmp_path), 0)
    for step in (2, 4, 6):
        log.write("train", step, FIGURES)
    RunLog(str(tmp_path), 4).write("train", 5, FIGURES)

    assert [line["step"] for line in read_metrics(str(tmp_path))] == [2, 4, 5]


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path):
    log = RunLog(str(tmp_path), 0)
    log.write("train", 2, FIGURES)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"split": "train", "st')

    assert [line["step"] for line in read_metrics(str(tmp_path))] == [2]


def test_scalars_are_in_the_tensorboard_files(tmp_path):
    RunLog(str(tmp_path), 0).write("eval", 3, FIGURES)
    (file,) = (tmp_path / "tensorboard").iterdir()
    found = [
        (event.step, value.tag, float(tf.make_ndarray(value.tensor)))
        for event in tf.compat.v1.train.summary_iterator(str(file))
        for value in event.summary.value
    ]
    assert found == [(3, "eval/masked_lm_loss", 2.5)]


def step_times(*asked, wait=0.0):
    """Times of steps that waited `wait` seconds for their batch."""
    return np.array([[time, time + wait] for time in asked])


def test_the_time_to_go_leaves_compiling_out(monkeypatch, tmp_path):
    """10 s a step while compiling, 1 s then: 6 steps to go are 6 s."""
    lines = []
    monkeypatch.setattr(
        "absl.logging.info", lambda form, *values: lines.append(form % values)
    )
    figures = {
        "loss": 3.0,
        "masked_lm_loss": 2.5,
        "masked_lm_accuracy": 0.25,
        "sentence_order_loss": 0.5,
        "sentence_order_accuracy": 0.75,
        "learning_rate": 0.001,
        "dropout": 0.1,
    }
    progress = Progress(12, 4000, 10**12, None, str(tmp_path))
    progress.add_steps(step_times(0, 10), ended=20, steady=False)
    assert progress.advance()["steps_per_second"] == 0.1
    progress.add_steps(step_times(20, 21), ended=22, steady=True)
    assert progress.advance()["tokens_per_second"] == 4000
    # 78 s of evaluation
    progress.add_steps(step_times(100, 101), ended=102, steady=True)
    progress.log(6, {**figures, **progress.advance()})

    assert lines == [
        "step 6/12 (50.0%) | loss 3.000 (mlm 2.500 (25.0%), sop 0.500 "
        "(75.0%)) | lr 1.00e-03 | dropout 0.1 | 1.00 steps/s | "
        "4.0k tokens/s | ETA 0m06s"
    ]
