"""Short runs: interrupted evaluations, profiles, kept checkpoints, phases."""

import shutil
import time

import keras
import pytest
import tensorflow as tf

from albert_tf.cluster.preemption import StopRequest
from albert_tf.cluster.strategy import make_strategy
from albert_tf.errors import UserError
from albert_tf.input.record_sets import find_held_out, find_training_data
from albert_tf.runs.checkpoint_files import list_checkpoints
from albert_tf.runs.log import read_events, read_metrics
from albert_tf.training import evaluate
from albert_tf.training.pretraining import Pretraining
from albert_tf.training.train import open_run, train
from tests.helpers import tiny_run
from tests.helpers.run_processes import RunProcesses, lines_without_timing


def steps_of(directory):
    return [c.step for c in list_checkpoints(str(directory))]


def run_with(config, stop):
    return open_run(
        config,
        Pretraining(config),
        find_training_data(config),
        find_held_out(config),
        make_strategy(config.distribution),
        stop,
    ).train()


@pytest.mark.slow
@pytest.mark.parametrize("cut_at", [4, 12])
def test_an_interrupted_evaluation_is_repeated_by_the_next_process(
    tiny_records, tmp_path, monkeypatch, cut_at
):
    """Even if that process is interrupted, too. It is logged once."""

    def config(name):
        return tiny_run.make_config(
            tiny_records, tmp_path / name, eval_every_n_steps=4
        )

    train(config("alone"))
    evaluate_whole = evaluate.Evaluator._collect
    for _ in range(2):
        stop = StopRequest(tf.Variable(0.0))

        def evaluate_and_stop(evaluator, stop=stop):
            seen = read_metrics(str(tmp_path / "cut"))
            if seen[-1]["step"] == cut_at:
                stop.set("a test", 143)
            return evaluate_whole(evaluator)

        monkeypatch.setattr(evaluate.Evaluator, "_collect", evaluate_and_stop)
        assert run_with(config("cut"), stop) == 143
        assert lines_without_timing(tmp_path / "cut")[-1]["split"] == "train"
        assert steps_of(tmp_path / "cut/checkpoints")[-1] == cut_at
    monkeypatch.setattr(evaluate.Evaluator, "_collect", evaluate_whole)
    assert train(config("cut")) == 0
    assert lines_without_timing(tmp_path / "cut") == lines_without_timing(
        tmp_path / "alone"
    )


@pytest.mark.slow
@pytest.mark.parametrize("failed_at", [4, 12])
def test_after_a_failed_evaluation_only_the_evaluation_is_repeated(
    tiny_records, tmp_path, failed_at
):
    """A shard of the held-out records is damaged, and later repaired."""
    shutil.copytree(tiny_records, tmp_path / "records")
    (shard,) = (tmp_path / "records/eval").glob("*.tfrecord")

    def config(name):
        return tiny_run.make_config(
            tmp_path / "records",
            tmp_path / name,
            eval_every_n_steps=failed_at,
            save_checkpoints_steps=100,
        )

    train(config("alone"))
    intact = shard.read_bytes()
    shard.write_bytes(intact[:100])
    for _ in range(2):
        with pytest.raises(UserError, match=f"record 0 of {shard}"):
            train(config("failed"))
        checkpoints = list_checkpoints(str(tmp_path / "failed/checkpoints"))
        assert [c.step for c in checkpoints] == [0, failed_at]
        assert checkpoints[-1].notes["to_evaluate"]
    shard.write_bytes(intact)
    assert train(config("failed")) == 0
    assert lines_without_timing(tmp_path / "failed") == lines_without_timing(
        tmp_path / "alone"
    )


@pytest.mark.parametrize("steps", ["4:6", "8:99"])
def test_profiled_steps_leave_a_trace(tiny_records, tmp_path, steps):
    config = tiny_run.make_config(
        tiny_records, tmp_path, profile_steps=steps, eval_input_file=()
    )
    train(config)
    traces = list((tmp_path / "tensorboard").rglob("*.xplane.pb"))
    assert traces and all(trace.stat().st_size for trace in traces)
    assert "profile" in [e["event"] for e in read_events(str(tmp_path))]


@pytest.mark.slow
def test_a_run_keeps_the_newest_checkpoints_multiples_and_the_best(
    tiny_records, tmp_path
):
    config = tiny_run.make_config(
        tiny_records,
        tmp_path,
        num_train_steps=20,
        save_checkpoints_steps=2,
        keep_checkpoint_max=2,
        keep_every_n_steps=8,
        eval_every_n_steps=4,
    )
    train(config)
    assert steps_of(tmp_path / "checkpoints") == [8, 16, 18, 20]
    held_out = {
        line["loss"]: line["step"]
        for line in read_metrics(str(tmp_path))
        if line["split"] == "eval"
    }
    assert len(held_out) == 5
    assert steps_of(tmp_path / "best") == [held_out[min(held_out)]]


@pytest.mark.slow
def test_time_between_processes_does_not_count_as_goodput(
    tiny_records, tmp_path
):
    config = tiny_run.make_config(
        tiny_records, tmp_path, num_train_steps=40, eval_input_file=()
    )
    stop = StopRequest(tf.Variable(0.0))
    stop.set("a test", 143)
    assert (
        open_run(
            config,
            Pretraining(config),
            find_training_data(config),
            None,
            make_strategy(config.distribution),
            stop,
        ).train()
        == 143
    )
    time.sleep(5)
    # As if its command had begun 1000 s before.
    train(config, began=time.time() - 1000)
    _, resume = (
        event
        for event in read_events(str(tmp_path))
        if event["event"] in ("start", "resume")
    )
    assert 1000 < resume["start_up_s"] < 2000
    lines = read_metrics(str(tmp_path))
    goodputs = [line["goodput"] for line in lines[1:]]
    useful = sum(line["loop_seconds"] for line in lines)
    assert all(0 < goodput < 1 for goodput in goodputs)
    assert goodputs[-1] < useful / 5
    # Both steps of the first loop were the first ones of a process.
    assert lines[0]["cpu_seconds"] == 0
    assert all(line["cpu_seconds"] > 0 for line in lines[1:])
    # So how long a step takes was not known yet.
    assert lines[0]["loop_seconds"] == lines[0]["goodput"] == 0
    # The first process has trained the first step of the first loop.
    seconds = lines[0]["compile_seconds"]
    assert seconds * lines[0]["steps_per_second"] == pytest.approx(2)


@pytest.mark.slow
def test_a_data_schedule_gives_the_same_run_however_it_is_interrupted(
    tiny_records, tiny_dynamic_records, tmp_path
):
    """Phases of masked records, of records without masks, of masked ones."""

    def run(name):
        return RunProcesses(
            tiny_run.make_config(
                tiny_records,
                tmp_path / name,
                input_file=(),
                dataset=(
                    f"a={tiny_records}/train/*.tfrecord",
                    f"b={tiny_dynamic_records}/train/*.tfrecord",
                ),
                data_schedule="0:a,33:b,70:a",
                num_train_steps=120,
                steps_per_loop=10,
                save_checkpoints_steps=7,
            ),
            tmp_path,
        )

    alone, killed = run("alone"), run("killed")
    killed.wait_for_step(40)
    killed.kill()
    again = run("killed")
    assert again.wait() == alone.wait() == [0], again.log()
    lines = lines_without_timing(tmp_path / "alone")
    assert lines == lines_without_timing(tmp_path / "killed")
    steps = [line["step"] for line in lines if line["split"] == "train"]
    assert {33, 70} <= set(steps)
    switches = [
        (event["step"], event["name"])
        for event in read_events(str(tmp_path / "alone"))
        if event["event"] == "data"
    ]
    assert switches == [(33, "b"), (70, "a")]


@pytest.mark.slow
def test_a_start_logs_the_software_and_warns_if_it_has_changed(
    tiny_records, tmp_path, monkeypatch, caplog
):
    config = tiny_run.make_config(
        tiny_records, tmp_path, num_train_steps=2, eval_input_file=()
    )
    train(config)
    train(config)  # resumed after its last step
    assert "other software" not in caplog.text
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_a=1")
    train(config)
    (warning,) = [x for x in caplog.messages if "other software" in x]
    assert "(LIBTPU_INIT_ARGS: none before, now --xla_a=1)" in warning
    *_, first, last = (
        event["software"]
        for event in read_events(str(tmp_path))
        if "software" in event
    )
    assert first["keras"] == keras.__version__
    assert last == {**first, "LIBTPU_INIT_ARGS": "--xla_a=1"}
