import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
import tiny_run

from albert_tf import train
from albert_tf.errors import UserError
from albert_tf.run_log import read_metrics

REPOSITORY = pathlib.Path(__file__).parents[1]
TIMING = ("steps_per_second", "tokens_per_second")


def test_dropout_is_removed_where_the_schedule_says(tiny_records, tmp_path):
    """The boundary, 5, is no multiple of steps_per_loop, 2."""
    config = tiny_run.make_config(
        tiny_records, tmp_path, dropout_schedule="0:0.1,5:0.0"
    )
    train.train(config)
    dropout = {
        line["step"]: line["dropout"]
        for line in read_metrics(str(tmp_path))
        if line["split"] == "train"
    }
    assert dropout == {
        2: 0.1, 4: 0.1, 5: 0.1, 6: 0.0, 8: 0.0, 10: 0.0, 12: 0.0
    }  # fmt: skip


def test_training_learns(tiny_records, tmp_path):
    config = tiny_run.make_config(
        tiny_records, tmp_path, num_train_steps=40, steps_per_loop=4
    )
    train.train(config)
    losses = [
        line["masked_lm_loss"]
        for line in read_metrics(str(tmp_path))
        if line["split"] == "train"
    ]
    # A model of uniform guesses stands at ln 400 = 5.99.
    assert losses[0] == pytest.approx(np.log(400), abs=0.15)
    assert losses[-1] < losses[0] - 0.3


def lines_without_timing(run_dir):
    return [
        {name: value for name, value in line.items() if name not in TIMING}
        for line in read_metrics(str(run_dir))
    ]


def weights_of(run_dir):
    newest = tf.train.latest_checkpoint(run_dir / "checkpoints")
    reader = tf.train.load_checkpoint(newest)
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if name.startswith("variables/")
    }


def start(config, tmp_path, **environment):
    flags = tiny_run.as_flags(config, tmp_path / "model.json")
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        **environment,
    }
    # A file, since nobody empties a pipe.
    with open(tmp_path / "log", "a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "albert_tf.run_pretraining", *flags],
            env=environment,
            stderr=log,
        )


def log_of(tmp_path):
    return (tmp_path / "log").read_text()[-5000:]


def wait_for_log(tmp_path, text):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if text in log_of(tmp_path):
            return
        time.sleep(0.05)
    raise AssertionError(f"no {text!r} within 120 s")


def wait_for_step(run_dir, step):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        lines = read_metrics(str(run_dir))
        if lines and lines[-1]["step"] >= step:
            return
        time.sleep(0.02)
    raise AssertionError(f"no step {step} within 120 s")


def test_a_killed_or_stopped_run_ends_as_one_left_alone(tiny_records, tmp_path):
    """Weights, moments and logged figures are the same to the last bit."""

    def settings(name):
        return tiny_run.make_config(
            tiny_records,
            tmp_path / name,
            num_train_steps=400,
            save_checkpoints_steps=50,
            steps_per_loop=10,
            eval_every_n_steps=100,
            dropout_schedule="0:0.1,200:0.0",
        )

    alone = start(settings("alone"), tmp_path)
    assert alone.wait() == 0, log_of(tmp_path)

    killed = start(settings("stopped"), tmp_path)
    wait_for_step(tmp_path / "stopped", 80)
    killed.send_signal(signal.SIGKILL)
    killed.wait()

    stopped = start(settings("stopped"), tmp_path)
    wait_for_step(tmp_path / "stopped", 160)
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait() == 128 + signal.SIGTERM, log_of(tmp_path)

    ended_at = read_metrics(str(tmp_path / "stopped"))[-1]["step"]
    assert 160 <= ended_at < 400, "the signals must have cut the run short"
    final = start(settings("stopped"), tmp_path)
    assert final.wait() == 0, log_of(tmp_path)

    assert lines_without_timing(tmp_path / "stopped") == lines_without_timing(
        tmp_path / "alone"
    )
    expected = weights_of(tmp_path / "alone")
    resumed = weights_of(tmp_path / "stopped")
    assert expected.keys() == resumed.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)


def test_a_second_signal_does_not_wait_for_the_loop(tiny_records, tmp_path):
    """A loop that takes minutes ends by the second, with its signal."""
    run = start(
        tiny_run.make_config(
            tiny_records,
            tmp_path / "run",
            num_train_steps=10**6,
            steps_per_loop=10**6,
            save_checkpoints_steps=10**6,
            eval_input_file=(),
        ),
        tmp_path,
    )
    wait_for_log(tmp_path, "tracing the step")
    run.send_signal(signal.SIGTERM)
    wait_for_log(tmp_path, "signal 15: stopping")
    time.sleep(1)
    assert run.poll() is None
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=20) == 128 + signal.SIGINT


def test_two_workers_give_what_one_process_gives(tiny_records, tmp_path):
    # Dropout's masks differ by replica, as they must.
    settings = {"dropout_schedule": "0:0.0"}
    config = tiny_run.make_config(
        tiny_records, tmp_path / "alone", num_train_steps=4, **settings
    )
    train.train(config)
    ports = []
    for _ in range(2):
        with socket.socket() as listener:
            listener.bind(("localhost", 0))
            ports.append(listener.getsockname()[1])
    cluster = {"worker": [f"localhost:{port}" for port in ports]}
    workers = [
        start(
            tiny_run.make_config(
                tiny_records,
                tmp_path / "together",
                num_train_steps=4,
                strategy="multi_worker",
                **settings,
            ),
            tmp_path,
            TF_CONFIG=json.dumps(
                {"cluster": cluster, "task": {"type": "worker", "index": i}}
            ),
        )
        for i in range(2)
    ]
    for worker in workers:
        assert worker.wait(timeout=300) == 0, log_of(tmp_path)

    alone = lines_without_timing(tmp_path / "alone")
    together = lines_without_timing(tmp_path / "together")
    assert len(alone) == len(together) == 3
    for expected, line in zip(alone, together, strict=True):
        assert line.pop("split") == expected.pop("split")
        assert line == pytest.approx(expected, rel=1e-4)
    # The second worker leaves nothing of its own behind.
    assert sorted(p.name for p in (tmp_path / "together").iterdir()) == sorted(
        p.name for p in (tmp_path / "alone").iterdir()
    )


def test_a_finished_run_started_again_trains_no_more(tiny_records, tmp_path):
    config = tiny_run.make_config(tiny_records, tmp_path)
    train.train(config)
    before = (tmp_path / "metrics.jsonl").read_text()

    assert train.train(config) == 0
    assert (tmp_path / "metrics.jsonl").read_text() == before


def test_a_batch_that_does_not_divide_names_the_nearest(tiny_records, tmp_path):
    config = tiny_run.make_config(
        tiny_records,
        tmp_path,
        global_batch_size=7,
        strategy="mirrored",
        num_logical_cpus=2,
    )
    with pytest.raises(UserError, match=r"7 and 2\. Nearest: 6, 8\."):
        train.train(config)
    assert not list(tmp_path.iterdir()), "refused before anything is written"


def test_the_run_of_another_architecture_is_refused_by_name(
    tiny_records, tmp_path
):
    config = tiny_run.make_config(
        tiny_records, tmp_path, num_train_steps=2, eval_input_file=()
    )
    train.train(config)
    before = (tmp_path / "config.json").read_text()
    other = tiny_run.make_config(tiny_records, tmp_path, intermediate_size=28)

    with pytest.raises(UserError, match="intermediate_size was 24 and"):
        train.train(other)
    assert (tmp_path / "config.json").read_text() == before


def test_a_diverged_run_stops_and_keeps_its_checkpoints(tiny_records, tmp_path):
    config = tiny_run.make_config(
        tiny_records,
        tmp_path,
        optimizer="adamw",
        learning_rate=1e30,
        num_train_steps=40,
        num_warmup_steps=20,
        save_checkpoints_steps=2,
        clip_norm=0.0,
    )
    with pytest.raises(UserError, match="loss and gradients must be finite"):
        train.train(config)
    assert tf.train.latest_checkpoint(tmp_path / "checkpoints")


def test_the_resolved_configuration_lies_beside_the_checkpoints(
    tiny_records, tmp_path
):
    config = tiny_run.make_config(
        tiny_records, tmp_path, num_train_steps=2, eval_input_file=()
    )
    train.train(config)

    assert json.loads((tmp_path / "config.json").read_text()) == (
        config.to_dict()
    )
    vocabulary = (tiny_records / "train" / "spiece.model").read_bytes()
    assert (tmp_path / "spiece.model").read_bytes() == vocabulary
