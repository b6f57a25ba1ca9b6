"""Messages about scheduled changes within a run."""

import pytest

from albert_tf.config import PretrainingConfig
from albert_tf.training import cost
from albert_tf.training.progress import BatchContent, Progress
from albert_tf.training.switches import DropoutSwitch


@pytest.mark.parametrize("can_reset", [True, False])
def test_a_change_of_dropout_is_compared(
    can_reset, monkeypatch, tmp_path, caplog
):
    """Without memory on a device whose peak includes the time before."""
    caplog.set_level("INFO", "absl")
    resets = []

    def reset():
        resets.append(1)
        return can_reset

    monkeypatch.setattr(cost, "reset_peak_memory", reset)
    config = PretrainingConfig.from_dict(
        {"training": {"dropout_schedule": "0:0.1,4:0.0"}}
    )
    progress = Progress(
        8, lambda step: BatchContent(1, 1), 1, None, str(tmp_path), str
    )
    monkeypatch.setattr(progress, "was_steady", True)
    events = []
    switch = DropoutSwitch(
        config, progress, lambda kind, **facts: events.append((kind, facts))
    )
    for step, rate in ((2, 0.1), (4, 0.1), (6, 0.0)):
        switch.on_loop_end(step, {"step_seconds_median": 1, "dropout": rate})

    assert events == [("dropout", {"before": 0.1, "after": 0.0})]
    assert resets == [1]
    (line,) = (x for x in caplog.messages if x.startswith("dropout 0.1 -> 0:"))
    assert ("peak memory of" in line) == can_reset
