"""Rates and remaining time, compared with values by hand."""

import json

import numpy as np
import pytest

from albert_tf.input.record_sets import Phase, RecordSet, TrainingData
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.progress import TIMING_METRICS, Progress, StepTimes
from tests.helpers import tiny_run


def step_times(*asked, wait=0.0):
    """Times of steps that waited `wait` seconds for their batch."""
    return np.array([[time, time + wait, time] for time in asked])


def times_of(steps, ended, *compiling):
    """The times of the steps of one call, and of steps that compiled."""
    times = StepTimes(compiling_seconds=list(compiling))
    times.add(steps, ended, cpu_seconds=2.5)
    return times


def test_the_remaining_time_excludes_compiling(monkeypatch, tmp_path):
    """A step takes 19 s with compiling, then 1 s; 10 and 6 steps remain.

    After the step that compiled, no speed is known.
    """
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
    progress = progress_of(tmp_path, num_steps=12, data=UNKNOWN)
    compiled = progress.advance(StepTimes(compiling_seconds=[19.0]))
    progress.log(1, {**figures, **compiled})
    times = times_of(step_times(19), 20, 19.0)
    both = progress.advance(times)
    assert both["steps_per_second"] == 0.1
    progress.log(2, {**figures, **both})
    times = times_of(step_times(20, 21), 22)
    assert progress.advance(times)["tokens_per_second"] == 256
    # 78 s of evaluation
    times = times_of(step_times(100, 101), 102)
    progress.log(6, {**figures, **progress.advance(times)})

    etas = [line.rpartition("ETA ")[2] for line in lines]
    assert etas == ["unknown", "0m10s", "0m06s"]
    assert lines[-1] == (
        "step 6/12 (50.0%) | loss 3.000 (mlm 2.500 (25.0%), sop 0.500 "
        "(75.0%)) | lr 1.00e-03 | dropout 0.1 | 1.00 steps/s | "
        "256 tokens/s | ETA 0m06s"
    )


class Costly(Pretraining):
    """A step has 10^12 operations."""

    def flops_per_step(self):
        return 10**12


def records_of(step, **content):
    """Records from a step on."""
    return Phase(step, "", RecordSet({"a": 1}, (("a",),), **content))


UNKNOWN = TrainingData((records_of(0),))
FILLED = TrainingData((records_of(0, useful_share=0.75),))


def progress_of(run_dir, peak=None, num_steps=100, data=FILLED):
    """The progress of steps of 8 examples of 32 tokens."""
    config = tiny_run.make_config("", run_dir, num_train_steps=num_steps)
    return Progress(config, Costly(config), data, peak)


def test_metrics_of_steps_by_hand(tmp_path):
    """Steps of 1, 2, ... 21 s, 231 s in total; each waits 0.5 s for data."""
    progress = progress_of(tmp_path, peak=10**12)
    asked = np.cumsum(np.arange(21))
    times = times_of(step_times(*asked, wait=0.5), 231.0)
    figures = progress.advance(times)

    assert figures == {
        "loop_seconds": 231.0,
        "cpu_seconds": 2.5,
        "steps_per_second": pytest.approx(1 / 11),
        "tokens_per_second": pytest.approx(256 / 11),
        "useful_tokens_per_second": pytest.approx(192 / 11),
        "useful_share": 0.75,
        "tflops": pytest.approx(1 / 11),
        "mfu": pytest.approx(1 / 11),
        "input_bound_share": pytest.approx(10.5 / 231),
        "step_seconds_median": 11.0,
        "step_seconds_p95": pytest.approx(20.0),
    }
    others = {"compile_seconds", "evaluation_seconds"}
    assert set(figures) - {"useful_share"} == set(TIMING_METRICS) - others


def test_a_batch_that_arrives_during_the_previous_step_costs_nothing():
    """Each step takes 2 s and asks for its batch when the last one begins."""
    early = np.array([[0.0, 1.0, 1.0], [1.0, 2.5, 3.0], [3.0, 4.5, 5.0]])
    assert times_of(early, 7.0).input_seconds == 1.0  # for the first batch
    late = np.array([[0.0, 1.0, 1.0], [1.0, 4.0, 3.0], [4.0, 6.0, 6.0]])
    assert times_of(late, 8.0).input_seconds == 2.0


def test_the_content_of_batches_is_that_of_their_records(tmp_path):
    """From step 10 on, they are packed."""
    packed = records_of(10, useful_share=0.99)
    data = TrainingData((*UNKNOWN.phases, packed))
    progress = progress_of(tmp_path, data=data)
    progress.begin_loop(0)
    times = times_of(step_times(0), 2)
    figures = progress.advance(times)
    assert not {"useful_share", "useful_tokens_per_second"} & set(figures)

    progress.begin_loop(10)
    times = times_of(step_times(2), 4)
    figures = progress.advance(times)
    assert figures["tokens_per_second"] == 128
    assert figures["useful_tokens_per_second"] == pytest.approx(0.99 * 128)
    # Without a known peak.
    assert figures["tflops"] == 0.5
    assert "mfu" not in figures


@pytest.mark.parametrize(
    ("compiling", "steady", "useful"),
    [
        ([9.0], [1.0, 1.0, 4.0], 7),  # a step usually takes 1 s
        ([9.0, 8.0], [2.0], 6),  # two processes
        ([9.0], [], 0),  # how long a step takes is not known yet
        ([0.5], [1.0], 1.5),
    ],
)
def test_a_step_that_compiles_takes_as_long_as_the_others(
    tmp_path, compiling, steady, useful
):
    """The rest of its time is that of compiling."""
    progress = progress_of(tmp_path)
    figures = progress.advance(StepTimes(steady, compiling))
    total = sum(compiling) + sum(steady)
    assert figures["loop_seconds"] == useful
    assert figures["compile_seconds"] == total - useful

    assert progress.advance(StepTimes([2.0, 2.0]))["loop_seconds"] == 4
    # The speed is known from earlier lines now.
    again = progress.advance(StepTimes(compiling_seconds=[9.0]))
    assert 1 <= again["loop_seconds"] <= 2


def test_a_loop_that_was_stopped_counts_the_steps_of_both_processes(tmp_path):
    """4 steps of 2 s, then 2 of 1 s, each with 6 s more for compiling."""
    times = StepTimes(compiling_seconds=[8.0])
    times.add(step_times(8, 10, 12, wait=1), 14, cpu_seconds=5)
    times = StepTimes(**json.loads(json.dumps(vars(times))))
    times.compiling_seconds.append(7.0)
    times.add(step_times(107), 108, cpu_seconds=2)
    figures = progress_of(tmp_path).advance(times)

    assert figures["steps_per_second"] == pytest.approx(6 / 22)
    # 7 s, and two steps of 2 s, the median.
    assert figures["loop_seconds"] == 11
    assert figures["compile_seconds"] == 11
    assert figures["cpu_seconds"] == 7
    # Of the steps that compiled nothing.
    assert figures["input_bound_share"] == pytest.approx(3 / 7)
