"""Rates and remaining time, compared with values by hand."""

import pytest

from albert_tf.input.record_sets import RecordSet
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.progress import TIMING_METRICS, Progress, Times
from tests.helpers import tiny_run


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
    progress = progress_of(tmp_path, num_steps=12, records=UNKNOWN)
    compiling = {"num_compiling": 1, "compiling_seconds": 19.0}
    compiled = progress.advance(Times(**compiling))
    progress.log(1, {**figures, **compiled})
    both = progress.advance(Times(1, 1.0, **compiling))
    assert both["steps_per_second"] == 0.1
    progress.log(2, {**figures, **both})
    steps = progress.advance(Times(2, 2.0))
    assert steps["tokens_per_second"] == 256
    progress.log(6, {**figures, **steps})

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


UNKNOWN = RecordSet({"a": 1})
FILLED = RecordSet({"a": 1}, useful_share=0.75)


def progress_of(run_dir, peak=None, num_steps=100, records=FILLED):
    """The progress of steps of 8 examples of 32 tokens."""
    config = tiny_run.make_config("", run_dir, num_train_steps=num_steps)
    return Progress(config, Costly(config), records, peak)


def test_metrics_of_steps_by_hand(tmp_path):
    """21 steps of 11 s on average."""
    progress = progress_of(tmp_path, peak=10**12)
    figures = progress.advance(Times(21, 231.0, 2.5))

    assert figures == {
        "loop_seconds": 231.0,
        "cpu_seconds": 2.5,
        "steps_per_second": pytest.approx(1 / 11),
        "tokens_per_second": pytest.approx(256 / 11),
        "useful_tokens_per_second": pytest.approx(192 / 11),
        "useful_share": 0.75,
        "tflops": pytest.approx(1 / 11),
        "mfu": pytest.approx(1 / 11),
    }
    others = {"compile_seconds", "evaluation_seconds"}
    assert set(figures) - {"useful_share"} == set(TIMING_METRICS) - others


def test_the_content_of_batches_is_that_of_their_records(tmp_path):
    progress = progress_of(tmp_path, records=UNKNOWN)
    figures = progress.advance(Times(1, 2.0))
    assert not {"useful_share", "useful_tokens_per_second"} & set(figures)

    packed = RecordSet({"a": 1}, useful_share=0.99)
    progress = progress_of(tmp_path, records=packed)
    figures = progress.advance(Times(1, 2.0))
    assert figures["tokens_per_second"] == 128
    assert figures["useful_tokens_per_second"] == pytest.approx(0.99 * 128)
    # Without a known peak.
    assert figures["tflops"] == 0.5
    assert "mfu" not in figures


@pytest.mark.parametrize(
    ("times", "useful"),
    [
        (Times(3, 6.0, 0.0, 1, 9.0), 8),  # a step takes 2 s on average
        (Times(1, 2.0, 0.0, 2, 17.0), 6),  # two programs
        (Times(0, 0.0, 0.0, 1, 9.0), 0),  # a step's time is not known yet
        (Times(1, 1.0, 0.0, 1, 0.5), 1.5),
    ],
)
def test_a_step_that_compiles_takes_as_long_as_the_others(
    tmp_path, times, useful
):
    """The rest of its time is that of compiling."""
    progress = progress_of(tmp_path)
    figures = progress.advance(times)
    assert figures["loop_seconds"] == useful
    assert figures["compile_seconds"] == times.total - useful

    assert progress.advance(Times(2, 4.0))["loop_seconds"] == 4
    # The speed is known from earlier lines now.
    again = progress.advance(Times(num_compiling=1, compiling_seconds=9.0))
    assert 1 <= again["loop_seconds"] <= 2
