"""Two trainers on one output directory, on disk and on gs://.

A scheduler may start a job twice, and a stopped process may come back.
"""

import json
import signal
import time

import pytest

from albert_tf.runs.log import read_events
from tests.helpers import tiny_run
from tests.helpers.fake_gcs import Rule
from tests.helpers.run_processes import (
    PATIENCE_S,
    RunProcesses,
    check_same_run,
)

pytestmark = pytest.mark.slow

CHECKPOINTS = [0, 4, 8, 12]


def start(records, run_dir, directory):
    """Starts a trainer; its messages are in `directory`."""
    directory.mkdir()
    config = tiny_run.make_config(records, run_dir)
    return RunProcesses(config, directory)


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def check_events_of_the_last(run_dir):
    """The last trainer's events are complete and in order, with one finish."""
    events = read_events(run_dir)
    kinds = [event["event"] for event in events]
    begin = max(n for n, k in enumerate(kinds) if k in ("start", "resume"))
    first = events[begin]["step"] + (kinds[begin] == "resume")
    regular = [e for e in events[begin + 1 :] if not e.get("best")]
    assert [(e["event"], e["step"]) for e in regular] == [
        *(("checkpoint", step) for step in CHECKPOINTS if step >= first),
        ("finish", 12),
    ]
    assert kinds.count("finish") == 1


def test_one_of_two_trainers_started_at_once_is_refused_on_gs(
    storage, source, tiny_records, tmp_path
):
    run_dir = "gs://bucket/run"
    trainers = [start(tiny_records, run_dir, tmp_path / name) for name in "ab"]
    statuses = [trainer.wait()[0] for trainer in trainers]
    logs = [trainer.log() for trainer in trainers]
    assert sorted(statuses) == [0, 1], logs
    refused = logs[statuses.index(1)]
    assert "must be used by one command at a time" in refused
    assert "Traceback" not in "".join(logs)
    check_same_run(run_dir, source)
    check_events_of_the_last(run_dir)


def test_a_stopped_trainer_keeps_its_directory_on_disk(
    source, tiny_records, tmp_path
):
    run_dir = str(tmp_path / "run")
    first = start(tiny_records, run_dir, tmp_path / "a")
    first.wait_for_step(4)
    first.signal(signal.SIGSTOP)
    try:
        second = start(tiny_records, run_dir, tmp_path / "b")
        assert second.wait() == [1]
        assert "must be used by one command at a time" in second.log()
    finally:
        first.signal(signal.SIGCONT)
    assert first.wait() == [0]
    check_same_run(run_dir, source)
    check_events_of_the_last(run_dir)


def test_a_stopped_trainer_ends_when_it_comes_back_on_gs(
    storage, source, tiny_records, tmp_path
):
    """It overwrites the log once, and its successor restores the log.

    It is stopped between its check of ownership and its upload. The successor
    is stopped, too, so that the first one returns before the run is complete.
    """
    run_dir = "gs://bucket/run"
    trainers = []

    def start_and_stop(name, log, skip):
        """Stops a trainer where it begins an upload of its log."""
        trainer = start(tiny_records, run_dir, tmp_path / name)
        trainers.append(trainer)
        pid = trainer.processes[0].pid
        stop = Rule(
            "start",
            log,
            skip=skip,
            times=1,
            signalled=pid,
            signal=signal.SIGSTOP,
        )
        storage.set_rules([stop])
        wait_until(lambda: storage.num_faults() or not trainer.is_running())
        assert trainer.is_running(), trainer.log()
        return trainer

    try:
        first = start_and_stop("a", "metrics.jsonl", 1)
        second = start_and_stop("b", "events.jsonl", 1)
        owner = json.loads(storage.read("run/owner.json")[""])
        assert owner["pid"] == second.processes[0].pid
        before = storage.read("run/metrics.jsonl")
        first.signal(signal.SIGCONT)
        assert first.wait() == [1]
        assert "which has taken it over" in first.log()
        assert "Traceback" not in first.log()
        assert storage.read("run/metrics.jsonl") != before
        second.signal(signal.SIGCONT)
        assert second.wait() == [0]
    finally:
        for trainer in trainers:
            trainer.kill()
    check_same_run(run_dir, source)
    check_events_of_the_last(run_dir)
    assert not storage.read("run/owner.json")
